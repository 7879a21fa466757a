"""The class in tables: CSV files, and nbgrader's gradebook."""

import csv
import io
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kernelscope.errors import UserError

from attn_course.folders import search_path

from ..sets import problem_set
from .store import GRADED, Result, write

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # a spreadsheet may take such a text as a formula
HEADS = {
    "grades.csv": ("student", "problem set", "state", "points", "possible", "remarks"),
    "points.csv": ("student", "problem set", "problem", "property", "points", "possible"),
    "remarks.csv": ("student", "problem set", "kind", "cell", "text"),
    "not_taken.csv": ("file", "reason"),
}


class GradebookError(UserError, ValueError):
    """A gradebook that cannot be written."""


def write_tables(
    folder: Path, results: Sequence[Result], not_taken: Sequence[tuple[str, str]] = ()
) -> None:
    """Write the CSV files of a class. They hold no times: two runs give the same bytes.

    not_taken: (file, reason) of what is in no submission.
    """
    rows: dict[str, list[tuple]] = {name: [] for name in HEADS}
    rows["not_taken.csv"] += not_taken
    for result in sorted(results, key=lambda one: (one.set, one.student)):
        about = (result.student, result.set)
        remarks = [(*about, one.kind, one.cell, one.text) for one in result.all_remarks]
        points = (result.earned, result.possible) if result.state == GRADED else ("", "")
        rows["grades.csv"].append((*about, result.state, *points, len(remarks)))
        rows["remarks.csv"] += remarks
        rows["points.csv"] += [
            (*about, problem.name, row.property, row.earned, row.possible)
            for problem in result.problems
            for row in problem.rows
        ]
    for name, heads in HEADS.items():
        write(folder / name, table([heads, *rows[name]]))


def table(rows: Iterable[Sequence]) -> str:
    """Return rows as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([map(cell, row) for row in rows])
    return text.getvalue()


def cell(value: object) -> object:
    """Return a value that no spreadsheet takes for a formula, on one line, free of controls."""
    if not isinstance(value, str):
        return value
    return f"'{printable(value)}" if value.lstrip(" ").startswith(_FORMULA) else printable(value)


def printable(text: str) -> str:
    """Return a text for a table or a terminal: no control characters, no lone surrogates."""
    shown = "".join(one if one.isprintable() else " " for one in text)
    return shown.encode("utf-8", "replace").decode()


def write_nbgrader(path: Path, names: Iterable[str], results: Iterable[Result]) -> list[str]:
    """Write the points of problem sets into nbgrader's gradebook, an SQLite file.

    The points of a property go to the test cell that earns them, as nbgrader's own do; what an
    instructor has graded by hand stays. Returns the students that the file cannot name, whose
    folder or notebook has a name that is not UTF-8: they are left out. Raises GradebookError where
    nbgrader is missing.
    """
    left_out = []
    try:
        from nbgrader.api import Gradebook
    except ImportError:
        text = "a gradebook needs nbgrader: pip install 'attn-course[class]'"
        raise GradebookError(text) from None
    with _quiet_nbgrader(), Gradebook(f"sqlite:///{path.absolute()}") as book:
        cells = {}
        for name in names:
            book.update_or_create_assignment(name)
            book.update_or_create_notebook(name, name)
            for cell in problem_set(name).cells:
                if not cell.points:
                    continue
                cells[name, cell.problem, cell.property] = cell.grade_id
                book.update_or_create_grade_cell(
                    cell.grade_id, name, name, max_score=cell.points, cell_type="code"
                )
        for result in results:
            if result.state != GRADED:
                continue
            name, student = result.set, result.student
            if student != student.encode(errors="replace").decode():  # a name that is not UTF-8
                left_out.append(student)
                continue
            book.update_or_create_student(student)
            book.update_or_create_submission(name, student)
            for problem in result.problems:
                for row in problem.rows:
                    cell = cells[name, problem.name, row.property]
                    grade = book.find_grade(cell, name, name, student)
                    grade.auto_score, grade.needs_manual_grade = row.earned, False
        book.db.commit()
    return left_out


@contextmanager
def _quiet_nbgrader() -> Iterator[None]:
    """Let nbgrader find `alembic`, which it runs for a new database, and hide its own warnings."""
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = search_path()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"nbgrader|sqlalchemy")
            yield
    finally:
        os.environ["PATH"] = before
