"""One lane on plain numbers gives the bits that many lanes give in NumPy, opcode by opcode."""

import os

import numpy as np
import pytest
from kernelscope.differential.opcodes import inputs, module_text, opcodes, width
from kernelscope.machine.launch import launch
from kernelscope.machine.speed import Single, single
from kernelscope.translate.program import Program

pytestmark = pytest.mark.system

GROUPS = 8
# How many inputs, of one opcode in how many; `make proof` tries each opcode at more.
COUNT, SAMPLE = (192, 1) if os.environ.get("PROOF") == "whole" else (64, 12)
CODES = opcodes()
# One pass of the program of an opcode, and what makes it a loop over the inputs for one thread.
LOOP = {
    "setp.ge.u32 %q, %i, %n; @%q bra DONE;": "AGAIN:",
    "DONE: ret;": "add.u32 %i, %i, 1; setp.lt.u32 %q, %i, %n; @%q bra AGAIN; ret;",
}


@pytest.fixture
def runs(monkeypatch):
    """Jumps back that plain numbers have made; they are tried at every one of NumPy's."""
    found = []
    monkeypatch.setattr(single, "_FIRST", 1)
    monkeypatch.setattr(Single, "tired", lambda self: 1)
    plan = Single.plan
    monkeypatch.setattr(Single, "plan", lambda *given: found.append(given[1]) or plan(*given))
    return found


def results(code, text: str, threads: int) -> list[bytes]:
    """The results of an opcode's program over its inputs."""
    columns = inputs(code)
    columns = [column[:: max(1, column.size // COUNT)].copy() for column in columns]
    count = columns[0].size
    outs = [np.zeros(count, f"u{width(kind)}") for kind in code.results]
    grid = -(-count // threads) if threads > 1 else 1
    arguments = [*columns, *outs, np.uint32(count).tobytes()]
    launch(Program(text), "op_0", (grid, 1, 1), (threads, 1, 1), arguments)
    return [out.tobytes() for out in outs]


def check(codes, runs) -> int:
    """Compare the results of one thread with those of many; return how many opcodes looped."""
    looped = 0
    for code in codes:
        text = alone = module_text([code], "sm_90")
        for once, again in LOOP.items():
            assert once in text
            alone = alone.replace(once, again)
        runs.clear()
        assert results(code, alone, 1) == results(code, text, 64), code.label
        looped += sum(runs) > COUNT // 2
    return looped


@pytest.mark.turns(23)
@pytest.mark.parametrize("group", range(GROUPS))
def test_an_opcode_gives_the_same_bits_in_one_lane(group, runs):
    codes = CODES[group :: GROUPS * SAMPLE]
    assert check(codes, runs) > len(codes) // 4
