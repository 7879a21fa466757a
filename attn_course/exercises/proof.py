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

    expected, found: "waiting" for the stub, "" for a pass, else the property that is named first.
    """

    exercise: str
    name: str
    expected: str
    found: str

    @property
    def holds(self) -> bool:
        return self.found == self.expected


def prove(exercise: Exercise) -> list[Proven]:
    """Examine the stub, the reference, and every correct and wrong solution of an exercise."""
    cases = [(STUB, exercise.stub, "waiting"), (REFERENCE, exercise.solution, "")]
    cases += [
        (one.name, one.text, one.rejected_for) for one in (*exercise.correct, *exercise.wrong)
    ]
    return [
        Proven(exercise.name, name, expected, _named(judge(exercise, text)))
        for name, text, expected in cases
    ]


def _named(judgement: Judgement) -> str:
    """What a proof calls an outcome."""
    if judgement.waiting:
        return "waiting"
    return judgement.first.property if judgement.first else ""
