"""The learner's working copy: lessons without outputs, in a folder where nothing is overwritten.

The folder holds the lessons, their glossary, a link `kernels` to the kernels, `answers/` and
`progress.json`. That file keeps, for each lesson, a hash of the copy as it was made: a lesson whose
cells still have this hash is the course's own and is replaced by a newer version; one that the
learner changed is left, and the newer version goes beside it as NAME.new.ipynb.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from attn_course.folders import course_folder

NOTEBOOKS = course_folder("notebooks")
KERNELS = course_folder("kernels")
LAB_EXTENSIONS = Path(__file__).resolve().parent / "labextensions"
PROGRESS = "progress.json"
GLOSSARY = "glossary.md"
TEST_MARK = "# NBVAL_IGNORE_OUTPUT\n"  # at the head of cells whose stored output is not compared
GRADER = "NBGRADER_EXECUTION"  # environment: "autograde" or "validate" where nbgrader runs cells
_log = logging.getLogger(__name__)
_TIME = re.compile(r"\*\*Time:\*\*\s*(\d+) minutes(?:, and (\d+) for the exercises)?")


@dataclass(frozen=True)
class Lesson:
    """A lesson of the course: file name without suffix, title, minutes as its first cell has them.

    minutes: of its text; exercise_minutes: of its exercises; exercises: their names, in order.
    """

    name: str
    title: str
    minutes: int
    exercise_minutes: int
    exercises: tuple[str, ...]


def lessons() -> list[Lesson]:
    """Return the lessons in order, read from the notebooks."""
    return [_lesson(path) for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))]


def _lesson(path: Path) -> Lesson:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    head = "".join(cells[0]["source"])
    time = _TIME.search(head)
    minutes = time.groups(default="0") if time else ("0", "0")
    names = (cell["metadata"].get("exercise") for cell in cells)
    return Lesson(
        path.stem,
        head.splitlines()[0].removeprefix("# "),
        *map(int, minutes),
        tuple(dict.fromkeys(name for name in names if name)),
    )


class Pass(msgspec.Struct):
    """The costs of a kernel that passed, as in exercises.golf, and the date such as 2026-11-23.

    us: microseconds that are predicted; None of a pass before there were predictions.
    """

    sectors: int
    wavefronts: int
    instructions: int
    total: int
    date: str
    us: float | None = None


class Attempts(msgspec.Struct):
    """A learner's attempts at an exercise; once passed it stays passed.

    tries: checks of a kernel that was not the stub. began: the first, in seconds since 1970.
    minutes: from it to the first pass. failed: the property that the last one found broken, or "".
    diagnosis: the known mistake that it fails like, or "". hints: levels seen. passes: by the
    hash of the text.
    """

    passed: bool = False
    tries: int = 0
    failed: str = ""
    diagnosis: str = ""
    hints: int = 0
    began: float = 0.0
    minutes: float | None = None
    passes: dict[str, Pass] = {}

    def add(self, failed: str, diagnosis: str) -> None:
        """Count an attempt; failed: the first property that is broken, "" of a pass."""
        self.tries += 1
        self.began = self.began or time.time()
        self.failed, self.diagnosis = failed, diagnosis
        if not failed and not self.passed:
            self.passed, self.minutes = True, round((time.time() - self.began) / 60, 1)

    def see(self) -> None:
        """Count a hint, of three."""
        self.hints = min(self.hints + 1, 3)


class _State(msgspec.Struct):
    """The content of PROGRESS: lesson -> hash of its cells, exercise -> attempts."""

    lessons: dict[str, str] = {}
    exercises: dict[str, Attempts] = {}


@dataclass(frozen=True)
class WorkingCopy:
    """A folder with a learner's copies of the lessons, their answers and their progress."""

    folder: Path

    @classmethod
    def here(cls, start: Path | None = None) -> WorkingCopy | None:
        """Return the working copy that holds the current folder, or `start`, if there is one.

        A grader has none: it neither reads kept answers nor counts as a learner.
        """
        if GRADER in os.environ:
            return None
        start = start or Path.cwd()
        for folder in (start, *start.parents):
            if (folder / PROGRESS).is_file():
                return cls(folder)
        return None

    # -- lessons --------------------------------------------------------------------------------
    def update(self) -> list[str]:
        """Make or renew the copies; return a sentence for each that is not simply there.

        Raises OSError where the folder can not be written.
        """
        paths = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))
        said = self.place({path.name: cleared(path.read_text(encoding="utf-8")) for path in paths})
        self._link_kernels()
        shutil.copyfile(NOTEBOOKS / GLOSSARY, self.folder / GLOSSARY)  # the lessons link to it
        return said

    def place(self, texts: Mapping[str, str]) -> list[str]:
        """Put notebooks, path in the folder -> text; return sentences as `update` does."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state, said = self._read(), []
        for name, text in texts.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            said += self._place(name, text, state.lessons)
        self._write(state)
        return said

    def _place(self, name: str, text: str, placed: dict[str, str]) -> Iterator[str]:
        mine, wanted = self.folder / name, digest(text)
        newer = mine.with_suffix(".new.ipynb")
        if mine.is_file():
            found = digest(mine.read_text(encoding="utf-8"))
            if found == wanted:
                placed[name] = wanted  # known again where the state was lost
            if placed.get(name) == wanted:
                return  # the course's text has not changed since the copy was made
            if found != placed.get(name):
                newer.write_text(text, encoding="utf-8")
                placed[name] = wanted
                yield f"{name}: you changed it and the lesson is newer; the new one is {newer.name}"
                return
            yield f"{name}: replaced by a newer version; you had not changed it"
        mine.write_text(text, encoding="utf-8")
        placed[name] = wanted

    def has_changed(self, name: str) -> bool:
        """Whether the learner's copy of a lesson differs from the one that was made."""
        path = self.folder / f"{name}.ipynb"
        if not path.is_file():
            return False
        return digest(path.read_text(encoding="utf-8")) != self._read().lessons.get(path.name)

    def _link_kernels(self) -> None:
        """Put the kernels beside the lessons: a link, or a copy where links are refused."""
        link = self.folder / "kernels"
        if link.is_symlink() and link.resolve() != KERNELS.resolve():
            link.unlink()  # the course has moved
        if link.exists():
            return
        try:
            link.symlink_to(KERNELS, target_is_directory=True)
        except OSError:
            shutil.copytree(KERNELS, link)

    # -- answers --------------------------------------------------------------------------------
    def answer(self, name: str) -> str:
        """Return the kept answer to an exercise, or ""."""
        path = self.folder / "answers" / f"{name}.cu"
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def keep(self, name: str, source: str) -> None:
        """Keep an answer; the one before it stays beside it as NAME.before.cu."""
        path = self.folder / "answers" / f"{name}.cu"
        path.parent.mkdir(exist_ok=True)
        if path.is_file() and path.read_text(encoding="utf-8") != source:
            path.replace(path.with_suffix(".before.cu"))
        path.write_text(source, encoding="utf-8")

    # -- progress -------------------------------------------------------------------------------
    def progress(self) -> dict[str, Attempts]:
        """Return exercise -> attempts, of those that have any."""
        return self._read().exercises

    def note(self, name: str, change: Callable[[Attempts], object]) -> Attempts:
        """Change the attempts at an exercise, and return them. Raises OSError."""
        state = self._read()
        change(mine := state.exercises.setdefault(name, Attempts()))
        self._write(state)
        return mine

    def _read(self) -> _State:
        """The state; a file that can not be read is set aside, and counts as no state."""
        path = self.folder / PROGRESS
        try:
            return msgspec.json.decode(path.read_bytes(), type=_State)
        except FileNotFoundError:
            return _State()
        except msgspec.MsgspecError as error:
            aside = path.replace(path.with_suffix(".json.unreadable"))
            said = "%s is damaged (%s). It is kept as %s, and your progress starts again"
            _log.warning(said, path, error, aside.name)
            return _State()

    def _write(self, state: _State) -> None:
        path = self.folder / PROGRESS
        temporary = path.with_suffix(".json.new")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=1))
        os.replace(temporary, path)


def cleared(text: str) -> str:
    """Return a notebook's text without outputs, execution counts and marks for the tests."""
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
            source = "".join(cell["source"]).removeprefix(TEST_MARK)
            cell["source"] = source.splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def digest(text: str) -> str:
    """Return a hash of a notebook's cells: kinds and sources, not outputs or ids."""
    try:
        cells = json.loads(text)["cells"]
        parts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    except (ValueError, KeyError, TypeError):
        parts = [("unreadable", text)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
