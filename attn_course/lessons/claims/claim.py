"""A claim on trial: what was said, what was measured or counted, and the verdict that follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np
from kernelscope import UserError

HOLDS, HOLDS_WHEN, FAILS = "holds", "holds only when", "does not hold"
VERDICTS = (HOLDS, HOLDS_WHEN, FAILS)
# What the claims come from: five documents about attention kernels, by their kind.
SOURCES = {
    "guide": "a beginner's guide to a tiled kernel for attention scores",
    "essay": "an essay on a first optimisation that gained 6 %",
    "readme": "the README of a kernel for head dimensions of 512 to 8192",
    "report": "a report on attention, layer normalisation and an MLP in seven phases",
    "log": "the log of the project that the README belongs to",
}
COUNTED = "counted by the simulator"
COMPUTED = "computed"
PRINTED = "printed in the source"
YES_OR_NO = "yes or no"


@dataclass(frozen=True)
class Evidence:
    """One number: what it is, its value, its unit, and where it comes from.

    value: True and False become 1 and 0 in the unit YES_OR_NO.
    source: COUNTED, COMPUTED, PRINTED, or the caption of a record.
    """

    what: str
    value: float
    unit: str
    source: str

    def __post_init__(self):
        if isinstance(self.value, bool | np.bool_):
            object.__setattr__(self, "unit", YES_OR_NO)
        object.__setattr__(self, "value", float(self.value))

    def __str__(self) -> str:
        if self.unit == YES_OR_NO:
            return "yes" if self.value else "no"
        number = f"{self.value:,.0f}" if self.value >= 1000 else f"{self.value:.4g}"
        return f"{number} {self.unit}".rstrip()


class NotMeasured(UserError, LookupError):
    """The record that a trial needs is not there; names the command that takes it."""


@dataclass(frozen=True)
class Claim:
    """One claim and its experiment.

    Attributes:
        source: a key of SOURCES.
        name: a key, in lower case with underscores.
        said: the claim, in our words.
        lesson: the lesson whose subject it is, "05_timing_honestly".
        experiment: returns the evidence; raises NotMeasured.
        judge: what -> value gives a verdict of VERDICTS: the rule is fixed before the numbers.
        why: what explains the numbers.
    """

    source: str
    name: str
    said: str
    lesson: str
    experiment: Callable[[], list[Evidence]]
    judge: Callable[[dict[str, float]], str]
    why: str

    def tried(self) -> Tried:
        """Run the experiment and judge its numbers.

        Raises:
            NotMeasured: a record is missing.
        """
        evidence = tuple(self.experiment())
        verdict = self.judge({one.what: one.value for one in evidence})
        return Tried(self.name, self.source, self.said, self.lesson, evidence, verdict, self.why)


@dataclass(frozen=True)
class Tried:
    """A claim with its evidence and its verdict, as results/claims.json keeps it."""

    name: str
    source: str
    said: str
    lesson: str
    evidence: tuple[Evidence, ...] = field(default=())
    verdict: str = ""
    why: str = ""

    def record(self) -> dict:
        """Return the fields for the file."""
        return asdict(self) | {"evidence": [asdict(one) for one in self.evidence]}
