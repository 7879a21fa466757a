"""Claims of five documents about attention kernels: their numbers and verdicts, for lesson 14.

`attn-course claims` tries them again; results/claims.json keeps what came out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import msgspec

from attn_course.figures import table
from attn_course.measure.records import RESULTS_FOLDER, RecordError

from .predictions import PredictionError, predict, reveal

HOLDS, HOLDS_WHEN, FAILS, UNDECIDED = "holds", "holds only when", "does not hold", "not decided"
VERDICTS = (HOLDS, HOLDS_WHEN, FAILS, UNDECIDED)
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
EXACT = (COUNTED, COMPUTED, PRINTED)  # sources of numbers that have no spread
YES_OR_NO = "yes or no"
FILE = "claims.json"
CHOICE = dict(zip("hwnu", VERDICTS, strict=True))  # what a learner answers -> the verdict


@dataclass(frozen=True)
class Evidence:
    """One number: what it is, its value, its unit, and where it comes from.

    value: 1 and 0 stand for yes and no in the unit YES_OR_NO.
    source: COUNTED, COMPUTED, PRINTED, or the caption of a record.
    low, high: the interval of a recorded number, in its unit; None: the record has no spread.
    """

    what: str
    value: float
    unit: str
    source: str
    low: float | None = None
    high: float | None = None

    @property
    def exact(self) -> bool:
        """A count, a result of arithmetic, a printed number, or a yes or no."""
        return self.source in EXACT or self.unit == YES_OR_NO

    @property
    def spread(self) -> str:
        """The interval in words; empty for an exact number."""
        if self.low is not None:
            return f"{_number(self.low)} to {_number(self.high)}"
        return "" if self.exact else "no spread"

    def __str__(self) -> str:
        if self.unit == YES_OR_NO:
            return "yes" if self.value else "no"
        return f"{_number(self.value)} {self.unit}".rstrip()


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


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


class _Book(TypedDict):
    sources: dict[str, str]
    claims: list[Tried]


def read(root: Path = RESULTS_FOLDER) -> dict[str, Tried]:
    """Return name -> claim of the file.

    Raises:
        RecordError: there is no file, or it does not fit; names it and the place in it.
    """
    path = root / FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Book)
    except OSError as error:
        raise RecordError(
            f"{path}: {error.strerror}; `attn-course claims --write` makes it"
        ) from None
    except msgspec.MsgspecError as error:
        raise RecordError(f"{path}: {error}") from None
    for one in found["claims"]:
        if one.verdict not in VERDICTS or one.source not in SOURCES:
            raise RecordError(f"{path}: {one.name} has an unknown verdict or source")
    return {one.name: one for one in found["claims"]}


# -- for a lesson ----------------------------------------------------------------------------------
def evidence_table(evidence: Iterable[Evidence]) -> str:
    """Return the numbers of a claim as a table, and below it the records that they come from."""
    evidence = list(evidence)
    sources = list(dict.fromkeys(one.source for one in evidence))
    mark = {source: "abcdefgh"[number] for number, source in enumerate(sources)}
    rows = [(one.what, str(one), one.spread, mark[one.source]) for one in evidence]
    heads = ("what", "value", "interval", "from")
    if not any(one.spread for one in evidence):
        heads, rows = ("what", "value", "from"), [(*row[:2], row[3]) for row in rows]
    notes = [f"{letter}: {source}" for source, letter in mark.items()]
    return "\n".join([table(heads, rows, (1,)), *notes])


def ask(tried: Sequence[Tried], letters: str) -> None:
    """Take keys of CHOICE as predictions, one a claim, - for none. PredictionError: too many."""
    letters = letters.replace(" ", "").ljust(len(tried), "-")
    if len(letters) > len(tried):
        raise PredictionError(f"{len(tried)} letters expected, {len(letters)} given")
    for one, letter in zip(tried, letters, strict=True):
        predict(one.name, None if letter == "-" else letter, CHOICE, listed=False)


def show(tried: Iterable[Tried]) -> None:
    """Print claims with their numbers, the reason, and the verdict beside the one predicted."""
    letters = {verdict: letter for letter, verdict in CHOICE.items()}
    for one in tried:
        print(f"-- {one.name}: {one.said} (lesson {one.lesson[:2]})")
        print(evidence_table(one.evidence))
        reveal(one.name, letters[one.verdict])
        print(textwrap.fill(one.why, 110), end="\n\n")


def verdict_table(tried: Iterable[Tried]) -> str:
    """Return one row a claim: its name, its verdict, its source, and its lesson's number."""
    rows = [(one.name, one.verdict, one.source, one.lesson[:2]) for one in tried]
    return table(("claim", "verdict", "source", "lesson"), rows)
