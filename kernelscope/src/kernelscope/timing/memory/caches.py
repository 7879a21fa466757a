"""Which loads L1 serves: from the addresses of a few blocks, by the theory of footprints.

A block's loads are a sequence of 32-byte sectors. A sector is still in L1 where the lines that came
in since its last use are fewer than L1 holds; how many lines a stretch of the sequence has on
average follows from the times between uses alone (Xiang, Ding, Luo and Bao, "HOTL: a higher order
theory of locality", ASPLOS 2013).
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...watch.counters.traffic import starts_of

LINE_SECTORS, PIECE_SECTORS, SECTOR_BYTES = 4, 2, 32  # a piece: what DRAM moves at a time
PIECE_BYTES = PIECE_SECTORS * SECTOR_BYTES
MOST_SECTORS = 1 << 20  # of a launch's sequences
STORE = -1  # in the place of a load's key
LEAST_OF_LINE = 8  # blocks, of which a line through the places of their loads is taken
NEAR_LOADS = 8  # loads of a block that are so close keep what they share


class _Request(NamedTuple):
    """What one instruction of a block's warps loads or stores. sectors: ascending, each once;
    wants: how many of the warps want each.
    """

    key: int
    sectors: np.ndarray
    wants: np.ndarray
    warps: int
    stretch: int | None
    stores: bool = False


class SectorStreams:
    """The sectors that some blocks load and store, in order.

    keys: of each instruction; its sectors that are new to a request's block count as one access.
    """

    def __init__(self):
        self._requests: list[list[_Request]] = []
        self._numbers: list[int] = []
        self.left, self.at = MOST_SECTORS, -1  # at: place of the block that runs

    def begin(self, number: int) -> None:
        """The next block; number: its own in the grid."""
        self.at = len(self._requests)
        self._requests.append([])
        self._numbers.append(number)

    def add(
        self,
        key: int,
        sectors: np.ndarray,
        warps: int = 1,
        stretch: int | None = None,
        wants: np.ndarray | None = None,
    ) -> None:
        """Loads of the block that has begun. sectors: ascending, each once, one instruction's, of
        so many warps; stretch: number of the straight code in which they stand, if others do too;
        wants: how many of the warps want each sector, None: one.
        """
        wants = np.ones(sectors.size, np.int64) if wants is None else wants
        self._add(_Request(key, sectors, wants, warps, stretch))

    def store(self, sectors: np.ndarray, wants: np.ndarray | None = None) -> None:
        """Stores of the block that has begun; sectors, wants: as of add."""
        wants = np.ones(sectors.size, np.int64) if wants is None else wants
        self._add(_Request(0, sectors, wants, 1, None, stores=True))

    def _add(self, request: "_Request") -> None:
        if self.left > 0 and request.sectors.size:
            self.left -= request.sectors.size
            self._requests[self.at].append(request)

    @cached_property
    def streams(self) -> list["_Stream"]:
        """The loads and stores of each block that has any loads."""
        return self._blocks.streams if self._blocks else []

    @cached_property
    def _blocks(self) -> "_Blocks | None":
        """All of these, if there are any."""
        found = [one for one in self._requests if not all(each.stores for each in one)]
        return _Blocks(found) if found else None

    @cached_property
    def _first(self) -> dict[int, tuple[int, int, int]]:
        """Instruction key -> (requests, those that want a piece which none has touched before, such
        pieces).
        """
        requests = [one for block in self._requests for one in block]
        found: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
        if not requests:
            return found
        uses = Uses(np.concatenate([one.sectors for one in requests]) // PIECE_SECTORS)
        whose = np.repeat(np.arange(len(requests)), [one.sectors.size for one in requests])
        whose = whose[uses.order]
        wants = np.concatenate([one.wants for one in requests])[uses.order]
        touching = whose[uses.new]  # of each piece, the request that touches it first
        first = whose == touching[np.cumsum(uses.new) - 1]
        new = np.bincount(touching, minlength=len(requests)).tolist()
        wanted = np.bincount(whose[first], wants[first], minlength=len(requests)).tolist()
        for one, count, wanting in zip(requests, new, wanted, strict=True):
            if not one.stores:
                of_key = found[one.key]
                of_key[0] += one.warps
                of_key[1] += min(one.warps, wanting)
                of_key[2] += count
        return found

    def first_touches(self) -> dict[int, tuple[float, float]]:
        """Return instruction key -> (pieces that it touches before any other load or store, of a
        block, share of its requests that touch one). Blocks follow each other.
        """
        blocks = max(1, len(self.streams))
        return {key: (new / blocks, some / n) for key, (n, some, new) in self._first.items()}

    def buffers(self, starts: Sequence[int]) -> dict[int, int]:
        """Return the key of each load -> number of its buffer. starts: first byte of each buffer,
        ascending.
        """
        found = {}
        for one in (one for block in self._requests for one in block if not one.stores):
            if one.key not in found:
                address = int(one.sectors[0]) * SECTOR_BYTES + SECTOR_BYTES - 1
                found[one.key] = bisect(starts, address) - 1
        return {key: number for key, number in found.items() if number >= 0}

    def common(self, stretches: list[tuple[int, int]]) -> list[bool]:
        """Return of each stretch of memory, (first byte, bytes): do most blocks load each of its
        pieces?
        """
        pieces, meeting, _ = self._pieces
        found = []
        for first, size in stretches:
            ends = np.array([first, first + size]) / PIECE_BYTES
            own = meeting[slice(*np.searchsorted(pieces, ends))]
            found.append(bool(own.size and own.mean() > 0.5 * len(self.streams)))
        return found

    def followed(self, key: int, requests: float) -> float:
        """Return the share of a block's requests of an instruction that the sequences have: all,
        unless the launch has more than MOST_SECTORS.
        """
        if self.left > 0 or key not in self._first:
            return 1.0
        return min(1.0, self._first[key][0] / len(self.streams) / requests)

    @cached_property
    def _pieces(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(pieces that the blocks load, ascending; how many blocks load each; of those that two do,
        the square of how far apart in shares of a block's loads).
        """
        if not self._blocks:
            return (np.zeros(0, np.int64),) * 3
        pieces, when = self._blocks.pieces
        pieces, at, meeting = np.unique(pieces, return_inverse=True, return_counts=True)
        return pieces, meeting, 2 * np.bincount(at, when**2) - np.bincount(at, when) ** 2

    def shared(self, stretches: list[tuple[int, int]]) -> list[tuple[float, float, float, float]]:
        """Return of each stretch of memory, (first byte, bytes): (bytes of the pieces that a block
        loads and one other at most, the chance that another given block loads one of them, how far
        apart both do, in shares of a block's loads, how many blocks there are between, at most,
        where blocks go through it one after another).
        """
        blocks, (pieces, meeting, apart) = len(self.streams), self._pieces
        result = []
        for first, size in stretches:
            ends = np.array([first, first + size]) / PIECE_BYTES
            own = slice(*np.searchsorted(pieces, ends))
            once, twice = (int(np.count_nonzero(meeting[own] == n)) for n in (1, 2))
            chance = min(1.0, 2 * twice / max(once, 1) / max(1, blocks - 1))
            far = apart[own][meeting[own] == 2].mean() if twice else 0.0
            loaded = PIECE_BYTES * (once + 2 * twice) / max(1, blocks)
            result.append((loaded, chance, float(np.sqrt(max(far, 0.0))), self._reach(*ends)))
        return result

    def _reach(self, first: float, end: float) -> float:
        """Return how many blocks lie, at most, between two that load one of these pieces, if their
        places are taken to be on a line by the blocks' numbers; infinity if they are not.
        """
        found = []
        for number, block in zip(self._numbers, self._requests, strict=True):
            loads = [one.sectors // PIECE_SECTORS for one in block if not one.stores]
            own = np.concatenate([[], *loads])
            own = own[(own >= first) & (own < end)]
            if own.size:
                found.append((number, own.min(), own.max()))
        if len(found) < LEAST_OF_LINE:
            return np.inf
        numbers, low, high = np.array(found, np.float64).T
        slope, start = np.polyfit(numbers, 0.5 * (low + high), 1)
        far = np.maximum(abs(high - start - slope * numbers), abs(low - start - slope * numbers))
        return 2 * float(far.max()) / slope if slope > 0 else np.inf

    @property
    def own_share(self) -> float:
        """Share of the sectors loaded that the block itself has stored to before."""
        return self._blocks.own_share if self._blocks else 0.0

    def lost(self, lines: int) -> dict[int, tuple[float, float]]:
        """Return instruction key -> of a block, (sectors that it loads again and that a cache of so
        many lines for the block alone has lost, share of the requests that lack any). Those are of
        pieces that no other block loads.
        """
        if all(stream.lines <= lines for stream in self.streams):
            return _of_a_block([], [])
        blocks = [_Together([stream]) for stream in self.streams]
        absent = [block.absent(max(1, lines)) for block in blocks]
        pieces, meeting, _ = self._pieces
        common = pieces[meeting > 1]
        for block, lacking in zip(blocks, absent, strict=True):
            lacking[np.unique(block.sectors, return_index=True)[1]] = False  # those it loads first
            lacking &= ~np.isin(block.sectors // PIECE_SECTORS, common)
        return _of_a_block(blocks, absent)

    def misses(
        self, lines: int, resident: int, rounds: float = 1.0
    ) -> dict[int, tuple[float, float]]:
        """Return instruction key -> of a block, (sectors that a cache of so many lines lacks,
        share of the requests that lack any).

        resident: blocks that share the cache, side by side; rounds: of such blocks, one after
        another. Those behind the first find what blocks before them have left.
        """
        first = self._lacking(lines, resident, resident)
        few = min(resident, len(self.streams) // 2)
        if rounds <= 1 or not few:
            return first
        later = self._lacking(lines, resident, few, after_others=True)
        share = 1 / rounds
        return {
            key: tuple(share * a + (1 - share) * b for a, b in zip(both, later[key], strict=True))
            for key, both in first.items()
        }

    def _lacking(
        self, lines: int, resident: int, size: int, after_others: bool = False
    ) -> dict[int, tuple[float, float]]:
        """As misses. size: blocks that are taken side by side, with their share of the lines;
        after_others: one such group after another, without the first.
        """
        streams = self.streams
        groups = [_Together(streams[at : at + size]) for at in range(0, len(streams), size)]
        if after_others:
            sectors = np.concatenate([group.sectors for group in groups])
            whole = ~hits(LineUses(sectors), lines * size // resident)
            absent = np.split(whole, np.cumsum([group.sectors.size for group in groups])[:-1])
            absent = [one & ~group.near for one, group in zip(absent, groups, strict=True)]
            return _of_a_block(groups[1:], absent[1:])
        absent = [group.absent(max(1, lines * group.count // resident)) for group in groups]
        late = [group.on_its_way(one) for group, one in zip(groups, absent, strict=True)]
        return _of_a_block(groups, absent, late)


def _of_a_block(
    groups: list["_Together"], absent: list[np.ndarray], late: list[np.ndarray] | None = None
) -> dict[int, tuple[float, float]]:
    """Instruction key -> (absent sectors of a block, share of the requests that lack any), none and
    0 where there is none. late: those of others that are not there as yet.
    """
    found: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for group, lacking, coming in zip(groups, absent, late or absent, strict=True):
        for key, warps, count, wanting in group.counts(lacking, lacking | coming):
            if key == STORE:
                continue
            of_key = found[key]
            of_key[0] += count
            of_key[1] += min(wanting, warps)
            of_key[2] += warps
    blocks = sum(group.count for group in groups)
    return defaultdict(
        lambda: (0.0, 0.0),
        {key: (n / blocks, some / warps) for key, (n, some, warps) in found.items()},
    )


class _Stream(NamedTuple):
    """The loads and stores of one block: a store, too, leaves its sectors in L1.

    whose: (key, warps) of each request; sizes: how many sectors each has; sectors: of all, one
    request after another; wants: how many warps want each; near: those that the block has just
    touched, by one of the NEAR_LOADS before in the same straight code. A warp issues these one
    right behind the other, where the simulator has all warps of a block do the first of them before
    the next; that another warp of the block may have touched them is left as it is. lines: distinct
    ones.
    """

    whose: list[tuple[int, int]]
    sizes: np.ndarray
    sectors: np.ndarray
    wants: np.ndarray
    near: np.ndarray
    lines: int


class _Blocks:
    """The loads and stores of some blocks, one block after another; each has any."""

    def __init__(self, blocks: list[list[_Request]]):
        requests = [one for block in blocks for one in block]
        sizes = np.array([one.sectors.size for one in requests], np.int64)
        self._count, ends = len(blocks), np.cumsum([len(block) for block in blocks])
        self._sectors = np.concatenate([one.sectors for one in requests])
        self._loaded = np.repeat([not one.stores for one in requests], sizes)
        number = np.repeat(np.arange(len(requests)), sizes)
        self._block = np.searchsorted(ends, number, side="right")
        low = self._sectors.min()
        uses = Uses(self._block * (self._sectors.max() - low + 1) + self._sectors - low)
        self._order, self._new = uses.order, uses.new
        stretch = [
            at if (at := one.stretch) is not None else -1 - n for n, one in enumerate(requests)
        ]
        stretch = np.repeat(stretch, sizes)
        before, again = self._order[:-1], self._order[1:]
        near = np.zeros(number.size, bool)
        near[again] = (
            ~self._new[1:]
            & (stretch[before] == stretch[again])
            & (number[again] - number[before] <= NEAR_LOADS)
        )
        block = self._block[self._order]
        lines = starts_of(block, self._sectors[self._order] // LINE_SECTORS)
        lines = np.bincount(block[lines], minlength=self._count).tolist()
        whose = [(STORE if one.stores else one.key, one.warps) for one in requests]
        wants = np.concatenate([one.wants for one in requests])
        first = np.concatenate([[0], np.cumsum(sizes)])[np.concatenate([[0], ends])].tolist()
        own = [slice(*two) for two in pairwise([0, *ends.tolist()])]
        of_all = [slice(*two) for two in pairwise(first)]
        self.streams = [
            _Stream(whose[a], sizes[a], self._sectors[b], wants[b], near[b], n)
            for a, b, n in zip(own, of_all, lines, strict=True)
        ]

    @property
    def pieces(self) -> tuple[np.ndarray, np.ndarray]:
        """(distinct pieces that each block loads, ascending; when it loads each first, in shares of
        all of its loads), one block after another.
        """
        loads = self._order[self._loaded[self._order]]
        block, pieces = self._block[loads], self._sectors[loads] // PIECE_SECTORS
        first, when = starts_of(block, pieces), np.cumsum(self._loaded) - 1
        counts = np.bincount(block, minlength=self._count)
        before = np.cumsum(counts) - counts
        own = block[first]
        return pieces[first], (np.minimum.reduceat(when[loads], first) - before[own]) / counts[own]

    @property
    def own_share(self) -> float:
        """Share of the sectors loaded that the block itself has stored to before."""
        loaded, never = self._loaded[self._order], self._order.size
        first = np.flatnonzero(self._new)
        load, store = (
            np.minimum.reduceat(np.where(own, self._order, never), first)
            for own in (loaded, ~loaded)
        )
        own = (store < load) & (load < never)
        return float(np.count_nonzero(own) / np.count_nonzero(load < never))


class _Together:
    """Blocks that run side by side. sectors: all that they load, in the order of time; near: as
    _Stream.
    """

    def __init__(self, streams: list[_Stream]):
        self.count = len(streams)
        self._whose = [who for stream in streams for who in stream.whose]
        self._sizes = np.concatenate([stream.sizes for stream in streams])
        when = [np.arange(n) * (1 / n) for n in (len(one.whose) for one in streams)]
        self._order = np.argsort(np.repeat(np.concatenate(when), self._sizes), kind="stable")
        self.sectors = np.concatenate([stream.sectors for stream in streams])[self._order]
        self.near = np.concatenate([stream.near for stream in streams])[self._order]
        self._wants = np.concatenate([stream.wants for stream in streams])
        numbers = np.concatenate([np.arange(len(one.whose)) for one in streams])
        self._number = np.repeat(numbers, self._sizes)[self._order]  # of the request in its block

    @cached_property
    def _lines(self) -> "LineUses":
        return LineUses(self.sectors)

    def absent(self, lines: int) -> np.ndarray:
        """(sectors,) bool: what a cache of so many lines lacks, if it is empty before."""
        return ~hits(self._lines, lines) & ~self.near

    def on_its_way(self, absent: np.ndarray) -> np.ndarray:
        """(sectors,) bool: what the same request of another block lacks too, so that it is on its
        way from L2: the blocks have begun together.
        """
        found, order = np.empty(absent.size, bool), self._lines.by_sector
        sectors, number, lacking = self.sectors[order], self._number[order], absent[order]
        last = np.maximum.accumulate(np.where(lacking, np.arange(order.size), 0))
        found[order] = lacking[last] & (sectors[last] == sectors) & (number[last] == number)
        return found

    def counts(self, absent: np.ndarray, late: np.ndarray) -> list[tuple[int, int, int, int]]:
        """[(instruction key, warps, absent sectors, how often a warp wants a late one), ...], a row
        for each request: all that want a sector wait while it is on its way.
        """
        starts = np.cumsum(self._sizes) - self._sizes
        of_request, of_late = np.empty(absent.size, bool), np.empty(absent.size, bool)
        of_request[self._order], of_late[self._order] = absent, late
        sums = np.add.reduceat(of_request, starts).tolist()
        wanting = np.add.reduceat(of_late * self._wants, starts).tolist()
        return [(*who, *two) for who, *two in zip(self._whose, sums, wanting, strict=True)]


def hits(uses: "LineUses", lines: int) -> np.ndarray:
    """(accesses,) bool: is the sector of each access in a cache of so many 128-byte lines?

    A line stays from its first use to one that comes too late; its sectors come in one by one.
    """
    late = uses.new | (uses.since > uses.window(lines))
    stay, found = np.empty(late.size, np.int64), np.zeros(late.size, bool)
    stay[uses.order] = np.cumsum(late)  # number of the stretch in which a line stays
    before, again = uses.by_sector[:-1], uses.by_sector[1:]
    found[again] = (stay[again] == stay[before]) & (uses.sectors[again] == uses.sectors[before])
    return found


class Uses:
    """The accesses of a sequence by what they name. order: of one name after another, of each in
    the order of time; and of each in this order new: is it its name's first; since: accesses since
    the last one of its name, of a first without a meaning.
    """

    def __init__(self, names: np.ndarray):
        self.order = np.argsort(names, kind="stable")
        ordered = names[self.order]
        self.new = np.ones(names.size, bool)
        np.not_equal(ordered[1:], ordered[:-1], out=self.new[1:])
        self.since = np.diff(self.order, prepend=0)

    def window(self, size: int) -> float:
        """Return how long a stretch of accesses has `size` distinct names on average."""
        count, distinct = self.order.size, int(np.count_nonzero(self.new))
        if distinct <= size:
            return np.inf
        last = np.append(self.new[1:], True)
        gaps = self.since[~self.new] - 1, self.order[self.new], count - 1 - self.order[last]
        absent = np.concatenate(gaps)
        absent = np.sort(absent[absent > 0])
        sums = np.concatenate([[0], np.cumsum(absent[::-1])])[::-1]

        def footprint(window: int) -> float:
            """Mean number of names in a stretch of so many accesses."""
            longer = np.searchsorted(absent, window, side="left")
            missed = sums[longer] - (absent.size - longer) * (window - 1.0)
            return distinct - missed / (count - window + 1)

        low, high = 1, count
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if footprint(middle) <= size else (low, middle)
        return float(low)


class LineUses(Uses):
    """The accesses of a sequence of sectors by their lines."""

    def __init__(self, sectors: np.ndarray):
        super().__init__(sectors // LINE_SECTORS)
        self.sectors = sectors

    @cached_property
    def by_sector(self) -> np.ndarray:
        """The accesses of one sector after another, of each in the order of time: all first sectors
        of lines, then all second ones and so on.
        """
        place = (self.sectors[self.order] % LINE_SECTORS).astype(np.uint8)
        return self.order[np.argsort(place, kind="stable")]
