"""Reader of kernel files: header fields and tunable constants.

Every file under ``kernels/`` begins with a comment of fixed fields. This module is their one
parser; the ladder, the notebooks and the tests all read headers through it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

from kernelscope.errors import InputError, InputTypeError, MissingFileError, UserError

from attn_course.folders import course_folder

KERNEL_FOLDER = course_folder("kernels")

_FIELD_LINE = re.compile(r"//\s?(?P<name>[A-Z][A-Za-z ]*?):\s+(?P<text>\S.*)")
_CONTINUATION = re.compile(r"//\s{2,}(?P<text>\S.*)")
_CONSTANT = re.compile(r"^#ifndef\s+(\w+)\s*\n#define\s+\1\s+(-?\d+)\b", re.MULTILINE)
_NUMBER = re.compile(r"[0-9]+", re.ASCII)
_GUARD = re.compile(r"^#ifndef\s+(\w+)", re.MULTILINE)
_STRING_OR_COMMENT = re.compile(r'(?P<string>"(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)


class HeaderError(UserError, ValueError):
    """A kernel file whose header comment does not have the fixed fields."""


@dataclass(frozen=True)
class Header:
    """The fixed fields of a kernel file's first comment, in the order in which they stand."""

    idea: str
    changes_from: str  # a file of the same folder, or "nothing"
    shapes: str
    launch: str
    needs: str
    expect: str
    limits: str
    read: str = ""  # in which order to read the file's includes
    long: str = ""  # why the file has more lines than tests/house allows
    outcome: str = ""  # experiments only: what was reported of the attempt, and what to look at


def field_title(attribute: str) -> str:
    """The name of a :class:`Header` attribute in a file: ``changes_from`` -> ``Changes from``."""
    return attribute.replace("_", " ").capitalize()


# Titles as they stand in a file, and the attributes they become.
ALL_FIELDS = {field_title(field.name): field.name for field in fields(Header)}
FIELDS = {field_title(field.name): field.name for field in fields(Header) if field.default != ""}


def _text_and_origin(path_or_text: Path | str) -> tuple[str, str]:
    """Source text and a name for messages."""
    if isinstance(path_or_text, Path):
        return path_or_text.read_text(encoding="utf-8"), path_or_text.name
    return path_or_text, "the given source"


def _header_fields(text: str, origin: str) -> dict[str, str]:
    """The leading ``//`` lines as field name -> text, continuation lines joined by a space."""
    found: dict[str, str] = {}
    current = None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.startswith("//"):
            break
        match = _FIELD_LINE.fullmatch(line.rstrip())
        if match and match["name"] in ALL_FIELDS:
            current = match["name"]
            if current in found:
                raise HeaderError(f"{origin}, line {number}: the field '{current}:' stands twice")
            found[current] = match["text"]
        elif current and (more := _CONTINUATION.fullmatch(line.rstrip())):
            found[current] += " " + more["text"]
        else:
            raise HeaderError(
                f"{origin}, line {number}: {line!r} is neither a field ({', '.join(FIELDS)}) nor "
                "an indented continuation of one"
            )
    return found


def read_header(path_or_text: Path | str) -> Header:
    """Parse the header of a ``.cu`` file (a Path) or of source text (a string).

    Raises:
        HeaderError: a field is missing, doubled, empty or out of order; the message names it.
        FileNotFoundError: the path names no file.
    """
    text, origin = _text_and_origin(path_or_text)
    found = _header_fields(text, origin)
    missing = [title for title in FIELDS if title not in found]
    if missing:
        raise HeaderError(
            f"{origin}: the header has no field '{missing[0]}:'; write a comment line "
            f"'// {missing[0]}: ...' at the top of the file"
        )
    order = [title for title in ALL_FIELDS if title in found]
    if list(found) != order:
        raise HeaderError(f"{origin}: the header's fields must stand in this order: {order}")
    return Header(**{ALL_FIELDS[title]: value for title, value in found.items()})


def read_constants(path_or_text: Path | str) -> dict[str, int]:
    """Tunable constants and their defaults: each ``#ifndef NAME`` followed by ``#define NAME 32``.

    Raises:
        HeaderError: an ``#ifndef`` that is not followed by the integer default of the same name.
    """
    if isinstance(path_or_text, Path):
        return dict(_constants_of(path_or_text, path_or_text.stat().st_mtime_ns))
    return _read_constants(*_text_and_origin(path_or_text))


@lru_cache(maxsize=256)
def _constants_of(path: Path, changed: int) -> dict[str, int]:
    """A file's constants, read again only after the file has changed."""
    return _read_constants(*_text_and_origin(path))


def _read_constants(text: str, origin: str) -> dict[str, int]:
    constants = {name: int(value) for name, value in _CONSTANT.findall(text)}
    for name in _GUARD.findall(text):
        if name not in constants:
            raise HeaderError(f"{origin}: '#ifndef {name}' needs '#define {name} <integer>' below")
    return constants


def chosen_constants(defaults: Mapping[str, int], options: Iterable[str]) -> dict[str, int]:
    """Return the constants that compiler options set.

    defaults: all constants of the file, as :func:`read_constants` finds them; ``-DNAME=value`` of
    another name is not a constant of the file and is left to the compiler.

    >>> chosen_constants({"TILE": 16, "PAD": 1}, ("-DTILE=8", "-DOTHER"))
    {'TILE': 8}

    Raises:
        ValueError: a constant of the file whose value is no integer, or below 0.
    """
    chosen = {}
    for option in options:
        name, _, value = option.removeprefix("-D").partition("=")
        if option.startswith("-D") and name in defaults:
            if not _NUMBER.fullmatch(value):
                raise InputError(
                    f"option {option!r}: {name} is an integer, 0 or more; "
                    f"its default is -D{name}={defaults[name]}"
                )
            chosen[name] = int(value)
    return chosen


def checked_options(options: Iterable[str], constants: Mapping[str, int]) -> tuple[str, ...]:
    """Return compiler options as a tuple, and refuse a ``-DNAME`` that would change nothing.

    constants: those of the kernels that the options are for, with their defaults.

    Raises:
        TypeError: one string in place of a sequence of them.
        ValueError: a name that is no constant of these kernels; the message lists those there are.
    """
    if isinstance(options, str):
        raise InputTypeError(
            f"options is a sequence of strings, not one string: pass ({options!r},)"
        )
    options = tuple(options)
    for option in options:
        if option == "-D" or option.startswith(("--define-macro", "-D ")):
            raise InputError(f"option {option!r}: write name and value in one, as -DNAME=value")
        name = option.removeprefix("-D").partition("=")[0]
        if option.startswith("-D") and name not in constants:
            known = ", ".join(f"{name}={default}" for name, default in constants.items())
            raise InputError(
                f"option {option!r}: these kernels have no constant {name}; "
                + (f"theirs, with the defaults, are {known}" if known else "they have none")
            )
    return options


def kernel_path(name: str, folder: Path = KERNEL_FOLDER) -> Path:
    """The file of a kernel: ``"02_scores_tiled"`` -> ``.../kernels/02_scores_tiled.cu``.

    ``name`` may carry its ending and a subfolder (``"broken/no_barrier"``,
    ``"include/warp.cuh"``).

    Raises:
        FileNotFoundError: no such kernel; the message lists the kernels there are.
    """
    path = folder / (name if name.endswith((".cu", ".cuh")) else f"{name}.cu")
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.cu"))) or "none"
        raise MissingFileError(f"no kernel {name!r} in {folder}; there are: {known}")
    return path


def code_of(text: str) -> str:
    """CUDA C without comments, blank lines and blanks at the ends of lines; strings are kept."""
    kept = _STRING_OR_COMMENT.sub(lambda found: found["string"] or " ", text)
    return "\n".join(line.rstrip() for line in kept.splitlines() if line.strip())
