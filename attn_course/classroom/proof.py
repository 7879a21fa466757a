"""The proof that a problem works: its stub earns nothing, every correct solution earns all points,
and every wrong one loses those of the property that it is rejected for.
"""

from dataclasses import dataclass

from attn_course.exercises.exercise import Exercise, Solution
from attn_course.exercises.proof import REFERENCE, STUB, Proven

from .points import Points
from .scoring import examined, score


@dataclass(frozen=True)
class ProvenAnswer(Proven):
    """One examined solution of a problem, and its points.

    earns: the points that a wrong solution's section states, or None.
    """

    points: Points
    earns: int | None = None

    @property
    def holds(self) -> bool:
        if not super().holds or self.earns not in (None, self.points.earned):
            return False
        if self.expected in ("", "waiting"):
            return self.points.earned == (0 if self.expected else self.points.possible)
        return loses(self.points, self.expected)


def loses(points: Points, rejected_for: str) -> bool:
    """Whether a wrong solution loses points, those of the property that it breaks among them."""
    mine = {row.property for row in points.rows if row.property.partition(":")[0] == rejected_for}
    return bool(points.lost) and (not mine or bool(mine & set(points.lost)))


def prove_problem(problem: Exercise) -> list[ProvenAnswer]:
    """Examine the stub, the reference, and every correct and wrong solution of a problem.

    The examination of a wrong solution ends with the first case that fails, unless its section
    states what it earns.
    """
    points = score(problem.name, problem.stub)
    found = "waiting" if points.earned == 0 else ""
    proven = [ProvenAnswer(problem.name, STUB, "waiting", found, points)]
    for one in (Solution(REFERENCE, problem.solution), *problem.correct, *problem.wrong):
        proven.append(_proven(problem, one))
    return proven


def _proven(problem: Exercise, one: Solution) -> ProvenAnswer:
    points, first = examined(problem, one.text, whole=one.earns is not None)
    found = first.failures[0].property if first.failures else ""
    return ProvenAnswer(problem.name, one.name, one.rejected_for, found, points, one.earns)
