"""Results on disk: one file a submission, written at once or not at all."""

import json
import os
import tempfile
from pathlib import Path
from typing import TypedDict

import msgspec

from .grader import Task


class ResultRow(TypedDict):
    """A property of a problem; see `PropertyPoints`."""

    property: str
    earned: int
    possible: int
    reason: str
    label: str
    hidden: bool
    line: int


class ResultProblem(TypedDict):
    """A judged kernel. cell: its grade_id; source: its text."""

    name: str
    cell: str
    source: str | None
    rows: list[ResultRow]


class ResultRemark(TypedDict):
    kind: str
    cell: str
    text: str


class NotebookError(TypedDict):
    cell: str
    error: str
    text: str


class NotebookRun(TypedDict, total=False):
    """What a notebook did; empty where it was not executed."""

    ended: str
    limit: str
    cell: str
    errors: list[NotebookError]


class GradedResult(TypedDict):
    """The fields of a kept result that its readers use."""

    key: str
    student: str
    set: str
    file: str
    unreadable: str
    remarks: list[ResultRemark]
    problems: list[ResultProblem]
    notebook: NotebookRun
    pages: list[str]


NO_SET = "no_set"  # folder of submissions that name no problem set


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

    def load(self, task: Task) -> dict | None:
        """Return the result of a task, None where it is missing, of another task, or damaged."""
        try:
            text = self.result_path(task.student, task.set).read_text(encoding="utf-8")
            result = json.loads(text)
            msgspec.convert(result, GradedResult)
        except (OSError, ValueError, RecursionError):
            return None
        return result if result["key"] == task.key else None

    def save(self, result: dict) -> dict:
        """Write a result and its pages; return it without the pages."""
        feedback = self.feedback_path(result["student"], result["set"])
        for old in feedback.parent.glob(page_name("*")):
            old.unlink()  # of a submission before this one
        for name, page in result["pages"].items():
            write(feedback.with_name(page_name(name)), page)
        kept = {**result, "pages": sorted(result["pages"])}
        text = json.dumps(kept, indent=1) + "\n"
        write(self.result_path(result["student"], result["set"]), text)
        self.graded += 1
        return kept


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
