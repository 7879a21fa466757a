"""Shared parts of commands: numbers, files to write, JSON."""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..backend import BACKENDS
from ..errors import InputError, did_you_mean


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are InputErrors of one line: the wrong argument and the way on.

    Its parsers of subcommands are such parsers too.
    """

    def error(self, message: str):
        raise InputError(f"{message}; see {self.prog} --help")

    def parse_known_args(self, args=None, namespace=None):
        """As in argparse, but arguments that are not known are an error of this subcommand."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            wrong = next((one for one in unknown if one.startswith("-")), unknown[0])
            name = wrong.partition("=")[0]
            if not name.startswith("-"):
                self.error(f"{name!r} is one argument too many")
            self.error(f"no option {name!r}{did_you_mean(name, self._option_string_actions)}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value) -> None:
        """Refuse what is none of an action's choices; argparse's own words name no nearest one."""
        if action.choices is not None and value not in action.choices:
            near, known = did_you_mean(str(value), action.choices), ", ".join(action.choices)
            raise argparse.ArgumentError(
                action, f"{value!r} is not known{near}; there are: {known}"
            )


def positive(text: str) -> int:
    """A whole number of at least 1; argparse shows the message of what it refuses."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def natural(text: str) -> int:
    """A whole number of at least 0, as `positive`."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def output_file(text: str) -> Path:
    """A file to write ('-': the screen), refused before the work where it cannot be written."""
    path = Path(text)
    if text == "-":
        return path
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"no folder {str(path.parent)!r} for {path.name!r}: make it or choose another"
        )
    try:
        if path.exists():
            path.open("ab").close()
        else:
            try_to_write(path.parent)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: {error.strerror}") from None
    return path


def try_to_write(folder: Path) -> None:
    """Make a file in the folder that is gone at once. OSError: why none can be made."""
    tempfile.TemporaryFile(dir=folder).close()


def add_backend(parser: argparse.ArgumentParser) -> None:
    """--backend."""
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        help=(
            "where kernels run; default: KERNELSCOPE_BACKEND, else a GPU if there is one, else the "
            "simulator"
        ),
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json FILE, which `write_json` takes."""
    parser.add_argument(
        "--json",
        metavar="FILE",
        type=output_file,
        help="also write the result to this file ('-': only JSON, to the screen)",
    )


def printer(path: Path | None) -> Callable[..., None]:
    """Return print; with `--json -`, a function that leaves the screen to the JSON."""
    return print if path != Path("-") else lambda *_, **__: None


def write_json(path: Path | None, record: dict) -> None:
    """Write a record where --json asks for it: a file, '-' for standard output, or nowhere."""
    if path is None:
        return
    text = json.dumps(finite(record), indent=1) + "\n"
    if str(path) == "-":
        print(text, end="")
    else:
        path.write_text(text, encoding="utf-8")


def finite(value):
    """The value with every float that JSON cannot hold (NaN, infinity) as its name."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def dimensions(extents: Sequence[int]) -> str:
    """(7, 7, 24) -> '7x7x24', as launch geometry is written in tables; ends of 1 left out."""
    kept = list(extents)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return "x".join(map(str, kept))
