"""The bug clinic as its lesson shows it: patients by letter, so that no name gives a defect away.

A `Patient` is a file of kernels/broken without its marks. It runs, shows its symptom, is examined
by the sanitizer, and leaves when the text that a learner fixed passes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attn_course.clinic import Broken, Trial, broken_kernels, prepare
from attn_course.clinic.edits import Edit, edited
from attn_course.engine.errors import MemoryFault
from attn_course.engine.events import observe
from attn_course.engine.module import LaunchError
from attn_course.engine.watch import Sanitizer
from attn_course.engine.watch.sanitizer.findings import Finding
from attn_course.figures.clinic import symptoms, wrong_elements

PATIENTS = {
    "A": "missing_first_barrier",
    "B": "missing_second_barrier",
    "C": "divergent_barrier",
    "D": "missing_bounds_check",
    "E": "lost_head_offset",
    "F": "untransposed_key",
    "G": "atomic_max_negative",
    "H": "first_warp_layernorm",
    "I": "out_read_before_written",
    "J": "partial_mask_shuffle",
    "K": "tile_64",
    "L": "shared_temporary",
}
NOTHING = "nothing"
VERDICTS = {
    "race": "two threads use one element, one of them writes, and nothing orders them",
    "divergent-barrier": "some threads of a block, or of a warp, do not come to a meeting point",
    "out-of-bounds": "an access outside its array",
    "uninitialised-read": "a value is used that nobody gave",
    "bad-launch": "the device can not run such a launch",
    NOTHING: "each access is in order; only float64 sees that the numbers are wrong",
}
_MARK = re.compile(r"  // <- (?:defect|found here)$", re.MULTILINE)
_LOCATION = re.compile(r"\s*\.loc\s+1\s+(\d+)\s")


class Source:
    """A kernel's text, in a notebook folded away under a line to click on."""

    def __init__(self, title: str, text: str):
        self.title, self.text = title, text

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return f"<details><summary>{self.title}</summary>\n\n```cpp\n{self.text}\n```\n\n</details>"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: result and expected (heads, rows, columns), and the error, if any."""

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
    """A broken kernel under a letter. `text` is its source without the marks of the defect."""

    letter: str
    broken: Broken

    @cached_property
    def text(self) -> str:
        return _MARK.sub("", self.broken.path.read_text(encoding="utf-8"))

    def source(self) -> Source:
        """The code below the header comment, with its line numbers."""
        lines = self.text.splitlines()
        first = next(n for n, line in enumerate(lines) if line and not line.startswith("//"))
        shown = "\n".join(f"{n + 1:3}  {lines[n]}".rstrip() for n in range(first, len(lines)))
        return Source(f"Patient {self.letter}: the source", shown)

    def trial(self, code: str | None = None) -> Trial:
        """A launch on the simulator, at the extents that show the symptom; `run()` makes it."""
        return prepare(
            self.broken.path, self.broken.case, code=code or self.text, backend="simulator"
        )

    def twin(self) -> Trial:
        """The same launch of the healthy kernel that this one was made from."""
        return prepare(self.broken.clean, self.broken.case, backend="simulator")

    def run(self, order: int | None = None) -> Outcome:
        """Run the optimised build without any tool, as a user would.

        order: seed of a random order of warps; None runs all of them in lockstep.
        """
        return run(self.trial(), order)

    def examine(self, build: str = "debug", code: str | None = None) -> list[Finding]:
        """Return the sanitizer's findings in a build, "debug" or "optimised"."""
        trial = self.trial(code)
        sanitizer = Sanitizer(trial.family.uninitialised)
        sanitizer.build = build
        with observe(sanitizer) as report:
            trial.run()
        return report.findings

    def verdict(self, findings: Sequence[Finding]) -> str:
        """The key of VERDICTS that the findings come to; a defect's own kind goes first."""
        kinds = [finding.kind for finding in findings if finding.severity == "error"]
        if self.broken.kind in kinds:
            return self.broken.kind
        return kinds[0] if kinds else NOTHING

    def mended(self, mend: Edit | Sequence[Edit]) -> str:
        """Return the text after one edit (old, new) or several.

        Raises:
            EditError: an edit that is no pair of texts, or whose old text is not in the source
                exactly once.
        """
        return edited(self.text, mend, f"patient {self.letter}")

    def discharge(self, mend: Edit | Sequence[Edit] | None) -> None:
        """Examine the mended text and print the verdict; None shows the healthy twin's.

        A patient is discharged when no error is left and the result agrees with float64. Raises
        EditError as `mended` does, and CompileError.
        """
        trial = self.twin() if mend is None else self.trial(self.mended(mend))
        with observe(Sanitizer(trial.family.uninitialised)) as report:
            outcome = run(trial)
        who = "no mend yet; its healthy twin" if mend is None else "your mend"
        found = ", ".join(dict.fromkeys(f"{f.kind} in line {f.line}" for f in report.errors))
        print(f"patient {self.letter}, {who}:")
        print(f"  sanitizer: {found or 'no error'}\n  result:    {outcome}")
        healthy = not report.errors and not outcome.wrong
        print(
            "  discharged"
            if healthy and mend is not None
            else "  healthy"
            if healthy
            else "  stays in the clinic"
        )


def patient(letter: str) -> Patient:
    """The patient of a letter. KeyError names the letters there are."""
    if letter.upper() not in PATIENTS:
        raise KeyError(f"no patient {letter!r}; there are: {', '.join(PATIENTS)}")
    name = PATIENTS[letter.upper()]
    return Patient(letter.upper(), next(b for b in broken_kernels() if b.name == name))


def run(trial: Trial, order: int | None = None) -> Outcome:
    """Make a trial's launch; an illegal access or launch ends it as it would end on a GPU."""
    trial.kernel.warp_order = order
    error = ""
    try:
        trial.run()
    except (LaunchError, MemoryFault) as refused:
        error = f"it ended in a {type(refused).__name__}"
    name = trial.family.writes[-1]
    expected = trial.family.expected(trial.inputs, trial.scale, trial.case.causal)[name]
    return Outcome(trial.outputs[name].copy(), expected, error)


def symptom_figure(*patients: Patient, order: int | None = None):
    """The figure of what patients compute, beside float64."""
    outcomes = {one.letter: one.run(order) for one in patients}
    return symptoms({letter: (o.result, o.expected) for letter, o in outcomes.items()})


def show_findings(findings: Sequence[Finding]) -> None:
    """Print findings one below the other, or that there are none."""
    print("\n".join(map(str, findings)) if findings else "no findings")


def instructions_of_line(ptx: str, line: int) -> list[str]:
    """The PTX instructions that a source line became, in order, without labels and directives."""
    found, current = [], 0
    for text in ptx.splitlines():
        if location := _LOCATION.match(text):
            current = int(location.group(1))
        elif current == line and text.strip().endswith(";") and not text.strip().startswith("."):
            found.append(" ".join(text.split()))
    return found
