"""L1 hits from addresses, beside a cache that is simulated access by access."""

from collections import OrderedDict

import numpy as np
import pytest
from kernelscope.timing.memory import lookups as lookups_room
from kernelscope.timing.memory.caches import (
    LINE_SECTORS,
    LineUses,
    SectorStreams,
    Uses,
    hits,
)
from kernelscope.timing.memory.lookups import OFTEN, Lookups, lookups_of, some_warps
from kernelscope.timing.memory.reuse import alone_in_buffers
from kernelscope.watch.counters.patterns import Pattern
from kernelscope.watch.counters.traffic import Lanes


def sectors_of(address):
    return np.unique(address.astype(np.int64) // 32)


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


def test_uses_of_names():
    uses = Uses(np.array([5, 7, 5, 5, 7]))
    assert uses.order.tolist() == [0, 2, 3, 1, 4]
    assert uses.new.tolist() == [True, False, False, True, False]
    assert uses.since[~uses.new].tolist() == [2, 1, 3]


@pytest.mark.parametrize("lines", [4, 60, 64, 200])
def test_a_cyclic_sequence_fits_or_does_not(lines):
    """64 lines read again and again: all hits in a cache of 64, none in a smaller one."""
    sectors = np.tile(4 * np.arange(64), 20)
    expected = lru_hits(sectors, lines).mean()
    assert hits(LineUses(sectors), lines).mean() == pytest.approx(expected, abs=0.02)


def test_random_accesses_are_close_to_a_simulated_cache():
    sectors = np.random.default_rng(3).integers(0, 4000, 40_000)
    for lines in (50, 300, 900):
        exact = lru_hits(sectors, lines).mean()
        assert hits(LineUses(sectors), lines).mean() == pytest.approx(exact, abs=0.03)


def test_a_window_has_so_many_names():
    """Mean distinct names of a stretch, counted for every stretch of that length."""
    names = np.random.default_rng(1).integers(0, 30, 500)
    window = int(Uses(names).window(12))
    counted = [np.unique(names[at : at + window]).size for at in range(500 - window + 1)]
    longer = [np.unique(names[at : at + window + 1]).size for at in range(500 - window)]
    assert np.mean(counted) <= 12 < np.mean(longer)


def test_streams_of_blocks_are_apart():
    """A sector that another block has loaded is no hit of this one."""
    streams = SectorStreams()
    for _ in range(2):
        streams.begin(0)
        streams.add(7, sectors_of(np.arange(0, 128, 4, dtype=np.uint64)))
        streams.add(8, sectors_of(np.arange(0, 128, 4, dtype=np.uint64)))
    assert streams.misses(lines=100, resident=1) == {7: (4.0, 1.0), 8: (0.0, 0.0)}


@pytest.mark.parametrize(
    ("loads", "stretch", "hit"), [(8, 1, True), (9, 1, False), (8, None, False)]
)
def test_loads_that_stand_together_keep_what_they_share(loads, stretch, hit):
    """The last loads what the first has loaded, and L1 has room for a line alone."""
    streams = SectorStreams()
    streams.begin(0)
    for number in [*range(loads), 0]:
        streams.add(
            number, sectors_of(np.arange(32, dtype=np.uint64) * 4 + 128 * number), stretch=stretch
        )
    assert streams.misses(lines=1, resident=1)[0] == ((4.0, 0.5) if hit else (8.0, 1.0))


APART = {1: 8, 2: 8, 3: 11, 4: 8, 5: 10, 8: 8, 16: 8, 32: 8, 64: 8}
AT_RANDOM = {
    12: [324, 34, 71, 94, 72, 320, 347, 232, 15, 37, 132, 173, 248, 191, 105, 63, 276, 293, 13, 45,
         180, 156, 355, 206, 168, 172, 266, 234, 69, 295, 302, 382],
    13: [290, 377, 352, 204, 376, 390, 388, 32, 181, 242, 113, 150, 250, 320, 232, 69, 270, 348, 87,
         217, 135, 360, 24, 190, 359, 172, 55, 315, 385, 393, 371, 147],
}  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "clocks"),
    [(np.arange(32) * apart, clocks) for apart, clocks in APART.items()]
    + [(np.array(lines), clocks) for clocks, lines in AT_RANDOM.items()],
)
def test_lines_are_looked_up_in_four_banks(lines, clocks):
    """What 32 lines took on an H200 that L1 has; each lane has one of 8 words of its line."""
    address = (128 * lines + 4 * (np.arange(32) % 8)).astype(np.uint64)
    assert lookups_of(address[None], 4) == clocks
    assert lookups_of(np.stack([address, address]), 4) == 2 * clocks


@pytest.mark.parametrize(("bit", "same"), [(9, 1), (12, 3), (15, 2), (20, 1)])
@pytest.mark.parametrize("bank", range(4))
def test_higher_bits_choose_the_bank_too(bit, same, bank):
    """16 lines of a bank and 16 far away, of one that only their lowest nine bits say: an H200 took
    32 clocks where this bit makes them meet, else 16.
    """
    by_low = [(x & 181).bit_count() % 2 + 2 * ((x & 474).bit_count() % 2) for x in range(512)]
    near = [x for x in range(512) if by_low[x] == 0][:16]
    far = [x + (1 << bit) for x in range(512) if by_low[x] == bank][:16]
    address = (128 * np.array(near + far) + 4 * (np.arange(32) % 8)).astype(np.uint64)
    assert lookups_of(address[None], 4) == (32 if bank == same else 16)


def test_words_of_one_bank_are_read_one_after_another():
    """Four lines, and eight words: of the lanes on a word each has another line."""
    address = (128 * (np.arange(32) // 8) + 4 * (np.arange(32) % 8)).astype(np.uint64)
    assert lookups_of(address[None], 4) == 4 and lookups_of(address[None], 8) == 1


def test_own_stores_are_not_read_from_dram():
    streams = SectorStreams()
    streams.begin(0)
    streams.store(sectors_of(np.arange(0, 64, 4, dtype=np.uint64)))
    streams.add(1, sectors_of(np.arange(0, 128, 4, dtype=np.uint64)))
    assert streams.own_share == 0.5
    streams = SectorStreams()
    streams.begin(0)
    streams.store(sectors_of(np.arange(64, 256, 4, dtype=np.uint64)))  # four are not loaded
    streams.add(1, sectors_of(np.arange(0, 128, 4, dtype=np.uint64)))
    assert streams.own_share == 0.5


def test_half_of_the_requests_wait():
    """A request that finds all of its sectors in the cache does not wait."""
    streams = SectorStreams()
    streams.begin(0)
    for first in (0, 0, 128, 0):
        streams.add(7, sectors_of(np.arange(first, first + 128, 4, dtype=np.uint64)))
    assert streams.misses(lines=100, resident=1) == {7: (8.0, 0.5)}


def test_blocks_side_by_side_share_what_they_load():
    """Both read one line of weights and 32 of their own: one loads the weights, both wait."""
    streams = SectorStreams()
    for block in range(2):
        streams.begin(0)
        streams.add(1, sectors_of(np.arange(0, 128, 4, dtype=np.uint64)))
        for line in range(32):
            first = 4096 + (32 * block + line) * 128
            streams.add(2, sectors_of(np.arange(first, first + 128, 4, dtype=np.uint64)))
    assert streams.misses(100, resident=1) == {1: (4.0, 1.0), 2: (128.0, 1.0)}
    assert streams.misses(100, resident=2) == {1: (2.0, 1.0), 2: (128.0, 1.0)}


@pytest.mark.parametrize(("later", "waiting"), [(0, 1.0), (1, 0.5)])
def test_blocks_wait_for_what_the_same_request_of_others_loads(later, waiting):
    """Both read 32 lines of a table; the second, with a request before that, finds them there."""
    streams = SectorStreams()
    for block in range(2):
        streams.begin(block)
        for line in [1000] * (later * block) + [*range(32)]:
            streams.add(line // 1000, sectors_of(np.arange(32, dtype=np.uint64) * 4 + 128 * line))
    assert streams.misses(100, resident=2)[0] == (64.0, waiting)


@pytest.mark.parametrize(
    ("wants", "waiting"), [(None, 0.125), ([8, 1, 1, 1], 1.0), ([2, 1], 0.375)]
)
def test_all_warps_wait_that_want_a_sector_on_its_way(wants, waiting):
    """Of eight; of two sectors that two and one of them want, three of eight."""
    streams = SectorStreams()
    for _ in range(2):  # the second time L1 has them
        streams.begin(0)
        sectors = 100 * np.arange(len(wants) if wants else 1)
        streams.add(1, sectors, warps=8, wants=None if wants is None else np.array(wants))
    assert streams.misses(100, resident=1)[1][1] == waiting
    assert streams.first_touches()[1][1] == waiting / 2


def test_warps_wait_for_dram_that_want_either_sector_of_a_piece():
    """Bytes: each of eight warps has one sector, two of them a piece."""
    streams = SectorStreams()
    streams.begin(0)
    for _ in range(2):
        streams.add(1, np.arange(8), warps=8, wants=np.ones(8, int))
    assert streams.first_touches() == {1: (4.0, 0.5)}


def test_a_table_is_common_to_blocks_and_their_rows_are_not():
    streams = streams_of(
        4, lambda block: [*range(10), *range(1000 * block + 500, 1000 * block + 520)]
    )
    assert streams.common([(0, 640), (640, 1 << 20), (1 << 24, 64)]) == [True, False, False]


def test_blocks_side_by_side_push_each_other_out():
    """Each reads its 32 lines twice: a cache of 40 lines has room for one of them."""
    streams = SectorStreams()
    for block in range(2):
        streams.begin(0)
        for line in 2 * [*range(32)]:
            streams.add(
                1, sectors_of(np.arange(32, dtype=np.uint64) * 4 + 128 * (32 * block + line))
            )
    assert streams.misses(40, resident=1)[1] == (128.0, 0.5)
    assert streams.misses(40, resident=2)[1] == (256.0, 1.0)
    assert streams.misses(80, resident=4)[1] == (256.0, 1.0)  # as if there were two more
    assert streams.misses(160, resident=4)[1] == (128.0, 0.5)


def test_blocks_find_what_blocks_before_them_have_left():
    """Four blocks read one table: where two run at a time, the later two find it in L1."""
    streams = SectorStreams()
    for block in range(4):
        streams.begin(0)
        streams.add(1, sectors_of(np.arange(0, 128, 4, dtype=np.uint64)))
        first = 4096 + 128 * block
        streams.add(2, sectors_of(np.arange(first, first + 128, 4, dtype=np.uint64)))
    assert streams.misses(100, resident=2) == {1: (2.0, 1.0), 2: (4.0, 1.0)}
    assert streams.misses(100, resident=2, rounds=4) == {1: (0.5, 0.25), 2: (4.0, 1.0)}


def test_what_a_cache_has_lost_before_it_is_loaded_again():
    """A block reads 64 lines twice."""
    streams = SectorStreams()
    streams.begin(0)
    for line in 2 * [*range(64)]:
        streams.add(1, sectors_of(np.arange(32, dtype=np.uint64) * 4 + 128 * line))
    assert streams.lost(64)[1] == (0.0, 0.0) and streams.lost(63)[1][0] > 200
    assert streams.lost(40) == {1: (256.0, 0.5)}
    streams.begin(0)  # another block reads half of them
    streams.add(1, sectors_of(np.arange(0, 32 * 128, 4, dtype=np.uint64)))
    again = SectorStreams()
    again._requests = streams._requests
    assert again.lost(40)[1][0] == (128 + 0) / 2


def test_pieces_are_touched_first_by_one_load():
    """A row, its next one, and the row again; a second block reads it too."""
    streams = SectorStreams()
    for _ in range(2):
        streams.begin(0)
        for key, first in ((1, 0), (1, 128), (2, 0)):
            streams.add(key, sectors_of(np.arange(first, first + 128, 4, dtype=np.uint64)))
    assert streams.first_touches() == {1: (2.0, 0.5), 2: (0.0, 0.0)}


def streams_of(blocks, pieces_of_block):
    """Sequences of blocks, each of loads of so many pieces of 64 bytes."""
    streams = SectorStreams()
    for block in range(blocks):
        streams.begin(block)
        for piece in pieces_of_block(block):
            streams.add(1, sectors_of(np.array([64 * piece], np.uint64)))
    return streams


def test_pieces_that_blocks_load_at_any_time():
    """200 random ones of 4,000: the chance that another block has a piece, and two times of it."""
    rng = np.random.default_rng(3)
    streams = streams_of(16, lambda _: rng.choice(4000, 200, replace=False))
    ((loaded, chance, apart, reach),) = streams.shared([(0, 64 * 4000)])
    assert 0.7 * 64 * 200 < loaded <= 64 * 200  # but for those that three and more have
    assert chance == pytest.approx(200 / 4000, rel=0.2)
    assert apart == pytest.approx(6**-0.5, rel=0.15)  # of two times from 0 to 1
    assert reach > 16


def test_pieces_that_blocks_load_at_one_time():
    """All begin with a table of ten pieces; of a row of 90 two blocks have the first half."""
    rows = {0: range(1000, 1090), 1: [*range(1000, 1045), *range(2000, 2045)]}
    streams = streams_of(
        4, lambda at: [*range(10), *rows.get(at, range(9000 * at, 9000 * at + 90))]
    )
    table, row, nothing = streams.shared([(0, 640), (64_000, 64_000), (1 << 24, 64)])
    assert table == nothing == (0.0, 0.0, 0.0, np.inf)
    assert row == (64 * 135 / 4, 2 * 45 / 45 / 3, 0.0, np.inf)


def test_blocks_that_go_through_an_array_one_after_another():
    """Planes of 100 blocks; each loads its own place of three planes, a plane apart."""

    def pieces(block):
        return [10 * (block % 100) + 1000 * (block // 100 + plane) for plane in (0, 1, 2)]

    numbers, streams = range(50, 6000, 250), SectorStreams()
    for number in numbers:
        streams.begin(number)
        for piece in pieces(number):
            streams.add(1, sectors_of(np.array([64 * piece], np.uint64)))
    ((*_, reach),) = streams.shared([(0, 64 * 100_000)])
    assert reach == pytest.approx(200, rel=0.15)


def test_a_store_leaves_its_sectors_in_l1():
    """A block writes 32 lines and reads them; behind 100 other lines it finds none of them."""
    for between, missing in ((0, 0.0), (100, 128.0)):
        streams = SectorStreams()
        streams.begin(0)
        for line in range(32):
            streams.store(sectors_of(np.arange(32, dtype=np.uint64) * 4 + 128 * line))
        for line in range(between):
            streams.add(1, sectors_of(np.arange(32, dtype=np.uint64) * 4 + (1 << 20) + 128 * line))
        for line in range(32):
            streams.add(2, sectors_of(np.arange(32, dtype=np.uint64) * 4 + 128 * line))
        assert streams.misses(64, resident=1)[2] == (missing, missing / 128)
        assert -1 not in streams.misses(64, resident=1)


def test_a_gather_is_less_alone_than_the_stream_beside_it():
    """Two blocks: each streams 64 pieces of its own, and picks 8 that the other has too."""
    streams = streams_of(2, lambda block: range(64 * block, 64 * block + 64))
    for request in (1 << 20, (1 << 20) + 64):
        streams.add(2, sectors_of(np.array([request], np.uint64)))
    buffers = streams.buffers([0, 1 << 20])
    touched = {1: 2 * 64 * 64.0, 2: 2 * 8 * 64.0}
    found = alone_in_buffers(buffers, [2 * 64 * 64.0, 8 * 64.0], touched)
    assert found == {1: 1.0, 2: 0.5}
    assert streams.buffers([1 << 21]) == {} == alone_in_buffers({}, [1.0], touched)


@pytest.mark.parametrize("of_block", [8, 3, 6, 15])
@pytest.mark.parametrize("warps", [8, 60, 96, 512, 960])
def test_some_warps_are_of_all_places_in_a_block(warps, of_block):
    """Of so many warps, in blocks of eight, of three and so on."""
    numbers = np.arange(warps)
    chosen = numbers[some_warps(numbers, of_block)]
    assert len(chosen) == warps if warps < 64 else 13 <= len(chosen) <= 40
    assert len({*(chosen % of_block).tolist()}) == min(of_block, len(chosen))


def test_what_another_block_has_stored_is_not_a_blocks_own():
    """Many blocks: one stores to a sector, the others load it."""
    streams = SectorStreams()
    for number in range(4):
        streams.begin(number)
        if not number:
            streams.store(np.array([5]))
        streams.add(1, np.array([5 if number else 6]))
    assert streams.own_share == 0.0 and [one.lines for one in streams.streams] == [1] * 4


@pytest.mark.parametrize("waiting", [1, 40, lookups_room.MOST_WAITING])
def test_lookups_of_many_loads_follow_those_of_each_fourth(monkeypatch, waiting):
    """A line for each lane, then one for all: loads between have what one before them had."""
    monkeypatch.setattr(lookups_room, "MOST_WAITING", waiting)
    lookups, later, lanes = Lookups(1), Lookups(1), np.arange(32)
    address = [np.uint64(size) * lanes.astype(np.uint64) for size in (128, 4)]
    apart, together = (Pattern(Lanes(lanes), one) for one in address)

    def clocks(pattern):
        before = lookups.totals().get(1, 0.0)
        lookups.add(1, 4, pattern, 0, 1)
        later.add(1, 4, pattern, 0, 1)
        return lookups.totals()[1] - before

    found = [clocks(apart) for _ in range(OFTEN + 9)]
    assert {*found} == {lookups_of(address[0][None], 4)} and found[0] > 1
    after = [clocks(together) for _ in range(8)]
    assert after[0] == found[0] and after[-4:] == [1.0] * 4
    assert later.totals() == {1: sum(found + after)}


@pytest.mark.parametrize("warps", [3, 120])
@pytest.mark.parametrize("size", [4, 8])
def test_lookups_of_a_load_moved_along_are_those_of_its_addresses(size, warps):
    """The same pattern again, by whole lines and by less: banks of tags depend on all bits."""
    random = np.random.default_rng(2)
    lanes = np.flatnonzero(random.random(32 * warps) < 0.7)
    address = (size * random.integers(0, 1 << 20, lanes.size)).astype(np.uint64)
    lookups, pattern = Lookups(3), Pattern(Lanes(lanes), address)
    some = some_warps(np.arange(warps), 3)
    found = {}
    for delta in (0, 128, 128 * 77, size, 128 * 5 + size, -size):
        moved = address + np.uint64(1 << 30) + np.uint64(delta % 2**64)
        rows = Lanes(lanes).rows(moved, 32)[some]
        expected = lookups_of(rows, size) / len(rows)
        lookups.add(delta, size, pattern, (1 << 30) + delta, 3)
        found[delta] = 3 * expected
    assert lookups.totals() == found and len({*found.values()}) > 1
