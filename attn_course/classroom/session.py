"""A problem set's notebook: `earn("ps1_scores", "agrees")` and `bonus("ps1_scores")`.

The points that a notebook shows are for its reader: code of a notebook may replace these
functions. Grades come from `scoring`, which judges the text of the kernels alone.
"""

import os
from functools import lru_cache

from kernelscope.errors import UserError

from attn_course.exercises.exercise import ExerciseError
from attn_course.exercises.session import current_text, passed_cases
from attn_course.lessons.working_copy import GRADER

from .gpu_bonus import Bonus, timed
from .points import Points, PropertyPoints
from .scoring import read_problem, score


class NotEarned(UserError, AssertionError):
    """A property that does not hold; the message says where."""


STANDARD_ERROR = 2
_scored = lru_cache(maxsize=64)(score)


def earn(name: str, property: str, *, hidden: bool = False) -> None:
    """Print the points of a property of the kernel in the cell `%%cuda NAME`.

    hidden: examine the hidden cases too.
    Raises NotEarned where the property does not hold, ExerciseError where it has no points.
    """
    problem = read_problem(name)
    if property not in problem.points:
        known = ", ".join(problem.points)
        raise ExerciseError(f"{name} has no points for {property!r}, but for: {known}")
    row = _judged(name, current_text(problem), hidden).of(property)
    if row.earned < row.possible:
        raise NotEarned(told(row))
    cases = len(problem.setups) + (len(problem.hidden_setups) if hidden else 0)
    of = "with hidden ones" if hidden else "visible"
    print(f"{property}: {row.earned} of {row.possible} points ({cases} cases, {of})")


def _judged(name: str, text: str, hidden: bool) -> Points:
    """Score a text. A failure of the machine ends nbgrader's run of the notebook.

    nbgrader gives 0 points for every error of a test cell. Where the process ends, it keeps no
    points of the notebook and names the student instead. Where it runs the cells all cases are
    examined: what an earlier cell has left in this process counts for nothing.
    """
    passed = () if GRADER in os.environ else passed_cases(name, text)
    try:
        return _scored(name, text, hidden=hidden, passed=passed)
    except Exception as error:
        if os.environ.get(GRADER) != "autograde":
            raise
        told = f"attn-course: {name} is not judged: {type(error).__name__}: {error}\n"
        os.write(STANDARD_ERROR, told.encode())
        os._exit(1)


def bonus(name: str) -> Bonus:
    """Time the kernel of the cell `%%cuda NAME` on a GPU, and return the bonus that it earns."""
    problem = read_problem(name)
    return timed(problem, current_text(problem))


def told(row: PropertyPoints) -> str:
    """Return a sentence on what a property earned, with the reason where it earned nothing."""
    text = f"{row.property}: {row.earned} of {row.possible} points"
    if not row.reason:
        return text
    case = f" ({'a hidden case' if row.hidden else f'case {row.label}'})" if row.label else ""
    line = f", line {row.line}" if row.line else ""
    return f"{text}{case}{line}: {row.reason}"
