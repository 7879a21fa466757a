"""The command `kernelscope`: a parser, and one line for a user instead of a traceback."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from .. import __version__
from ..settings import setting
from . import check, count, run, trace
from .arguments import add_json
from .options import joined

TRACEBACK = "KERNELSCOPE_TRACEBACK"  # environment: 1 shows where an error arose
INTERRUPTED = 130  # as a shell reports a process that Ctrl-C ended
READER_GONE = 141  # as a shell reports a process that SIGPIPE ended


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kernelscope",
        description="Runs, counts, checks and traces a CUDA kernel, on a GPU or without one.",
        epilog=f"Set {TRACEBACK}=1 to see where an error arose.",
    )
    parser.add_argument("--version", action="version", version=f"kernelscope {__version__}")
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (run, count, check, trace):
        command.add(parsers)
        own = list(parsers.choices.values())[-1]
        own.set_defaults(execute=command.execute)
        add_json(own)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; see `outcome` for what it returns."""

    def work() -> int:
        given = sys.argv[1:] if arguments is None else arguments
        if not given:
            build_parser().print_help(sys.stderr)
            return 2
        parsed = build_parser().parse_args(joined(given))
        return parsed.execute(parsed)

    return outcome("kernelscope", work)


def outcome(
    program: str,
    work: Callable[[], int],
    packages: Sequence[str] = ("kernelscope",),
    smaller: str = "launch fewer threads",
    install: str = "install it with pip",
) -> int:
    """Do the work of a command; an error for its user becomes one line.

    packages: whose errors are for users; smaller: what to do where memory is short; install: where
    a package is missing. Returns what `work` returns, 2 for a call that cannot run, 130 when
    interrupted, 141 when the program that reads the output has ended, such as `head`.
    """
    try:
        try:
            return work()
        finally:
            sys.stdout.flush()  # after --help too
    except BrokenPipeError:
        # Let standard output go nowhere, so that Python's last flush at exit cannot fail.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return READER_GONE
    except KeyboardInterrupt as stop:
        print(f"{program}: {str(stop) or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    except MemoryError as error:
        told = f"{program}: {error or 'out of memory'}: this machine has too little; {smaller}"
        print(told, file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if setting(TRACEBACK) or (error.name or "").partition(".")[0] in packages:
            raise
        print(f"{program}: {error.name} is not installed; {install}", file=sys.stderr)
        return 2
    except Exception as error:
        if setting(TRACEBACK) or not is_for_users(error, packages):
            raise
        print(f"{program}: {error}", file=sys.stderr)
        return 2


def is_for_users(error: Exception, packages: Sequence[str]) -> bool:
    """Whether an error is one that a package raises on purpose, worded for its user.

    Its own classes, and the built-in ValueError, TypeError and OSError with a message.
    """
    own = type(error).__module__.split(".")[0] in packages
    return own or type(error) in (ValueError, TypeError) or isinstance(error, OSError)
