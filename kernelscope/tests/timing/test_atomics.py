"""Atomics that wait for each other: on lines of L2, and on words of shared memory."""

from types import SimpleNamespace

import numpy as np
import pytest
from kernelscope.events import Access
from kernelscope.ptx.syntax import Instruction
from kernelscope.timing.memory.atomics import HotLines, SharedSwaps

BYTES = 1 << 14  # of shared memory


def test_atomics_on_one_address_follow_each_other():
    """A warp has an operation for a sector, and for each lane on one address; they add up."""
    hot = HotLines(1.0, 0.0)
    lanes = np.arange(64)
    hot.add(lanes, np.where(lanes < 32, 0, 4 * lanes).astype(np.uint64), 64, floats=False)
    assert hot.most(10.0, 96)[0] == 32 + 4 / 96  # of one block: the others have their own
    hot.first_block = 1
    hot.add(lanes, np.zeros(64, np.uint64), 64, floats=False)
    assert hot.most(10.0, 96)[0] == 10 * 96 + 4 / 96


def test_lines_go_to_two_slices_by_turns():
    """Eight lines, each of four sectors, are sixteen operations of each slice; those of the next
    eight may be in any slice.
    """
    hot, lanes = HotLines(1.0, 0.0), np.arange(256)
    hot.add(lanes, (4 * lanes).astype(np.uint64), 256, floats=False)
    assert hot.most(1.0, 96) == (16 + 16 / 96, 2)
    hot.add(lanes, (1024 + 4 * lanes).astype(np.uint64), 256, floats=False)
    assert hot.most(1.0, 96) == (16 + 48 / 96, 4)
    assert hot.most(10.0, 96)[1] == 40  # each block has its own
    assert HotLines(1.0, 0.0).most(1.0, 96) == (0.0, np.inf)


def test_sums_of_floats_wait_for_each_other_on_a_sector():
    """Eight words of one sector, four lanes on each, then every word of a line."""
    hot, lanes = HotLines(1.0, 3.0), np.arange(32)
    hot.add(lanes, (4 * (lanes % 8)).astype(np.uint64), 32, floats=True)
    assert hot.most(1.0, 96)[0] == 4 * 3
    integers = HotLines(1.0, 3.0)
    integers.add(lanes, (4 * (lanes % 8)).astype(np.uint64), 32, floats=False)
    assert integers.most(1.0, 96)[0] == 4
    line = HotLines(1.0, 3.0)
    line.add(lanes, (4 * lanes).astype(np.uint64), 32, floats=True)
    assert line.most(1.0, 96)[0] == 4  # four sectors, side by side


def test_neighbours_that_share_a_sector_do_not_stand_for_all():
    """Atomics of a group of four blocks on one sector, and of one far away on another, with and
    without all of those between them at a time. Then a block far away does the same.
    """
    hot, lanes = HotLines(1.0, 0.0, group=4), np.arange(32)
    for block in (0, 1, 100, 101):
        hot.first_block = block
        hot.add(lanes, np.full(32, 32 * block // 4, np.uint64), 32, floats=False)
    assert hot.most(10.0, 96)[0] == 4 * 32  # of two sectors of one slice
    assert hot.most(10.0, 96, 1.0)[0] == pytest.approx(10 * 4 * 32 / (26 / 4) ** 0.68)
    hot.first_block = 500
    hot.add(lanes, np.zeros(32, np.uint64), 32, floats=False)
    assert hot.most(10.0, 96)[0] == 10 * 3 * 32 + 2 * 32


@pytest.mark.parametrize(
    ("of_address", "lanes", "us"),
    [(65536, 32, 3045), (16384, 32, 2723), (4096, 32, 1642), (1024, 32, 726), (256, 32, 267)]
    + [(65536, 1, 96.3), (16384, 1, 56.4), (4096, 1, 22.5)],
)
def test_blocks_that_go_on_through_the_memory_meet_where_they_are(of_address, lanes, us):
    """4 million lanes in blocks of 256, so many in a row on one address, as an H200 took them; or
    the first lane of each warp alone.
    """
    hot = HotLines(0.642, 1.76, group=4)
    for block in range(0, 16384, 1024):
        for hot.first_block in range(block, block + 4):
            own = np.arange(0, 256, 32 // lanes)
            address = (4 * ((256 * hot.first_block + own) // of_address)).astype(np.uint64)
            hot.add(own, address, 256, floats=False)
    assert hot.most(256, 96, 1056 / 16384)[0] / 1e3 == pytest.approx(us, rel=0.15)


class Block:
    """Atomics of the warps of one block, that do what a kernel's would do."""

    def __init__(self, warps):
        self.memory = np.zeros(BYTES, np.uint8)
        machine = SimpleNamespace(
            memory=lambda space: self.memory, warps_per_block=warps, block_count=1
        )
        self.lanes, self.swaps = np.arange(32 * warps), SharedSwaps(machine)

    def count(self, opcode, words, values=1, now=0):
        """(ATOMS.CAS, passes of memory) of a warp. words: (lanes,) of each lane; now: instructions
        so far.
        """
        size = int(opcode[-2:]) // 8
        memory = self.memory.view({"f": np.float32, "u": np.uint64, "s": np.int64}[opcode[-3]])
        do = np.minimum if ".min." in opcode else np.add
        do.at(memory, words, values)
        access = Access("shared", "atomic", (size * words).astype(np.uint64), self.lanes, size)
        event = SimpleNamespace(instruction=Instruction(opcode, ()))
        found = self.swaps.count(event, access, now)
        return tuple(one / (self.lanes.size // 32) for one in found)


ADD, ADD_64, MIN = "atom.shared.add.f32", "atom.shared.add.u64", "atom.shared.min.s64"


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 32])
def test_lanes_on_one_word_take_turns(lanes):
    """As many turns as lanes, each of 2 passes, of 4 with 64 bits: what an H200 executed."""
    block = Block(warps=16)
    words = block.lanes // 32 * 32 + block.lanes % 32 // lanes
    assert block.count(ADD, words) == (lanes, 2 * lanes)
    assert block.count(ADD_64, words) == (lanes, 4 * lanes)


@pytest.mark.parametrize(
    ("words", "warps", "turns", "passes"),
    [(256, 1, 3.65, 14.95), (256, 16, 4.55, 18.82), (1000, 16, 3.88, 16.59), (64, 16, 7.1, 25.9)],
)
def test_lanes_on_random_words(words, warps, turns, passes):
    """As an H200 had it: lanes take turns whose words are 32 apart, and try again where another
    warp was there first. Passes: with one of each turn's load.
    """
    block, rng = Block(warps), np.random.default_rng(1)
    counts = [block.count(ADD, rng.integers(0, words, block.lanes.size)) for _ in range(50)]
    found, of_memory = np.mean(counts, axis=0)
    assert found == pytest.approx(turns, rel=0.12)
    assert of_memory + found == pytest.approx(passes, rel=0.2)


def test_all_warps_on_one_word():
    """16 warps with 32 lanes each: 218 turns of a warp on an H200, 32 of one warp alone."""
    block = Block(warps=16)
    turns, _ = block.count(ADD, np.zeros(512, np.int64))
    assert 180 < turns < 290


def test_warps_with_much_between_two_atomics_meet_less():
    """Four warps on the same 32 words: 2.5 turns at once, and fewer behind 64 instructions."""
    block = Block(warps=4)
    turns = [block.count(ADD, block.lanes % 32, now=now)[0] for now in (0, 16, 80)]
    assert turns == [1 + 3 * 0.5, 1 + 3 * 0.5, 1 + 3 * 0.5 * 16 / 64]


def test_a_minimum_swaps_where_it_changes_a_word():
    block = Block(warps=4)
    words = block.lanes % 32 + 32 * (block.lanes // 32)
    assert block.count(MIN, words, 5) == (0.0, 0.0)
    assert block.count(MIN, words, -5) == (1.0, 4.0)
    assert block.count(MIN, words, -5) == (0.0, 0.0)
    assert block.count(MIN, words, np.where(block.lanes == 40, -6, -5)) == (0.25, 1.0)
