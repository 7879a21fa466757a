"""`attn-course grade --self SET`: the points of one's own notebook, before it is handed in."""

from pathlib import Path

import msgspec
from kernelscope.cli.arguments import printer, write_json
from kernelscope.errors import MissingFileError

from attn_course.classroom.gpu_bonus import timed
from attn_course.classroom.grading.confined.reading import Unreadable, read
from attn_course.classroom.grading.handout import handout_of
from attn_course.classroom.grading.verdict import own_points
from attn_course.classroom.points import Points
from attn_course.classroom.sets import ProblemSet, problem_set
from attn_course.figures import table
from attn_course.lessons.working_copy import WorkingCopy

FOLDER = "assignments"  # of the working copy
WORK = "work"  # the working copy that `make lab` makes


def grade_self(name: str, path: Path | None, json_file: Path | None) -> int:
    """Print the points of a notebook and how to earn the others; return the exit status.

    path: None for the notebook of the working copy.
    """
    chosen = problem_set(name)
    path = path or own_notebook(chosen)
    reading = read(path.read_bytes(), handout_of(name))
    if reading.unreadable:
        raise Unreadable(f"{path}: {reading.unreadable}")
    found = {problem: own_points(problem, text) for problem, text in reading.kernels.items()}
    bonus = [
        timed(problem, reading.kernels[problem.name])
        for problem in chosen.problems
        if problem.bonus and problem.name in reading.kernels
    ]
    earned = sum(points.earned for points in found.values())
    say = printer(json_file)
    say(f"{path}\n\n{_listing(found)}\n")
    for remark in reading.remarks:
        say(f"{remark.cell}: {remark.text}")
    say(f"{name}: {earned} of {chosen.points} points")
    for one in bonus:
        say(f"{one.problem}: {one!r}")
    record = {
        "set": name,
        "earned": earned,
        "possible": chosen.points,
        "problems": msgspec.to_builtins(list(found.values())),
        "remarks": [remark.text for remark in reading.remarks],
        "bonus": sum(one.earned for one in bonus),
    }
    write_json(json_file, record)
    return 0 if earned == chosen.points else 1


def own_copy() -> WorkingCopy | None:
    """Return the working copy in the folder `work`, else the one around the current folder."""
    return WorkingCopy.here(Path.cwd() / WORK)


def own_notebook(chosen: ProblemSet) -> Path:
    """Return the learner's notebook of a set. Raises FileNotFoundError with the way to get it."""
    copy = own_copy() or WorkingCopy(Path.cwd() / WORK)
    path = copy.folder / FOLDER / f"{chosen.name}.ipynb"
    if not path.is_file():
        raise MissingFileError(
            f"there is no {path}: name your notebook, or make your working copy with "
            "`attn-course lessons`"
        )
    return path


def _listing(found: dict[str, Points]) -> str:
    rows = []
    for points in found.values():
        for row in points.rows:
            case = "in a hidden case: " if row.hidden else f"{row.label}: " if row.label else ""
            line = f"line {row.line}: " if row.line else ""
            first = next(iter(row.reason.splitlines()), "")
            said = f"{case}{line}{first}" if row.reason else ""
            rows.append((points.problem, row.property, f"{row.earned} of {row.possible}", said))
    return table(("problem", "property", "points", ""), rows, right=(2,))
