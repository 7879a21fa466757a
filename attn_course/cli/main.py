"""The command `attn-course`: a parser, and one line for a learner instead of a traceback."""

import argparse
import os
import sys
from collections.abc import Sequence

from attn_course import __version__
from attn_course.folders import FOLDERS, home

from . import bench, check, count, profile, record, run, tour, trace
from .arguments import add_json
from .course import book, claims, exercises, grade, lessons, site
from .own import joined

COMMANDS = (
    *(tour, run, count, check, trace, profile, bench, book, record),
    *(lessons, exercises, grade, claims, site),
)
TRACEBACK_VARIABLE = "ATTN_COURSE_TRACEBACK"
INTERRUPTED = 130  # as a shell reports a process that Ctrl-C ended
READER_GONE = 141  # as a shell reports a process that SIGPIPE ended


class ShowVersion(argparse.Action):
    """Print the version and the folder of kernels, records and lessons; end."""

    def __call__(self, parser, *_) -> None:
        # Not argparse's own action: it wraps lines, and a path must stay in one piece.
        print(f"attn-course {__version__}\n{', '.join(FOLDERS)}: {home()}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attn-course",
        description="CUDA attention kernels, run on a GPU or simulated, checked against float64.",
        epilog=f"Set {TRACEBACK_VARIABLE}=1 to see where an error arose.",
    )
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show it, and end")
    for command in COMMANDS:
        command.add(parsers)
        own = list(parsers.choices.values())[-1]
        own.set_defaults(execute=command.execute)
        if command is not record:
            add_json(own)
    return parser


def is_ours(error: Exception) -> bool:
    """Whether an error is one the package raises on purpose, worded for the user.

    Its own classes, and the built-in ValueError, TypeError and OSError with a message.
    """
    own = type(error).__module__.split(".")[0] in ("attn_course", "kernelscope")
    return own or type(error) in (ValueError, TypeError) or isinstance(error, OSError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Returns 0, 1 when something disagrees, 2 for a call that cannot run, 130 when interrupted, 141
    when the program that read its output has ended, such as `head`.
    """
    try:
        try:
            given = sys.argv[1:] if arguments is None else arguments
            if not given:
                build_parser().print_help(sys.stderr)
                return 2
            parsed = build_parser().parse_args(joined(given))
            return parsed.execute(parsed)
        finally:
            sys.stdout.flush()  # after --help too
    except BrokenPipeError:
        # Let standard output go nowhere, so that Python's last flush at exit cannot fail.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return READER_GONE
    except KeyboardInterrupt as stop:
        print(f"attn-course: {str(stop) or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    except MemoryError as error:
        print(
            f"attn-course: {error or 'out of memory'}: this machine has too little; take a "
            "smaller --shape, or a method that keeps no scores (rows_online, flash_async)",
            file=sys.stderr,
        )
        return 2
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE) or not is_ours(error):
            raise
        print(f"attn-course: {error}", file=sys.stderr)
        return 2
