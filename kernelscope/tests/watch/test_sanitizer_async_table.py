"""Small programs of threads, bulk copies and products: which are in order, and what is found.

The table of docs/races.md is made from the rows:

    python kernelscope/tests/watch/test_sanitizer_async_table.py     prints it
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from async_source import check, kernels_of, program

PAGE = Path(__file__).parents[2] / "docs" / "races.md"
MARK = "<!-- from tests/watch/test_sanitizer_async_table.py -->\n"


@dataclass(frozen=True)
class Row:
    """threads: a program; found: the worst severity, or ""; says: a part of its message."""

    name: str
    threads: str
    found: str = ""
    says: str = ""


E, W = "error", "warning"
TABLE = [
    Row("written, then copied out", "W; F; B | B; S; Sr"),
    Row("no fence", "W; B | B; S; Sr", E, "without a fence.proxy.async"),
    Row("fence behind the barrier", "W; B; F | B; S; Sr", E, "behind the barrier"),
    Row("fence by who copies", "W; B | B; F; S; Sr", W, "stands only in the thread"),
    Row("no barrier", "W; F | S; Sr", E, "nothing orders the two"),
    Row("written, then multiplied", "W; F; B; M; Mw | B"),
    Row("no fence before a product", "W; B; M; Mw | B", E, "without a fence.proxy.async"),
    Row("no barrier before a product", "W; F; M; Mw |", E, "nothing orders the two"),
    Row("written, then copied over", "W; F; B | B; L; A0"),
    Row("copied over without a fence", "W; B | B; L; A0", W, "which of the two stays"),
    Row("copied, then read", "A0; R | L"),
    Row("no wait", "R | L", E),
    Row("wrong parity", "A1; R | L", E),
    Row("one waits for all", "B; R | L; A0; B"),
    Row("nobody waits before the barrier", "B; R; A0 | L; B", E, "behind a wait"),
    Row("copied, then multiplied", "A0; M; Mw | L"),
    Row("multiplied without a wait", "M; Mw; A0 | L", E),
    Row("multiplied with the wrong parity", "A1; M; Mw; A0 | L", E),
    Row("written while copied", "W; A0 | L", E),
    Row("refilled behind a release", "A0; R; D | L; E0; L; A1"),
    Row("refilled without a release", "A0; B; R | L; A0; B; L; A1", E),
    Row("read behind the release", "A0; D; R | L; E0; L; A1", E, ""),
    Row("released twice, a tile between", "A0; R; D; A1; D | L; E0; L"),
    Row("released twice", "A0; R; D; D | L; A0", E, "it counts for that phase"),
    Row("products, then a release", "A0; M; Mw; D | L; E0; L; A1"),
    Row("released before wait_group", "A0; M; D; Mw | L; E0; L; A1", E),
    Row("products without a release", "A0; B; M; Mw | L; A0; B; L; A1", E),
    Row("overwritten while multiplied", "W; F; B; M; W; Mw | B", E, "may still be reading"),
    Row("overwritten after wait_group", "W; F; B; M; Mw; B; W | B; B"),
    Row("overwritten when read", "W; F; B; B; W | B; S; Sr; B"),
    Row("overwritten while copied out", "W; F; B; B; W | B; S; B; Sr", E, "may still be reading"),
    Row("overwritten, no barrier", "W; F; B; W | B; S; Sr", E),
    Row("copied out, then in again", "W; F; B; A0; R | B; S; Sr; L"),
    Row("refilled while copied out", "W; F; B; A0; R | B; S; L; Sr", E, "still be reading"),
    Row("copied in, then out", "| L; A0; S; Sr"),
    Row("copied out before it is in", "| L; S; A0; Sr", E, "may still be writing"),
    Row("copied out, then read", "W; F; B; B; Rx | B; S; Sw; B"),
    Row("read when only the source is", "W; F; B; B; Rx | B; S; Sr; B", E, "may still be writing"),
    Row("global memory, then copied in", "Wy; F; B; A0 | B; L"),
    Row("global memory without a fence", "Wy; B; A0 | B; L", E, "without a fence.proxy.async"),
    Row("source overwritten", "B; Wy; A0 | L; B", E, "from which the bulk copy"),
    Row("source overwritten in order", "A0; Wy | L"),
    Row("never waited for", "| L", E, "when the block has ended"),
    Row("never read", "W; F; B | B; S", E, "when the block has ended"),
]


@cache
def compiled():
    return kernels_of(tuple(program(row.threads) for row in TABLE))


@pytest.mark.turns(41)
@pytest.mark.system
@pytest.mark.parametrize("order", [None, 1, 2], ids=["lockstep", "random", "another"])
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_program(row, order):
    found = check(compiled()[program(row.threads)], order=order)
    severities = {one.severity for one in found}
    assert (E if E in severities else W if W in severities else "") == row.found, found
    assert not row.found or any(row.says in one.message for one in found), found
    assert not found or "race" in {one.kind for one in found}
    for one in found:
        assert (
            one.kind in ("race", "uninitialised-read")
            and one.remedy
            and one.line_text
            and one.line
            and one.threads
        )
        assert one.array in ("tile", "x", "free_")


def table() -> str:
    lines = ["| Test | Threads | Finding |", "|---|---|---|"]
    for row in TABLE:
        parts = [
            f"`{part.strip()}`" if part.strip() else "nothing" for part in row.threads.split("|")
        ]
        lines.append(f"| {row.name} | {' and '.join(parts)} | {row.found or 'none'} |")
    return "\n".join(lines) + "\n"


def test_the_page_has_the_table():
    assert MARK + table() in PAGE.read_text(encoding="utf-8")


if __name__ == "__main__":
    print(table())
