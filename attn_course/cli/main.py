"""The command `attn-course`: a parser, and one line for a learner instead of a traceback."""

import argparse
import sys
from collections.abc import Sequence

from kernelscope.cli.arguments import add_json
from kernelscope.cli.main import TRACEBACK, outcome
from kernelscope.cli.options import joined

from attn_course import __version__
from attn_course.folders import FOLDERS, home

from . import bench, check, count, profile, record, run, tour, trace
from .course import book, claims, exercises, grade, lessons, site

COMMANDS = (
    *(tour, run, count, check, trace, profile, bench, book, record),
    *(lessons, exercises, grade, claims, site),
)


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
        epilog=f"Set {TRACEBACK}=1 to see where an error arose.",
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Returns 0, 1 when something disagrees, 2 for a call that cannot run, 130 when interrupted, 141
    when the program that read its output has ended, such as `head`.
    """

    def work() -> int:
        given = sys.argv[1:] if arguments is None else arguments
        if not given:
            build_parser().print_help(sys.stderr)
            return 2
        parsed = build_parser().parse_args(joined(given))
        return parsed.execute(parsed)

    return outcome(
        "attn-course",
        work,
        ("attn_course", "kernelscope"),
        "take a smaller --shape, or a method that keeps no scores (rows_online, flash_async)",
        "`make lab` installs what the lessons need, `make venv` everything",
    )
