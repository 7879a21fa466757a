"""Find the submissions in a folder: nbgrader's layout, or a flat folder of notebooks.

Only plain files inside the folder are read: no links, no pipes, nothing above a size.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kernelscope.errors import UserError

MOST_BYTES = 20 << 20  # of a notebook
MOST_OTHERS = 5  # notebooks of one student that are read beside the first
MOST_NAMED = 20  # files in a message
CLASS_FOLDERS = ("source", "release", "autograded", "feedback", "grades")  # hold no submissions
CHECKPOINTS = ".ipynb_checkpoints"  # Jupyter's own copies
NBGRADER = "submitted/STUDENT/SET/SET.ipynb"
FLAT = "flat folder of notebooks"
_COPY = re.compile(r"[ _]?\(\d+\)$")  # of a stem: what a browser adds to a second download
_SET = re.compile(r"(?<![A-Za-z0-9])(ps\d+)(?![A-Za-z0-9])")


class CollectError(UserError, ValueError):
    """A folder without submissions."""


@dataclass(frozen=True)
class Submission:
    """One student's notebook for one problem set.

    path: the file. problem: why it is not read, or "". remark: what is unusual about the file.
    others: further notebooks of the same student. named: whether `path` has the name that is asked
    for; then it counts, unless it still holds the stub.
    """

    student: str
    set: str
    path: Path
    problem: str = ""
    remark: str = ""
    others: tuple[Path, ...] = ()
    named: bool = True

    def data(self) -> bytes:
        """Return the file's bytes. Raises OSError."""
        return read_plain(self.path)


def read_plain(path: Path) -> bytes:
    """Return the first MOST_BYTES of a file; no link is followed. Raises OSError."""
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(opened, "rb") as file:
        return file.read(MOST_BYTES + 1)[:MOST_BYTES]


def collect(folder: Path, only: str = "") -> tuple[str, list[Submission], list[tuple[str, str]]]:
    """Return which layout a folder has, its submissions, and (file, reason) of what is not taken.

    The submissions are in the order of set and student. only: the one problem set to grade; the set
    of notebooks in a flat folder that name none. Raises CollectError where there is none.
    """
    if not folder.is_dir():
        raise CollectError(f"no folder {str(folder)!r}")
    submitted = folder / "submitted" if (folder / "submitted").is_dir() else folder
    found = list(_nbgrader(submitted)) if submitted.name == "submitted" else []
    layout, root = (NBGRADER, submitted) if found else (FLAT, folder)
    found = [_checked(one, folder) for one in found or _flat(folder, only)]
    not_taken = list(_not_taken(root, layout, found))
    found = [one for one in found if not only or one.set == only]
    if not found:
        of = f" of {only}" if only else ""
        left = "".join(f"; {file}: {why}" for file, why in not_taken[:MOST_NAMED])
        raise CollectError(
            f"{folder} holds no submissions{of}: neither {NBGRADER} nor notebooks such as "
            f"ann_ps1.ipynb (or ann.ipynb with --set ps1){left}"
        )
    found.sort(key=lambda one: (one.set, one.student, one.path.name))
    return layout, found, not_taken


def _nbgrader(submitted: Path) -> Iterator[Submission]:
    for student in _folders(submitted):
        for assignment in _folders(student):
            path = assignment / f"{assignment.name}.ipynb"
            one = Submission(student.name, assignment.name, path)
            if assignment.is_symlink() or student.is_symlink():
                yield replace(one, problem="the folder is a link")
                continue
            others = [other for other in _notebooks(assignment) if other != path]
            if os.path.lexists(path):
                yield replace(one, others=tuple(others))
            elif others:
                remark = f"the notebook is named {others[0].name}, not {path.name}"
                others = {"path": others[0], "others": tuple(others[1:])}
                yield replace(one, **others, remark=remark, named=False)
            else:
                yield replace(one, problem="there is no notebook")


def _folders(folder: Path) -> list[Path]:
    return [one for one in sorted(folder.iterdir()) if one.is_dir() and one.name[0] != "."]


def _notebooks(folder: Path) -> list[Path]:
    """The notebooks of a folder, without hidden files: macOS writes `._NAME` beside a file."""
    found = [one for one in sorted(folder.iterdir()) if one.suffix.lower() == ".ipynb"]
    return [one for one in found if one.name[0] != "."]


def _flat(folder: Path, only: str) -> Iterator[Submission]:
    """The notebooks of a flat folder, each with a student of its own.

    STUDENT_SET.ipynb has the name; another notebook of the same student and set, such as
    STUDENT-SET.ipynb, may be somebody else's: it is graded under the name of its file.
    "STUDENT_SET (1).ipynb" is what a browser makes of a second download: the same student's.
    """
    groups: dict[tuple[str, str], list[Submission]] = {}
    for one in _named(folder, only):
        groups.setdefault((one.set, one.student), []).append(one)
    for (name, student), found in groups.items():
        found.sort(key=lambda one: (one.path.stem != f"{student}_{name}", one.path.name))
        own = [one for one in found if one.named] or found[:1]
        copies = [one.path for one in found if one not in own]
        first, others = own[0], own[1:]
        names = ", ".join(one.path.name for one in others)
        remark = f"of the same student by its name, graded apart: {names}" if others else ""
        if not first.named:
            remark = f"the file's name is that of a copy; taken for {student}'s"
        yield replace(first, remark=remark, others=_copies_of(first, copies, own))
        for one in others:
            alone = one.path.stem if one.path.stem != student else one.path.name
            remark = f"{first.path.name} has the name of the same student; both are graded"
            copied = _copies_of(one, copies, own)
            yield replace(one, student=alone, remark=remark, others=copied)


def _copies_of(one: Submission, copies: list[Path], own: list[Submission]) -> tuple[Path, ...]:
    """The copies of a file by their names; of the first file also those that are of no other."""
    stems = [other.path.stem for other in own]
    mine = {path: _COPY.sub("", path.stem) for path in copies}
    return tuple(
        path
        for path, stem in mine.items()
        if stem == one.path.stem or (one is own[0] and stem not in stems)
    )


def _named(folder: Path, only: str) -> Iterator[Submission]:
    """The notebooks of a flat folder, with the student and the set that their names tell."""
    for path in _notebooks(folder):
        stem = _COPY.sub("", path.stem)
        student = _student(stem)
        if not student:  # ps1.ipynb, "ps1 (1).ipynb": nobody's name, each may be another's
            stem = student = path.stem
        copied = stem != path.stem
        named = _SET.search(stem)
        if named:
            yield Submission(student, named[1], path, named=not copied)
        elif only:
            yield Submission(stem, only, path, named=not copied)
        else:
            why = "the file's name has no problem set such as ps1"
            yield Submission(path.stem, "", path, why)


def _student(stem: str) -> str:
    """The name of a student in a file's name, without the problem set."""
    return _SET.sub("", stem, count=1).strip("_- .")


def _checked(one: Submission, folder: Path) -> Submission:
    """Name what keeps the file from being read; keep those of the others that can be read."""
    others = tuple(path for path in one.others if not _unread(path, folder))[:MOST_OTHERS]
    return replace(one, problem=one.problem or _unread(one.path, folder), others=others)


def _unread(path: Path, folder: Path) -> str:
    """Return why a file is not read, or ""."""
    try:
        about = path.lstat()
    except OSError as error:
        return f"the notebook cannot be read: {error.strerror}"
    if stat.S_ISLNK(about.st_mode):
        return "the notebook is a link"
    if not stat.S_ISREG(about.st_mode):
        return "the notebook is not a plain file"
    if not path.resolve().is_relative_to(folder.resolve()):
        return "the notebook is outside of the folder"
    if about.st_size > MOST_BYTES:
        size, most = about.st_size / 2**20, MOST_BYTES >> 20
        return f"the notebook has {size:,.0f} MiB; at most {most} MiB are read"
    return ""


def _not_taken(root: Path, layout: str, found: list[Submission]) -> Iterator[tuple[str, str]]:
    """Yield (file, reason) of what looks like a notebook and is in no submission."""
    taken = {path for one in found for path in (one.path, *one.others)}
    depth = len(NBGRADER.split("/")) - 1 if layout == NBGRADER else 1
    for folder, inside, files in os.walk(root):
        below = Path(folder).relative_to(root).parts
        own = CLASS_FOLDERS if layout == FLAT and not below else ()
        inside[:] = sorted(name for name in inside if name not in (*own, CHECKPOINTS))
        for name in sorted(files):
            path = Path(folder, name)
            if ".ipynb" not in name.lower() or path in taken:
                continue
            parts = (*below, name)
            if any(part[0] == "." for part in parts):
                why = "its name or its folder's begins with a dot"
            elif path.suffix.lower() != ".ipynb":
                why = "its name does not end with .ipynb"
            elif len(parts) != depth:
                where = NBGRADER if layout == NBGRADER else "the folder itself"
                why = f"it is not in its place, {where}"
            else:
                why = _unread(path, root) or f"more than {MOST_OTHERS} others of the same student"
            yield path.relative_to(root).as_posix(), why
