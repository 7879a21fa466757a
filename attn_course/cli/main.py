"""The command `attn-course`: a parser, and one line for a learner instead of a traceback."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

# A module a subcommand. They take a while to import: `main` does it, where Ctrl-C has an answer.
COMMANDS = ("tour", "run", "count", "check", "trace", "profile", "bench", "record")
COMMANDS += ("course.lessons", "course.exercises")
TRACEBACK_VARIABLE = "ATTN_COURSE_TRACEBACK"
INTERRUPTED = 130  # as a shell reports a process that Ctrl-C ended


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attn-course",
        description="CUDA attention kernels, run on a GPU or simulated, checked against float64.",
        epilog=f"Set {TRACEBACK_VARIABLE}=1 to see where an error arose.",
    )
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        import_module(f".{command}", __package__).add(parsers)
    return parser


def is_ours(error: Exception) -> bool:
    """Whether an error is one the package raises on purpose, worded for the user.

    Its own classes, and the built-in ValueError, TypeError and OSError with a message.
    """
    own = type(error).__module__.split(".")[0] == "attn_course"
    return own or type(error) in (ValueError, TypeError) or isinstance(error, OSError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Returns 0, 1 when something disagrees, 2 for a call that cannot run, 130 when interrupted.
    """
    try:
        parsed = build_parser().parse_args(arguments)
        return parsed.execute(parsed)
    except KeyboardInterrupt:
        print("attn-course: interrupted", file=sys.stderr)
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
