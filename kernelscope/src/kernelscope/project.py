"""What a project says once: folders of its kernels, and how their comments name architectures."""

import os
import re
from pathlib import Path

from .errors import MissingFileError

__all__ = ["add_arch_comment", "add_kernel_folder"]

_STRICT: dict[Path, bool] = {}  # folder -> whether its kernels' arguments are checked strictly
_ARCH_FIELDS = ["kernelscope"]


def add_kernel_folder(path: str | os.PathLike, *, strict: bool = False) -> None:
    """Let RawModule(path="NAME/file.cu") find the files of a folder NAME from anywhere.

    A file below the current folder comes first. strict: what RawModule takes for its `strict`
    where a call leaves it open. A folder that is added again takes the new value.
    """
    _STRICT[Path(path).resolve()] = strict


def find_file(path: str | os.PathLike) -> Path:
    """Return the file at a path from the current folder, or from one that holds an added folder.

    Raises FileNotFoundError, with the kernels of the folder that the path names.
    """
    path = Path(path)
    added = [folder.parent / path for folder in _STRICT if path.parts[:1] == (folder.name,)]
    for candidate in (path, *added):
        if candidate.is_file():
            return candidate.resolve()
    folders = dict.fromkeys(candidate.parent for candidate in (*added, path))
    near = sorted({file.name for folder in folders for file in folder.glob("*.cu")})
    listed = f"; that folder has: {', '.join(near)}" if near else ""
    raise MissingFileError(f"no kernel file {os.fspath(path)!r}{listed}")


def is_strict(file: Path) -> bool:
    """Whether a file, by its resolved path, is in a folder that was added with `strict`."""
    return any(strict and file.is_relative_to(folder) for folder, strict in _STRICT.items())


def add_arch_comment(field: str) -> None:
    """Let a comment `// FIELD: ... sm_90a ...` name the architecture that a source needs.

    `// kernelscope: sm_90a` does so without a call.
    """
    if field not in _ARCH_FIELDS:
        _ARCH_FIELDS.append(field)


def arch_comment(source: str) -> str:
    """Return what the first such comment of a source says; "" where it has none."""
    fields = "|".join(map(re.escape, _ARCH_FIELDS))
    found = re.search(rf"^[ \t]*//[ \t]*(?:{fields}):(.*)$", source, re.MULTILINE)
    return found[1] if found else ""
