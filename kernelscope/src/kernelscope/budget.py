"""The limits of one call: seconds, bytes of memory, bytes of printf output.

A call compiles, translates and runs under one budget. Code that may take long asks it to `check`.
"""

import gc
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

from .errors import InputError, OutOfTime, TooLarge
from .settings import setting

TIMEOUT = "KERNELSCOPE_TIMEOUT"  # environment: seconds until a call is given up
MEMORY = "KERNELSCOPE_MEMORY"  # environment: bytes that a call may use
OUTPUT = "KERNELSCOPE_OUTPUT"  # environment: bytes that the printf of a call may write
DEFAULT_SECONDS = 600.0
DEFAULT_OUTPUT_BYTES = 4 << 20
LOOK_SECONDS = 0.05  # between two looks at the memory of the process
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Budget:
    """The limits of one call and what is left of them.

    seconds, memory_bytes, output_bytes: the limits; deadline: `time.monotonic()` at the end, which
    moves for a call whose seconds are the processor's;
    next_look: the time before which `check` has nothing to do; output_left: in bytes; progress:
    what each look is told to, a function that takes `where` of `check`.
    """

    def __init__(self, seconds: float | None = None):
        texts = map(setting, (TIMEOUT, MEMORY, OUTPUT))
        self.seconds, self.memory_bytes, self.output_bytes = _limits(*texts)
        self.time_remedy = f" If it has to, set the environment variable {TIMEOUT} to more seconds"
        self.started: float | None = None  # time.process_time(), for the processor's seconds
        if seconds is not None and seconds < self.seconds:
            self.seconds, self.time_remedy, self.started = seconds, "", time.process_time()
        self.output_left = self.output_bytes
        now = time.monotonic()
        self.deadline = now + self.seconds
        self.next_look = min(now + LOOK_SECONDS, self.deadline)
        self.resident: int | None = None  # bytes of the process at the first look
        self.progress: Callable[[Callable[[], str]], None] | None = None

    def remaining(self) -> float:
        """Seconds until the deadline; 0 when it has passed."""
        return max(0.0, self.deadline - time.monotonic())

    def check(self, name: str, where: Callable[[], str], question: str = "") -> None:
        """Raise OutOfTime after the deadline, TooLarge when the process has grown too large.

        name: of the kernel or file; where(): the place that it has reached, for the message;
        question: asked in the message of OutOfTime.
        """
        now = time.monotonic()
        if now < self.next_look:
            return
        if now > self.deadline and self.started is not None:
            self.deadline = now + self.seconds - (time.process_time() - self.started)
        if now > self.deadline:
            question = question and f" {question}"
            raise OutOfTime(
                f"{name} ran longer than {self.seconds:g} s and is now at {where()}.{question}"
                f"{self.time_remedy}"
            )
        self.next_look = min(now + LOOK_SECONDS, self.deadline)
        resident = resident_bytes()
        if self.resident is None:
            self.resident = resident
        if resident - self.resident > self.memory_bytes:
            raise TooLarge(
                f"{name} uses more than {_text(self.memory_bytes)} of memory and is now at "
                f"{where()}. {_more(MEMORY)}"
            )
        if self.progress is not None:
            self.progress(where)

    def charge(self, size: int, name: str, what: str) -> None:
        """Raise TooLarge when `size` bytes, about to be allocated, are beyond the limit."""
        if size > self.memory_bytes:
            raise TooLarge(
                f"{name} needs {_text(size)} for {what}; a call may use "
                f"{_text(self.memory_bytes)}. {_more(MEMORY)}"
            )

    def output(self, size: int, name: str) -> None:
        """Count bytes that printf is about to write; raise TooLarge beyond the limit."""
        if size > self.output_left:
            raise TooLarge(
                f"printf of {name} writes more than {_text(self.output_bytes)}. Print from fewer "
                f"threads, or less each. {_more(OUTPUT)}"
            )
        self.output_left -= size


_running: ContextVar[Budget | None] = ContextVar("running", default=None)


def check_budget(name: str, where: Callable[[], str]) -> None:
    """Check the budget of the call that runs; outside of calls do nothing."""
    budget = _running.get()
    if budget is not None:
        budget.check(name, where)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Make objects that stay without the searches for cycles that their number would start.

    They took a sixth of the time to parse and translate kernels. Also a decorator.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def call_budget(seconds: float | None = None) -> Iterator[Budget]:
    """Enter the budget of a call; inside another call, or another `with`, that one's.

    The environment variables KERNELSCOPE_TIMEOUT, KERNELSCOPE_MEMORY and KERNELSCOPE_OUTPUT set
    the limits; ValueError names the one that is wrong. `with call_budget():` around several calls
    bounds them together. seconds: a limit below that of the environment, in seconds of the
    processor, so that a busy machine ends no call that another one finishes.
    """
    budget = _running.get()
    if budget is not None:
        yield budget
        return
    budget = Budget(seconds)
    token = _running.set(budget)
    try:
        yield budget
    finally:
        _running.reset(token)


def resident_bytes() -> int:
    """Return the physical memory of this process in bytes; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@lru_cache(maxsize=16)
def _limits(seconds: str, memory: str, output: str) -> tuple[float, int, int]:
    """Seconds and bytes from the texts of the environment variables."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (
        _seconds(seconds),
        _size(MEMORY, memory, machine // 2),
        _size(OUTPUT, output, DEFAULT_OUTPUT_BYTES),
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text or DEFAULT_SECONDS)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise InputError(
            f"{TIMEOUT} is {text!r}; it must be a number of seconds above 0, such as 600"
        )
    return seconds


def _size(variable: str, text: str, default: int) -> int:
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)([KMG]?)", text)
    if text and not match:
        raise InputError(
            f"{variable} is {text!r}; it must be a number of bytes, such as 4000000, 500M or 4G"
        )
    return int(float(match[1]) * _UNITS[match[2]]) if match else default


def _text(size: int) -> str:
    """Bytes as a person reads them."""
    for unit, width in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= width:
            whole = size // width
            return f"{whole:,} {unit}" if whole >= 100 else f"{size / width:.3g} {unit}"
    return f"{size} bytes"


def _more(variable: str) -> str:
    return f"If it has to, set the environment variable {variable} to more bytes, such as 8G"
