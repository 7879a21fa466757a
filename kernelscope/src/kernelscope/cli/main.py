"""The command `kernelscope`: a parser, and one line for a user instead of a traceback."""

import errno
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .. import __version__
from ..errors import UserError, is_hidden
from ..settings import setting
from . import check, count, run, trace
from .arguments import OneLineParser, add_json
from .options import joined
from .tables import terminal_wide
from .timing import measure_gpu, predict

TRACEBACK = "KERNELSCOPE_TRACEBACK"  # environment: 1 shows where an error arose
OUR_PACKAGE = __name__.partition(".")[0]
REFUSED = 2  # as argparse ends where it does not understand a call
FAULTY = 70  # EX_SOFTWARE of sysexits.h: an error of the program itself
INTERRUPTED = 130  # as a shell reports a process that Ctrl-C ended
READER_GONE = 141  # as a shell reports a process that SIGPIPE ended
FAULT = "this is an error of the program, not of your call: please report it with these lines"
CUDA_ERRORS = ("cupy_backends.cuda.", "cupy.cuda.")  # modules of CuPy's exceptions
OUT_OF = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}


def build_parser() -> OneLineParser:
    parser = OneLineParser(
        prog="kernelscope",
        description="Runs, counts, checks and traces a CUDA kernel, on a GPU or without one.",
        epilog=f"Set {TRACEBACK}=1 to see where an error arose.",
    )
    parser.add_argument("--version", action="version", version=f"kernelscope {__version__}")
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (run, count, check, trace, predict, measure_gpu):
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
    """Do the work of a command; a UserError becomes one line, any other error a traceback.

    packages: ours, which are never missing; smaller: what to do where memory is short; install:
    where a package is missing. Returns what `work` returns, 2 for a call that cannot run, 70 for a
    fault of the program itself, 130 when interrupted, 141 when the program that reads the output
    has ended, such as `head`.
    """
    try:
        try:
            with terminal_wide(), _brief_warnings(program):
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
        short = f"{error or 'out of memory'}: this machine has too little; {smaller}"
        return refuse(program, short)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in packages:
            return report_fault(program)
        return refuse(program, f"{error.name} is not installed; {install}")
    except Exception as error:
        if not is_for_users(error):
            return report_fault(program)
        return refuse(program, error.at_shell() if isinstance(error, UserError) else str(error))


@contextmanager
def _brief_warnings(program: str) -> Iterator[None]:
    """Print a warning about the user's kernel by its message, which names the file and the line.

    The line of Python that called this package is one of the command, which says nothing here.
    """

    def show(message, category, filename, lineno, file=None, line=None) -> None:
        own = category.__module__.startswith(f"{OUR_PACKAGE}.")
        if own or filename == sys.argv[0] or is_hidden(filename):
            print(f"{program}: warning: {message}", file=file or sys.stderr)
        else:
            usual(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        usual, warnings.showwarning = warnings.showwarning, show
        yield


def is_for_users(error: Exception) -> bool:
    """Whether the user can correct an error: a UserError, or what the system said of a file.

    An OSError of the system has an errno. With the name of a file it tells the state of that file:
    it is missing, closed to us, a folder. Without a name it is the user's where the machine has run
    out of something (OUT_OF). Other OSErrors, such as a broken connection, are faults. An error of
    CUDA is that of the kernel which was running, the user's in most cases. A warning of ours is an
    error where PYTHONWARNINGS makes it one.
    """
    if isinstance(error, OSError) and not isinstance(error, UserError):
        return error.errno is not None and (error.filename is not None or error.errno in OUT_OF)
    module = type(error).__module__
    own = isinstance(error, Warning) and module.startswith(f"{OUR_PACKAGE}.")
    return isinstance(error, UserError) or own or module.startswith(CUDA_ERRORS)


def refuse(program: str, message: str) -> int:
    """Print why a call cannot run, behind the traceback where it is asked for; return 2."""
    if setting(TRACEBACK):
        traceback.print_exc()
    print(f"{program}: {message}", file=sys.stderr)
    return REFUSED


def report_fault(program: str) -> int:
    """Print the traceback of an error that is no user's, and what to do with it; return 70."""
    traceback.print_exc()
    print(f"{program}: {FAULT}", file=sys.stderr)
    return FAULTY
