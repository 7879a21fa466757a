"""Grade one submission: read it, judge its kernels, execute it, each in a sandboxed process."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..scoring import read_problem
from ..session import NotEarned
from .confined.reading import SEPARATOR
from .confined.sandbox import (
    MIB,
    ProcessLimits,
    Sandbox,
    SandboxError,
    best_sandbox,
)
from .handout import Handout, HandoutError
from .verdict import NotJudged, code_digest, ending, judge, last_words, waited

ROOM = "attn_course.classroom.grading.confined"
READ_LIMITS = ProcessLimits(seconds=20, memory_bytes=1024 * MIB)
READ_AGAIN = 1  # times, where reading gives no answer
WELL = "ran to its end"
RUN_SECONDS = 12.0  # of a notebook


@dataclass(frozen=True)
class Task:
    """A submission to grade, as plain data that can go to another machine.

    problem: why the file was not read, or "". run: whether to execute the notebook. code: the
    hash of the course's code that is to grade it. others: (name, text) of further notebooks of the
    same student. named: whether `file` has the name that is asked for.
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
    others: tuple[tuple[str, bytes], ...] = ()
    named: bool = True

    @property
    def key(self) -> str:
        """A hash of all that decides about the result."""
        handout = Handout.of(self.handout).digest if self.handout else ""
        data = hashlib.sha256(self.data).hexdigest()
        about = [self.student, self.set, self.file, self.problem, self.remark, self.named]
        about += [(name, hashlib.sha256(text).hexdigest()) for name, text in self.others]
        parts = [self.code, data, handout, *about, self.run, float(self.run_seconds)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def grade(task: Task, sandbox: Sandbox | None = None) -> dict:
    """Grade a submission and return the result as plain data; `pages` holds its stepper pages.

    Raises SandboxError where the sandbox does not work, JudgeError where the judge does not,
    NotJudged where one text ends the judge, HandoutError where this machine's problems are not
    those of the task.
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
    result["file"], reading = _chosen(task, sandbox)
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


def _chosen(task: Task, sandbox: Sandbox) -> tuple[str, dict]:
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
    worked = {name: one["kernels"] for name, one in files.items() if _has_work(one["kernels"])}
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
    return chosen, files[chosen] | {
        "remarks": [*_told_of_others(task, files, worked, chosen), *files[chosen]["remarks"]]
    }


def _told_of_others(task: Task, files: Mapping, worked: Mapping, chosen: str) -> list[dict]:
    """Return a remark for each file of a student that is not the one that is graded."""
    found = []
    for name in files:
        if name == chosen:
            continue
        text = f"not graded, of the same student: {name}, which "
        if files[name]["unreadable"]:
            text += f"cannot be read: {files[name]['unreadable']}"
        elif name not in worked:
            text += "still holds the stub"
        else:
            text += "holds the same" if worked[name] == worked.get(chosen) else "holds OTHER"
            text += " kernels"
        found.append({"kind": "file", "cell": "", "text": text})
    if chosen != task.file:
        found.insert(0, {"kind": "file", "cell": "", "text": f"graded is {chosen}"})
    return found


def _has_work(kernels: Mapping[str, str]) -> bool:
    """Whether a kernel differs from the stub by more than blanks."""
    return any(
        text.split() != read_problem(problem).stub.split() for problem, text in kernels.items()
    )


def _read(handout: Mapping, text: bytes, sandbox: Sandbox) -> dict:
    data = json.dumps(handout).encode() + SEPARATOR + text
    for _ in range(1 + READ_AGAIN):
        outcome = sandbox.run(["-m", f"{ROOM}.reading"], data, READ_LIMITS)
        if outcome:
            return json.loads(outcome.reply)
    why = f"reading the notebook failed: it {ending(outcome, READ_LIMITS)}"
    if not outcome.passed or waited(outcome, READ_LIMITS):
        raise SandboxError(f"{why}: {last_words(outcome.tail)}")
    return {"unreadable": why, "remarks": [], "kernels": {}, "run": []}


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
    why = "" if outcome and ended else ending(outcome, limits)
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
