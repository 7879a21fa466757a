"""Problem sets, their problems, and the cells of their notebooks.

A set's problems are the files of `exercises/assignments` whose names begin with its name;
`sets.toml` there gives its title, lesson and first words.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache

from kernelscope.errors import UserError

from attn_course.exercises.exercise import ASSIGNMENTS, Exercise, problem_names, read_exercise

SETS = ASSIGNMENTS / "sets.toml"
STATEMENT, NUMPY, SOLUTION, CHECK = "statement", "numpy", "solution", "check"
TEST, BONUS, TEXT, SETUP = "test", "bonus", "text", "setup"


class ProblemSetError(UserError, ValueError):
    """A problem set that does not exist; the message names those that do."""


@dataclass(frozen=True)
class SetCell:
    """A cell of a problem set's notebook.

    Attributes:
        grade_id: nbgrader's, unique in the notebook; the cell's id too.
        kind: STATEMENT, NUMPY, SOLUTION, CHECK, TEST, BONUS, TEXT or SETUP.
        problem: its name; "" for a cell of the set.
        property, points: of a TEST, which earns the points of one property.
    """

    grade_id: str
    kind: str
    problem: str = ""
    property: str = ""
    points: int = 0


@dataclass(frozen=True)
class ProblemSet:
    """A problem set: name ("ps1"), title, the lesson that it belongs to, Markdown to begin with."""

    name: str
    title: str
    lesson: str
    about: str
    problems: tuple[Exercise, ...]

    @property
    def points(self) -> int:
        return sum(sum(problem.points.values()) for problem in self.problems)

    @property
    def cells(self) -> tuple[SetCell, ...]:
        """The cells of the notebook, in order."""
        found = [SetCell(f"{self.name}-about", TEXT), SetCell(f"{self.name}-setup", SETUP)]
        for problem in self.problems:
            found += _cells_of(problem)
        return (*found, SetCell(f"{self.name}-end", TEXT))


def _cells_of(problem: Exercise) -> list[SetCell]:
    name = problem.name
    cells = [SetCell(f"{name}-statement", STATEMENT, name)]
    if problem.numpy:
        cells.append(SetCell(f"{name}-numpy", NUMPY, name))
    cells += [SetCell(name, SOLUTION, name), SetCell(f"{name}-check", CHECK, name)]
    for title, points in problem.points.items():
        slug = re.sub(r"\W+", "-", title)
        cells.append(SetCell(f"{name}-{slug}", TEST, name, title, points))
    if problem.bonus:
        cells.append(SetCell(f"{name}-bonus", BONUS, name))
    return cells


@lru_cache(maxsize=1)
def _heads() -> dict[str, dict[str, str]]:
    return tomllib.loads(SETS.read_text(encoding="utf-8"))


def problem_set_names() -> list[str]:
    """Return the names of all problem sets, in order."""
    return list(_heads())


def problem_set(name: str) -> ProblemSet:
    """Return a problem set. Raises ProblemSetError where there is none of this name."""
    if name not in _heads():
        known = ", ".join(_heads())
        raise ProblemSetError(f"there is no problem set {name!r}; the problem sets are: {known}")
    problems = [one for one in problem_names() if one.startswith(f"{name}_")]
    return ProblemSet(name, **_heads()[name], problems=tuple(map(read_exercise, problems)))


def problem_sets() -> list[ProblemSet]:
    """Return all problem sets, in order."""
    return [problem_set(name) for name in problem_set_names()]
