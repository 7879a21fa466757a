"""What loads and stores cost L2, and which loads wait for DRAM."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from kernelscope.ptx.syntax import Address, Instruction, Register
from kernelscope.timing.executions import BlockPlace, PtxCounts
from kernelscope.timing.gpus import gpu
from kernelscope.timing.memory.reuse import bytes_of_buffers, shared_by_blocks
from kernelscope.timing.memory.traffic import (
    LINE_LOAD,
    DramShare,
    Reuse,
    Traffic,
    dram_traffic,
    few_lines,
    near_share,
    sectors_stored,
)

H200 = gpu("h200")


@pytest.mark.parametrize(("joined", "filled", "cost"), [
    (1.0, 0.5, 32 * 2 + 8), (0.5, 1.0, 16 + 4), (0.4, 0.75, 0.4 * (32 * 1.5 + 8)),
])  # fmt: skip
def test_what_l1_joins_costs_l2_as_much_less(joined, filled, cost):
    """Stores of 16 bytes a lane, which fill half of each of 32 sectors, in 8 lines."""
    counts = Counter(
        global_store_requests=1,
        global_store_sectors=32,
        global_store_lines=8,
        thread_instructions=32,
    )
    store = Instruction("st.global.v4.f32", (Address(Register("%rd1"), 0),))
    one = PtxCounts(store, 5, 1, counts, False, BlockPlace(1), joined=joined, filled=filled)
    assert sectors_stored(one) == pytest.approx(cost)


@pytest.mark.parametrize(
    ("mib", "measured"), [(2, 11.2), (4, 10.1), (8, 9.6), (16, 9.2), (32, 8.8)]
)
def test_all_sms_load_a_few_megabytes_faster_than_many(mib, measured):
    """TB/s of an H200 whose warps loaded rows of 512 bytes, from any place or one after another;
    less 1.5 us for the launch.
    """
    share = near_share(H200, mib * 2.0**20)
    assert H200.l2_gbps / share / 1e3 == pytest.approx(measured, rel=0.04)
    assert near_share(H200, 1e8) == 1
    assert near_share(H200, 30.01 * 2**20) == pytest.approx(near_share(H200, 30 * 2**20), rel=0.01)


@pytest.mark.parametrize(
    ("kib", "longer"), [(2, 3.8), (4, 2.7), (8, 3.7), (16, 1.9), (32, 1.5), (64, 0.3), (128, 0.3)]
)
def test_parts_of_lines_of_a_small_table_wait_for_each_other(kib, longer):
    """What blocks that gather from one table took more on an H200, of the time of L2."""
    assert few_lines(1024 * kib) == pytest.approx(1 + longer, rel=0.32)
    assert few_lines(2048 * kib) <= few_lines(1024 * kib)
    assert few_lines(1e9) == pytest.approx(1, abs=0.01)


def test_whole_lines_that_fit_l2_cost_less_than_their_sectors():
    def cost(sectors, lines):
        counts = Counter(
            global_load_requests=1, global_load_sectors=sectors, global_load_lines=lines
        )
        load = PtxCounts(Instruction("ld.global.f32", ()), 5, 1, counts, False)
        return sum(Traffic([load], whole=0.8).l2_sectors.values())

    assert cost(4, 1) == 0.8 * 4
    assert cost(32, 32) == 32 * LINE_LOAD


def test_loads_wait_for_dram_for_what_they_touch_first_or_have_lost():
    word = Instruction("ld.global.f32", ())
    load = PtxCounts(
        word, 5, 100, Counter(), False, first_bytes=128 * 50, touching=0.5, losing=0.25
    )
    assert DramShare(outside=1.0, alone=1.0).waiting(load) == (0.75, 2.0)
    assert DramShare(outside=0.0, alone=1.0).waiting(load) == (0.25, 2.0)
    half = DramShare(outside=1.0, alone=0.5).waiting(load)  # either of two pieces may be new
    assert half == (0.5 * 0.75 + 0.25, 2.0)
    late = DramShare(outside=0.0, alone=0.5, again=0.5).waiting(load)  # or lost since
    assert late == (0.5 * 0.75 + 0.25, 2.0)


BLOCKS, ANY_TIME = 2500, 0.41  # of two times without an order


def read_and_again(mib, loaded, apart=ANY_TIME, rounds=1.0, beside=0.0, reach=np.inf):
    """(Megabytes that blocks load, and that they load again) of an array of so many MiB, of which
    each loads so many bytes of pieces; beside: bytes of an array that is read once; reach: blocks
    between two that load one piece.
    """
    size = mib * 2.0**20
    shared = [(loaded, loaded / size, apart, reach), (beside / BLOCKS, 0.0, 0.0, np.inf)]
    read = np.array([min(size, loaded * BLOCKS), beside])
    found = shared_by_blocks(H200, read, np.zeros(2), 0.0, shared, BLOCKS, rounds)
    return float(found[0].sum() - beside) / 1e6, found[1] / 1e6


def again(*how, **other):
    return read_and_again(*how, **other)[1]


@pytest.mark.parametrize(
    ("mib", "measured"), [(48, 354), (64, 494), (96, 620), (128, 676), (192, 728), (256, 752)]
)
def test_random_loads_of_more_than_l2_holds(mib, measured):
    """DRAM's megabytes of 12.8 million loads of 16 bytes, as Nsight Compute counted them on an
    H200; the array itself is read once at least.
    """
    assert sum(read_and_again(mib, 64 * 12.8e6 / BLOCKS)) == pytest.approx(measured, rel=0.2)


def test_what_blocks_near_each_other_load_is_in_l2():
    """Of 192 MiB, of which each block loads a part that others have: L2 holds what 100 blocks load,
    and not what 2,000 do.
    """
    size = 2 * 192 * 2.0**20 / BLOCKS
    assert again(192, size, reach=100) == 0
    assert again(192, size, reach=2000) == pytest.approx(again(192, size), rel=0.25)


@pytest.mark.parametrize("times", [0.1, 1.0, 3.0])
def test_of_random_pieces_some_are_read_and_some_not(times):
    """As many as the array has, times so many: of as many 0.63 are read."""
    found, _ = read_and_again(64, times * 2.0**26 / BLOCKS)
    assert found == pytest.approx(2**26 / 1e6 * (1 - np.exp(-times)), rel=0.01)


def test_what_all_blocks_load_is_kept():
    """A table of 4 MiB beside a stream; arrays that L2 holds; blocks of one round in step."""
    loads = 64 * 12.8e6 / BLOCKS
    assert again(4, loads, beside=2e8) == 0
    assert again(28, loads) == 0
    assert again(128, loads, apart=0.05) == 0
    assert 0 < again(128, loads, apart=0.05, rounds=3.0) < 0.5 * again(128, loads)


def test_pieces_by_themselves_that_neighbours_share():
    """Each block reads a word of one array, beside a row of another; and words anywhere."""
    row, words = (0, 1 << 26, 32 * 64, 0), (1 << 26, 1 << 16, 32, 32)
    anywhere = (1 << 27, 1 << 28, 4096, 4096)
    (read, lone), (written, _) = bytes_of_buffers(H200, [[row, words, anywhere], [row]], 512.0)
    assert read.tolist() == [1 << 26, 1 << 16, 0]
    assert lone.tolist() == [0, 0, 512 * 64 * 4096]
    assert written.tolist() == [1 << 26]


def test_what_l2_lacks_is_looked_up_besides():
    """Each piece that is loaded again costs L2 two sectors and more, and DRAM half more."""
    counts = Counter(global_load_requests=100, global_load_sectors=3200, global_load_lines=3200)
    load = PtxCounts(Instruction("ld.global.f32", ()), 5, 100, counts, False)
    with_it, without = (
        dram_traffic(H200, Reuse(2e8, 0.0, again=more), Traffic([load])) for more in (1e8, 0.0)
    )
    assert with_it.looked_up[5] > 1e8 and not without.looked_up[5]
    moved = (with_it.moved[5] - without.moved[5]) * H200.read_gbps / H200.dram_gbps
    assert moved == pytest.approx(1.5e8)
    assert with_it.crossed[5] - without.crossed[5] == pytest.approx(1e8)


def test_whole_lines_are_new_together():
    """A load of eight sectors in two lines waits as one piece would, eight apart as four."""
    share = DramShare(outside=1.0, alone=0.25)
    for lines, waits in ((2, 0.25), (8, 1 - 0.75**4)):
        counts = Counter(global_load_sectors=800, global_load_lines=100 * lines)
        load = PtxCounts(
            Instruction("ld.global.f32", ()), 5, 100, counts, False, first_bytes=100 * 256
        )
        assert share.waiting(load) == (pytest.approx(waits), 4.0)
        known = replace(load, alone=0.0)
        assert share.waiting(known) == (0.0, 4.0)


def test_a_minimum_that_changes_nothing_takes_no_passes_for_swaps():
    counts = Counter(shared_atomic_requests=100, shared_atomic_wavefronts=600)
    for opcode, passes in (("atom.shared.min.s64", 0), ("atom.shared.add.u32", 600)):
        one = PtxCounts(Instruction(opcode, ()), 5, 100, counts, False)
        assert Traffic([one]).passes[5, "shared atomic"] == passes
