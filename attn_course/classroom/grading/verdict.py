"""Judge one kernel in the sandbox, and blame nobody for the machine.

The judge proves itself first: before it judges a problem in this process, it judges the reference
solution and a wrong one in the same way. They must get all points, and lose those that the wrong
one must lose; else JudgeError says why, and nothing is graded.

A judge that ends without an answer is asked again. Then the reference solution is judged once more:

- it fails too: the machine is at fault, and nobody is graded;
- it passes, and a limit of the sandbox ended the text each time: the text earns nothing;
- it passes, and the text ended the judge in another way: NotJudged. The teacher decides.
"""

import hashlib
import json
import re
import threading
from collections import defaultdict
from functools import lru_cache
from textwrap import shorten

import msgspec
from kernelscope.errors import UserError

from attn_course.folders import ENGINE, PACKAGE

from ..points import Points, nothing
from ..proof import loses
from ..scoring import read_problem
from .confined.sandbox import (
    MIB,
    ProcessLimits,
    ProcessOutcome,
    Sandbox,
    SandboxError,
    best_sandbox,
)
from .handout import problem_digest

MODULE = f"{__package__}.confined.judging"
JUDGE_LIMITS = ProcessLimits(seconds=40)  # its launches have limits of their own
CLOCK = "clock"  # the limit of a process that waits: for a processor, a disk
TAIL_CHARACTERS = 300  # of what a process printed, in a reason
ENDED = {  # limit that a process passed -> what the report says
    "time": "ran longer than {seconds:g} s",
    CLOCK: "waited for the machine, and had less than {seconds:g} s of it",
    "memory": "used more than {memory_mib} MiB of memory",
    "processes": "started more than {processes} processes",
    "files": "wrote more than {folder_mib} MiB or {folder_files} files",
    "output": "printed more than {output_mib} MiB",
}
_RAISED = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception): )", re.MULTILINE)
_proven: set[tuple] = set()  # what the judge has been proved for in this process
_locks: defaultdict[tuple, threading.Lock] = defaultdict(threading.Lock)


class JudgeError(SandboxError):
    """The judge does not work on this machine: it can grade nobody."""


class NotJudged(UserError, RuntimeError):
    """A text on which the judge ends each time, and not on the reference: the teacher decides."""


class NoAnswer(Exception):
    """A judge that gave no points, with the reason; limit: of the sandbox that ended it, or ""."""

    def __init__(self, limit: str, why: str):
        super().__init__(why)
        self.limits = [limit]


def judge(sandbox: Sandbox, problem: str, text: str | None) -> tuple[Points, str]:
    """Return a kernel's points, and the page with the steps of the case that fails, or "".

    Raises JudgeError where the judge does not work here, SandboxError where it worked before and
    does no longer, NotJudged where only this text ends it.
    """
    about = read_problem(problem)
    if text is None:
        return nothing(about, "there is no kernel"), ""
    require_judge(sandbox, problem)
    try:
        return _ask_again(sandbox, problem, text)
    except NoAnswer as end:
        why, limits = f"it {end}", end.limits
    if defect := _defect(sandbox, problem, about.solution, ""):
        raise SandboxError(
            f"the judge gives no answer on {problem}: {why}. This is the machine's fault, for "
            f"{defect}"
        )
    if all(limits):
        return nothing(about, f"the kernel ended the examination: {why}"), ""
    raise NotJudged(
        f"the judge of {problem} ends on this text each time, and not on the reference solution: "
        f"{why}"
    )


def require_judge(sandbox: Sandbox, problem: str) -> None:
    """Raise JudgeError where the judge does not judge two known solutions of a problem rightly.

    It is proved once in a process for a sandbox, a problem's file and the course's code.
    """
    key = (sandbox, problem, problem_digest(problem), code_digest())
    with _locks[key]:
        if key in _proven:
            return
        about = read_problem(problem)
        wrong = about.wrong[0]
        for text, rejected_for in ((about.solution, ""), (wrong.text, wrong.rejected_for)):
            if defect := _defect(sandbox, problem, text, rejected_for):
                raise JudgeError(f"nothing is graded, the judge does not work here: {defect}")
        _proven.add(key)


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Return a hash of the Python code of course and engine, which decides about every result."""
    found = hashlib.sha256()
    for path in (*sorted(ENGINE.rglob("*.py")), *sorted(PACKAGE.rglob("*.py"))):
        found.update(path.read_bytes())
    return found.hexdigest()


def _defect(sandbox: Sandbox, problem: str, text: str, rejected_for: str) -> str:
    """Judge a known solution; return what is wrong with the judge, or "".

    rejected_for: the property that the solution breaks; "" for the reference.
    """
    called = (
        f"a wrong solution of {problem}" if rejected_for else f"the reference solution of {problem}"
    )
    try:
        points, _ = _ask_again(sandbox, problem, text)
    except NoAnswer as end:
        return f"{called} gets no answer: the judge {end}"
    told = f"{called} gets {points.earned} of {points.possible} points"
    if rejected_for:
        return "" if loses(points, rejected_for) else f"{told}, though it breaks {rejected_for!r}"
    if not points.lost:
        return ""
    return f"{told}: {shorten(points.of(points.lost[0]).reason, TAIL_CHARACTERS)}"


def own_points(problem: str, text: str) -> Points:
    """Return the points of one's own kernel, by a judge that need not prove itself.

    Raises NotJudged where it gives none, SandboxError where no sandbox works here.
    """
    try:
        return _ask_again(best_sandbox(), problem, text)[0]
    except NoAnswer as end:
        raise NotJudged(f"{problem} is not judged: the judge {end}") from None


def _ask_again(sandbox: Sandbox, problem: str, text: str) -> tuple[Points, str]:
    """Ask the judge, again where it gives no answer. NoAnswer has the limits of all trials."""
    try:
        return _ask(sandbox, problem, text)
    except NoAnswer as first:
        try:
            return _ask(sandbox, problem, text)
        except NoAnswer as end:
            end.limits += first.limits
            raise


def _ask(sandbox: Sandbox, problem: str, text: str) -> tuple[Points, str]:
    data = json.dumps({"problem": problem, "text": text}).encode()
    try:
        outcome = sandbox.run(["-m", MODULE], data, JUDGE_LIMITS)
    except SandboxError as error:  # the supervisor may have been killed
        raise NoAnswer("", f"did not run: {error}") from None
    first, ended, rest = outcome.reply.partition("\n")
    if not ended:
        cut = "was cut off in its answer; it " if first else ""
        tail = "" if outcome.passed else last_words(outcome.tail)
        why = ending(outcome, JUDGE_LIMITS) + (f": {tail}" if tail else "")
        raise NoAnswer("" if outcome.passed == CLOCK else outcome.passed, f"{cut}{why}")
    page = json.loads(rest) if rest.endswith("\n") and outcome else ""  # the page may be missing
    return msgspec.convert(json.loads(first), Points), page


def ending(outcome: ProcessOutcome, limits: ProcessLimits) -> str:
    """Say in words how a process ended that did not end well."""
    if outcome.passed:
        fields = dict(vars(limits))
        for name in [name for name in fields if name.endswith("_bytes")]:
            fields[name.replace("_bytes", "_mib")] = fields[name] // MIB
        return ENDED[outcome.passed].format_map(fields)
    signal = -outcome.status if outcome.status < 0 else outcome.status - 128
    if 0 < signal <= 64:  # 128 + N as bubblewrap and a shell report it
        return f"was ended by signal {signal}"
    return f"ended early, with exit status {outcome.status}"


def last_words(text: str) -> str:
    """Return on one line what a process printed last: from its last exception on, or the end."""
    raised = list(_RAISED.finditer(text))
    if raised:
        return shorten(text[raised[-1].start(1) :], TAIL_CHARACTERS, placeholder=" ...")
    line = " ".join(text.split())
    return line if len(line) <= TAIL_CHARACTERS else f"... {line[-TAIL_CHARACTERS:]}"
