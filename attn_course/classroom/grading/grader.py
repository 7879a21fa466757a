"""Grade one submission: read it, judge its kernels, execute it, each in a sandboxed process."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from attn_course.folders import ENGINE, PACKAGE

from ..points import Points, nothing
from ..scoring import read_problem
from ..session import NotEarned
from .confined.reading import SEPARATOR
from .confined.sandbox import (
    MIB,
    ProcessLimits,
    ProcessOutcome,
    Sandbox,
    SandboxError,
    best_sandbox,
)
from .handout import Handout, HandoutError

ROOM = "attn_course.classroom.grading.confined"
READ_LIMITS = ProcessLimits(seconds=20, memory_bytes=1024 * MIB)
JUDGE_LIMITS = ProcessLimits(seconds=40)  # its launches have limits of their own
JUDGED_AGAIN = 1  # times, where the judge's answer is cut off
WELL = "ran to its end"
RUN_SECONDS = 12.0  # of a notebook
ENDED = {  # limit that a notebook passed -> what the report says
    "time": "ran longer than {seconds:g} s",
    "memory": "used more than {memory_mib} MiB of memory",
    "processes": "started more than {processes} processes",
    "files": "wrote more than {folder_mib} MiB or {folder_files} files",
    "output": "printed more than {output_mib} MiB",
}


@dataclass(frozen=True)
class Task:
    """A submission to grade, as plain data that can go to another machine.

    problem: why the file was not read, or "". run: whether to execute the notebook. code: the
    hash of the course's code that is to grade it.
    """

    student: str
    set: str
    file: str
    data: bytes
    handout: Mapping
    problem: str = ""
    remark: str = ""
    run: bool = True
    run_seconds: float = RUN_SECONDS
    code: str = field(default_factory=lambda: code_digest())

    @property
    def key(self) -> str:
        """A hash of all that decides about the result."""
        handout = Handout.of(self.handout).digest if self.handout else ""
        data = hashlib.sha256(self.data).hexdigest()
        about = [self.student, self.set, self.file, self.problem, self.remark]
        parts = [self.code, data, handout, *about, self.run, float(self.run_seconds)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Return a hash of the package's Python code, which decides about every result."""
    found = hashlib.sha256()
    for path in (*sorted(ENGINE.rglob("*.py")), *sorted(PACKAGE.rglob("*.py"))):
        found.update(path.read_bytes())
    return found.hexdigest()


def grade(task: Task, sandbox: Sandbox | None = None) -> dict:
    """Grade a submission and return the result as plain data; `pages` holds its stepper pages.

    Raises SandboxError where the sandbox does not work, HandoutError where this machine's problems
    are not those of the task.
    """
    started = time.monotonic()
    if task.code != code_digest():
        raise HandoutError("this machine has another version of the course")
    result = {
        "key": task.key,
        "student": task.student,
        "set": task.set,
        "file": task.file,
        "unreadable": task.problem,
        "remarks": [{"kind": "file", "cell": "", "text": task.remark}] if task.remark else [],
        "problems": [],
        "notebook": {},
        "pages": {},
    }
    if task.problem:
        return result
    sandbox = sandbox or best_sandbox()
    handout = Handout.of(task.handout)
    handout.require_here()
    reading = _read(task, sandbox)
    result["unreadable"] = reading["unreadable"]
    result["remarks"] += reading["remarks"]
    if not result["unreadable"]:
        for problem, cell in handout.kernels.items():
            text = reading["kernels"].get(problem)
            points, page = judge(sandbox, problem, text)
            rows = [_row(row) for row in points.as_data()["rows"]]
            result["problems"].append({"name": problem, "cell": cell, "source": text, "rows": rows})
            if page:
                result["pages"][problem] = page
        if task.run:
            result["notebook"] = execute(sandbox, reading["run"], task.run_seconds)
            tests = {cell.id for cell in handout.cells if cell.is_test}
            result["notebook"]["errors"] = [
                one
                for one in result["notebook"]["errors"]
                if one["error"] != NotEarned.__name__ or one["cell"] not in tests
            ]  # a test cell that fails says no more than the points
    result["sandbox"] = sandbox.description
    result["seconds"] = round(time.monotonic() - started, 2)
    return result


def _row(row: Mapping) -> dict:
    return {**row, "block": row["block"] and list(row["block"])}


def _read(task: Task, sandbox: Sandbox) -> dict:
    data = json.dumps(task.handout).encode() + SEPARATOR + task.data
    outcome = sandbox.run(["-m", f"{ROOM}.reading"], data, READ_LIMITS)
    if outcome:
        return json.loads(outcome.reply)
    why = f"reading the notebook failed: it {_ending(outcome, READ_LIMITS)}"
    if not outcome.passed:
        raise SandboxError(f"{why}: {outcome.tail.strip()[-300:]}")
    return {"unreadable": why, "remarks": [], "kernels": {}, "run": []}


def judge(sandbox: Sandbox, problem: str, text: str | None) -> tuple[Points, str]:
    """Return a kernel's points, and the page with the steps of the case that fails, or "".

    Raises SandboxError where the judge's answer is cut off time and again.
    """
    about = read_problem(problem)
    if text is None:
        return nothing(about, "there is no kernel"), ""
    data = json.dumps({"problem": problem, "text": text}).encode()
    for _ in range(1 + JUDGED_AGAIN):
        outcome = sandbox.run(["-m", f"{ROOM}.judging"], data, JUDGE_LIMITS)
        first, ended, rest = outcome.reply.partition("\n")
        if not outcome.reply:
            why = _ending(outcome, JUDGE_LIMITS)
            return nothing(about, f"the kernel ended the examination: it {why}"), ""
        if ended:  # the line of points is whole; the page may be missing
            page = json.loads(rest) if rest.endswith("\n") and outcome else ""
            return Points.from_data(json.loads(first)), page
    raise SandboxError(f"the judge's answer on {problem} was cut off twice")


def execute(sandbox: Sandbox, cells: list, seconds: float) -> dict:
    """Execute a notebook's code cells, and return what it did; it decides about no points."""
    limits = ProcessLimits(seconds=seconds)
    outcome = sandbox.run(["-m", f"{ROOM}.executing"], json.dumps(cells).encode(), limits)
    labels = [label for label, _ in cells]
    at, errors, ended = "", [], False
    for line in outcome.reply.splitlines():
        try:
            said = json.loads(line)
            ended = ended or said.get("end") is True
            if "cell" in said:
                at = labels[int(said["cell"])]
            if "error" in said and len(errors) < 20:
                error, text = str(said["error"])[:80], str(said["text"])[:300]
                errors.append({"cell": at[:300], "error": error, "text": text})
        except Exception:  # the student's code wrote into the report: any JSON, or none
            continue
    why = "" if outcome and ended else _ending(outcome, limits)
    return {
        "ended": WELL if not why else why,
        "limit": outcome.passed,
        "cell": at if why else "",
        "errors": errors,
        "printed": outcome.printed,
        "seconds": outcome.seconds,
        "cpu_seconds": outcome.cpu_seconds,
        "memory_bytes": outcome.memory_bytes,
    }


def _ending(outcome: ProcessOutcome, limits: ProcessLimits) -> str:
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
