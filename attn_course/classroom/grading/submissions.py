"""Find the submissions in a folder: nbgrader's layout, or a flat folder of notebooks.

Only plain files inside the folder are read: no links, no pipes, nothing above a size.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kernelscope import ShownBriefly

MOST_BYTES = 20 << 20  # of a notebook
NBGRADER = "submitted/STUDENT/SET/SET.ipynb"
FLAT = "flat folder of notebooks"
_SET = re.compile(r"(?<![A-Za-z0-9])(ps\d+)(?![A-Za-z0-9])")


class CollectError(ShownBriefly, ValueError):
    """A folder without submissions."""


@dataclass(frozen=True)
class Submission:
    """One student's notebook for one problem set.

    path: the file. problem: why it is not read, or "". remark: what is unusual about the file.
    """

    student: str
    set: str
    path: Path
    problem: str = ""
    remark: str = ""

    def data(self) -> bytes:
        """Return the file's bytes. Raises OSError."""
        opened = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(opened, "rb") as file:
            return file.read(MOST_BYTES + 1)[:MOST_BYTES]


def collect(folder: Path, only: str = "") -> tuple[str, list[Submission]]:
    """Return which layout a folder has, and its submissions in the order of set and student.

    only: the one problem set to grade; the set of notebooks in a flat folder that name none.
    Raises CollectError where there is none.
    """
    if not folder.is_dir():
        raise CollectError(f"no folder {str(folder)!r}")
    submitted = folder / "submitted" if (folder / "submitted").is_dir() else folder
    found = list(_nbgrader(submitted)) if submitted.name == "submitted" else []
    layout = NBGRADER if found else FLAT
    found = found or list(_flat(folder, only))
    found = [_checked(one, folder) for one in found if not only or one.set == only]
    if not found:
        of = f" of {only}" if only else ""
        raise CollectError(
            f"{folder} holds no submissions{of}: neither {NBGRADER} nor notebooks such as "
            "ann_ps1.ipynb (or ann.ipynb with --set ps1)"
        )
    found.sort(key=lambda one: (one.set, one.student, one.path.name))
    return layout, list(_once(found))


def _nbgrader(submitted: Path) -> Iterator[Submission]:
    for student in _folders(submitted):
        for assignment in _folders(student):
            path = assignment / f"{assignment.name}.ipynb"
            if assignment.is_symlink() or student.is_symlink():
                yield Submission(student.name, assignment.name, path, "the folder is a link")
                continue
            if os.path.lexists(path):
                yield Submission(student.name, assignment.name, path)
                continue
            others = _notebooks(assignment)
            if len(others) == 1:
                remark = f"the notebook is named {others[0].name}, not {path.name}"
                yield Submission(student.name, assignment.name, others[0], remark=remark)
            else:
                why = "there is no notebook" if not others else f"there is no {path.name}"
                yield Submission(student.name, assignment.name, path, why)


def _folders(folder: Path) -> list[Path]:
    return [one for one in sorted(folder.iterdir()) if one.is_dir() and one.name[0] != "."]


def _notebooks(folder: Path) -> list[Path]:
    """The notebooks of a folder, without hidden files: macOS writes `._NAME` beside a file."""
    return [one for one in sorted(folder.glob("*.ipynb")) if one.name[0] != "."]


def _flat(folder: Path, only: str) -> Iterator[Submission]:
    """The notebooks of a flat folder, each with a student of its own.

    STUDENT_SET.ipynb has the name; another notebook of the same student and set, such as
    STUDENT-SET.ipynb, may be somebody else's: it is graded under the name of its file.
    """
    groups: dict[tuple[str, str], list[Submission]] = {}
    for one in _named(folder, only):
        groups.setdefault((one.set, one.student), []).append(one)
    for (name, student), found in groups.items():
        found.sort(key=lambda one: (one.path.stem != f"{student}_{name}", one.path.name))
        first, others = found[0], found[1:]
        names = ", ".join(one.path.name for one in others)
        remark = f"of the same student by its name, graded apart: {names}" if others else ""
        yield replace(first, remark=remark)
        for one in others:
            own = one.path.stem if one.path.stem != student else one.path.name
            remark = f"{first.path.name} has the name of the same student; both are graded"
            yield replace(one, student=own, remark=remark)


def _named(folder: Path, only: str) -> Iterator[Submission]:
    """The notebooks of a flat folder, with the student and the set that their names tell."""
    for path in _notebooks(folder):
        named = _SET.search(path.stem)
        if named:
            student = (path.stem[: named.start()] + path.stem[named.end() :]).strip("_- .")
            yield Submission(student or path.stem, named[1], path)
        elif only:
            yield Submission(path.stem, only, path)
        else:
            why = "the file's name has no problem set such as ps1"
            yield Submission(path.stem, "", path, why)


def _checked(one: Submission, folder: Path) -> Submission:
    """Name what keeps the file from being read."""
    if one.problem:
        return one
    why = ""
    try:
        about = one.path.lstat()
        if stat.S_ISLNK(about.st_mode):
            why = "the notebook is a link"
        elif not stat.S_ISREG(about.st_mode):
            why = "the notebook is not a plain file"
        elif not one.path.resolve().is_relative_to(folder.resolve()):
            why = "the notebook is outside of the folder"
        elif about.st_size > MOST_BYTES:
            size, most = about.st_size / 2**20, MOST_BYTES >> 20
            why = f"the notebook has {size:,.0f} MiB; at most {most} MiB are read"
    except OSError as error:
        why = f"the notebook cannot be read: {error.strerror}"
    return Submission(one.student, one.set, one.path, why, one.remark)


def _once(found: list[Submission]) -> Iterator[Submission]:
    """Keep the first submission of each student and set, and name the others in its remark."""
    groups: dict[tuple[str, str], list[Submission]] = {}
    for one in found:
        groups.setdefault((one.set, one.student), []).append(one)
    for first, *others in groups.values():
        remark = first.remark
        if others:
            names = ", ".join(one.path.name for one in others)
            remark = f"{remark}; " * bool(remark) + f"not graded, of the same student: {names}"
        yield Submission(first.student, first.set, first.path, first.problem, remark)
