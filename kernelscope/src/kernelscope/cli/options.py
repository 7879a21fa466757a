"""The options that say how a kernel of a file is called."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..errors import MissingFileError
from .arguments import add_backend, natural, output_file

BLOCK = (256, 1, 1)
CALL = ("grid", "block", "arg", "option", "shared_mem", "kernel", "out")
_TAKE_ANYTHING = ("--arg", "--option")  # their values may begin with a dash
_VALUES = (
    "its parameters one after another: a number; for a pointer KIND:SHAPE, such as normal:33x70 "
    "(seeded), zeros:1000, ones:16, arange:64, output:33x70 (what stays unwritten is named), or "
    "FILE.npy, or null. The element type is that of the parameter"
)

_FILES = (
    "CUDA C (.cu), PTX (.ptx), or MODULE.py:FUNCTION, a kernel of Numba or Triton: the module is "
    "imported, which executes its code in this process. There arrays are KIND:SHAPE:DTYPE, float32 "
    "without a dtype; --arg NAME=VALUE names a parameter, --option NAME=VALUE an option of Triton"
)


def extents_argument(text: str) -> tuple[int, int, int]:
    """'4,1' -> (4, 1, 1); argparse shows the message of what it refuses."""
    found = _three(text, 1)
    if min(found, default=0) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size: give one to three numbers as X,Y,Z, each at least 1"
        )
    return found


def block_argument(text: str) -> tuple[int, int, int]:
    """'1,0' -> (1, 0, 0); argparse shows the message of what it refuses."""
    found = _three(text, 0)
    if min(found, default=-1) < 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a block: give its place in the grid as X,Y,Z, each at least 0"
        )
    return found


def _three(text: str, rest: int) -> tuple[int, ...]:
    """One to three numbers, filled up with `rest`; () for any other text."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        return ()
    return (*numbers, *[rest] * (3 - len(numbers))) if len(numbers) <= 3 else ()


def add_call(
    parser: argparse.ArgumentParser,
    *,
    title: str = "the call",
    about: str | None = None,
    kernel_help: str = "its kernel's name",
) -> None:
    """Add the options of a call of a kernel file, as a group with this title and description."""
    group = parser.add_argument_group(title, about)
    group.add_argument(
        "--kernel", metavar="NAME", help=f"{kernel_help}; not needed where the file has one"
    )
    group.add_argument("--grid", type=extents_argument, metavar="X,Y,Z", help="in blocks")
    group.add_argument(
        "--block", type=extents_argument, metavar="X,Y,Z", help="in threads (default 256)"
    )
    group.add_argument("--arg", action="append", metavar="VALUE", help=_VALUES)
    group.add_argument(
        "--option", action="append", metavar="OPTION", help="of the compiler, such as -DTILE=32"
    )
    group.add_argument(
        "--shared-mem", type=natural, metavar="BYTES", help="dynamic shared memory of a block"
    )
    group.add_argument(
        "--out", type=output_file, metavar="FILE.npz", help="save the arrays after the launch"
    )


def add_file(parser: argparse.ArgumentParser) -> None:
    """FILE, and all that a call of its kernel takes."""
    parser.add_argument("file", metavar="FILE", help=_FILES)
    add_call(parser)
    parser.add_argument(
        "--config",
        metavar="CONFIG",
        help="of @triton.autotune, by its number or by values of it, such as BLOCK=64,num_warps=4 "
        "(default: the first)",
    )
    parser.add_argument("--seed", type=natural, default=0, help="of `normal` (default 0)")
    add_backend(parser)


def joined(arguments: Sequence[str]) -> list[str]:
    """The command line with `--option -DX=1` as `--option=-DX=1`, which argparse can read."""
    found: list[str] = []
    for argument in arguments:
        if found and found[-1] in _TAKE_ANYTHING and argument.startswith("-"):
            found[-1] += f"={argument}"
        else:
            found.append(argument)
    return found


def source_file(name: str) -> Path:
    """The kernel file of a name. Raises FileNotFoundError, with the folder's files."""
    path = Path(name)
    if path.is_file():
        return path
    near = sorted(file.name for file in path.parent.glob("*.cu"))
    listed = f"; {path.parent} has: {', '.join(near)}" if near else ""
    raise MissingFileError(f"no kernel file {name!r}{listed}")
