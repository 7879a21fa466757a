"""Stores that fill sectors in part: which of them L1 joins, and which sectors leave L2 before they
are whole, so that the rest is read from DRAM.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ..gpus import GpuConstants
from .caches import LINE_SECTORS, MOST_SECTORS, PIECE_BYTES, SECTOR_BYTES
from .traffic import LONE_READ, LONE_WRITE, WHOLE_LINES, kept_bytes, reused_bytes

# Lines of a warp's store, if L1 joins it with others in the same straight code; the share of its
# sectors that leaves L1 at least. On an H200 2, 3 and 5 words of a thread left as 0.50, 0.36 and
# 0.36 of theirs. Of sectors that two warps share, as 0.63 to 0.72.
MOST_JOINED, JOINED, OF_WARPS = 16, 0.36, 2 / 3
WHOLE = 0.95  # share of a sector: as much is all of it
SELDOM = 0.05  # so seldom a block comes back to what it has stored, or others do
ALONE = LONE_READ + LONE_WRITE  # pieces that DRAM moves for a sector of a line that it fills
HALVES = 0.5  # of those that several blocks fill, if each fills a half


@dataclass(frozen=True)
class _Store:
    """One store by a block's warps. sectors: ascending, each once; wants: how many of the warps
    store to each.
    """

    key: int
    sectors: np.ndarray
    wants: np.ndarray
    warps: int
    size: int  # bytes
    halves: int  # of sectors, distinct, of all lanes
    stretch: int

    @cached_property
    def lines_of_warps(self) -> int:
        """Lines, of each warp by itself."""
        line = self.sectors // LINE_SECTORS
        first = np.flatnonzero(np.diff(line, prepend=line[0] - 1))
        return int(np.maximum.reduceat(self.wants, first).sum())


@dataclass(frozen=True)
class PartStores:
    """What a block stores in a buffer. sectors: distinct ones, of stores that fill some in part;
    in_part: share of those; filled: share of a sector that it fills in the end; again: how often it
    comes back to one; open: lines that it stores to until then; of_line: sectors of a line that it
    stores to together; halves: are its pieces halves of sectors?
    """

    sectors: float = 0.0
    in_part: float = 0.0
    filled: float = 1.0
    again: float = 0.0
    open: float = 0.0
    of_line: float = LINE_SECTORS
    halves: bool = False


@dataclass
class Stores:
    """The stores of some blocks, in order."""

    left: int = MOST_SECTORS
    _blocks: list[list[_Store]] = field(default_factory=list)

    def begin(self) -> None:
        self._blocks.append([])

    def add(
        self,
        key: int,
        sectors: np.ndarray,
        wants: np.ndarray,
        warps: int,
        size: int,
        halves: int,
        stretch: int,
    ) -> None:
        """One of the block that has begun. key: of the instruction; size: bytes, in so many halves
        of sectors; stretch: number of the straight code in which it stands.
        """
        if self.left > 0 and sectors.size:
            self.left -= sectors.size
            self._blocks[-1].append(_Store(key, sectors, wants, warps, size, halves, stretch))

    @cached_property
    def _touched(self) -> list[list["_Touched"]]:
        """What the blocks have touched, all of them."""
        return [[*_touched(block)] for block in self._blocks]

    def joined(self) -> dict[int, tuple[float, float]]:
        """Return instruction key -> (share of the sectors of its stores that leaves L1, how much of
        each of these is filled).
        """
        sums: defaultdict[int, np.ndarray] = defaultdict(lambda: np.zeros(3))
        for block in self._touched:
            for touched in block:
                for one in touched.stores:
                    stored = int(one.wants.sum())
                    sums[one.key] += stored * np.array([1.0, touched.share, touched.filled])
        return {key: (share / n, filled / n) for key, (n, share, filled) in sums.items()}

    def in_part(self, starts: Sequence[int]) -> list[PartStores]:
        """Return what a block stores in each buffer. starts: first byte of each, ascending."""
        found: list[list[PartStores]] = [[] for _ in starts]
        for block in self._touched:
            for number, part in _parts(block, np.array(starts)):
                found[number].append(part)
        return [_mean(parts, len(self._blocks)) for parts in found]


class _Touched:
    """What stores touch that stand together. sectors: distinct ones; share: of the sectors of all,
    that leaves L1; filled: share of a sector; in_part: share of the sectors that are not whole.
    """

    def __init__(self, stores: list[_Store]):
        self.stores, self.sectors = stores, stores[0].sectors
        stored = of_warps = int(stores[0].wants.sum())
        if len(stores) > 1:
            wants = np.concatenate([one.wants for one in stores])
            sectors = np.concatenate([one.sectors for one in stores])
            self.sectors, of = np.unique(sectors, return_inverse=True)
            most = np.zeros(self.sectors.size)
            np.maximum.at(most, of, wants)
            stored, of_warps = int(wants.sum()), float(most.sum())
        count = self.sectors.size
        self.share = 1.0
        if stored > count and all(map(_joins, stores)):
            of_warps -= OF_WARPS * (of_warps - count)
            self.share = max(JOINED, of_warps / stored)
        size = sum(one.size for one in stores)
        self.filled = min(1.0, size / (SECTOR_BYTES * count))
        halves = sum(one.halves for one in stores) * count / stored
        self.halves = size >= WHOLE * halves * SECTOR_BYTES / 2
        self.lines = int(np.count_nonzero(np.diff(self.sectors // LINE_SECTORS))) + 1
        in_part = min(1.0, 2 * (1 - self.filled))  # of a stretch its two ends
        self.in_part = in_part if self.filled < WHOLE else 0.0


def _joins(one: _Store) -> bool:
    """Does L1 join it with others?"""
    return one.lines_of_warps <= MOST_JOINED * one.warps


def _touched(block: list[_Store]) -> Iterator[_Touched]:
    """What the stores of a block touch: by straight code, if L1 joins them, else each by itself."""
    kept: list[_Store] = []
    for one in block:
        if kept and not (one.stretch == kept[0].stretch and _joins(one) and _joins(kept[0])):
            yield _Touched(kept)
            kept = []
        kept.append(one)
    if kept:
        yield _Touched(kept)


def _parts(block: list[_Touched], starts: np.ndarray) -> Iterator[tuple[int, PartStores]]:
    """(number of a buffer, what the block stores there in part) of each that it does."""
    touched = [each for each in block if each.in_part]
    if not touched:
        return
    at = np.cumsum([each.lines for each in touched])
    sizes = [each.sectors.size for each in touched]
    sectors = np.concatenate([each.sectors for each in touched])
    in_part, filled, of_line, when = (
        np.repeat(values, sizes)
        for values in (
            [each.in_part for each in touched],
            [each.filled for each in touched],
            [each.sectors.size / each.lines for each in touched],
            at,
        )
    )
    halves = np.repeat([each.halves for each in touched], sizes)
    order = np.argsort(sectors, kind="stable")
    first = np.ones(sectors.size, bool)
    first[1:] = sectors[order][1:] != sectors[order][:-1]
    place = np.searchsorted(starts, sectors[order] * SECTOR_BYTES + SECTOR_BYTES - 1, "right") - 1
    apart = np.diff(when[order], prepend=0)
    for number in np.unique(place[place >= 0]).tolist():
        own = place == number
        once, again = own & first, own & ~first
        whole = np.minimum(1.0, np.add.reduceat(filled[order][own], np.flatnonzero(first[own])))
        some = order[own]
        yield (
            number,
            PartStores(
                float(np.count_nonzero(once)),
                float(in_part[order][once].mean()),
                float(whole.mean()),
                np.count_nonzero(again) / np.count_nonzero(once),
                float(apart[again].mean()) if again.any() else 0.0,
                float(of_line[some].mean()),
                bool(halves[some].all()),
            ),
        )


def _mean(parts: list[PartStores], blocks: int) -> PartStores:
    """What a block stores in part, of several that were followed."""
    if not parts:
        return PartStores()
    sums = [np.array([getattr(one, name) for one in parts]) for name in _MEANS]
    sectors, *others = (float(each.sum()) / len(parts) for each in sums)
    return PartStores(sectors * len(parts) / blocks, *others, all(one.halves for one in parts))


_MEANS = ("sectors", "in_part", "filled", "again", "open", "of_line")


def refilled_bytes(
    gpu: GpuConstants,
    parts: Sequence[PartStores],
    written: np.ndarray,
    whole: np.ndarray,
    blocks: int,
    together: int,
) -> float:
    """Return the bytes of a copy that take DRAM as long as to fill what L2 has of sectors when it
    loses them, if the launch's data are far more than L2 has.

    written, whole: (buffers,) distinct bytes, and those that are loaded as well or count as pieces
    by themselves; together: blocks that run at a time. A sector that a block comes back to is lost
    in the share of what L2 keeps that the lines between take, of all these blocks; one that several
    blocks fill, in that of what they have at a time of all that L2 can keep; one that stays in part
    always is.
    """
    found = 0.0
    for part, size, other in zip(parts, written, whole, strict=True):
        if not part.sectors or not size:
            continue
        all_sectors = blocks * part.sectors
        of_blocks = max(1.0, SECTOR_BYTES * all_sectors / size)  # that fill one
        sectors = part.in_part * all_sectors / of_blocks * max(0.0, 1 - other / size)
        lost = 0.0
        if part.again > SELDOM:
            open_bytes = together * part.open * LINE_SECTORS * SECTOR_BYTES
            lost = min(1.0, open_bytes / kept_bytes(gpu))
        if part.filled * of_blocks < WHOLE:
            of_line = max(LONE_READ * PIECE_BYTES, part.of_line * SECTOR_BYTES)
            found += sectors / part.of_line * of_line
        elif of_blocks > 1 + SELDOM:
            at_a_time = SECTOR_BYTES * together * part.sectors / of_blocks
            own = min(1.0, at_a_time / reused_bytes(gpu))
            lost = max(lost, own * (HALVES if part.halves else 1.0))
        dense = part.of_line >= WHOLE_LINES
        found += sectors * lost * (2 * SECTOR_BYTES if dense else ALONE * PIECE_BYTES)
    return found
