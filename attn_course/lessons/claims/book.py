"""results/claims.json: every claim with its evidence and verdict, as the lesson shows them."""

import json
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypedDict

import msgspec

from attn_course.figures import table
from attn_course.measure.records import RESULTS_FOLDER, RecordError

from ..predictions import predict, reveal
from .claim import SOURCES, VERDICTS, Claim, Evidence, NotMeasured, Tried
from .trials import CLAIMS

FILE = "claims.json"
CHOICE = dict(zip("hwn", VERDICTS, strict=True))  # what a learner answers -> the verdict


class _Book(TypedDict):
    sources: dict[str, str]
    claims: list[Tried]


def try_all(claims: Iterable[Claim] = CLAIMS) -> tuple[list[Tried], dict[str, str]]:
    """Run every experiment. Returns what was tried, and claim -> why it could not be."""
    tried, missing = [], {}
    for one in claims:
        try:
            tried.append(one.tried())
        except NotMeasured as error:
            missing[one.name] = str(error)
    return tried, missing


def write(tried: Iterable[Tried], root: Path = RESULTS_FOLDER) -> Path:
    """Write the file of all claims and return its path."""
    path = root / FILE
    content = {"sources": SOURCES, "claims": [one.record() for one in tried]}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


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
    rows = [(one.what, str(one), mark[one.source]) for one in evidence]
    notes = [f"{letter}: {source}" for source, letter in mark.items()]
    return "\n".join([table(("what", "value", "from"), rows, (1,)), *notes])


def ask(verdicts: Mapping[str, str | None]) -> None:
    """Take a learner's verdicts as predictions: name of a claim -> a key of CHOICE, or None."""
    for name, letter in verdicts.items():
        predict(name, letter, CHOICE, listed=False)


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
