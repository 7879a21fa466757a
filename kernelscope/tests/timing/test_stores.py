"""Stores that fill sectors in part: what L1 joins, and what DRAM reads to fill the rest."""

from dataclasses import replace

import numpy as np
import pytest
from kernelscope import RawModule, observe
from kernelscope.timing import Time
from kernelscope.timing.gpus import gpu
from kernelscope.timing.memory.stores import (
    ALONE,
    HALVES,
    SHARED,
    PartStores,
    StoredSectors,
    Stores,
    refilled_bytes,
)
from kernelscope.timing.memory.traffic import LONE_READ, kept_bytes, reused_bytes
from kernelscope.watch.counters.patterns import Pattern
from kernelscope.watch.counters.traffic import Lanes

H200 = gpu("h200")
THREADS = np.arange(256).reshape(8, 32)


def stored(words):
    """A store of a word by each lane. words: (warps, 32) their numbers."""
    address = 4 * words.ravel().astype(np.uint64)
    pattern = Pattern(Lanes(np.arange(words.size)), address)
    sectors, wants, warps = pattern.sectors_before(words.size, 0)
    return StoredSectors(sectors, wants, *by_warps(pattern, words.size, warps))


def by_warps(pattern, lanes, warps):
    filled, lines = pattern.stored_before(lanes, 0, 4)
    return filled, warps, lines


def of_block(*requests):
    """The stores of one block: (words, number of its run) of each; the key is their place."""
    stores = Stores()
    stores.begin()
    for key, (words, run) in enumerate(requests):
        stores.add(key, run, stored(words))
    return stores


def moved(one):
    return one._replace(sectors=one.sectors + 4096)


@pytest.mark.parametrize(("count", "measured"), [
    (2, 0.50), (3, 0.36), (4, 0.26), (5, 0.36), (8, 0.83),
])  # fmt: skip
def test_words_of_a_thread_leave_l1_together(count, measured):
    """By Nsight Compute: the share of the sectors of an H200's stores, with 64 warps on an SM."""
    found = of_block(*((count * THREADS + one, 0) for one in range(count))).joined(64)
    assert len(found) == count
    for share, filled in found.values():
        assert share == pytest.approx(measured, abs=0.08)
        assert filled == pytest.approx(1 - (share - 1 / count), abs=0.01)


def test_words_of_one_sector_from_two_warps_leave_l1_together():
    """6.6 to 7.6 million sectors left of 10.5 on an H200."""
    half, lane = np.divmod(THREADS, 128)
    ((share, filled),) = of_block((2 * lane + half, 0)).joined(64).values()
    assert 0.63 < share < 0.72 and filled == 1.0


def test_lone_stores_of_other_forms_have_shares_of_their_own():
    """One by one: whole lines, every second word, words of a sector from two warps, the first again
    elsewhere.
    """
    half, lane = np.divmod(THREADS, 128)
    words = [THREADS, 2 * THREADS, 2 * lane + half, THREADS + 4096]
    stores = of_block(*((own, run) for run, own in enumerate(words)))
    alone = [of_block((own, 0)).joined(64)[0] for own in words]
    assert [*stores.joined(64).values()] == alone and len({*alone}) == 3


def test_runs_of_other_forms_have_shares_of_their_own():
    """Even and odd words, the same far apart, and the first two again elsewhere."""
    even, odd = stored(2 * THREADS), stored(2 * THREADS + 1)
    runs = [(even, odd), (even, moved(odd)), (moved(even), moved(odd))]

    def shares(*runs):
        stores = Stores()
        stores.begin()
        for run, two in enumerate(runs):
            for at, one in enumerate(two):
                stores.add(2 * run + at, run, one)
        return [*stores.joined(64).values()]

    alone = [shares(run) for run in runs]
    assert shares(*runs) == sum(alone, []) and alone[0] == alone[2] != alone[1]


@pytest.mark.parametrize(("apart", "run", "warps", "share"), [
    (2, 1, 64, 1.0), (64, 0, 1, 1.0), (16, 0, 16, 0.5), (16, 0, 86, 0.75), (16, 0, 140, 1.0),
])  # fmt: skip
def test_words_far_apart_leave_l1_one_by_one(apart, run, warps, share):
    """With a loop between the two, or with many lines of many warps."""
    stores = of_block((apart * THREADS, 0), (apart * THREADS + 1, run))
    for found, _ in stores.joined(warps).values():
        assert found == share


def test_a_column_of_each_warp_is_not_joined():
    """A transpose: 32 warps store to 32 lines each, which they have between them."""
    warp, lane = np.divmod(np.arange(1024).reshape(32, 32), 32)
    ((share, filled),) = of_block((4096 * lane + warp, 0)).joined(32).values()
    assert share == 1.0 and filled == pytest.approx(1 / 8)


def test_stores_beside_each_other_to_two_arrays_keep_their_own_shares():
    """Whole sectors of one array, every second word of another, four words of a thread."""
    whole, second, first = THREADS, (1 << 20) + 2 * THREADS, (1 << 21) + 4 * THREADS
    stores = of_block((whole, 0), (second, 0), *((first + one, 0) for one in range(4)))
    found = stores.joined(8)
    assert found[0] == (1.0, 1.0) and found[1] == (1.0, 0.5)
    assert [found[key] for key in range(2, 6)] == 4 * [(0.25, 1.0)]
    parts = stores.in_part([0, 1 << 22, 1 << 23])
    assert [part.sectors for part in parts] == [0, 64, 0]
    assert parts[1].filled == 0.5 and parts[1].again == 0


@pytest.mark.parametrize("run", [0, 1])
def test_a_word_stored_twice_fills_no_more(run):
    part, _ = of_block((2 * THREADS, 0), (2 * THREADS, run)).in_part([0, 1 << 20])
    assert part.filled == 0.5 and part.sectors == 64 and part.again == run


def test_what_a_block_fills_in_part():
    """Every second word in one loop and the others in the next: 256 sectors of 64 lines."""
    words = 2 * np.arange(1024).reshape(32, 32)
    part, whole = of_block((words, 0), (words + 1, 1)).in_part([0, 1 << 20])
    assert part == PartStores(256, 0.0, 1.0, 1.0, 64, 4.0, halves=False)
    assert whole == PartStores()


@pytest.mark.parametrize(("piece", "sectors", "filled", "halves"), [
    (4, 1, 0.5, True), (5, 1.5, 0.4167, False), (6, 1.5, 0.5, False), (12, 1, 0.5, True),
])  # fmt: skip
def test_halves_of_sectors_are_told_from_other_pieces(piece, sectors, filled, halves):
    """Pieces of 16, 20, 24 and 48 bytes at all their places in a sector: of each so many sectors
    are filled in part.
    """
    words = np.arange(64 * piece).reshape(-1, 32)
    place = words // piece  # a row of 160 words each, and another column
    part, _ = of_block((160 * place + place % 8 * piece + words % piece, 0)).in_part([0, 1 << 30])
    assert part.halves == halves
    assert part.sectors == 64 * sectors and part.filled == pytest.approx(filled, abs=0.01)
    assert part.whole == (64 if piece == 12 else 0)


def test_a_block_whose_stores_are_too_many_is_left_out():
    stores = Stores(left=150)
    for _ in range(4):
        stores.begin()
        stores.add(1, 0, stored(2 * THREADS))
    assert len(stores._blocks) == 2 and stores.left < 0
    assert stores.in_part([0, 1 << 20])[0].sectors == 64


FAR = 64 * kept_bytes(H200)  # bytes of a buffer


def refilled(part, blocks, together, others=0.0, size=FAR):
    return refilled_bytes(H200, [part], np.array([size]), np.array([others]), blocks, together)


def test_what_stays_in_part_is_filled_once():
    """Dense ones cost their bytes, one of a line as much as a lone piece; loaded ones are whole."""
    blocks = 1000
    sectors = FAR / 32 / blocks
    for of_line, of_sector in ((4.0, 32), (1.0, LONE_READ * 64)):
        part = PartStores(sectors, filled=0.5, of_line=of_line)
        assert refilled(part, blocks, 100) == pytest.approx(FAR / 32 * of_sector)
        assert refilled(part, blocks, 100, others=FAR) == 0
        assert refilled(replace(part, filled=1.0), blocks, 100) == 0


@pytest.mark.parametrize("halves", [False, True])
def test_what_neighbours_fill_is_lost_where_they_are_many(halves):
    """Four blocks fill each sector, or fewer than SHARED: those leave it in part."""
    blocks, together = 4000, 100
    part = PartStores(4 * FAR / 32 / blocks, filled=0.3, of_line=1.0, halves=halves)
    cost = FAR / 32 * ALONE * 64 * (HALVES if halves else 1)
    assert FAR / 40 < reused_bytes(H200) * 1.3
    for at_a_time in (together, together // 2):
        lost = min(1.0, FAR * at_a_time / blocks / reused_bytes(H200))
        assert refilled(part, blocks, at_a_time) == pytest.approx(lost * cost)
    few = replace(part, sectors=(SHARED - 0.01) * FAR / 32 / blocks)
    assert refilled(few, blocks, together) == pytest.approx(FAR / 32 * LONE_READ * 64)


@pytest.mark.parametrize("again", [0.1, 1.0, 3.0])
def test_what_a_block_comes_back_to_is_lost_behind_many_lines(again):
    blocks = 1000
    part = PartStores(FAR / 32 / blocks, filled=1.0, again=again, open=64.0, of_line=1.0)
    few, many = (refilled(part, blocks, together) for together in (100, 200))
    expected = FAR / 32 * 200 * 64 * 128 / kept_bytes(H200) * ALONE * 64
    assert many == pytest.approx(2 * few) == pytest.approx(min(1.0, again) * expected)


WORDS = """extern "C" __global__ void loaded(const float* x, float* y, int n)
{
    const int thread = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; k < EACH; ++k) {
        const int i = EACH * thread + k;
        if (i < n) y[i] = 2 * x[i];
    }
}
extern "C" __global__ void stored(const float* x, float* y, int n)
{
    const int thread = blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll
    for (int k = 0; k < EACH; ++k) y[EACH * thread + k] = n;
}
"""


@pytest.mark.turns(3)
@pytest.mark.parametrize(("kernel", "each", "measured"), [
    ("loaded", 8, 154.7), ("loaded", 4, 82.6), ("stored", 8, 140.6), ("stored", 4, 21.4),
])  # fmt: skip
def test_words_of_a_thread_take_as_long_as_they_leave_l1(kernel, each, measured):
    """Microseconds of an H200 for 64 MiB: one by one, where a load stands between."""
    x = np.zeros(1 << 24, np.float32)
    module = RawModule(code=WORDS, options=(f"-DEACH={each}",), backend="simulator")
    grid = (x.size // each // 128,)
    with observe(Time("h200", blocks=64)) as seen:
        module.get_function(kernel)(grid, (128,), (x, np.zeros_like(x), np.int32(x.size)))
    assert seen.total_us == pytest.approx(measured, rel=0.27)


def test_a_load_that_may_go_before_both_stores_does_not_part_them():
    """Of `__restrict__` data: four words of a thread leave L1 together, else one by one."""
    x, found = np.zeros(1 << 14, np.float32), []
    for code in (WORDS, WORDS.replace("const float* x, float* y", "RESTRICTED")):
        options = "-DEACH=4", "-DRESTRICTED=const float* __restrict__ x, float* __restrict__ y"
        module = RawModule(code=code, options=options, backend="simulator")
        with observe(Time("h200")) as seen:
            module.get_function("loaded")((32,), (128,), (x, np.zeros_like(x), np.int32(x.size)))
        found.append(seen.launches[0].bounds["L2"])
    assert found[1] < 0.5 * found[0]


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


@pytest.mark.turns(11)
@pytest.mark.parametrize(("own", "measured"), [(4, 57.8), (5, 102.5), (8, 31.1)])
def test_pieces_of_20_bytes_take_longer_than_their_halves(own, measured):
    """Microseconds of an H200 that copied 42 MB in pieces of 32 blocks beside each other."""
    x = np.zeros(16 * 160 * 4096, np.uint32)
    kernel = RawModule(code=PIECES, backend="simulator").get_function("pieces")
    pixels = 4096 * 5 // own
    with observe(Time("h200", blocks=64)) as seen:
        kernel((32, 16), (512,), (x, x.copy(), np.int32(pixels), np.int32(own)))
    assert seen.total_us == pytest.approx(measured, rel=0.25)
