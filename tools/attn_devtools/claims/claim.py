"""A claim on trial: what was said, what was measured or counted, and the verdict that follows."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from kernelscope.errors import UserError

from attn_course.lessons.claims import FILE, SOURCES, YES_OR_NO, Evidence, Tried
from attn_course.measure.records import RESULTS_FOLDER


class NotMeasured(UserError, LookupError):
    """The record that a trial needs is not there; names the command that takes it."""


@dataclass(frozen=True)
class Claim:
    """One claim and its experiment.

    Attributes:
        name: a key, in lower case with underscores.
        source: a key of SOURCES.
        lesson: the lesson whose subject it is, "05_timing_honestly".
        said: the claim, in our words.
        why: what explains the numbers.
        experiment: returns the evidence; raises NotMeasured.
        judge: what -> evidence gives a verdict of VERDICTS: the rule is fixed before the numbers.
    """

    name: str
    source: str
    lesson: str
    said: str
    why: str
    experiment: Callable[[], list[Evidence]]
    judge: Callable[[Mapping[str, Evidence]], str]

    def tried(self) -> Tried:
        """Run the experiment and judge its numbers.

        Raises:
            NotMeasured: a record is missing.
        """
        evidence = tuple(self.experiment())
        verdict = self.judge({one.what: one for one in evidence})
        return Tried(self.name, self.source, self.said, self.lesson, evidence, verdict, self.why)


def evidence_of(
    what: str,
    value: float | bool,
    unit: str,
    source: str,
    low: float | None = None,
    high: float | None = None,
) -> Evidence:
    """Return a number of a claim; True and False become 1 and 0 in the unit YES_OR_NO."""
    unit = YES_OR_NO if isinstance(value, bool | np.bool_) else unit
    return Evidence(what, float(value), unit, source, low, high)


def try_all(claims: Iterable[Claim]) -> tuple[list[Tried], dict[str, str]]:
    """Run every experiment. Returns what was tried, and claim -> why it could not be."""
    tried, missing = [], {}
    for one in claims:
        try:
            tried.append(one.tried())
        except NotMeasured as error:
            missing[one.name] = str(error)
    return tried, missing


def record_of(one: Tried) -> dict:
    """Return the fields of a claim for the file, without intervals that a number does not have."""
    evidence = [
        {key: value for key, value in asdict(number).items() if value is not None}
        for number in one.evidence
    ]
    return asdict(one) | {"evidence": evidence}


def write(tried: Iterable[Tried], root: Path = RESULTS_FOLDER) -> Path:
    """Write the file of all claims and return its path."""
    path = root / FILE
    content = {"sources": SOURCES, "claims": list(map(record_of, tried))}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
