"""A notebook's side of the exercises: the cell `%%cuda NAME`, `check("NAME")`, `step("NAME")`."""

from contextlib import suppress

from kernelscope import RawModule, Sanitizer, SimulatorError, Tracer

from attn_course.lessons.working_copy import WorkingCopy

from .examination import BROKEN_BY, compiled, judge, launch
from .exercise import Exercise, ExerciseError, read_exercise
from .judgement import Failure, Judgement
from .setups import Setup

STEP_SECONDS = 5.0  # of a launch that `step` shows
_written: dict[str, str] = {}  # exercise -> the text of its last `%%cuda` cell
_judgements: dict[str, Judgement] = {}


def check(name: str) -> Judgement:
    """Examine the kernel of the cell `%%cuda NAME`.

    Returns the judgement, which a notebook shows; it is true where every property holds.
    Raises ExerciseError for a name that is no exercise's.
    """
    exercise = read_exercise(name)
    copy = WorkingCopy.here()
    judgement = _judgements[name] = judge(exercise, current_text(exercise))
    if copy and not judgement.waiting:
        copy.note(name, bool(judgement))
    return judgement


def current_text(exercise: Exercise) -> str:
    """Return the text of the last `%%cuda` cell, else the working copy's, else the stub."""
    copy = WorkingCopy.here()
    kept = copy.answer(exercise.name) if copy else ""
    return _written.get(exercise.name) or kept or exercise.stub


def step(name: str):
    """Return the stepper on the smallest case that the last `check` found to fail.

    It shows the thread block of the finding and opens there; after a pass, the first block of the
    smallest case. Raises ExerciseError before any check.
    """
    judgement = _judgements.get(name)
    if judgement is None or judgement.waiting:
        raise ExerciseError(
            f'nothing to step through yet: run check("{name}") on your kernel first'
        )
    exercise, first = read_exercise(name), judgement.first
    setup = exercise.setups[0]
    if first is not None:
        setup = next((one for one in exercise.setups if one.label == first.label), setup)
    block = first.block if first is not None and first.block else (0, 0, 0)
    trace = traced(exercise, judgement.source, setup, block, STEP_SECONDS)
    return trace.show(step=_told(trace, first))


def _told(trace: Tracer, failure: Failure | None) -> int | None:
    """Return the step of the failure that `check` told, where the trace has it."""
    found = trace.findings if failure is not None and trace.recordings else ()
    of = [one for one in found if BROKEN_BY.get(one["kind"]) == failure.property]
    exactly = [one for one in of if one["line"] == failure.line]
    return next((one["step"] for one in (*exactly, *of)), None)


def traced(
    exercise: Exercise,
    source: str,
    setup: Setup,
    block: tuple[int, int, int],
    seconds: float,
) -> Tracer:
    """Run one case of a kernel under the tracer, until it ends or has run for `seconds`.

    The tracer holds the steps of this block, the sanitizer's findings marked among them.
    """
    trace, watch = Tracer(block=block), Sanitizer(setup.unwritten)
    with suppress(SimulatorError):  # the steps until an error are shown
        kernel = compiled(exercise, source)
        launch(kernel, setup, setup.fresh(), trace, watch, seconds=seconds)
    trace.mark(watch.findings)
    return trace


def write(name: str, source: str) -> RawModule:
    """Keep a kernel's text for `check`, in the working copy too, and return it as a module."""
    _written[name] = source
    if copy := WorkingCopy.here():
        copy.keep(name, source)
    return RawModule(code=source, strict=True)


def cuda(line: str, cell: str):
    """Run the cell magic `%%cuda NAME`: keep the kernel, and name its module NAME."""
    from IPython import get_ipython

    name = line.strip()
    read_exercise(name)  # a wrong name is told here, with the names that exist
    get_ipython().user_ns[name] = write(name, cell)


def _register() -> None:
    try:
        from IPython import get_ipython
    except ImportError:
        return
    if shell := get_ipython():
        shell.register_magic_function(cuda, "cell")


_register()
