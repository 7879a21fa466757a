"""Patients of the bug clinic: exercises whose stub is a broken kernel, by letter.

`exercises/patient_a.md` is patient A. A lesson runs it, shows its symptom and examines it; the
exercise then judges the learner's change.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from kernelscope import LaunchError, RawModule
from kernelscope.errors import MemoryFault, ShuffleWarning
from kernelscope.watch import Finding

from attn_course.figures.clinic import wrong_elements
from attn_course.lessons.show import Listing

from .examination import BROKEN_BY
from .exercise import Exercise, ExerciseError, exercise_names, read_exercise
from .judgement import PROPERTIES, wrapped

NOTHING = "nothing"
VERDICTS = {
    "out-of-bounds": "an access outside its array",
    "divergent-barrier": "a barrier or shuffle that some of its threads do not reach",
    "race": "two threads use one element, one of them writes, and no barrier orders them",
    "uninitialised-read": "an element is read that nothing has written",
    "bad-launch": "the device cannot run such a launch",
    NOTHING: "every access is in order; only float64 sees that the numbers are wrong",
}
_PREFIX = "patient_"
_ORDER = list(PROPERTIES)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: result and expected, arrays of one shape, and the error, if any."""

    result: np.ndarray
    expected: np.ndarray
    error: str = ""

    @property
    def wrong(self) -> int:
        """Elements that are wrong or were never written."""
        return int(wrong_elements(self.result, self.expected).sum())

    def __str__(self) -> str:
        found = f"{self.wrong:,} of {self.result.size:,} elements wrong"
        words = found if self.wrong else "agrees with float64"
        return f"{words} ({self.error})" if self.error else words


@dataclass(frozen=True)
class Patient:
    """A kernel under a letter: `text` is the sick one's, which is its exercise's stub."""

    letter: str
    exercise: Exercise
    text: str

    @property
    def cases(self) -> tuple[str, ...]:
        """The labels of the exercise's cases; the last one shows the symptom."""
        return tuple(setup.label for setup in self.exercise.setups)

    @property
    def twin(self) -> Patient:
        """The healthy kernel, with the same launch."""
        return replace(self, letter=f"{self.letter}'s twin", text=self.exercise.solution)

    def source(self) -> Listing:
        """The text with its line numbers, which findings name."""
        lines = enumerate(self.text.splitlines(), 1)
        return Listing("\n".join(f"{n:3}  {line}".rstrip() for n, line in lines), "c++")

    def module(self) -> RawModule:
        """The compiled kernel; `module().ptx("debug")` is the PTX of a build."""
        return RawModule(code=self.text, backend="simulator", strict=True)

    def run(
        self, order: int | None = None, *, case: int = -1, before: float | None = None
    ) -> Outcome:
        """Run the kernel on the simulator.

        An illegal access or launch ends the run as on a GPU, and is named by the outcome.

        Args:
            order: seed of a random order of warps; None runs all of them in lockstep.
            case: which case of the exercise; the last one shows the symptom.
            before: what the output holds before the launch, in place of NaN.
        """
        setup, error = self.exercise.setups[case], ""
        kernel = self.module().get_function(self.exercise.kernel)
        arguments = setup.fresh()
        if before is not None:
            for name in setup.expected:
                arguments[name][...] = before
        kernel.warp_order = order
        try:
            with warnings.catch_warnings():  # one would name what the learner is to find
                warnings.simplefilter("ignore", ShuffleWarning)
                kernel(setup.grid, setup.block, tuple(arguments.values()))
        except (LaunchError, MemoryFault) as refused:
            error = f"it ended in a {type(refused).__name__}"
        [(name, expected)] = setup.expected.items()
        return Outcome(arguments[name], expected, error)


def patient(letter: str) -> Patient:
    """Return the patient of a letter. Raises ExerciseError, which names the letters there are."""
    name = _PREFIX + letter.lower()
    names = [one for one in exercise_names() if one.startswith(_PREFIX)]
    if name not in names:
        letters = ", ".join(sorted(one.removeprefix(_PREFIX).upper() for one in names))
        raise ExerciseError(f"there is no patient {letter!r}; the patients are: {letters}")
    exercise = read_exercise(name)
    return Patient(letter.upper(), exercise, exercise.stub)


def verdict(findings: Iterable[Finding]) -> str:
    """Return the key of VERDICTS that findings come to.

    Of several kinds of error it is the one that a `check` tells first: a barrier that is not
    reached comes before the races and the undefined values that follow from it.
    """
    kinds = {finding.kind for finding in findings if finding.severity == "error"}
    return min(kinds, key=lambda kind: _ORDER.index(BROKEN_BY[kind]), default=NOTHING)


def show_findings(findings: Iterable[Finding]) -> None:
    """Print findings one below the other, or that there are none."""
    lines = [line for finding in findings for line in wrapped(str(finding))]
    print("\n".join(lines) or "no findings")
