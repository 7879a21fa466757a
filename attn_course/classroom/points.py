"""Points of an answer: plain data, and the rules that turn examined cases into points.

The rules, in the order in which they decide:

1. A stub, an answer that does not compile, and one that does not end earn nothing.
2. A property earns its points where it holds in every case, the hidden ones included.
3. `agrees` stands for every property without points of its own, and does not hold in a case with an
   access outside an array.
4. The properties of safety (SAFE) need one case with a right result: a kernel that computes nothing
   has nothing to keep safe.
5. Goals of counters need all else to hold.
6. Where a problem asks for a method (`Setup.method`), a kernel without it earns the points for a
   right result at most: no barrier, no race and no bank conflict cost nothing where no tile is.
7. Where a problem names a needed property, nothing is earned without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attn_course.exercises.exercise import GOAL, Exercise
from attn_course.exercises.judgement import Failure

SAFE = ("in bounds", "barriers", "no race", "initialised")
ENDS = ("compiles", "finishes")  # after a failure of these nothing more is examined
STUB = "the cell still holds the stub"


@dataclass(frozen=True)
class CaseOutcome:
    """One examined case: its label, whether it is hidden, and its failures."""

    label: str
    hidden: bool
    failures: tuple[Failure, ...]

    @property
    def without_method(self) -> Failure | None:
        """The failure that shows that the kernel does not use the method that is asked for."""
        return next((one for one in self.failures if one.method), None)

    def failed(self, *properties: str) -> Failure | None:
        """Return the first failure of one of these properties."""
        return next((one for one in self.failures if one.property in properties), None)


@dataclass(frozen=True)
class PropertyPoints:
    """What a property, or the goal of one counter, earned.

    Attributes:
        property: one of the judge's PROPERTIES, or GOAL and a counter's name.
        earned, possible: points.
        reason: why it is not earned, a text for a learner; "" where it is.
        label: of the case that shows it, or "". hidden: that case is a hidden one.
        line: of the answer's text, 0 where none is known.
        block: (x, y, z) of a thread block that shows it, or None.
    """

    property: str
    earned: int
    possible: int
    reason: str = ""
    label: str = ""
    hidden: bool = False
    line: int = 0
    block: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Points:
    """What an answer to one problem earned, property by property."""

    problem: str
    rows: tuple[PropertyPoints, ...]

    @property
    def earned(self) -> int:
        return sum(row.earned for row in self.rows)

    @property
    def possible(self) -> int:
        return sum(row.possible for row in self.rows)

    @property
    def lost(self) -> tuple[str, ...]:
        """The properties whose points are not earned."""
        return tuple(row.property for row in self.rows if row.earned < row.possible)

    def of(self, property: str) -> PropertyPoints:
        """Return the row of a property. Raises KeyError where it has no points."""
        for row in self.rows:
            if row.property == property:
                return row
        raise KeyError(property)


def nothing(problem: Exercise, reason: str) -> Points:
    """Return the points of an answer that earns none, for one reason."""
    rows = (_lost(name, n, reason) for name, n in problem.points.items())
    return Points(problem.name, tuple(rows))


def points_of(problem: Exercise, outcomes: Sequence[CaseOutcome]) -> Points:
    """Return the points for the examined cases of an answer that compiles."""
    for outcome in outcomes:
        if ended := outcome.failed(*ENDS):
            reason = f"{ended.property}: {ended.message}"
            rows = (_failed(name, n, ended, outcome, reason) for name, n in problem.points.items())
            return Points(problem.name, tuple(rows))
    rows = tuple(_row(problem, name, outcomes) for name in problem.points)
    points = Points(problem.name, rows)
    if problem.needed in points.lost:
        first = points.of(problem.needed)
        reason = f"nothing is earned before `{problem.needed}` holds: {first.reason}"
        rows = tuple(
            row if row.reason else _lost(row.property, row.possible, reason) for row in rows
        )
    return Points(problem.name, rows)


def _lost(name: str, most: int, reason: str) -> PropertyPoints:
    return PropertyPoints(name, 0, most, reason)


def ungraded_properties(problem: Exercise) -> tuple[str, ...]:
    """Return the properties without points of their own, for which `agrees` stands."""
    return tuple(name for name in SAFE if name not in problem.points)


def _row(problem: Exercise, name: str, outcomes: Sequence[CaseOutcome]) -> PropertyPoints:
    most = problem.points[name]
    for outcome in outcomes:
        if failure := _against(name, outcome, ungraded_properties(problem)):
            return _failed(name, most, failure, outcome, failure.message)
    for outcome in outcomes if name != "agrees" else ():
        if failure := outcome.without_method:
            reason = f"no points without the method that is asked for: {failure.message}"
            return _failed(name, most, failure, outcome, reason)
    if name in SAFE and all(one.failed("agrees", "in bounds") for one in outcomes):
        return _lost(name, most, "no case has a right result, so there is nothing to keep safe")
    return PropertyPoints(name, most, most)


def _failed(
    name: str, most: int, failure: Failure, outcome: CaseOutcome, reason: str
) -> PropertyPoints:
    where = outcome.label, outcome.hidden, failure.line, failure.block
    return PropertyPoints(name, 0, most, reason, *where)


def _against(name: str, outcome: CaseOutcome, ungraded: tuple[str, ...]) -> Failure | None:
    """Return what keeps a property from holding in a case."""
    if name == "agrees":
        return outcome.failed("agrees", "in bounds", *ungraded)
    if name == "counters" or name.startswith(GOAL):
        counter = name.removeprefix(GOAL)
        for failure in outcome.failures:
            if failure.property != "counters" or counter in ("counters", failure.counter):
                return failure
        return None
    return outcome.failed(name)
