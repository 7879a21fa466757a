"""The command `attn-course`: a parser, and one line for a learner instead of a traceback."""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from types import ModuleType

from kernelscope.cli.arguments import OneLineParser, add_json
from kernelscope.cli.main import TRACEBACK, outcome
from kernelscope.cli.options import joined
from kernelscope.errors import UnknownNameError, did_you_mean

from attn_course import __version__
from attn_course.folders import FOLDERS, home

from . import check, count, predict, run, tour, trace
from .course import exercises, golf, grade, lessons

COMMANDS = (tour, run, count, check, trace, predict, lessons, exercises, golf, grade)
GROUP = "attn_course.commands"  # entry points: commands of other packages, such as the authors'


class ShowVersion(argparse.Action):
    """Print the version and the folder of kernels, records and lessons; end."""

    def __call__(self, parser, *_) -> None:
        # Not argparse's own action: it wraps lines, and a path must stay in one piece.
        print(f"attn-course {__version__}\n{', '.join(FOLDERS)}: {home()}")
        parser.exit()


def name_of(command: ModuleType) -> str:
    """'lessons' of attn_course.cli.course.lessons, 'site' of attn_devtools.site.command."""
    return command.__name__.removesuffix(".command").rpartition(".")[2]


def all_commands() -> tuple[ModuleType, ...]:
    """Return the course's commands and those that installed packages add."""
    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    return (*COMMANDS, *(entry.load() for entry in found))


def require_known(name: str, commands: Sequence[ModuleType]) -> None:
    """Raise UnknownNameError for a command that is not there; it says how it may come to be."""
    known = [name_of(one) for one in commands]
    if name in known or name.startswith("-"):
        return
    found = f"no command {name!r}{did_you_mean(name, known)}; there are: {', '.join(known)}"
    if not entry_points(group=GROUP):
        found += (
            ". Those of the course's authors, such as record, are found once the course is "
            "installed: `make venv`, or pip install -e kernelscope -e ."
        )
    raise UnknownNameError(found)


def build_parser(commands: Sequence[ModuleType]) -> OneLineParser:
    parser = OneLineParser(
        prog="attn-course",
        description="CUDA attention kernels, run on a GPU or simulated, checked against float64.",
        epilog=f"Set {TRACEBACK}=1 to see where an error arose.",
    )
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show it, and end")
    for command in commands:
        command.add(parsers)
        own = list(parsers.choices.values())[-1]
        own.set_defaults(execute=command.execute)
        if not getattr(command, "WRITES_RECORDS", False):  # which are JSON already
            add_json(own)
    return parser


def main(
    arguments: Sequence[str] | None = None, commands: Sequence[ModuleType] | None = None
) -> int:
    """Run a subcommand of the course, or of `commands` where they are given.

    Returns 0, 1 when something disagrees, 2 for a call that cannot run, 130 when interrupted, 141
    when the program that read its output has ended, such as `head`.
    """

    def work() -> int:
        given = sys.argv[1:] if arguments is None else arguments
        mine = set(map(name_of, COMMANDS)) & set(given[:1])
        chosen = commands or (COMMANDS if mine else all_commands())
        parser = build_parser(chosen)
        if not given:
            parser.print_help(sys.stderr)
            return 2
        require_known(given[0], chosen)
        parsed = parser.parse_args(joined(given))
        return parsed.execute(parsed)

    return outcome(
        "attn-course",
        work,
        ("attn_course", "kernelscope"),
        "take a smaller --shape, or a method that keeps no scores (rows_online, flash_async)",
        "`make lab` installs what the lessons need, `make venv` everything",
    )
