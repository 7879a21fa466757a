"""What loads and stores cost L2, and which loads wait for DRAM."""

from collections import Counter

import pytest
from kernelscope.ptx.syntax import Address, Instruction, Register
from kernelscope.timing.executions import BlockPlace, PtxCounts
from kernelscope.timing.traffic import MOST_JOINED, DramShare, sectors_stored


def stores(count, lines, bases=("%rd1",)):
    """Stores of 16 bytes a lane, which fill half of each of 32 sectors, by turns of some bases."""
    counts = Counter(
        global_store_requests=1,
        global_store_sectors=32,
        global_store_lines=lines,
        thread_instructions=32,
    )
    return [
        PtxCounts(
            Instruction("st.global.v4.f32", (Address(Register(bases[at % len(bases)]), 16 * at),)),
            5, 1, counts, False, BlockPlace(1),
        )
        for at in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "lines", "joined"), [
    (2, MOST_JOINED, True), (4, MOST_JOINED, True),
    (3, MOST_JOINED, False), (4, MOST_JOINED + 1, False), (1, MOST_JOINED, False),
])  # fmt: skip
def test_stores_of_few_lines_fill_their_sectors_together(count, lines, joined):
    cost = {*sectors_stored(stores(count, lines)).values()}
    assert cost == ({32} if joined else {64 + lines})


def test_stores_to_two_arrays_fill_no_sectors_together():
    cost = {*sectors_stored(stores(2, MOST_JOINED, ("%rd1", "%rd2"))).values()}
    assert cost == {64 + MOST_JOINED}
    assert {*sectors_stored(stores(4, MOST_JOINED, ("%rd1", "%rd2"))).values()} == {32}


def test_loads_wait_for_dram_for_what_they_touch_first_or_have_lost():
    word = Instruction("ld.global.f32", ())
    load = PtxCounts(
        word, 5, 100, Counter(), False, first_bytes=128 * 50, touching=0.5, losing=0.25
    )
    assert DramShare(outside=1.0, alone=1.0).waiting(load) == (0.75, 2.0)
    assert DramShare(outside=0.0, alone=1.0).waiting(load) == (0.25, 2.0)
    half = DramShare(outside=1.0, alone=0.5).waiting(load)  # either of two pieces may be new
    assert half == (0.5 * 0.75 + 0.25, 2.0)
