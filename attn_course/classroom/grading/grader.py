"""Grade one submission: read it and judge its kernels, each in a sandboxed process."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from ..scoring import read_problem
from .confined.reading import ReadSubmission, Remark
from .confined.sandbox import MIB, ProcessLimits, Sandbox, SandboxError, best_sandbox
from .handout import Handout, HandoutError
from .store import JudgedKernel, Result
from .verdict import CLOCK, NotJudged, code_digest, ending, judge, last_words

READING = f"{__package__}.confined.reading"
READ_LIMITS = ProcessLimits(seconds=20, memory_bytes=1024 * MIB)
READ_AGAIN = 1  # times, where reading gives no answer


@dataclass(frozen=True)
class Task:
    """A submission to grade, as plain data that can go to another machine.

    problem: why the file was not read, or "". code: the hash of the course's code that is to grade
    it. others: (name, text) of further notebooks of the same student. named: whether `file` has the
    name that is asked for.
    """

    student: str
    set: str
    file: str
    data: bytes
    handout: Handout | None
    problem: str = ""
    remark: str = ""
    code: str = field(default_factory=lambda: code_digest())
    others: tuple[tuple[str, bytes], ...] = ()
    named: bool = True

    @property
    def key(self) -> str:
        """A hash of all that decides about the result."""
        data = hashlib.sha256(self.data).hexdigest()
        about = [self.student, self.set, self.file, self.problem, self.remark, self.named]
        about += [(name, hashlib.sha256(text).hexdigest()) for name, text in self.others]
        parts = [self.code, data, self.handout and self.handout.digest, *about]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def result(self, **known) -> Result:
        """A result of this task without points."""
        remarks = [Remark("file", "", self.remark)] if self.remark else []
        about = (self.student, self.set, self.file)
        return Result(self.key, *about, unreadable=self.problem, remarks=remarks, **known)


def grade(task: Task, sandbox: Sandbox | None = None) -> tuple[Result, dict[str, str]]:
    """Grade a submission; return the result, and the pages of steps: problem -> HTML.

    Raises SandboxError where the sandbox does not work, JudgeError where the judge does not,
    NotJudged where one text ends the judge, HandoutError where this machine's problems are not
    those of the task.
    """
    started = time.monotonic()
    if task.code != code_digest():
        raise HandoutError("this machine has another version of the course")
    result, pages = task.result(), {}
    if task.problem:
        return result, pages
    sandbox = sandbox or best_sandbox()
    task.handout.require_here()
    result.file, reading = _chosen(task, sandbox)
    result.unreadable = reading.unreadable
    result.remarks += reading.remarks
    for problem, cell in task.handout.kernels.items() if not reading.unreadable else ():
        text = reading.kernels.get(problem)
        points, page = judge(sandbox, problem, text)
        result.problems.append(JudgedKernel(problem, cell, text, points.rows))
        if page:
            pages[problem] = page
    result.pages = sorted(pages)
    result.sandbox = sandbox.description
    result.seconds = round(time.monotonic() - started, 2)
    return result, pages


def _chosen(task: Task, sandbox: Sandbox) -> tuple[str, ReadSubmission]:
    """Return the file that is graded and what reading it gave, with remarks on the others.

    The file with the name that is asked for counts. Where it is missing or still holds the stub,
    the file with kernels of the student's own counts, if there is one alone.
    Raises NotJudged where several hold different kernels.
    """
    files = {task.file: _read(task.handout, task.data, sandbox)}
    if not task.others:
        return task.file, files[task.file]
    beside = task.file.rpartition("/")[0]
    for name, data in task.others:
        files[f"{beside}/{name}" if beside else name] = _read(task.handout, data, sandbox)
    worked = {name: one.kernels for name, one in files.items() if _has_work(one.kernels)}
    others = list(worked.values())
    if task.file in worked and task.named or not worked:
        chosen = task.file
    elif others.count(others[0]) == len(others):
        chosen = next(iter(worked))
    else:
        raise NotJudged(
            f"{task.file} {'still holds the stub' if task.named else 'has not the expected name'}, "
            f"and several notebooks hold different kernels: {', '.join(worked)}. Leave the one "
            "that is to be graded"
        )
    files[chosen].remarks[:0] = _told_of_others(task, files, worked, chosen)
    return chosen, files[chosen]


def _told_of_others(task: Task, files: Mapping, worked: Mapping, chosen: str) -> list[Remark]:
    """Return a remark for each file of a student that is not the one that is graded."""
    found = []
    for name in files:
        if name == chosen:
            continue
        text = f"not graded, of the same student: {name}, which "
        if files[name].unreadable:
            text += f"cannot be read: {files[name].unreadable}"
        elif name not in worked:
            text += "still holds the stub"
        else:
            text += "holds the same" if worked[name] == worked.get(chosen) else "holds OTHER"
            text += " kernels"
        found.append(Remark("file", "", text))
    if chosen != task.file:
        found.insert(0, Remark("file", "", f"graded is {chosen}"))
    return found


def _has_work(kernels: Mapping[str, str]) -> bool:
    """Whether a kernel differs from the stub by more than blanks."""
    return any(
        text.split() != read_problem(problem).stub.split() for problem, text in kernels.items()
    )


def _read(handout: Handout, text: bytes, sandbox: Sandbox) -> ReadSubmission:
    data = msgspec.msgpack.encode((handout, text))
    for _ in range(1 + READ_AGAIN):
        outcome = sandbox.run(["-m", READING], data, READ_LIMITS)
        if outcome:
            return msgspec.convert(json.loads(outcome.reply), ReadSubmission)
    why = f"reading the notebook failed: it {ending(outcome, READ_LIMITS)}"
    if outcome.passed in ("", CLOCK):
        raise SandboxError(f"{why}: {last_words(outcome.tail)}")
    return ReadSubmission(unreadable=why)
