"""The diagnosis: which known wrong solution of its exercise a kernel fails like.

Two kernels fail alike where they break the same property and show the same in the cases: the same
results, bit for bit, and the same findings of the sanitizer or, where it finds nothing, the same
counts. Names of variables and the order of lines do not matter. A kernel that only resembles a
wrong solution, or fails like two of them, gets no diagnosis: a wrong one would mislead.
"""

import hashlib
from collections.abc import Iterator
from time import monotonic

import numpy as np
from kernelscope import Sanitizer, SimulatorError
from kernelscope.errors import OutOfTime

from .examination import NOT_LAUNCHED, SHOWN, LaunchCounts, compiled, launch
from .exercise import Exercise
from .judgement import Judgement
from .setups import Setup

SECONDS = 3.0  # that a diagnosis may take; the next one knows what this one has seen
WATCHED = ("in bounds", "barriers", "no race", "initialised")  # the sanitizer tells them
COUNTED = ("agrees", "counters")  # the results tell, and the counts
_seen: dict[tuple, tuple] = {}  # exercise, text, case, property -> what the kernel showed


def diagnosis(exercise: Exercise, judgement: Judgement) -> str:
    """Return the name of the one wrong solution that a rejected kernel fails like, or ""."""
    end, first = monotonic() + SECONDS, judgement.first
    if first is None or first.property not in (*WATCHED, *COUNTED):
        return ""
    known = [one for one in exercise.wrong if one.rejected_for == first.property]
    try:
        found = [one.name for one in known if _alike(exercise, judgement, one.text, end)]
    except OutOfTime:
        return ""  # another one might be as like
    return found[0] if len(found) == 1 else ""


def _alike(exercise: Exercise, judgement: Judgement, text: str, end: float) -> bool:
    """Whether two kernels show the same, first in the case that fails. Raises OutOfTime.

    The largest case takes most of the time: it counts only where no smaller one fails.
    """
    first = judgement.first
    cases = sorted(exercise.setups_for(judgement.source), key=lambda one: one.label != first.label)
    return all(
        _evidence(exercise, judgement.source, setup, first.property, end)
        == _evidence(exercise, text, setup, first.property, end)
        for setup in cases
        if setup.label == first.label or setup is not exercise.setups[-1]
    )


def _evidence(exercise: Exercise, text: str, setup: Setup, broken: str, end: float) -> tuple:
    if (key := (exercise.name, text, setup.label, broken)) not in _seen:
        _seen[key] = tuple(_shown(exercise, text, setup, broken, end))
    return _seen[key]


def _shown(
    exercise: Exercise, text: str, setup: Setup, broken: str, end: float
) -> Iterator[object]:
    """Yield what a kernel shows in one case. Raises OutOfTime."""
    if (left := end - monotonic()) <= 0:
        raise OutOfTime("the time of the diagnosis is over")
    watch, counts = Sanitizer(setup.unwritten), LaunchCounts(setup)
    observers = (watch,) if broken in WATCHED else counts.observers
    kernel, arguments = compiled(exercise, text), setup.fresh()
    try:
        launch(kernel, setup, arguments, *observers, seconds=left)
    except OutOfTime:
        raise
    except (SimulatorError, *NOT_LAUNCHED) as error:
        yield type(error).__name__
    for value in arguments.values():
        if isinstance(value, np.ndarray):
            yield hashlib.sha256(value.tobytes()).digest()
    if broken in WATCHED:
        for one in watch.findings:
            known = one.array in setup.arguments and one.array
            yield one.kind, known, one.threads, one.index, one.count
    else:
        totals = counts.totals(kernel)
        goals = {goal.counter for goal in (*setup.method, *setup.goals)}
        yield {name: totals[name] for name in {*SHOWN, *goals} - {"instructions"}}
