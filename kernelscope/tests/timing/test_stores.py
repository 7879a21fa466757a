"""Stores that fill sectors in part: what L1 joins, and what DRAM reads to fill the rest."""

import numpy as np
import pytest
from kernelscope import RawModule, observe
from kernelscope.timing import Time
from kernelscope.timing.gpus import gpu
from kernelscope.timing.memory.stores import (
    ALONE,
    HALVES,
    MOST_JOINED,
    PartStores,
    Stores,
    refilled_bytes,
)
from kernelscope.timing.memory.traffic import LONE_READ, kept_bytes, reused_bytes
from kernelscope.watch.counters.traffic import wanted

H200 = gpu("h200")


def store(stores, words, stretch=0, key=1):
    """A store of a word by each lane. words: (warps, 32) their numbers."""
    sectors, wants = wanted(words // 8)
    halves = np.unique(words // 4).size
    stores.add(key, sectors, wants, len(words), 4 * words.size, halves, stretch)


def of_block(*requests):
    """The stores of one block: (words, number of the straight code) of each."""
    stores = Stores()
    stores.begin()
    for words, stretch in requests:
        store(stores, words, stretch)
    return stores


THREADS = np.arange(256).reshape(8, 32)


@pytest.mark.parametrize(("count", "measured"), [(2, 0.50), (3, 0.36), (5, 0.36)])
def test_words_of_a_thread_leave_l1_together(count, measured):
    """By Nsight Compute 5.27, 5.66 and 9.45 million sectors of 10.5, 15.7 and 26.2 on an H200."""
    stores = of_block(*((count * THREADS + one, 0) for one in range(count)))
    ((share, filled),) = stores.joined().values()
    assert share == pytest.approx(measured, abs=0.01) and filled == 1.0


def test_words_of_one_sector_from_two_warps_leave_l1_together():
    """6.6 to 7.6 million sectors left of 10.5 on an H200."""
    half, lane = np.divmod(THREADS, 128)
    ((share, filled),) = of_block((2 * lane + half, 0)).joined().values()
    assert 0.63 < share < 0.72 and filled == 1.0


@pytest.mark.parametrize(("apart", "stretch"), [(2, 1), (8 * MOST_JOINED, 0)])
def test_words_far_apart_leave_l1_one_by_one(apart, stretch):
    """With a loop between the two, or with a line for each lane."""
    stores = of_block((apart * THREADS, 0), (apart * THREADS + 1, stretch))
    ((share, filled),) = stores.joined().values()
    assert share == 1.0 and filled == max(1 / apart, 1 / 8)


def test_what_a_block_fills_in_part():
    """Every second word in one loop and the others in the next: 256 sectors of 64 lines."""
    words = 2 * np.arange(1024).reshape(32, 32)
    part, whole = of_block((words, 0), (words + 1, 1)).in_part([0, 1 << 20])
    assert part == PartStores(256, 1.0, 1.0, 1.0, 64, 4.0, halves=False)
    assert whole == PartStores()


def test_halves_of_sectors_are_told_from_other_pieces():
    for piece, is_half in ((4, True), (5, False), (6, False), (12, True)):
        words = np.arange(32 * piece).reshape(-1, 32)
        ((part, _),) = [of_block((160 * (words // piece) + words % piece, 0)).in_part([0, 1 << 30])]
        assert part.halves == is_half and part.filled == pytest.approx(piece / 8 % 1 or 1, abs=0.3)


FAR = 64 * kept_bytes(H200)  # bytes of a buffer


def refilled(part, blocks, together, whole=0.0, size=FAR):
    return refilled_bytes(H200, [part], np.array([size]), np.array([whole]), blocks, together)


def test_what_stays_in_part_is_filled_once():
    """Dense ones cost their bytes, one of a line as much as a lone piece; loaded ones are whole."""
    blocks = 1000
    sectors = FAR / 32 / blocks
    for of_line, of_sector in ((4.0, 32), (1.0, LONE_READ * 64)):
        part = PartStores(sectors, 1.0, 0.5, of_line=of_line)
        assert refilled(part, blocks, 100) == pytest.approx(FAR / 32 * of_sector)
        assert refilled(part, blocks, 100, whole=FAR) == 0


@pytest.mark.parametrize("halves", [False, True])
def test_what_neighbours_fill_is_lost_where_they_are_many(halves):
    """Four blocks fill each sector."""
    blocks, together = 4000, 100
    part = PartStores(4 * FAR / 32 / blocks, 1.0, 0.3, of_line=1.0, halves=halves)
    lost = min(1.0, FAR / 40 / reused_bytes(H200)) * (HALVES if halves else 1)
    assert refilled(part, blocks, together) == pytest.approx(FAR / 32 * lost * ALONE * 64)
    assert refilled(part, blocks, together // 2) == pytest.approx(
        min(1.0, FAR / 80 / reused_bytes(H200))
        / (lost / (HALVES if halves else 1))
        * refilled(part, blocks, together)
    )


def test_what_a_block_comes_back_to_is_lost_behind_many_lines():
    blocks = 1000
    part = PartStores(FAR / 32 / blocks, 1.0, 1.0, again=1.0, open=64.0, of_line=1.0)
    few, many = (refilled(part, blocks, together) for together in (100, 200))
    assert many == 2 * few == FAR / 32 * 200 * 64 * 128 / kept_bytes(H200) * ALONE * 64


PIECES = """extern "C" __global__ void pieces(const unsigned* x, unsigned* y, int pixels, int own)
{
    const int words = own * gridDim.x;
    const size_t first = (size_t)blockIdx.y * pixels * words + blockIdx.x * own;
    for (int i = threadIdx.x; i < pixels * own; i += 512) {
        const size_t at = first + (size_t)(i / own) * words + i % own;
        y[at] = x[at] + i;
    }
}
"""


@pytest.mark.parametrize(("own", "measured"), [(4, 57.8), (5, 102.5), (8, 31.1)])
def test_pieces_of_20_bytes_take_longer_than_their_halves(own, measured):
    """Microseconds of an H200 that copied 42 MB in pieces of 32 blocks beside each other."""
    x = np.zeros(16 * 160 * 4096, np.uint32)
    kernel = RawModule(code=PIECES, backend="simulator").get_function("pieces")
    pixels = 4096 * 5 // own
    with observe(Time("h200", blocks=64)) as seen:
        kernel((32, 16), (512,), (x, x.copy(), np.int32(pixels), np.int32(own)))
    assert seen.total_us == pytest.approx(measured, rel=0.25)
