"""The result of a submission, and results on disk: one file each, written at once or not at all."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ..points import Points, PropertyPoints
from .confined.reading import Remark

GRADED, UNREADABLE, FAILED = "graded", "not readable", "not graded"
NO_SET = "no_set"  # folder of submissions that name no problem set


class JudgedKernel(msgspec.Struct):
    """The points of a problem. cell: its grade_id; source: the kernel's text, None without one."""

    name: str
    cell: str
    source: str | None
    rows: tuple[PropertyPoints, ...]

    @property
    def points(self) -> Points:
        return Points(self.name, self.rows)


class Result(msgspec.Struct):
    """What came of a submission.

    key: of the task. unreadable: why it was not read, or "". failed: why it could not be graded, or
    "". pages: the problems with a page of steps. sandbox: its walls. seconds: that grading took.
    """

    key: str
    student: str
    set: str
    file: str
    unreadable: str = ""
    failed: str = ""
    remarks: list[Remark] = []
    problems: list[JudgedKernel] = []
    pages: list[str] = []
    sandbox: str = ""
    seconds: float = 0.0

    @property
    def state(self) -> str:
        """GRADED, or why there are no points."""
        return FAILED if self.failed else UNREADABLE if self.unreadable else GRADED

    @property
    def earned(self) -> int:
        return sum(one.points.earned for one in self.problems)

    @property
    def possible(self) -> int:
        return sum(one.points.possible for one in self.problems)

    @property
    def all_remarks(self) -> list[Remark]:
        """All that is unusual, with the reason why there are no points."""
        reasons = (("file", self.unreadable), ("grader", self.failed))
        return [*self.remarks, *(Remark(kind, "", why) for kind, why in reasons if why)]


class Store:
    """The folder of results. graded: how many submissions have been saved by this object."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.graded = 0

    def result_path(self, student: str, problem_set: str) -> Path:
        return self.folder / "results" / (problem_set or NO_SET) / f"{student}.json"

    def feedback_path(self, student: str, problem_set: str) -> Path:
        """Path of a submission's feedback; nbgrader has the same names below `feedback`."""
        name = problem_set or NO_SET
        return self.folder / "feedback" / student / name / f"{name}.html"

    def load(self, student: str, problem_set: str, key: str) -> Result | None:
        """Return a result, None where it is missing, of another task, or damaged."""
        try:
            text = self.result_path(student, problem_set).read_text(encoding="utf-8")
            result = msgspec.convert(json.loads(text), Result)
        except (OSError, ValueError, RecursionError):
            return None
        return result if result.key == key else None

    def save(self, result: Result, pages: Mapping[str, str]) -> Result:
        """Write a result and its pages, problem -> HTML; return the result."""
        feedback = self.feedback_path(result.student, result.set)
        for old in feedback.parent.glob(page_name("*")):
            old.unlink()  # of a submission before this one
        for name, page in pages.items():
            write(feedback.with_name(page_name(name)), page)
        text = json.dumps(msgspec.to_builtins(result), indent=1) + "\n"
        write(self.result_path(result.student, result.set), text)
        self.graded += 1
        return result


def page_name(problem: str) -> str:
    """The file name of a problem's stepper page."""
    return f"{problem}_steps.html"


def write(path: Path, text: str) -> None:
    """Write a file so that a reader finds the old text or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
