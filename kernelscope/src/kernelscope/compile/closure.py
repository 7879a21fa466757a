"""The headers that CUDA C includes by quotes: their texts, a stamp and a hash over all of them.

Whatever is kept for a source (compiled code, a record of a measurement) depends on its headers as
well. What a compilation reads, in angle brackets too, `allowed.check_includes` finds.
"""

import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path

from ..errors import InputError

_QUOTED_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"\n]+)"', re.MULTILINE)

MOST_SOURCE_BYTES = 8 << 20  # of a file

Closure = tuple[tuple[str, str], ...]


def include_closure(
    source: str, folder: str | Path | None, search: tuple[str, ...] = ()
) -> Closure:
    """Return (name, text) of every header that a source includes, directly or through others.

    A header is looked for beside the file that includes it, then in `folder`, then in the folders
    of `search`. Its name is its path relative to `folder`. The order is that of first inclusion.
    Headers that are in none of these folders are left to the compiler. Conditions (`#if`) are not
    evaluated, so a header may be listed that a compilation does not read.
    """
    if folder is None:
        return ()
    return tuple(
        (os.path.relpath(path, folder).replace(os.sep, "/"), read_text(path))
        for path in _headers(source, os.path.abspath(folder), search)
    )


def with_headers(source: str, folder: str | Path) -> str:
    """Return the source as one text: headers that it includes by quotes stand in their places.

    A header that several files include stands where it is included first. The text compiles
    without the headers' folder; it is for sources that are edited in memory.
    """
    texts = dict(include_closure(source, folder))
    root, done = os.path.abspath(folder), set()

    def expanded(text: str, beside: str) -> str:
        def replacement(match: re.Match) -> str:
            for place in (beside, root):
                path = os.path.normpath(os.path.join(place, match[1]))
                name = os.path.relpath(path, root).replace(os.sep, "/")
                if name in texts:
                    first = name not in done
                    done.add(name)
                    return expanded(texts[name], os.path.dirname(path)).strip() if first else ""
            return match[0]

        return _QUOTED_INCLUDE.sub(replacement, text.replace("#pragma once\n", ""))

    return expanded(source, root)


def _headers(
    source: str, folder: str, search: tuple[str, ...], *, links: bool = False
) -> list[str]:
    """Return the absolute paths of the headers in the order of first inclusion.

    links: also headers that a link takes from another folder, which costs no look at each part of
    a path.
    """
    found: dict[str, None] = {}
    inside = () if links else roots((folder, *search))

    def visit(names: tuple[str, ...], beside: str) -> None:
        for name in names:
            for place in (beside, folder, *search):
                path = os.path.normpath(os.path.join(place, name))
                if not os.path.isfile(path):
                    continue
                if not links and not os.path.realpath(path).startswith(inside):
                    continue
                if path not in found:
                    found[path] = None
                    visit(_included(read_text(path)), os.path.dirname(path))
                break

    visit(_included(source), folder)
    return list(found)


def roots(folders: tuple[str, ...]) -> tuple[str, ...]:
    """Return the beginnings of the real paths of all files in some folders."""
    return tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)


@lru_cache(maxsize=1024)
def _included(text: str) -> tuple[str, ...]:
    return tuple(_QUOTED_INCLUDE.findall(text))


def _state(path: str) -> tuple[int, int]:
    """Return what changes when a file is edited: its modification time in ns and its size."""
    state = os.stat(path)
    return state.st_mtime_ns, state.st_size


def read_text(path: str | Path) -> str:
    """Return the text of a source file, without a byte-order mark; kept until the file changes.

    Raises ValueError naming the line that is not UTF-8, or a file that is too long.
    """
    return _read(os.fspath(path), *_state(os.fspath(path)))


@lru_cache(maxsize=1024)
def _read(path: str, modified_ns: int, size: int) -> str:
    if size > MOST_SOURCE_BYTES:
        raise InputError(f"{path} has {size:,} bytes; a source has at most {MOST_SOURCE_BYTES:,}")
    data = Path(path).read_bytes()
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}:{line}: byte {data[error.start]:#04x} is not UTF-8; save the file as UTF-8"
        ) from None


def file_stamp(path: str | Path) -> tuple[tuple[str, int, int], ...]:
    """Return (path, modification time in ns, size) of a file and of all headers that it includes.

    Equal stamps mean that nothing was edited. Calls after the first read no file.
    """
    path = os.path.abspath(path)
    source = read_text(path)
    files = (path, *_headers(source, os.path.dirname(path), (), links=True))
    return tuple((file, *_state(file)) for file in files)


def closure_hash(source: str, closure: Closure) -> str:
    """Return SHA-256 of a source and its headers; without headers that of the source's text."""
    text = "".join((source, *(f"\0{name}\0{header}" for name, header in closure)))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
