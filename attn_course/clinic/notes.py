"""Broken kernels and their notes.

A file of kernels/broken says in its second comment what is wrong with it: the clean twin, the
kind of the defect, its symptom, its story, and a case (extents and what else the launch needs)
at which it shows. `// <- defect` stands on the wrong line; `// <- found here` on the line where
it is found, when that is another one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernelscope.errors import UserError

from attn_course.ladder.headers import KERNEL_FOLDER
from attn_course.ladder.steps import Problem

BROKEN_FOLDER = KERNEL_FOLDER / "broken"
_NOTES = ("Clean", "Defect", "Symptom", "Story", "Case")
_NOTE = re.compile(rf"^// ({'|'.join(_NOTES)}):\s+(\S.*)$", re.MULTILINE)
_EXTENTS = {"BH": "bh", "n": "n", "m": "m", "d": "d"}
_HEADS = ("heads", "kv_heads")  # of one element of the batch; 1 where a case does not say


class ClinicError(UserError, ValueError):
    """A kernel file that the clinic cannot run; the message says what is missing."""


@dataclass(frozen=True)
class Case:
    """The parts of a launch besides the kernel.

    Attributes:
        problem: the extents.
        causal: the kernel's mask is on.
        negative: every score is negative.
        grid: the grid, where it is not the one that the problem asks for.
        shared_bytes: dynamic shared memory, where it is not what the problem asks for.
        lengths: elements of an array that is given shorter than the problem asks for.
    """

    problem: Problem
    causal: bool = False
    negative: bool = False
    grid: tuple[int, int, int] | None = None
    shared_bytes: int | None = None
    lengths: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_partial(self) -> bool:
        """Only a part of the problem is run, so no result can be compared."""
        return self.grid is not None or bool(self.lengths)


@dataclass(frozen=True)
class Broken:
    """A file of kernels/broken, its clean twin, and the case at which its defect shows."""

    path: Path
    clean: Path
    case: Case


def notes_of(path: Path, text: str | None = None) -> dict[str, str]:
    """Return the notes of a broken kernel by name. ClinicError names the note that is missing."""
    notes = dict(_NOTE.findall(path.read_text(encoding="utf-8") if text is None else text))
    if missing := [name for name in _NOTES if name not in notes]:
        raise ClinicError(f"{path.name}: needs a comment line '// {missing[0]}: ...'")
    return notes


def read_broken(path: Path, text: str | None = None) -> Broken:
    """Return a broken kernel by its notes. Raises ClinicError as `notes_of` does."""
    notes = notes_of(path, text)
    clean = notes["Clean"]
    folder = KERNEL_FOLDER if (KERNEL_FOLDER / clean).is_file() else BROKEN_FOLDER
    return Broken(path, folder / clean, read_case(notes["Case"]))


def clean_twin(path: Path, text: str) -> Path | None:
    """The clean kernel that a file's notes name; None for a file without such a note."""
    return read_broken(path, text).clean if dict(_NOTE.findall(text)).get("Clean") else None


def read_case(text: str) -> Case:
    """'BH=2, n=3, m=5, d=7, heads=2, causal, grid=1x1x2, s=99' -> Case."""
    words = [word.strip() for word in text.split(",")]
    flags = {word: True for word in words if "=" not in word}
    values = dict(word.split("=") for word in words if "=" in word)
    grid = values.pop("grid", None)
    extents = {_EXTENTS[name]: int(values.pop(name)) for name in _EXTENTS}
    heads = {name: int(values.pop(name, 1)) for name in _HEADS}
    return Case(
        Problem(**extents, **heads),
        **flags,
        grid=tuple(int(part) for part in grid.split("x")) if grid else None,
        lengths={name: int(count) for name, count in values.items()},
    )
