"""A notebook's side of the exercises: `%%cuda NAME`, `check`, `step` and `hint`."""

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import date

from kernelscope import RawModule, Sanitizer, SimulatorError, Tracer
from kernelscope.triton import TextKernel

from attn_course.lessons.working_copy import Attempts, Pass, WorkingCopy

from .diagnosis import diagnosis
from .examination import BROKEN_BY, compiled, judge, launch
from .exercise import LEVELS, Exercise, ExerciseError, read_exercise
from .golf import (
    COSTS,
    TOTAL,
    Standing,
    costs,
    known_standings,
    known_texts,
    predicted,
    text_hash,
    with_time,
)
from .judgement import DIAGNOSIS, Failure, Judgement, wrapped
from .setups import Setup

STEP_SECONDS = 5.0  # of a launch that `step` shows
_written: dict[str, str] = {}  # exercise -> the text of its last `%%cuda` cell
_judgements: dict[str, Judgement] = {}
_unkept: dict[str, Attempts] = {}  # of a learner without a working copy, or with one that is locked
_log = logging.getLogger(__name__)


def check(name: str) -> Judgement:
    """Examine the kernel of the cell `%%cuda NAME`.

    Returns the judgement, which a notebook shows; it is true where every property holds.
    Raises ExerciseError for a name that is no exercise's.
    """
    exercise = read_exercise(name)
    judgement = attempt(exercise, current_text(exercise), WorkingCopy.here())
    _judgements[name] = judgement
    return judgement


def passed_cases(name: str, text: str) -> tuple[str, ...]:
    """Return the labels of the cases that the last `check` found a text to pass."""
    judgement = _judgements.get(name)
    return judgement.cases if judgement is not None and judgement.source == text else ()


def attempt(exercise: Exercise, text: str, copy: WorkingCopy | None) -> Judgement:
    """Judge a learner's text, with a diagnosis or its standing, and note the attempt in the copy.

    A copy that cannot be written is told, and changes nothing else.
    """
    judgement = judge(exercise, text)
    if judgement.waiting:
        return judgement
    known = diagnosis(exercise, judgement)
    mine = costs(judgement.totals) if judgement else {}

    def note(attempts: Attempts) -> None:
        attempts.add(judgement.first.property if judgement.first else "", known)
        if mine:
            today = date.today().isoformat()
            attempts.passes.setdefault(text_hash(text), Pass(**mine, date=today))

    attempts = _noted(copy, exercise.name, note)
    if not mine:
        return replace(judgement, diagnosis=known)
    times = [predicted(exercise, one) for one in (text, exercise.solution)]

    def note_time(attempts: Attempts) -> None:
        if found := attempts.passes.get(text_hash(text)):
            found.us = times[0].us

    attempts = _noted(copy, exercise.name, note_time)
    others = known_standings(exercise)
    standings = [*others, *own_standings(attempts)]
    best, lowest = min(standings, key=lambda one: one[1][TOTAL])
    if best in attempts.passes:
        best, best_us = "a kernel of yours", attempts.passes[best].us
    else:
        best_us = predicted(exercise, known_texts(exercise)[best]).us
    shown = {
        "yours": with_time(mine, times[0].us),
        "reference": with_time(others[0][1], times[1].us),
        f"best known: {best}": with_time(lowest, best_us),
    }
    return replace(judgement, standings=shown, times=tuple(times))


def own_standings(attempts: Attempts) -> list[Standing]:
    """Return the costs of a learner's passes, by the hash of the text."""
    return [
        (name, {cost: getattr(one, cost) for cost in (*COSTS, TOTAL)})
        for name, one in attempts.passes.items()
    ]


def hint(name: str) -> None:
    """Print one hint more than the last time, after the diagnosis of the last check, if any.

    Raises ExerciseError for a name that is no exercise's.
    """
    print(next_hint(read_exercise(name), WorkingCopy.here()))


def next_hint(exercise: Exercise, copy: WorkingCopy | None) -> str:
    """Return what `hint` prints, and note in the copy that it is seen."""
    attempts = _noted(copy, exercise.name, Attempts.see)
    known = [DIAGNOSIS.format(attempts.diagnosis)] if attempts.diagnosis else []
    shown = [*zip(LEVELS, exercise.hints, strict=True)][: attempts.hints]
    said = [f"Hint {n} of {len(LEVELS)}, {level}: {one}" for n, (level, one) in enumerate(shown, 1)]
    return "\n".join(line for one in (*known, *said) for line in wrapped(" ".join(one.split())))


def _noted(copy: WorkingCopy | None, name: str, change: Callable[[Attempts], object]) -> Attempts:
    """Change the attempts at an exercise in the copy, else in this process, and return them."""
    try:
        if copy:
            return copy.note(name, change)
    except OSError as error:
        _log.warning("this is not kept, for %s cannot be written: %s", copy.folder, error)
    change(mine := _unkept.setdefault(name, Attempts()))
    return mine


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
    label = first.label if first is not None else ""
    setups = exercise.setups_for(judgement.source)
    setup = next((one for one in setups if one.label == label), exercise.setups[0])
    block = first.block if first is not None and first.block else (0, 0, 0)
    trace = traced(exercise, judgement.source, setup, block, STEP_SECONDS)
    return trace.show(step=_told(trace, first))


def _told(trace: Tracer, failure: Failure | None) -> int | None:
    """Return the step of the failure that `check` told, else the last of a run that it ended."""
    if failure is None or not trace.recordings:
        return None
    of = [one for one in trace.findings if BROKEN_BY.get(one["kind"]) == failure.property]
    of.sort(key=lambda one: one["line"] != failure.line)
    last = len(trace.frames) - 1 if failure.property in ("in bounds", "finishes") else None
    return next((one["step"] for one in of), last)


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


def write(name: str, source: str) -> RawModule | TextKernel:
    """Keep a kernel's text for `check`, in the working copy too, and return it as a module."""
    _written[name] = source
    try:
        if copy := WorkingCopy.here():
            copy.keep(name, source)
    except OSError as error:
        _log.warning("the kernel is not kept, for %s cannot be written: %s", copy.folder, error)
    exercise = read_exercise(name)
    if exercise.language == "triton":
        return compiled(exercise, source)
    return RawModule(code=source, strict=True)


def cuda(line: str, cell: str):
    """Run the cell magic `%%cuda NAME` or `%%triton NAME`: keep and name the kernel."""
    name = line.strip()
    if not name:
        raise ExerciseError("write the exercise's name after %%cuda, as in %%cuda add_ten")
    read_exercise(name)  # a wrong name is told here, with the names that exist
    from IPython import get_ipython

    names = get_ipython().user_ns
    names.setdefault("hint", hint)
    names[name] = write(name, cell)


if "IPython" in sys.modules:  # else there is no shell, and its import takes longer than all others
    from IPython import get_ipython

    if shell := get_ipython():
        for magic in ("cuda", "triton"):
            shell.register_magic_function(cuda, "cell", magic)
