"""Read a submitted notebook, and compare its cells with those of the problem set.

    python -m attn_course.classroom.grading.confined.reading  (handout, notebook: standard input)

Nothing of a notebook is executed, here or elsewhere. Of its stored outputs, errors are remarks. A
cell is known by nbgrader's grade_id; its text decides where the id is gone.
"""

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
from kernelscope.errors import UserError

from ..handout import Handout, HandoutCell, kernel_text, magic_name, source_of
from .supervise import REPLY

MOST_CELLS = 1000
MOST_REMARKS = 10  # of a kind
MOST_CHARACTERS = 300  # of a remark
MOST_KERNEL_CHARACTERS = 200_000
NOT_EARNED = "NotEarned"  # what a test cell raises; it says no more than the points
_SET_ID = re.compile(r"(ps\d+)[-_]")  # of a grade_id: the set that its cell is of


class Unreadable(UserError, ValueError):
    """A submission that is no notebook; the message says why."""


@dataclass(frozen=True)
class Remark:
    """What is unusual about a cell.

    kind: "missing", "duplicate", "changed", "copied", "metadata", "unknown", "name", "kernel" or
    "output"; of a whole submission "file" or "grader". cell: its grade_id, or its place such as
    "cell 4".
    """

    kind: str
    cell: str
    text: str


@dataclass(frozen=True)
class Cell:
    """A cell of a submission. number: from 1. id: its grade_id, or "". outputs: as stored."""

    number: int
    type: str
    source: str
    id: str
    about: Mapping[str, object]
    outputs: object = ()

    @property
    def place(self) -> str:
        return f"cell {self.number}"


@dataclass
class ReadSubmission:
    """A submission. unreadable: why it is no notebook, or "". kernels: problem -> text."""

    unreadable: str = ""
    remarks: list[Remark] = field(default_factory=list)
    kernels: dict[str, str] = field(default_factory=dict)


def read(data: bytes, handout: Handout) -> ReadSubmission:
    """Read a submission and compare it with the handout."""
    try:
        cells = list(cells_of(data))
        _require_set(cells, handout)
    except Unreadable as error:
        return ReadSubmission(unreadable=str(error))
    reading = ReadSubmission(remarks=[*_compared(cells, handout), *_errors(cells)])
    for one in handout.cells:
        if one.problem:
            text, remarks = _kernel(cells, one)
            reading.remarks += remarks
            if text is not None:
                reading.kernels[one.problem] = text
    reading.remarks = list(_cut(reading.remarks))
    return reading


def cells_of(data: bytes) -> Iterator[Cell]:
    """Yield the cells of a notebook's text. Raises Unreadable."""
    if not data.strip():
        raise Unreadable("the file is empty")
    try:
        notebook = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise Unreadable("the file is not text in UTF-8") from None
    except RecursionError:
        raise Unreadable("the file is nested too deeply") from None
    except ValueError as error:
        raise Unreadable(f"the file is not JSON: {error}") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise Unreadable("the file is JSON, but no notebook of format 4: it has no list of cells")
    if len(cells) > MOST_CELLS:
        raise Unreadable(f"the notebook has {len(cells):,} cells; at most {MOST_CELLS:,} are read")
    for number, cell in enumerate(cells, 1):
        try:
            metadata = cell.get("metadata", {})
            about = metadata.get("nbgrader") or {}
            name = about.get("grade_id", "")
            kind = cell["cell_type"]
            name = name if isinstance(name, str) else ""
            yield Cell(number, kind, source_of(cell), name, about, cell.get("outputs"))
        except (AttributeError, KeyError, TypeError):
            raise Unreadable(f"cell {number} is not a cell of a notebook") from None


def _require_set(cells: list[Cell], handout: Handout) -> None:
    """Raise Unreadable for the notebook of another problem set.

    Its cells have ids of that set and none of this one's, and no cell answers a problem of this.
    """
    known = {one.id for one in handout.cells}
    answers = {magic_name(cell.source) for cell in cells} & set(handout.kernels)
    if answers or any(cell.id in known for cell in cells):
        return
    sets = Counter(found[1] for cell in cells if (found := _SET_ID.match(cell.id)))
    if sets and handout.name not in sets:
        raise Unreadable(f"this is the notebook of {sets.most_common(1)[0][0]}, not {handout.name}")


def _cut(remarks: list[Remark]) -> Iterator[Remark]:
    """Keep the first remarks of each kind, with a count of the others; cut long texts."""
    count = Counter(one.kind for one in remarks)
    seen: Counter[str] = Counter()
    for one in remarks:
        seen[one.kind] += 1
        if seen[one.kind] <= MOST_REMARKS:
            yield Remark(one.kind, one.cell[:MOST_CHARACTERS], one.text[:MOST_CHARACTERS])
    for kind, number in count.items():
        if number > MOST_REMARKS:
            yield Remark(kind, "", f"{number - MOST_REMARKS:,} more remarks of this kind")


# -- what was done to the cells -------------------------------------------------------------------
def _compared(cells: list[Cell], handout: Handout) -> Iterator[Remark]:
    known = {cell.id: cell for cell in handout.cells}
    count = Counter(cell.id for cell in cells if cell.id)
    texts = {_plain(one.source): one.id for one in handout.cells if one.is_test}
    for one in handout.cells:
        if not count[one.id]:
            yield Remark("missing", one.id, f"the {_kind(one)} {one.id} is missing")
        elif count[one.id] > 1:
            text = f"the {_kind(one)} {one.id} is there {count[one.id]} times; the first one counts"
            yield Remark("duplicate", one.id, text)
    for cell in cells:
        if cell.id in known:
            yield from _against(cell, known[cell.id])
            continue
        if cell.id:
            text = f"{cell.place} has the grade_id {cell.id}, which is not of this problem set"
            yield Remark("unknown", cell.place, text)
        if original := texts.get(_plain(cell.source)):
            yield Remark("copied", original, f"{cell.place} is a copy of the test cell {original}")


def _against(cell: Cell, one: HandoutCell) -> Iterator[Remark]:
    """Compare a cell with the one of the handout that has its id."""
    if cell.type != one.type:
        text = f"the {_kind(one)} {one.id} is a {cell.type} cell; it was released as {one.type}"
        yield Remark("changed", one.id, text)
    if one.is_fixed and _plain(cell.source) != _plain(one.source):
        text = f"the {_kind(one)} {one.id} is changed; it decides about no points"
        yield Remark("changed", one.id, text)
    flags = {key: cell.about.get(key) for key in ("grade", "locked", "solution")}
    different = [key for key, value in flags.items() if bool(value) != bool(one.flags[key])]
    if one.flags["grade"] and cell.about.get("points") != one.flags["points"]:
        different.append("points")
    if different:
        text = f"the metadata of {one.id} is changed: {', '.join(different)}"
        yield Remark("metadata", one.id, text)


def _errors(cells: list[Cell]) -> Iterator[Remark]:
    """Name the errors among the stored outputs; an output of another form is none."""
    for cell in cells:
        for output in cell.outputs if isinstance(cell.outputs, list) else ():
            if isinstance(output, dict) and output.get("output_type") == "error":
                said = [output.get("ename"), output.get("evalue")]
                if said[0] != NOT_EARNED:
                    text = ": ".join(one for one in said if isinstance(one, str))
                    yield Remark("output", cell.id or cell.place, f"handed in with {text}")


def _kernel(cells: list[Cell], one: HandoutCell) -> tuple[str | None, list[Remark]]:
    """Return the CUDA text that answers a problem, None where there is none, and remarks."""
    remarks, begun = [], f"%%cuda {one.problem}"
    mine = [cell for cell in cells if cell.id == one.id and cell.type == "code"]
    named = [
        cell for cell in cells if cell.type == "code" and magic_name(cell.source) == one.problem
    ]
    chosen = next((cell for cell in mine if cell in named), None)
    if chosen is None:
        chosen = next((cell for cell in mine if magic_name(cell.source)), None)
        if chosen is not None and not named:
            text = f"{one.id} begins with `%%cuda {magic_name(chosen.source)}`, not `{begun}`"
            remarks.append(Remark("name", one.id, text))
        elif named:
            chosen = named[-1]
            text = f"{one.id} does not begin with `{begun}`; {chosen.place} does and is judged"
            remarks.append(Remark("kernel", one.id, text))
    for cell in named:
        if cell is not chosen:
            text = f"{cell.place} begins with `{begun}` too; it is not judged"
            remarks.append(Remark("duplicate", one.id, text))
    if chosen is None:
        remarks.append(Remark("kernel", one.id, f"no code cell begins with `{begun}`"))
        return None, remarks
    text = kernel_text(chosen.source)
    if len(text) > MOST_KERNEL_CHARACTERS:
        most = f"{MOST_KERNEL_CHARACTERS:,}"
        said = f"the kernel has {len(text):,} characters; at most {most} are judged"
        remarks.append(Remark("kernel", one.id, said))
        return None, remarks
    return text, remarks


def _kind(cell: HandoutCell) -> str:
    if cell.problem:
        return "kernel's cell"
    return "test cell" if cell.is_test else "cell"


def _plain(source: str) -> str:
    """A cell's text without blanks at line ends and blank lines at its end."""
    return re.sub(r"[ \t\r]+$", "", source, flags=re.MULTILINE).strip("\n")


def main() -> None:
    handout, data = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=tuple[Handout, bytes])
    with os.fdopen(REPLY, "w", encoding="utf-8") as reply:
        json.dump(msgspec.to_builtins(read(data, handout)), reply)


if __name__ == "__main__":
    main()
