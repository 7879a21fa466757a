"""A notebook's side of the exercises: the cell `%%cuda NAME`, `check("NAME")`, `step("NAME")`."""

from __future__ import annotations

from contextlib import suppress

from attn_course.engine.errors import SimulatorError
from attn_course.engine.module import RawModule
from attn_course.engine.watch import Sanitizer, Tracer
from attn_course.lessons.working_copy import WorkingCopy

from .examination import compiled, judge, launch
from .exercise import ExerciseError, read_exercise
from .judgement import Judgement

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
    source = _written.get(name) or (copy and copy.answer(name)) or exercise.stub
    judgement = _judgements[name] = judge(exercise, source)
    if copy and not judgement.waiting:
        copy.note(name, bool(judgement))
    return judgement


def step(name: str):
    """Return the stepper on the smallest case that the last `check` found to fail.

    It shows the thread block of the finding; after a pass, the first block of the smallest case.
    Raises ExerciseError before any check.
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
    trace, watch = Tracer(block=block), Sanitizer(setup.unwritten)
    with suppress(SimulatorError):  # the steps until an error are shown
        kernel = compiled(exercise, judgement.source)
        launch(kernel, setup, setup.fresh(), trace, watch, seconds=STEP_SECONDS)
    trace.mark(watch.findings)
    return trace.show()


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
