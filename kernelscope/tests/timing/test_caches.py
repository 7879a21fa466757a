"""L1 hits from addresses, beside a cache that is simulated access by access."""

from collections import OrderedDict

import numpy as np
import pytest
from kernelscope.timing.caches import (
    LINE_SECTORS,
    HotLines,
    SectorStreams,
    hits,
    times_since,
    window_of,
)


def lru_hits(sectors, lines):
    """A fully associative cache of 128-byte lines whose sectors come in one by one."""
    cache, found = OrderedDict(), []
    for sector in sectors.tolist():
        line = sector // LINE_SECTORS
        held = cache.pop(line, set())
        found.append(sector in held)
        cache[line] = held | {sector}
        if len(cache) > lines:
            cache.popitem(last=False)
    return np.array(found)


def test_times_since():
    assert times_since(np.array([5, 7, 5, 5, 7])).tolist() == [np.inf, np.inf, 2, 1, 3]


@pytest.mark.parametrize("lines", [4, 60, 64, 200])
def test_a_cyclic_sequence_fits_or_does_not(lines):
    """64 lines read again and again: all hits in a cache of 64, none in a smaller one."""
    sectors = np.tile(4 * np.arange(64), 20)
    expected = lru_hits(sectors, lines).mean()
    assert hits(sectors, lines).mean() == pytest.approx(expected, abs=0.02)


def test_random_accesses_are_close_to_a_simulated_cache():
    sectors = np.random.default_rng(3).integers(0, 4000, 40_000)
    for lines in (50, 300, 900):
        exact = lru_hits(sectors, lines).mean()
        assert hits(sectors, lines).mean() == pytest.approx(exact, abs=0.03)


def test_a_window_has_so_many_names():
    """Mean distinct names of a stretch, counted for every stretch of that length."""
    names = np.random.default_rng(1).integers(0, 30, 500)
    window = int(window_of(names, 12))
    counted = [np.unique(names[at : at + window]).size for at in range(500 - window + 1)]
    longer = [np.unique(names[at : at + window + 1]).size for at in range(500 - window)]
    assert np.mean(counted) <= 12 < np.mean(longer)


def test_streams_of_blocks_are_apart():
    """A sector that another block has loaded is no hit of this one."""
    streams = SectorStreams()
    for _ in range(2):
        streams.begin()
        streams.add(7, np.arange(0, 128, 4, dtype=np.uint64))
        streams.add(8, np.arange(0, 128, 4, dtype=np.uint64))
    assert streams.misses(lines=100) == {7: (4.0, 1.0), 8: (0.0, 0.0)}


def test_own_stores_are_not_read_from_dram():
    streams = SectorStreams()
    streams.begin()
    streams.store(np.arange(0, 64, 4, dtype=np.uint64))
    streams.add(1, np.arange(0, 128, 4, dtype=np.uint64))
    assert streams.own_share == 0.5


def test_half_of_the_requests_wait():
    """A request that finds all of its sectors in the cache does not wait."""
    streams = SectorStreams()
    streams.begin()
    for first in (0, 0, 128, 0):
        streams.add(7, np.arange(first, first + 128, 4, dtype=np.uint64))
    assert streams.misses(lines=100) == {7: (8.0, 0.5)}


def test_the_hottest_line():
    """A warp has an operation for a sector, and for each lane on one address; they add up."""
    hot = HotLines(1.0, 0.0)
    lanes = np.arange(64)
    hot.add(lanes, np.where(lanes < 32, 0, 4 * lanes).astype(np.uint64), 64)
    assert hot.most(10.0) == 32  # of one block: the others have their own
    hot.first_block = 1
    hot.add(lanes, np.zeros(64, np.uint64), 64)
    assert hot.most(10.0) == 10 * 96


def test_sectors_of_the_hottest_line():
    """32 neighbours are four operations, 8 words of 8 sectors in two lines four for each line."""
    hot, lanes = HotLines(1.0, 0.0), np.arange(32)
    hot.add(lanes, (4 * lanes).astype(np.uint64), 32)
    assert hot.most(1.0) == 4
    hot.add(lanes[:8], (256 + 32 * lanes[:8]).astype(np.uint64), 32)
    assert hot.most(1.0) == 4


def test_a_warp_on_several_sectors_takes_the_time_of_a_line():
    """One sector of the line, two of it, then all four."""
    hot, lanes = HotLines(2.0, 6.0), np.arange(32)
    hot.add(lanes[:8], (4 * lanes[:8]).astype(np.uint64), 32)
    assert hot.most(1.0) == 2.0
    hot.add(lanes[:16], (4 * lanes[:16]).astype(np.uint64), 32)
    assert hot.most(1.0) == 2.0 + 6.0
    hot.add(lanes, (4 * lanes).astype(np.uint64), 32)
    assert hot.most(1.0) == 2.0 + 6.0 + 8.0
