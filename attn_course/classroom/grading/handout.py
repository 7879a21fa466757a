"""What the class was given: the cells of a problem set as released, and its problems."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from kernelscope.errors import UserError

_HIDDEN = re.compile(
    r"^[^\n]*BEGIN HIDDEN TESTS[^\n]*\n.*?^[^\n]*END HIDDEN TESTS[^\n]*\n?",
    re.DOTALL | re.MULTILINE,
)
_MAGIC = re.compile(r"\s*%%cuda[ \t]+(\w+)[ \t]*(?:\n|\Z)")


class HandoutError(UserError, ValueError):
    """A problem set that cannot be graded; names the notebook and the cell."""


@dataclass(frozen=True)
class HandoutCell:
    """A cell of the released notebook that nbgrader knows.

    Attributes:
        id: its grade_id. type: "code" or "markdown".
        source: its text as released, hidden tests removed.
        flags: grade, locked, solution and points, as nbgrader's metadata has them.
        problem: for a kernel's cell, the name after `%%cuda`; else "".
    """

    id: str
    type: str
    source: str
    flags: Mapping[str, object]
    problem: str = ""

    @property
    def is_test(self) -> bool:
        return bool(self.flags.get("grade")) and not self.flags.get("solution")

    @property
    def is_fixed(self) -> bool:
        """Whether a student may not change the text."""
        return not self.flags.get("solution")


@dataclass(frozen=True)
class Handout:
    """A problem set. problems: name -> a hash of its exercise file, in the notebook's order."""

    name: str
    cells: tuple[HandoutCell, ...]
    problems: Mapping[str, str]

    @property
    def digest(self) -> str:
        """A hash of all that decides about points and remarks."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()

    @property
    def kernels(self) -> dict[str, str]:
        """Problem -> grade_id of the cell that answers it."""
        return {cell.problem: cell.id for cell in self.cells if cell.problem}

    def require_here(self) -> None:
        """Raise HandoutError where this machine has other problems of these names."""
        for name, digest in self.problems.items():
            if problem_digest(name) != digest:
                raise HandoutError(f"{self.name}: this machine has another version of {name}")


def problem_digest(name: str) -> str:
    """Return a hash of the file of a problem; "" where there is none."""
    from attn_course.exercises.exercise import ASSIGNMENTS  # NumPy; reading cells needs none

    path = ASSIGNMENTS / f"{name}.md"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def handout_of(name: str, folder: Path | None = None) -> Handout:
    """Return a problem set as it was handed out.

    The release in nbgrader's course folder counts (`release/NAME/NAME.ipynb`), then its source,
    then the course's own problem set. Raises HandoutError where there is none of this name.
    """
    for stage in ("release", "source") if folder is not None else ():
        path = folder / stage / name / f"{name}.ipynb"
        if path.is_file():
            return read_handout(name, json.loads(path.read_text(encoding="utf-8")), str(path))
    from ..notebooks import released_notebook
    from ..sets import problem_set, problem_set_names

    if name not in problem_set_names():
        known = ", ".join(problem_set_names())
        raise HandoutError(f"there is no problem set {name!r}; the problem sets are: {known}")
    return read_handout(name, released_notebook(problem_set(name)), name)


def read_handout(name: str, notebook: Mapping, where: str) -> Handout:
    """Read a problem set from the JSON of its source notebook or of its release.

    Raises HandoutError, with `where`, if the notebook has no kernel to write, two cells of one id,
    or an unknown problem.
    """
    cells, problems = [], {}
    for cell in notebook["cells"]:
        about = cell["metadata"].get("nbgrader")
        if about is None:
            continue
        text = source_of(cell)
        problem = magic_name(text) if about.get("solution") else ""
        flags = {key: about.get(key) for key in ("grade", "locked", "solution")}
        flags["points"] = float(about.get("points") or 0)
        text = "" if about.get("solution") else _HIDDEN.sub("", text).rstrip("\n")
        cells.append(HandoutCell(about["grade_id"], cell["cell_type"], text, flags, problem))
        if problem:
            problems[problem] = problem_digest(problem)
            if not problems[problem]:
                raise HandoutError(f"{where}: {problem} is no problem of exercises/assignments")
    ids = [cell.id for cell in cells]
    if twice := sorted({one for one in ids if ids.count(one) > 1}):
        raise HandoutError(f"{where}: two cells have the grade_id {', '.join(twice)}")
    if not problems:
        raise HandoutError(f"{where}: no solution cell begins with `%%cuda NAME`")
    return Handout(name, tuple(cells), problems)


def source_of(cell: Mapping) -> str:
    """Return the text of a cell of a notebook's JSON. TypeError where it is none."""
    source = cell["source"]
    if isinstance(source, list):
        source = "".join(source)
    if not isinstance(source, str):
        raise TypeError("a cell's source is text")
    return source


def magic_name(source: str) -> str:
    """Return NAME of a cell that begins with `%%cuda NAME`; "" of any other cell."""
    found = _MAGIC.match(source)
    return found[1] if found else ""


def kernel_text(source: str) -> str:
    """Return a `%%cuda` cell's text without its first line, as the cell magic gets it."""
    return source[_MAGIC.match(source).end() :]
