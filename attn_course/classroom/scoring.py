"""Examine an answer, the text of a kernel, and give its points.

Only the text is judged, by the course's own code on the simulator: no Python of a notebook runs.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping

from kernelscope import CompileError, Kernel
from kernelscope.errors import CompilerFailedError, KernelNotFoundError, ParseError, UserError

from attn_course.exercises.examination import compiled, examine
from attn_course.exercises.exercise import Exercise, ExerciseError, read_exercise

from .points import ENDS, STUB, CaseOutcome, Points, nothing, points_of

APART_SECONDS = 120.0  # of the process that `score_apart` starts


class NotScored(UserError, RuntimeError):
    """An answer of which the examining process said nothing: it crashed or took too long."""


def read_problem(name: str) -> Exercise:
    """Read a problem. Raises ExerciseError where there is none of this name with points."""
    problem = read_exercise(name)
    if not problem.points:
        raise ExerciseError(f"{name} is an exercise of a lesson and has no points")
    return problem


def score(name: str, text: str, *, hidden: bool = True) -> Points:
    """Return the points of an answer to a problem, here in this process.

    text: of the kernel, without the line `%%cuda NAME`. hidden: examine the hidden cases too.
    Raises ExerciseError for a name that is no problem's; CompilerFailedError,
    CompilerMissingError where the compiler gives no verdict.
    """
    problem = read_problem(name)
    if problem.is_stub(text):
        return nothing(problem, STUB)
    try:
        kernel = compiled(problem, text)
    except CompilerFailedError:
        raise
    except (CompileError, KernelNotFoundError, ParseError) as error:
        return nothing(problem, f"compiles: {error}", getattr(error, "line", 0))
    return points_of(problem, list(outcomes_of(problem, kernel, hidden=hidden)))


def outcomes_of(problem: Exercise, kernel: Kernel, *, hidden: bool = True) -> Iterator[CaseOutcome]:
    """Yield the outcome of each case, until the kernel does not end in one."""
    cases = [(setup, False) for setup in problem.setups]
    cases += [(setup, True) for setup in problem.hidden_setups if hidden]
    for setup, is_hidden in cases:
        failures, _ = examine(kernel, setup)
        outcome = CaseOutcome(setup.label, is_hidden, failures)
        yield outcome
        if outcome.failed(*ENDS):
            return


def score_apart(
    answers: Mapping[str, str],
    *,
    hidden: bool = True,
    seconds: float = APART_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Points]:
    """Return problem -> points of a submission's answers, examined in a fresh process.

    answers: problem -> text of its kernel. seconds: for all of them together. environment: of the
    process; None is this process's own.
    Raises NotScored where the process gives no points: it crashed or ran out of time.
    """
    task = json.dumps({"answers": dict(answers), "hidden": hidden})
    command = [sys.executable, "-P", "-m", "attn_course.classroom.apart"]
    try:
        ended = subprocess.run(
            command, input=task, capture_output=True, text=True, timeout=seconds, env=environment
        )
    except subprocess.TimeoutExpired:
        raise NotScored(f"the examination took longer than {seconds:g} s") from None
    if ended.returncode:
        last = ended.stderr.strip().splitlines()[-1:] or [f"exit status {ended.returncode}"]
        raise NotScored(f"the examination ended early: {last[0]}")
    found = json.loads(ended.stdout)
    return {name: Points.from_data(data) for name, data in found.items()}
