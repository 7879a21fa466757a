"""How many sectors and shared-memory wavefronts the addresses of a warp's lanes make.

Nsight Compute's definitions. A sector is a distinct aligned 32-byte piece of global memory that a
request touches. Shared memory has 32 banks of 4 bytes; a wavefront is one pass over them, in which
a bank delivers one word, to every lane that wants it. A full warp's access of 4 bytes a lane or
less goes in one pass where no bank is asked for two words, one of 8 bytes goes half a warp at a
time, one of 16 bytes a quarter at a time. Such a wide load brings two halves, or two quarters,
together in one go where neighbours want the same: lanes t and t^1 throughout, or t and t^2
(NVIDIA's answer in its developer forum, thread 77228, "Unexpected shared memory bank conflict").
"""

from functools import cached_property

import numpy as np

SECTOR_BYTES = 32
LINE_BYTES = 128  # of a cache
BANKS = 32
WORD_BYTES = 4
PIECE_BYTES = 16  # of a bulk copy


class Lanes:
    """The lanes of one event, cut into warps.

    lanes: (lanes,) int64, sorted lane ids; lane = 32 * warp + place in warp.
    """

    def __init__(self, lanes: np.ndarray):
        self.lanes = lanes
        self.size = lanes.size
        first, last = int(lanes[0]), int(lanes[-1])
        self.full = first % 32 == 0 and self.size % 32 == 0 and last - first == self.size - 1
        self._known_starts: dict[int, np.ndarray] = {}
        self._known_places: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @cached_property
    def warps(self) -> int:
        """Number of warps with at least one of the lanes."""
        return self.size // 32 if self.full else self.starts(32).size

    @cached_property
    def numbers(self) -> np.ndarray:
        """(warps,) the numbers of these warps, ascending."""
        return self.lanes[self.starts(32)] >> 5

    def starts(self, width: int) -> np.ndarray:
        """Where each group of `width` neighbouring lanes of a warp starts in the lane array. width:
        a power of two.
        """
        if width not in self._known_starts:
            if self.full:
                found = np.arange(0, self.size, width)
            else:
                group = self.lanes >> width.bit_length() - 1
                found = starts_of(group)
            self._known_starts[width] = found
        return self._known_starts[width]

    def rows(self, values: np.ndarray, width: int) -> np.ndarray:
        """(lanes,) -> (groups, width): one row for each group of lanes that has an active one.

        Inactive lanes repeat the row's first value: an address asked for twice costs nothing.
        """
        if self.full:
            return values.reshape(-1, width)
        rows = np.repeat(values[self.starts(width), None], width, axis=1)
        rows[self._places(width)] = values
        return rows

    def active(self, width: int) -> np.ndarray | None:
        """(groups, width) bool beside `rows`: which lanes are active. None: all of them."""
        if self.full:
            return None
        mask = np.zeros((self.starts(width).size, width), bool)
        mask[self._places(width)] = True
        return mask

    def _places(self, width: int) -> tuple[np.ndarray, np.ndarray]:
        """((lanes,) row of each lane, its place in the row) of such rows."""
        if width not in self._known_places:
            row = np.zeros(self.size, np.int64)
            row[self.starts(width)[1:]] = 1
            self._known_places[width] = np.cumsum(row), self.lanes % width
        return self._known_places[width]

    def same_as(self, lanes: np.ndarray) -> bool:
        return self.lanes is lanes or (
            self.size == lanes.size
            and self.lanes[0] == lanes[0]
            and self.lanes[-1] == lanes[-1]
            and np.array_equal(self.lanes, lanes)
        )

    def mixed(self, taken: np.ndarray) -> int:
        """Number of warps in which a (lanes,) bool is true for some lanes and false for others."""
        if self.full:
            rows = taken.reshape(-1, 32)
            return int(np.count_nonzero(rows.any(1) & ~rows.all(1)))
        starts = self.starts(32)
        some = np.logical_or.reduceat(taken, starts)
        return int(np.count_nonzero(some & ~np.logical_and.reduceat(taken, starts)))


def distinct(values: np.ndarray) -> np.ndarray:
    """Return the distinct values, ascending. NumPy's own takes four times as long for thousands."""
    values = np.sort(values)
    return values[starts_of(values)]


def count_addresses(lanes: Lanes, address: np.ndarray) -> int:
    """Distinct addresses, summed over warps. address: (lanes,) uint64."""
    return count_distinct(ascending(lanes.rows(address, 32)))


def count_copied_pieces(lanes: Lanes, source: np.ndarray, target: np.ndarray) -> int:
    """Sectors of a cp.async past the L1 cache (.cg, 16 bytes a lane), summed over warps.

    source, target: (lanes,) uint64 addresses in global and in shared memory. An H200's counters
    count the aligned 32-byte pieces of shared memory that each 128-byte line of global memory
    fills: where rows of a tile start 16 bytes off, a line of 4 sectors counts as 5.
    """
    pieces = (source >> np.uint64(7) << np.uint64(16)) | (target >> np.uint64(5))
    return count_distinct(ascending(lanes.rows(pieces, 32)))


def ascending(rows: np.ndarray) -> np.ndarray:
    """Return the same with each row in ascending order."""
    in_order = (rows[:, 1:] >= rows[:, :-1]).all()
    return rows if in_order else np.sort(rows, axis=1)


def are_new(rows: np.ndarray) -> np.ndarray:
    """(rows, n) values, each row ascending -> (rows, n) bool: is it the first of its value?"""
    new = np.ones(rows.shape, bool)
    np.not_equal(rows[:, 1:], rows[:, :-1], out=new[:, 1:])
    return new


def starts_of(*sorted_keys: np.ndarray) -> np.ndarray:
    """Return where a new combination of the keys begins."""
    first, *others = sorted_keys
    changes = np.ones(first.size, bool)
    np.not_equal(first[1:], first[:-1], out=changes[1:])
    for other in others:
        changes[1:] |= other[1:] != other[:-1]
    return np.flatnonzero(changes)


def wanted(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, n) values, each row ascending -> (the distinct values, ascending; in how many rows
    each is).
    """
    values = np.sort(rows[are_new(rows)])
    first = starts_of(values)
    ends = np.empty_like(first)
    ends[:-1], ends[-1:] = first[1:], values.size
    return values[first], ends - first


def count_distinct(rows: np.ndarray) -> int:
    """Return the distinct values in each row, added up. rows: each ascending."""
    return rows.shape[0] + int(np.count_nonzero(rows[:, 1:] != rows[:, :-1]))


def count_wavefronts(lanes: Lanes, address: np.ndarray, size: int, kind: str) -> tuple[int, int]:
    """(wavefronts, their minimum) of a shared-memory access, summed over warps.

    address: (lanes,) uint64; size: bytes a lane; kind: "load" or "store". The minimum is one
    wavefront for each warp, half warp (8 bytes a lane) or quarter warp (16 bytes) that goes alone
    and has an active lane, and one for each pair of these that a load brings together.
    """
    words = max(1, size // WORD_BYTES)
    width = 32 // words
    passes = passes_of(lanes.rows(address, width), words)
    if words == 1 or kind != "load":
        return int(passes.sum()), passes.size
    both = lanes.rows(address, 2 * width)
    together = _neighbours_agree(both, lanes.active(2 * width))
    if not together.any():
        return int(passes.sum()), passes.size
    owner = np.searchsorted(lanes.starts(2 * width), lanes.starts(width), side="right") - 1
    alone = passes[~together[owner]]
    joined = passes_of(both[together], words)
    return int(joined.sum() + alone.sum()), joined.size + alone.size


def _neighbours_agree(rows: np.ndarray, active: np.ndarray | None) -> np.ndarray:
    """(rows, lanes) addresses -> (rows,) bool: do lanes t and t^1, or t and t^2, want the same?

    Inactive lanes want nothing and agree with any.
    """
    lane = np.arange(rows.shape[1])
    agree = np.zeros(rows.shape[0], bool)
    for step in (1, 2):
        same = rows == rows[:, lane ^ step]
        if active is not None:
            same |= ~(active & active[:, lane ^ step])
        agree |= same.all(1)
    return agree


def passes_of(address: np.ndarray, words: int) -> np.ndarray:
    """(rows, lanes) byte addresses -> (rows,) the most distinct words a row asks of one bank.

    words: of each lane; 1 for less.
    """
    rows = (address >> np.uint64(2)).astype(np.int64)
    rows -= rows[:, :1]  # moving a row along by whole words only renames the banks
    count = rows.shape[0]
    alike = count > 1 and bool((rows[-1] == rows[0]).all() and (rows == rows[0]).all())
    if alike:
        rows = rows[:1]
    if words > 1:
        rows = (rows[:, :, None] + np.arange(words)).reshape(rows.shape[0], -1)
    rows = ascending(rows)
    new = are_new(rows)
    bank = (rows & BANKS - 1) + BANKS * np.arange(rows.shape[0])[:, None]
    found = np.bincount(bank[new], minlength=BANKS * rows.shape[0])
    found = found.reshape(-1, BANKS).max(1)
    return np.repeat(found, count) if alike else found


def pieces_of_runs(address: np.ndarray, size: int) -> np.ndarray:
    """Addresses of the pieces, of 16 bytes or fewer, of runs of `size` bytes."""
    return (address[:, None] + np.arange(0, size, PIECE_BYTES, dtype=np.uint64)).ravel()


def count_bulk_sectors(
    address: np.ndarray, size: int, box: tuple[int, int] | None, rows: np.ndarray | None
) -> tuple[int, int]:
    """(sectors of global memory, sectors of fills) of a bulk copy, as an H200 counts them.

    address: (pieces,) uint64, of `size` bytes each; box, rows: as of an AsyncOperation. Each row of
    a box has sectors of its own; what is outside of the array comes as sectors too.
    """
    sector = (address // SECTOR_BYTES).astype(np.int64)
    if box is None:
        return distinct(sector).size, 0
    outside = box[1] - size * np.bincount(rows, minlength=box[0])
    return distinct(rows << 44 | sector).size, int((-(-outside // SECTOR_BYTES)).sum())
