"""Stores that fill sectors in part: which of them L1 joins, and which sectors leave L2 before they
are whole, so that the rest is read from DRAM.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from ..gpus import GpuConstants
from .caches import LINE_SECTORS, MOST_SECTORS, PIECE_BYTES, SECTOR_BYTES
from .traffic import LONE_READ, LONE_WRITE, WHOLE_LINES, kept_bytes, reused_bytes

# Lines of a store of all warps of an SM, times the stores that fill a sector: if L1 joins all that
# stand beside each other, and if it joins nothing. Of 64 warps 2, 3 and 4 words of a thread (256 to
# 1,024) left as 0.50, 0.36 and 0.26 of their sectors on an H200, 5 words (1,600) as 0.36, 8 words
# (4,096) as 0.83. Of sectors that two warps share, as 0.63 to 0.72.
OPEN_LINES, MOST_OPEN, OF_WARPS = 1024, 4480, 2 / 3
MOST_LINES = 16  # of a warp's store, if it is joined
ALL_BYTES = (1 << SECTOR_BYTES) - 1  # of a sector, a bit for each
HALF_BYTES = (1 << SECTOR_BYTES // 2) - 1
WHOLE = 0.95  # share of a sector: as much is all of it
SHARED = 1.25  # blocks that fill a sector, from which on it is taken to be whole in the end
MOST_BLOCKS = 32.0  # that fill one sector
ALONE = LONE_READ + LONE_WRITE  # pieces that DRAM moves for a sector of a line that it fills
HALVES = 0.5  # of those that several blocks fill, if each fills a half


class StoredSectors(NamedTuple):
    """What one store by a block's warps asks for. sectors: ascending, each once; wants: how many of
    so many warps store to each; bytes: a bit for each byte of it; lines: of each warp, added up.
    """

    sectors: np.ndarray
    wants: np.ndarray
    bytes: np.ndarray
    warps: int
    lines: int


_Store = tuple[int, int, StoredSectors]  # key of the instruction, number of its run


@dataclass(frozen=True)
class PartStores:
    """What a block stores in a buffer. sectors: distinct ones that it fills in part at a time;
    whole: others; filled: the share of one of the former that it fills in the end; again: how often
    it comes back to one; open: lines that it stores to until then; of_line: such sectors of a line
    that it stores to together; halves: does it fill halves of them?
    """

    sectors: float = 0.0
    whole: float = 0.0
    filled: float = 1.0
    again: float = 0.0
    open: float = 0.0
    of_line: float = LINE_SECTORS
    halves: bool = False


@dataclass
class Stores:
    """The stores of some blocks, in order. A block whose stores are too many is left out, and so
    are those after it.
    """

    left: int = MOST_SECTORS
    at: int = -1  # place of the block that runs
    _blocks: list[list[_Store]] = field(default_factory=list)

    def begin(self) -> None:
        if self.left > 0:
            self.at = len(self._blocks)
            self._blocks.append([])

    def add(self, key: int, run: int, stored: StoredSectors) -> None:
        """A store of the block that has begun. key: of the instruction; run: number of the stores
        beside each other to which it belongs.
        """
        if self.left <= 0 or not stored.sectors.size:
            return
        self.left -= stored.sectors.size
        self._blocks[self.at].append((key, run, stored))
        if self.left <= 0 and len(self._blocks) > 1:
            self._blocks.pop(self.at)

    def joined(self, warps: int) -> dict[int, tuple[float, float]]:
        """Return instruction key -> (share of the sectors of its stores that leaves L1, share of
        each of these that it fills, with those that L1 joins it with). warps: of an SM.
        """
        sums: defaultdict[int, np.ndarray] = defaultdict(lambda: np.zeros(3))
        alike: dict[tuple, list[list[float]]] = {}
        for stores in (stores for block in self._blocks for stores in _runs(block)):
            form = _form([stored for *_, stored in stores])
            found = alike.get(form)
            if found is None:
                found = alike[form] = _Run(stores).joined(warps)
            for (key, _, _), three in zip(stores, found, strict=True):
                sums[key] += three
        return {key: (share / n, filled / n) for key, (n, share, filled) in sums.items()}

    def in_part(self, starts: Sequence[int]) -> list[PartStores]:
        """Return what a block stores in each buffer. starts: first byte of each, ascending."""
        found: list[list[PartStores]] = [[] for _ in starts]
        for block in self._blocks:
            runs = [_Run(stores) for stores in _runs(block)]
            for number, part in _parts(runs, np.array(starts)):
                found[number].append(part)
        return [_mean(parts, len(self._blocks)) for parts in found]


class _Run:
    """Stores beside each other. sectors: distinct ones; bytes: of each, a bit for each that is
    stored.
    """

    def __init__(self, stores: list[_Store]):
        self.stores = [one for *_, one in stores]
        first = self.stores[0]
        self.sectors, self.bytes = first.sectors, first.bytes
        self._stored = self._of_warps = first.wants
        if len(stores) > 1:
            sectors = np.concatenate([one.sectors for one in self.stores])
            wants = np.concatenate([one.wants for one in self.stores])
            self.sectors, of = np.unique(sectors, return_inverse=True)
            self.bytes, self._of_warps = np.zeros((2, self.sectors.size), np.int64)
            np.bitwise_or.at(self.bytes, of, np.concatenate([one.bytes for one in self.stores]))
            np.maximum.at(self._of_warps, of, wants)
            self._stored = np.bincount(of, wants)

    def joined(self, warps: int) -> list[list[float]]:
        """Of each store [sectors that its warps want, those of them that leave L1, how much of
        these is filled, added up]. warps: of an SM.
        """
        of_sector = float(np.mean(self._stored / self._of_warps))  # stores of a warp that fill one
        part = _joined_part(self.lines_of_warp, warps * of_sector)
        if_all = (self._of_warps - OF_WARPS * (self._of_warps - 1)) / self._stored
        filled_by_all = np.bitwise_count(self.bytes) / SECTOR_BYTES
        found = []
        for stored in self.stores:
            at = np.searchsorted(self.sectors, stored.sectors)
            share = 1 - part * (1 - if_all[at])
            alone = np.bitwise_count(stored.bytes) / SECTOR_BYTES / stored.wants
            filled = part * filled_by_all[at] + (1 - part) * alone
            found.append([each @ stored.wants for each in (share**0, share, filled)])
        return found

    @cached_property
    def lines(self) -> int:
        return _lines(self.sectors)

    @property
    def lines_of_warp(self) -> float:
        """Lines of each warp's store."""
        return sum(one.lines for one in self.stores) / sum(one.warps for one in self.stores)


def _joined_part(lines: float, stores: float) -> float:
    """Share of what stores beside each other fill together that L1 joins. lines: of a warp's store;
    stores: that fill a sector, of each warp of an SM, added up.
    """
    if lines > MOST_LINES:
        return 0.0
    return min(1.0, max(0.0, (MOST_OPEN - stores * lines) / (MOST_OPEN - OPEN_LINES)))


def _lines(sectors: np.ndarray) -> int:
    """Distinct lines of sectors in ascending order."""
    return int(np.count_nonzero(np.diff(sectors // LINE_SECTORS))) + min(1, sectors.size)


def _runs(block: list[_Store]) -> Iterator[list[_Store]]:
    """The stores of a block, those together that stand beside each other."""
    return (list(stores) for _, stores in groupby(block, key=itemgetter(1)))


def _form(stores: list[StoredSectors]) -> tuple:
    """What two runs have alike of which one is the other moved along."""
    first = stores[0].sectors[0]
    return tuple(
        (int(one.sectors[0] - first), id(one.wants), id(one.bytes), one.lines, one.warps)
        for one in stores
    )


def _parts(runs: list[_Run], starts: np.ndarray) -> Iterator[tuple[int, PartStores]]:
    """(number of a buffer, what the block stores there) of each that it stores to in part."""
    some = [run.bytes != ALL_BYTES for run in runs]
    if not any(map(np.any, some)):
        return
    sectors = np.concatenate([run.sectors for run in runs])
    place = np.searchsorted(starts, sectors * SECTOR_BYTES + SECTOR_BYTES - 1, "right") - 1
    part = np.concatenate(some)
    lines_before = np.cumsum([run.lines for run in runs])
    sizes = [run.sectors.size for run in runs]
    when = np.repeat(lines_before, sizes)
    of_line = [
        np.count_nonzero(own) / max(1, _lines(run.sectors[own]))
        for run, own in zip(runs, some, strict=True)
    ]
    of_line = np.repeat(of_line, sizes)
    stored = np.concatenate([run.bytes for run in runs])
    for number in np.unique(place[part & (place >= 0)]).tolist():
        own = np.flatnonzero(part & (place == number))
        own = own[np.argsort(sectors[own], kind="stable")]
        first = np.diff(sectors[own], prepend=-1) != 0
        begins = np.flatnonzero(first)
        filled = np.bitwise_count(np.bitwise_or.reduceat(stored[own], begins)) / SECTOR_BYTES
        whole = np.unique(sectors[~part & (place == number)])
        apart = np.diff(when[own], prepend=0)[~first]
        halves = np.stack([stored[own] & HALF_BYTES, stored[own] >> SECTOR_BYTES // 2])
        yield (
            number,
            PartStores(
                float(begins.size),
                float(np.setdiff1d(whole, sectors[own]).size),
                float(filled.mean()),
                own.size / begins.size - 1,
                float(apart.mean()) if apart.size else 0.0,
                float(of_line[own].mean()),
                bool(np.isin(halves, (0, HALF_BYTES)).all()),
            ),
        )


def _mean(parts: list[PartStores], blocks: int) -> PartStores:
    """What a block stores in part, of several that were followed."""
    if not parts:
        return PartStores()
    sectors, whole, *others = (
        sum(getattr(one, name) for one in parts) / len(parts) for name in _MEANS
    )
    of_all = len(parts) / blocks
    halves = all(one.halves for one in parts)
    return PartStores(sectors * of_all, whole * of_all, *others, halves)


_MEANS = ("sectors", "whole", "filled", "again", "open", "of_line")


def refilled_bytes(
    gpu: GpuConstants,
    parts: Sequence[PartStores],
    written: np.ndarray,
    others: np.ndarray,
    blocks: int,
    together: int,
) -> float:
    """Return the bytes of a copy that take DRAM as long as to fill what L2 has of sectors when it
    loses them, if the launch's data are far more than L2 has.

    written, others: (buffers,) distinct bytes, and those that are loaded as well or count as pieces
    by themselves; together: blocks that run at a time. A sector that a block comes back to is lost
    in the share of what L2 keeps that the lines between take, of all these blocks; one that several
    blocks fill, in that of what they have at a time of all that L2 can keep; one that a block alone
    leaves in part always is.
    """
    found = 0.0
    for part, size, other in zip(parts, written, others, strict=True):
        if not part.sectors or not size:
            continue
        stored = blocks * part.sectors
        distinct = max(size / SECTOR_BYTES - blocks * part.whole, stored / MOST_BLOCKS)
        of_blocks = max(1.0, stored / distinct)  # that fill one
        sectors = stored / of_blocks * max(0.0, 1 - other / size)
        open_bytes = together * part.open * LINE_SECTORS * SECTOR_BYTES
        lost = min(1.0, part.again) * min(1.0, open_bytes / kept_bytes(gpu))
        if part.filled < WHOLE and of_blocks < SHARED:
            of_line = max(LONE_READ * PIECE_BYTES, part.of_line * SECTOR_BYTES)
            found += sectors / part.of_line * of_line
        elif of_blocks >= SHARED:
            at_a_time = SECTOR_BYTES * together * part.sectors / of_blocks
            of_others = min(1.0, at_a_time / reused_bytes(gpu))
            lost = max(lost, of_others * (HALVES if part.halves else 1.0))
        dense = part.of_line >= WHOLE_LINES
        found += sectors * lost * (2 * SECTOR_BYTES if dense else ALONE * PIECE_BYTES)
    return found
