"""The defects of kernels/broken: kinds, stories, and the lines that their marks name."""

from dataclasses import dataclass
from pathlib import Path

from attn_course.clinic import BROKEN_FOLDER, Broken, notes_of, read_broken

WRONG_RESULT = "wrong-result"  # a defect that only a comparison with float64 finds


@dataclass(frozen=True)
class Defect(Broken):
    """A broken kernel with all of its notes, and the lines of its marks (0: no such mark)."""

    kind: str
    symptom: str
    story: str
    defect_line: int
    found_line: int

    @property
    def name(self) -> str:
        return self.path.stem


def broken_kernels() -> tuple[Defect, ...]:
    """Return all broken kernels, by name."""
    return tuple(read_defect(path) for path in sorted(BROKEN_FOLDER.glob("*.cu")))


def clean_kernels() -> tuple[Path, ...]:
    """Return the clean files that broken ones were made from, each once."""
    return tuple(sorted({broken.clean for broken in broken_kernels()}))


def read_defect(path: Path) -> Defect:
    """Return the notes of a broken kernel. Raises ClinicError, as `notes_of` does."""
    notes, broken, text = notes_of(path), read_broken(path), path.read_text(encoding="utf-8")
    defect, found = (_marked(text, mark) for mark in ("defect", "found here"))
    told = (notes[name] for name in ("Defect", "Symptom", "Story"))
    return Defect(broken.path, broken.clean, broken.case, *told, defect, found or defect)


def _marked(text: str, mark: str) -> int:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.endswith(f"// <- {mark}"):
            return number
    return 0
