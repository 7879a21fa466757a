"""Examine an answer, the text of a kernel, and give its points.

Only the text is judged, by the course's own code on the simulator: no Python of a notebook runs.
"""

from collections.abc import Collection, Iterator

from kernelscope import Kernel

from attn_course.exercises.examination import compiled_or_failure, examine
from attn_course.exercises.exercise import Exercise, ExerciseError, read_exercise
from attn_course.exercises.judgement import Failure

from .points import ENDS, STUB, CaseOutcome, Points, nothing, points_of


def read_problem(name: str) -> Exercise:
    """Read a problem. Raises ExerciseError where there is none of this name with points."""
    problem = read_exercise(name)
    if not problem.points:
        raise ExerciseError(f"{name} is an exercise of a lesson and has no points")
    return problem


def score(name: str, text: str, *, hidden: bool = True, passed: Collection[str] = ()) -> Points:
    """Return the points of an answer to a problem, here in this process.

    text: of the kernel, without the line `%%cuda NAME`. hidden: examine the hidden cases too.
    passed: labels of visible cases that `check` has just found to pass, which are not run again.
    Raises ExerciseError for a name that is no problem's; CompilerFailedError,
    CompilerMissingError where the compiler gives no verdict.
    """
    problem = read_problem(name)
    if problem.is_stub(text):
        return nothing(problem, STUB)
    return examined(problem, text, hidden=hidden, passed=passed)[0]


def examined(
    problem: Exercise,
    text: str,
    *,
    hidden: bool = True,
    whole: bool = True,
    passed: Collection[str] = (),
) -> tuple[Points, CaseOutcome]:
    """Return the points of a text, and the first case that fails, or the last one.

    whole: False ends the examination with the first case that fails. passed: as of score(). Raises
    what `score` does.
    """
    kernel = compiled_or_failure(problem, text)
    if isinstance(kernel, Failure):
        outcomes = [CaseOutcome("", False, (kernel,))]
        return points_of(problem, outcomes), outcomes[0]
    outcomes = []
    for outcome in outcomes_of(problem, kernel, hidden=hidden, passed=passed):
        outcomes.append(outcome)
        if outcome.failures and not whole:
            break
    first = next((outcome for outcome in outcomes if outcome.failures), outcomes[-1])
    return points_of(problem, outcomes), first


def outcomes_of(
    problem: Exercise, kernel: Kernel, *, hidden: bool = True, passed: Collection[str] = ()
) -> Iterator[CaseOutcome]:
    """Yield the outcome of each case, until the kernel does not end in one."""
    cases = [(setup, False) for setup in problem.setups]
    cases += [(setup, True) for setup in problem.hidden_setups if hidden]
    for setup, is_hidden in cases:
        known = setup.label in passed and not is_hidden
        failures = () if known else examine(kernel, setup)[0]
        outcome = CaseOutcome(setup.label, is_hidden, failures)
        yield outcome
        if outcome.failed(*ENDS):
            return
