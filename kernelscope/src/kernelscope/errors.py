"""The exceptions of the engine. Messages name the source line and a remedy."""

import functools
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from textwrap import shorten

# Folders of code that is not the user's, and the file of generated lines (translate.function).
_HIDDEN = [f"{Path(__file__).resolve().parent}/", "<translated PTX>"]


def hide_frames(folder: str | Path) -> None:
    """Leave the code of a package out of what errors and warnings show, as ours is."""
    _HIDDEN.append(f"{Path(folder).resolve()}/")


def is_hidden(filename: str) -> bool:
    """Whether a file is of this package, or of one that `hide_frames` named."""
    return filename.startswith(tuple(_HIDDEN))


def levels_to_caller() -> int:
    """Return the `stacklevel` with which a warning shows the line that called this package."""
    level, frame, between = 1, sys._getframe(1), functools.__file__  # of cached properties
    while frame.f_back and (
        is_hidden(frame.f_code.co_filename) or frame.f_code.co_filename == between
    ):
        level, frame = level + 1, frame.f_back
    return level


class ShownBriefly:
    """An exception that a notebook shows by the user's own lines and its message.

    IPython calls `_render_traceback_` in place of its own traceback. `traceback.print_last()`
    prints all frames.
    """

    def _render_traceback_(self) -> list[str]:
        frames = traceback.extract_tb(self.__traceback__)
        own = [frame for frame in frames if _is_users(frame.filename)]
        lines = [f"\x1b[1;31m{type(self).__name__}\x1b[0m"]
        for frame in own:
            cell = "ipykernel_" in frame.filename or frame.filename.startswith("<")
            place = "the cell" if cell else frame.filename
            lines.append(f"  line {frame.lineno} of {place}: {shorten(frame.line or '', 100)}")
        return [*lines, "", str(self)]


def _is_users(filename: str) -> bool:
    """Whether a frame's file belongs neither to a hidden package nor to a library."""
    if filename.startswith("<"):
        return filename.startswith("<ipython-input")
    libraries = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
    return not (is_hidden(filename) or filename.startswith(tuple(libraries)))


@dataclass(frozen=True)
class Advice:
    """Text that names a parameter: in the words of a Python call, and in those of a command line.

    Sums with texts are the same for the sum: "use " + keyword("backend", "simulator"). `str` gives
    the words of Python, UserError.at_shell the others.
    """

    python: str
    shell: str

    def __str__(self) -> str:
        return self.python

    def __add__(self, text: "str | Advice") -> "Advice":
        return Advice(self.python + str(text), self.shell + shell_words(text))

    def __radd__(self, text: str) -> "Advice":
        return Advice(text + self.python, text + self.shell)


def keyword(name: str, value: str) -> Advice:
    """`backend="simulator"` for Python, `--backend simulator` for a shell."""
    return Advice(f'{name}="{value}"', f"--{name.replace('_', '-')} {value}")


def shell_words(text: object) -> str:
    """Return a text, or an Advice in the words of a command line."""
    return text.shell if isinstance(text, Advice) else str(text)


def in_words(text: str | Advice, words: Mapping[str, str]) -> str | Advice:
    """Return a message with CUDA C's names replaced; words: name -> that of another language."""
    if isinstance(text, Advice):
        return Advice(in_words(text.python, words), in_words(text.shell, words))
    for name, word in words.items():
        text = text.replace(name, word)
    return text


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the nearest of the known names, "" where none is near."""
    near = get_close_matches(name, list(known), 1, 0.65)
    return f" (did you mean {near[0]!r}?)" if near else ""


class UserError(ShownBriefly, Exception):
    """An error that the user can correct: the base class of all such errors.

    Packages that use this one derive theirs from it too. The message, a text or an Advice, says
    what is wrong, where, and what to do instead. A command prints it in one line and ends with
    status 2; any other exception is a fault of the program, shown with its traceback and status 70.
    """

    def at_shell(self) -> str:
        """Return the message as a command prints it: `--backend` for `backend=`."""
        return shell_words(self.args[0]) if len(self.args) == 1 else str(self)


class InputError(UserError, ValueError):
    """An argument, option, setting or file that the call does not take; says what it takes."""


class InputTypeError(InputError, TypeError):
    """An argument of a type that the call does not take; says which it takes."""


class UnknownNameError(UserError, KeyError):
    """A name or key that is not there; the message lists those that are."""

    __str__ = Exception.__str__  # KeyError shows its argument as a literal, in quotes


class MissingFileError(UserError, FileNotFoundError):
    """A file that is not there; the message says what is."""


# -- from CUDA C to PTX, and from PTX to a program ----------------------------------------------
@dataclass(frozen=True)
class Diagnostic:
    """One message of the compiler: where it points, what it says, and what it prints below."""

    file: str
    line: int
    severity: str  # "error", "catastrophic error" or "warning"
    message: str
    snippet: tuple[str, ...] = ()  # the source line and the caret line


class CompileError(UserError, RuntimeError):
    """CUDA C that does not compile.

    `diagnostics` holds the compiler's errors in order, `log` its whole output; `file` and
    `line` are those of the first error ("" and 0 when the compiler gives none).
    """

    def __init__(self, message: str, diagnostics: tuple[Diagnostic, ...] = (), log: str = ""):
        super().__init__(message)
        self.diagnostics = diagnostics
        self.log = log
        self.file = diagnostics[0].file if diagnostics else ""
        self.line = diagnostics[0].line if diagnostics else 0


class CompilerFailedError(CompileError):
    """The compiler gave no verdict: it ended early, had no time left, or lacks a part of its own.

    The source or the machine may be the cause, so a judge counts it against nobody.
    """


class CompilerMissingError(UserError, RuntimeError):
    """CuPy or NVRTC is not installed; the message names the pip package to install."""


class ParseError(UserError, ValueError):
    """PTX text that does not follow the ISA manual; names the line of the text."""


class UnknownInstruction(Exception):
    """An opcode that the operation table does not have; names the part that is not known."""


# -- calls of a kernel --------------------------------------------------------------------------
class BackendError(UserError, RuntimeError):
    """The chosen backend cannot do this: no GPU is present, or only the other backend has it."""


class KernelNotFoundError(UserError, LookupError):
    """A module has no kernel or variable of this name; the message lists those it has."""


class ArgumentError(UserError, TypeError):
    """A kernel argument that does not fit its parameter: count, dtype, layout, place or value."""


class ArgumentWarning(UserWarning):
    """CuPy would accept this argument silently, but the kernel will misread it."""


class ShuffleWarning(UserWarning):
    """A shuffle read a lane that its mask names and that is not there: a GPU gives any number."""


class PortabilityWarning(UserWarning):
    """A source uses a declaration of nvcc's, which cupy.RawModule itself does not have."""


class LaunchError(UserError, ValueError):
    """An illegal launch: grid, block or shared memory outside what the device accepts.

    `kind` is the name under which a sanitizer's report files it.
    """

    kind = "bad-launch"


# -- a kernel that runs on the simulator --------------------------------------------------------
class SimulatorError(UserError, RuntimeError):
    """A kernel did something that hardware refuses, or that the simulator does not know.

    line: of the kernel's own file; 0 where it is not known.
    """

    def __init__(self, message: str = "", line: int = 0):
        super().__init__(message)
        self.line = line


class MemoryFault(SimulatorError):
    """An out-of-bounds or misaligned access.

    kind: "out-of-bounds" or "misaligned"; array: the nearest array's name; index: the element of
    it (or the byte); threads: ((block x, y, z), (thread x, y, z)) of the first eight that did it.
    """

    def __init__(self, message, kind, array="", index=None, threads=(), line=0):
        super().__init__(message, line)
        self.kind, self.array, self.index, self.threads = kind, array, index, threads


class Hang(SimulatorError):
    """The kernel can not finish: names the line it hangs on and who waits for what."""


class OutOfTime(Hang):
    """The kernel runs longer than a call may: names the line that it has reached."""


class Interrupted(ShownBriefly, KeyboardInterrupt):
    """Ctrl-C, or a notebook's stop button, during a launch: names the line that was running."""


class TooLarge(SimulatorError):
    """The kernel needs more memory, or prints more, than the limits of a call allow."""


class Trap(SimulatorError):
    """The kernel stopped itself with trap."""


class KernelAssertion(SimulatorError):
    """An assert() in the kernel failed."""


class UnsupportedKernel(SimulatorError):
    """The kernel uses something the simulator does not do; names the instruction and its line."""


class UnsupportedInstruction(Exception):
    """Raised while decoding; becomes UnsupportedKernel once the source line is known."""
