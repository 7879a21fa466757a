"""The proof that an exercise works: every solution of its file is examined."""

from dataclasses import dataclass

from .examination import judge
from .exercise import Exercise
from .judgement import Judgement

REFERENCE = "reference"
STUB = "stub"


@dataclass(frozen=True)
class Proven:
    """One examined solution: its name, what must come of it, and what came.

    expected: "waiting" for the stub, "" for a correct solution, else the property to be named.
    """

    exercise: str
    name: str
    expected: str
    judgement: Judgement

    @property
    def found(self) -> str:
        """ "waiting", the property named first, or "" for a pass."""
        if self.judgement.waiting:
            return "waiting"
        return self.judgement.first.property if self.judgement.first else ""

    @property
    def holds(self) -> bool:
        return self.found == self.expected


def prove(exercise: Exercise) -> list[Proven]:
    """Examine the stub, the reference, and every correct and wrong solution of an exercise."""
    cases = [(STUB, exercise.stub, "waiting"), (REFERENCE, exercise.solution, "")]
    cases += [(one.name, one.text, "") for one in exercise.correct]
    cases += [(one.name, one.text, one.rejected_for) for one in exercise.wrong]
    return [
        Proven(exercise.name, name, expected, judge(exercise, text))
        for name, text, expected in cases
    ]
