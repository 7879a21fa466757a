"""Litmus tests of the memory model: is there a data race, and does the sanitizer say so?

Each row is checked twice: whether the program is racy, by the axioms of the PTX model (see
litmus_model), and what the sanitizer reports of the kernel that is made from it. Where the two
differ, the row says why. The table of docs/races.md is made from the rows:

    python kernelscope/tests/watch/test_sanitizer_litmus.py     prints it
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from kernelscope.watch import Sanitizer
from litmus_model import Executions, parse
from watch_harness import kernels, launch

VOLATILE_DATA = "The model allows it, but which value is read is an accident of timing"
MIXED = "The model allows it, but which value stays is an accident of timing"


@dataclass(frozen=True)
class Row:
    """threads: a program; place: where they run; racy: by the model; found: by the sanitizer, the
    worst severity or "".
    """

    name: str
    place: str
    threads: str
    racy: bool
    found: str
    why: str = ""


def rows(name, threads, *verdicts):
    """Rows of one program; verdicts: (place, racy, found, why) each."""
    return [Row(name, place, threads, *more) for place, *more in verdicts]


CLEAN, ERROR, WARNING = (False, ""), (True, "error"), (True, "warning")
G, B = "grid", "block"
TABLE = [
    # message passing
    *rows("MP, weak", "W x; W f | R f; R x", (G, *ERROR), (B, *ERROR)),
    *rows("MP, relaxed flag", "W x; W.rlx.gpu f | A.rlx.gpu f; R x", (G, *ERROR), (B, *ERROR)),
    *rows(
        "MP, release and acquire", "W x; W.rel.gpu f | A.acq.gpu f; R x", (G, *CLEAN), (B, *CLEAN)
    ),
    *rows(
        "MP, of a block's scope", "W x; W.rel.cta f | A.acq.cta f; R x", (G, *ERROR), (B, *CLEAN)
    ),
    *rows(
        "MP, of the system's scope", "W x; W.rel.sys f | A.acq.sys f; R x", (G, *CLEAN), (B, *CLEAN)
    ),
    *rows("MP, of two scopes", "W x; W.rel.cta f | A.acq.gpu f; R x", (G, *ERROR), (B, *CLEAN)),
    *rows(
        "MP, fences",
        "W x; F.acq_rel.gpu; W.rlx.gpu f | A.rlx.gpu f; F.acq_rel.gpu; R x",
        (G, *CLEAN),
        (B, *CLEAN),
    ),
    *rows(
        "MP, fence.sc",
        "W x; F.sc.gpu; W.rlx.gpu f | A.rlx.gpu f; F.sc.gpu; R x",
        (G, *CLEAN),
        (B, *CLEAN),
    ),
    *rows(
        "MP, fences of a block",
        "W x; F.acq_rel.cta; W.rlx.gpu f | A.rlx.gpu f; F.acq_rel.cta; R x",
        (G, *ERROR),
        (B, *CLEAN),
    ),
    *rows(
        "MP, flag of a block",
        "W x; F.acq_rel.gpu; W.rlx.cta f | A.rlx.cta f; F.acq_rel.gpu; R x",
        (G, *ERROR),
        (B, *CLEAN),
    ),
    *rows(
        "MP, no fence at the reader",
        "W x; F.acq_rel.gpu; W.rlx.gpu f | A.rlx.gpu f; R x",
        (G, *WARNING),
        (B, *WARNING),
    ),
    *rows(
        "MP, no fence at the writer",
        "W x; W.rlx.gpu f | A.rlx.gpu f; F.acq_rel.gpu; R x",
        (G, *ERROR),
        (B, *ERROR),
    ),
    *rows(
        "MP, volatile flag",
        "W x; F.sc.gpu; W.vol f | A.vol f; F.sc.gpu; R x",
        (G, *CLEAN),
        (B, *CLEAN),
    ),
    *rows("MP, volatile flag alone", "W x; W.vol f | A.vol f; R x", (G, *ERROR), (B, *ERROR)),
    *rows(
        "MP, volatile data",
        "W.vol x; W.vol f | A.vol f; R.vol x",
        (G, False, "warning", VOLATILE_DATA),
        (B, False, "error", VOLATILE_DATA),
    ),
    *rows(
        "MP, volatile data and fences",
        "W.vol x; F.sc.gpu; W.vol f | A.vol f; F.sc.gpu; R.vol x",
        (G, *CLEAN),
        (B, *CLEAN),
    ),
    *rows(
        "MP, read before the flag", "W x; W.rel.gpu f | R x; A.acq.gpu f", (G, *ERROR), (B, *ERROR)
    ),
    *rows(
        "MP, written after the flag",
        "W.rel.gpu f; W x | A.acq.gpu f; R x",
        (G, *ERROR),
        (B, *ERROR),
    ),
    *rows("MP, an atomic", "W x; U.acq_rel.gpu f | A.acq.gpu f; R x", (G, *CLEAN), (B, *CLEAN)),
    *rows(
        "MP, an atomic of a block",
        "W x; U.acq_rel.cta f | A.acq.gpu f; R x",
        (G, *ERROR),
        (B, *CLEAN),
    ),
    *rows(
        "MP, an atomic and fences",
        "W x; F.sc.gpu; U.rlx.gpu f | A.rlx.gpu f; F.sc.gpu; R x",
        (G, *CLEAN),
        (B, *CLEAN),
    ),
    *rows(
        "MP, through an atomic of a third",
        "W x; W.rel.gpu f | A.rlx.gpu f; U.rlx.gpu f | A.acq.gpu f=2; R x",
        (G, *CLEAN),
        (B, *CLEAN),
    ),
    *rows(
        "MP, a second store to the flag",
        "W x; W.rel.gpu f; W.rlx.gpu f=2 | A.acq.gpu f=2; R x",
        (G, *CLEAN),
        (B, *CLEAN),
    ),
    *rows(
        "MP, a release of something else",
        "W x; W.rel.gpu g; W.rlx.gpu f | A.acq.gpu f; R x",
        (G, *ERROR),
        (B, *ERROR),
    ),
    *rows(
        "MP, an acquire of something else",
        "W x; W.rel.gpu f | A.rlx.gpu f; R.acq.gpu g; R x",
        (G, *WARNING),
        (B, *WARNING),
    ),
    *rows("MP, barrier", "W x; B | B; R x", (B, *CLEAN)),
    *rows("MP, barrier before both", "B; W x | B; R x", (B, *ERROR)),
    *rows("WAR, barrier", "R x; B | B; W x", (B, *CLEAN)),
    # store buffering
    *rows("SB, weak", "W x; R y | W y; R x", (G, *ERROR), (B, *ERROR)),
    *rows(
        "SB, relaxed",
        "W.rlx.gpu x; R.rlx.gpu y | W.rlx.gpu y; R.rlx.gpu x",
        (G, *CLEAN),
        (B, *CLEAN),
    ),
    *rows(
        "SB, fence.sc",
        "W.rlx.gpu x; F.sc.gpu; R.rlx.gpu y | W.rlx.gpu y; F.sc.gpu; R.rlx.gpu x",
        (G, *CLEAN),
        (B, *CLEAN),
    ),
    *rows(
        "SB, weak with fence.sc",
        "W x; F.sc.gpu; R y | W y; F.sc.gpu; R x",
        (G, *ERROR),
        (B, *ERROR),
    ),
    *rows(
        "SB, of a block's scope",
        "W.rlx.cta x; R.rlx.cta y | W.rlx.cta y; R.rlx.cta x",
        (G, *ERROR),
        (B, *CLEAN),
    ),
    *rows(
        "SB, volatile",
        "W.vol x; R.vol y | W.vol y; R.vol x",
        (G, False, "warning", VOLATILE_DATA),
        (B, False, "error", VOLATILE_DATA),
    ),
    *rows(
        "SB, volatile and relaxed",
        "W.vol x; R.vol y | W.rlx.gpu y; R.rlx.gpu x",
        (G, *CLEAN),
        (B, *CLEAN),
    ),
    # load buffering
    *rows("LB, weak", "R x; W y | R y; W x", (G, *ERROR), (B, *ERROR)),
    *rows(
        "LB, relaxed",
        "R.rlx.gpu x; W.rlx.gpu y | R.rlx.gpu y; W.rlx.gpu x",
        (G, *CLEAN),
        (B, *CLEAN),
    ),
    *rows(
        "LB, fences",
        "R x; F.acq_rel.gpu; W.rlx.gpu y | A.rlx.gpu y; F.acq_rel.gpu; W x",
        (G, *CLEAN),
        (B, *CLEAN),
    ),
    # coherence
    *rows("CoRR, weak", "W x | R x; R x", (G, *ERROR), (B, *ERROR)),
    *rows("CoRR, relaxed", "W.rlx.gpu x | R.rlx.gpu x; R.rlx.gpu x", (G, *CLEAN), (B, *CLEAN)),
    *rows("CoRR, relaxed and weak", "W.rlx.gpu x | R.rlx.gpu x; R x", (G, *ERROR), (B, *ERROR)),
    *rows("CoRR, weak writer", "W x | R.rlx.gpu x; R.rlx.gpu x", (G, *ERROR), (B, *ERROR)),
    *rows("CoWR, weak", "W x; R x | W x=2", (G, *ERROR), (B, *ERROR)),
    *rows("CoWR, relaxed", "W.rlx.gpu x; R.rlx.gpu x | W.rlx.gpu x=2", (G, *CLEAN), (B, *CLEAN)),
    *rows("CoRW, weak", "R x; W x | W x=2", (G, *ERROR), (B, *ERROR)),
    *rows("CoRW, relaxed", "R.rlx.gpu x; W.rlx.gpu x | W.rlx.gpu x=2", (G, *CLEAN), (B, *CLEAN)),
    *rows("CoWW, weak", "W x; W x=2 | W x=3", (G, *ERROR), (B, *ERROR)),
    *rows("CoWW, one value", "W x | W x", (G, *WARNING), (B, *WARNING)),
    *rows("CoWW, a block's atomic", "U.rlx.cta x | U.rlx.gpu x", (G, *ERROR), (B, *CLEAN)),
    *rows("CoWW, atomics", "U.rlx.gpu x | U.rlx.gpu x", (G, *CLEAN), (B, *CLEAN)),
    *rows("CoWW, atomic and weak", "U.rlx.gpu x | W x=5", (G, *ERROR), (B, *ERROR)),
    *rows(
        "CoWW, volatile",
        "W.vol x | W.vol x=2",
        (G, False, "error", MIXED),
        (B, False, "error", MIXED),
    ),
    *rows(
        "CoWW, atomic and volatile",
        "U.rlx.gpu x | W.vol x=5",
        (G, False, "error", MIXED),
        (B, False, "error", MIXED),
    ),
    # independent reads of independent writes
    *rows("IRIW, weak", "W x | W y | R x; R y | R y; R x", (G, *ERROR), (B, *ERROR)),
    *rows(
        "IRIW, relaxed",
        "W.rlx.gpu x | W.rlx.gpu y | R.rlx.gpu x; R.rlx.gpu y | R.rlx.gpu y; R.rlx.gpu x",
        (G, *CLEAN),
        (B, *CLEAN),
    ),
    *rows(
        "IRIW, of a block's scope",
        "W.rlx.cta x | W.rlx.cta y | R.acq.cta x; R.acq.cta y | R.acq.cta y; R.acq.cta x",
        (G, *ERROR),
        (B, *CLEAN),
    ),
    # write to read causality
    *rows(
        "WRC, release and acquire",
        "W x; W.rel.gpu f | A.acq.gpu f; W.rel.gpu g | A.acq.gpu g; R x",
        (G, *CLEAN),
        (B, *CLEAN),
        ("pairs", *CLEAN),
    ),
    *rows(
        "WRC, broken in the middle",
        "W x; W.rel.gpu f | A.rlx.gpu f; W.rlx.gpu g | A.acq.gpu g; R x",
        (G, *ERROR),
        (B, *ERROR),
    ),
    *rows(
        "WRC, an acquire is no release",
        "W x; W.rel.gpu f | A.acq.gpu f; W.rlx.gpu g | A.acq.gpu g; R x",
        (G, *ERROR),
        (B, *ERROR),
    ),
    *rows(
        "WRC, a release is no acquire",
        "W x; W.rel.gpu f | A.rlx.gpu f; W.rel.gpu g | A.acq.gpu g; R x",
        (G, *ERROR),
        (B, *ERROR),
    ),
    *rows(
        "WRC, a block's scope first",
        "W x; W.rel.cta f | A.acq.cta f; W.rel.gpu g | A.acq.gpu g; R x",
        (G, *ERROR),
        (B, *CLEAN),
        ("pairs", *CLEAN),
    ),
    *rows(
        "WRC, a block's scope last",
        "W x; W.rel.gpu f | A.acq.gpu f; W.rel.cta g | A.acq.cta g; R x",
        (G, *ERROR),
        (B, *CLEAN),
        ("pairs", *ERROR),
    ),
    *rows(
        "WRC, fences",
        "W x; F.sc.gpu; W.vol f | A.vol f; F.sc.gpu; W.vol g | A.vol g; F.sc.gpu; R x",
        (G, *CLEAN),
        (B, *CLEAN),
    ),
    *rows(
        "WRC, a barrier first",
        "W x; B | B; W.rel.gpu g | A.acq.gpu g; R x; B",
        ("pairs", *CLEAN),
    ),
    # ISA2: through a third thread's write
    *rows(
        "ISA2, release and acquire",
        "W x; W.rel.gpu f | A.acq.gpu f; W y; W.rel.gpu g | A.acq.gpu g; R y; R x",
        (G, *CLEAN),
        (B, *CLEAN),
    ),
    *rows(
        "ISA2, relaxed last",
        "W x; W.rel.gpu f | A.acq.gpu f; W y; W.rel.gpu g | A.rlx.gpu g; R y; R x",
        (G, *WARNING),
        (B, *WARNING),
    ),
    # 2+2W, R, S
    *rows("2+2W, weak", "W x; W y=2 | W y; W x=2", (G, *ERROR), (B, *ERROR)),
    *rows(
        "2+2W, relaxed",
        "W.rlx.gpu x; W.rlx.gpu y=2 | W.rlx.gpu y; W.rlx.gpu x=2",
        (G, *CLEAN),
        (B, *CLEAN),
    ),
    *rows("R, weak", "W x; W y | W y=2; R x", (G, *ERROR), (B, *ERROR)),
    *rows(
        "R, relaxed",
        "W.rlx.gpu x; W.rlx.gpu y | W.rlx.gpu y=2; R.rlx.gpu x",
        (G, *CLEAN),
        (B, *CLEAN),
    ),
    *rows("S, weak", "W x=2; W y | R y; W x", (G, *ERROR), (B, *ERROR)),
    *rows(
        "S, release and acquire", "W x=2; W.rel.gpu y | A.acq.gpu y; W x", (G, *CLEAN), (B, *CLEAN)
    ),
    *rows("S, relaxed flag", "W x=2; W.rlx.gpu y | A.rlx.gpu y; W x", (G, *ERROR), (B, *ERROR)),
]
IDS = [f"{row.name}-{row.place}" for row in TABLE]


def blocks_of(row):
    """The block of each thread."""
    count = len(parse(row.threads))
    return {"block": (0,) * count, "grid": tuple(range(count))}.get(
        row.place, tuple(int(i > 1) for i in range(count))
    )


# -- the table of the documentation ----------------------------------------------------------------
PAGE = Path(__file__).parents[2] / "docs" / "races.md"
REASONS = (VOLATILE_DATA, MIXED)
COLUMNS = ("grid", "block", "pairs")


def cell(row):
    """A verdict in words; a number refers to the reason why the sanitizer differs."""
    model = "race" if row.racy else "no race"
    more = f", {row.found}" if row.found else ""
    return model + more + (f" ({1 + REASONS.index(row.why)})" if row.why else "")


def document():
    """The table as Markdown, with the reasons below it."""
    lines = [
        "| Test | Threads | Between blocks | Inside a block | Two in a block |",
        "|---|---|---|---|---|",
    ]
    for name, threads in dict.fromkeys((row.name, row.threads) for row in TABLE):
        verdicts = {row.place: cell(row) for row in TABLE if row.name == name}
        program = " and ".join(f"`{thread.strip()}`" for thread in threads.split("|"))
        cells = " | ".join(verdicts.get(place, "") for place in COLUMNS)
        lines.append(f"| {name} | {program} | {cells} |")
    reasons = [f"{number}. {why}." for number, why in enumerate(REASONS, 1)]
    return "\n".join([*lines, "", *reasons])


# -- kernels ---------------------------------------------------------------------------------------
NAMES = {"rlx": "relaxed", "rel": "release", "acq": "acquire", "acq_rel": "acq_rel"}


def statement(one, places):
    """CUDA C of an operation; places: name -> its place in `a`."""
    at = f"a + {places.get(one.place, 0)}"
    if one.kind == "F":
        return f'asm volatile("fence.{one.semantics}.{one.scope};" ::: "memory");'
    if not one.semantics or one.semantics == "vol":
        where = f"*({'volatile ' * (one.semantics == 'vol')}int*)({at})"
        read = f"v = {where};"
        write = f"{where} = {one.value};"
    else:
        how = f"{NAMES[one.semantics]}.{one.scope}.global"
        read = f'asm volatile("ld.{how}.s32 %0, [%1];" : "=r"(v) : "l"({at}) : "memory");'
        write = f'asm volatile("st.{how}.s32 [%0], {one.value};" :: "l"({at}) : "memory");'
        if one.kind == "U":
            how = f"atom.{NAMES[one.semantics]}.{one.scope}.global.add.s32"
            return f'asm volatile("{how} %0, [%1], 1;" : "=r"(v) : "l"({at}) : "memory");'
    if one.kind == "A":
        return f"do {{ {read} }} while (v != {one.value});"
    return write if one.kind == "W" else f"{read} sum += v;"


def body(row):
    """A kernel in which each thread of a row is a warp's first lane."""
    threads, blocks = parse(row.threads), blocks_of(row)
    names = sorted({one.place for thread in threads for one in thread if one.place})
    places = {name: 16 * at for at, name in enumerate(names)}
    text = "int v = 0, sum = 0;\n"
    for part in range(1 + max(sum(one.kind == "B" for one in thread) for thread in threads)):
        text += "__syncthreads();\n" if part else ""
        for number, thread in enumerate(threads):
            first = blocks.index(blocks[number])
            here = f"blockIdx.x == {blocks[number]} && threadIdx.x == {32 * (number - first)}"
            steps = [""]
            for one in thread:
                if one.kind == "B":
                    steps.append("")
                else:
                    steps[-1] += statement(one, places) + "\n"
            if part < len(steps) and steps[part]:
                text += f"if ({here}) {{\n{steps[part]}}}\n"
    return text + "b[blockIdx.x * blockDim.x + threadIdx.x] = sum;"


BODIES = tuple(dict.fromkeys(map(body, TABLE)))


def verdict(row, warp_order):
    kernel = kernels(BODIES)[body(row)]
    kernel.warp_order = warp_order
    arrays = np.zeros(64, np.int32), np.zeros(1024, np.int32)
    blocks = blocks_of(row)
    threads = 32 * max(map(blocks.count, blocks))
    grid = 1 + max(blocks)
    seen = launch(kernel, Sanitizer(), arrays=arrays, grid=grid, block=threads).findings
    assert {one.kind for one in seen} <= {"race"}, seen
    return min((one.severity for one in seen), default="")  # "error" comes before "warning"


# -- tests -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("row", TABLE, ids=IDS)
def test_what_the_model_says(row):
    assert Executions(row.threads, blocks_of(row)).is_racy() == row.racy


SC = "F.sc.gpu"
SYNC = "W.rlx.gpu x; W.rel.gpu y | R.acq.gpu y; R.rlx.gpu x"
OUTCOMES = {  # threads in blocks of their own: values read together, and whether they are allowed
    "MP, relaxed": ("W.rlx.gpu x; W.rlx.gpu y | R.rlx.gpu y; R.rlx.gpu x", (1, 0), True),
    "MP, release and acquire": (SYNC, (1, 0), False),
    "MP, of a block's scope": (SYNC.replace("gpu y", "cta y"), (1, 0), True),
    "SB, relaxed": ("W.rlx.gpu x; R.rlx.gpu y | W.rlx.gpu y; R.rlx.gpu x", (0, 0), True),
    "SB, fence.sc": (
        f"W.rlx.gpu x; {SC}; R.rlx.gpu y | W.rlx.gpu y; {SC}; R.rlx.gpu x",
        (0, 0),
        False,
    ),
    "SB, fence.acq_rel": (
        "W.rlx.gpu x; F.acq_rel.gpu; R.rlx.gpu y | W.rlx.gpu y; F.acq_rel.gpu; R.rlx.gpu x",
        (0, 0),
        True,
    ),
    "LB, relaxed": ("R.rlx.gpu x; W.rlx.gpu y | R.rlx.gpu y; W.rlx.gpu x", (1, 1), True),
    "LB, fences": (
        f"R.rlx.gpu x; {SC}; W.rlx.gpu y | R.rlx.gpu y; {SC}; W.rlx.gpu x",
        (1, 1),
        False,
    ),
    "CoRR": ("W.rlx.gpu x | R.rlx.gpu x; R.rlx.gpu x", (1, 0), False),
    "CoRR, weak": ("W x | R x; R x", (1, 0), True),
    "CoWR": ("W.rlx.gpu x; R.rlx.gpu x | W.rlx.gpu x=2", (0,), False),
    "CoRW": ("R.rlx.gpu x; W.rlx.gpu x", (1,), False),
    "IRIW, acquire": (
        "W.rlx.gpu x | W.rlx.gpu y | R.acq.gpu x; R.rlx.gpu y | R.acq.gpu y; R.rlx.gpu x",
        (1, 0, 1, 0),
        True,
    ),
    "IRIW, fence.sc": (
        f"W.rlx.gpu x | W.rlx.gpu y | R.rlx.gpu x; {SC}; R.rlx.gpu y"
        f" | R.rlx.gpu y; {SC}; R.rlx.gpu x",
        (1, 0, 1, 0),
        False,
    ),
    "atomics lose nothing": ("U.rlx.gpu x | U.rlx.gpu x", (0, 0), False),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_outcomes_of_the_model(name):
    """The model is the documented one: it allows and forbids what is known of these tests."""
    threads, values, allowed = OUTCOMES[name]
    blocks = tuple(range(len(parse(threads))))
    assert (values in Executions(threads, blocks).outcomes()) == allowed


@pytest.mark.turns(47)
@pytest.mark.system
@pytest.mark.parametrize("row", TABLE, ids=IDS)
def test_what_the_sanitizer_says(row):
    assert [verdict(row, order) for order in (None, 2)] == [row.found] * 2
    assert bool(row.why) == (row.racy != bool(row.found))


def test_the_documentation_has_the_table():
    assert document() in PAGE.read_text()


if __name__ == "__main__":
    print(document())
