"""Remembers the addresses of an access, so that the same access moved along costs nothing again.

A loop's loads differ from one pass to the next by a constant: all lanes move on by 4 bytes, say.
Sectors depend on that constant only through its remainder by 32, bank conflicts not at all. So the
first addresses are kept as a pattern, and a later event is recognised as `pattern + delta`.
"""

from functools import cached_property, reduce

import numpy as np
from kernelscope.addresses import Packed

from .atomics import count_atomic_passes, count_atomic_sectors
from .traffic import (
    LINE_BYTES,
    SECTOR_BYTES,
    WORD_BYTES,
    Lanes,
    ascending,
    count_distinct,
    count_wavefronts,
    distinct,
    passes_of,
    wanted,
)

_NONE = np.zeros(0, np.uint8)
_PAGE = 4096  # bytes of which some may be touched, or none is
_AT_A_TIME = 64  # such pages: a processor's cache holds them
_FEW = 3  # moves; up to here marking every lane is cheaper than finding distinct addresses


class Pattern:
    """Addresses of one access by some lanes, and what was counted for them.

    touched: (line, "read" or "written", bytes a lane) -> deltas by which the access was seen
    moved, for the count of unique bytes.
    """

    def __init__(self, lanes: Lanes, address: np.ndarray):
        self.lanes, self.address = lanes, address
        self.first, self.middle, self.last = self._samples(address)
        self._pieces: dict[tuple[int, int], int] = {}
        self._atomic_sectors: dict[int, int] = {}
        self._wavefronts: dict[tuple[int, str, int], tuple[int, int]] = {}
        self._before: dict[tuple[int, int], tuple[np.ndarray, np.ndarray, int]] = {}
        self._stored: dict[tuple[int, int, int], tuple[np.ndarray, int]] = {}
        self._requests: dict[tuple[int, int, str], tuple[int, int]] = {}
        self.touched: dict[tuple[int, str, int], set[int]] = {}

    @staticmethod
    def _samples(address: np.ndarray) -> tuple[int, int, int]:
        return int(address[0]), int(address[address.size // 2]), int(address[-1])

    @cached_property
    def rows(self) -> np.ndarray:
        """(warps, 32) addresses, each row ascending; lanes that take no part repeat another."""
        return ascending(self.lanes.rows(self.address, 32))

    def delta(self, lanes: np.ndarray, address: np.ndarray) -> int | None:
        """By how many bytes `address` is this pattern moved along; None: it is another one."""
        if address.size != self.address.size:
            return None
        first, middle, last = self._samples(address)
        delta = first - self.first
        if middle - self.middle != delta or last - self.last != delta:
            return None
        if not self.lanes.same_as(lanes):
            return None
        if address is self.address:
            return delta
        moved = self.address + np.uint64(delta & (2**64 - 1))
        return delta if np.array_equal(moved, address) else None

    @cached_property
    def addresses(self) -> int:
        """Distinct addresses, summed over warps."""
        return count_distinct(self.rows)

    @cached_property
    def reach(self) -> int:
        """Bytes from its lowest address to its highest."""
        return int(self.address.max()) - int(self.address.min())

    def sectors(self, delta: int) -> int:
        """Distinct sectors of the pattern moved along by `delta` bytes, summed over warps. An
        aligned access of at most 32 bytes is in one.
        """
        return self.pieces(delta, SECTOR_BYTES)

    def pieces(self, delta: int, size: int) -> int:
        """The same for aligned pieces of memory of `size` bytes, a power of two from 32 on."""
        key = size, delta % size
        if key not in self._pieces:
            shift = np.uint64(size.bit_length() - 1)
            self._pieces[key] = count_distinct(self.rows + np.uint64(key[1]) >> shift)
        return self._pieces[key]

    def sectors_before(self, lane: int, delta: int) -> tuple[np.ndarray, np.ndarray, int]:
        """(the distinct sectors of the lanes before one, ascending; how many warps want each; how
        many warps these are of), moved along.
        """
        key = lane, delta % SECTOR_BYTES
        if key not in self._before:
            rows = self._rows_before(lane, key[1])
            self._before[key] = *wanted(rows // SECTOR_BYTES), len(rows)
        sectors, wants, warps = self._before[key]
        return sectors + (delta - key[1]) // SECTOR_BYTES, wants, warps

    def stored_before(self, lane: int, delta: int, size: int) -> tuple[np.ndarray, int]:
        """(a bit for each byte of these sectors that the lanes store to, `size` bytes each; lines,
        distinct ones of each warp), moved along.
        """
        key = lane, delta % LINE_BYTES, size
        if key not in self._stored:
            rows = self._rows_before(lane, key[1])
            sectors, _ = wanted(rows // SECTOR_BYTES)
            _, of_lines = wanted(rows // LINE_BYTES)
            found, address = np.zeros(sectors.size, np.int64), rows.ravel()
            bits = (1 << size) - 1 << address % SECTOR_BYTES
            np.bitwise_or.at(found, np.searchsorted(sectors, address // SECTOR_BYTES), bits)
            self._stored[key] = found, int(of_lines.sum())
        return self._stored[key]

    def _rows_before(self, lane: int, delta: int) -> np.ndarray:
        """(warps, 32) int64 addresses of the warps before that of a lane, moved along by less than
        a line, each row ascending.
        """
        count = np.searchsorted(self.lanes.numbers, lane >> 5)
        return (self.rows[:count] + np.uint64(delta)).astype(np.int64)

    def atomic_sectors(self, delta: int) -> int:
        """The same where lanes on one address wait for each other."""
        key = delta % SECTOR_BYTES
        if key not in self._atomic_sectors:
            moved = self.address + np.uint64(key)
            self._atomic_sectors[key] = count_atomic_sectors(self.lanes, moved)
        return self._atomic_sectors[key]

    def wavefronts(self, delta: int, size: int, kind: str) -> tuple[int, int]:
        """(wavefronts, minimum) of the pattern moved along: a "load" or "store" of `size` bytes, or
        the passes of an "atomic" and their minimum.
        """
        key = (size, kind, delta % WORD_BYTES)
        if key not in self._wavefronts:
            by = np.uint64(key[2])
            if kind == "atomic":
                found = count_atomic_passes(self.lanes, self.address + by, size)
            elif size > WORD_BYTES:
                found = count_wavefronts(self.lanes, self.address + by, size, kind)
            else:
                found = int(passes_of(self.rows + by, 1).sum()), len(self.rows)
            self._wavefronts[key] = found
        return self._wavefronts[key]

    def of_request(self, delta: int, size: int, kind: str) -> tuple[int, int]:
        """(distinct lines, summed over warps; wavefronts) of a load or store of global memory."""
        key = delta % LINE_BYTES, size, kind
        if key not in self._requests:
            wavefronts, _ = self.wavefronts(delta, size, kind)
            self._requests[key] = self.pieces(delta, LINE_BYTES), wavefronts
        return self._requests[key]

    def touch(self, line: int, how: str, size: int, delta: int) -> None:
        self.touched.setdefault((line, how, size), set()).add(delta)


class TouchedBytes:
    """Which bytes of global memory a launch has read and written, for each source line.

    stretches: (first, end) global addresses of the launch's buffers.
    """

    def __init__(self, stretches):
        self.packed = Packed(stretches)
        self.maps: dict[tuple[int, str], np.ndarray] = {}
        self._of_all: dict[str, np.ndarray] = {}  # the same of all lines
        self._pages = np.zeros(0, bool)

    def mark(self, pattern: Pattern) -> None:
        """Mark what the pattern has touched since the last call."""
        once = None
        for (line, how, size), deltas in pattern.touched.items():
            address = pattern.address
            if len(deltas) > _FEW:
                once = distinct(address) if once is None else once
                address = once
            for delta in deltas:
                self._mark(line, how, address + np.uint64(delta & (2**64 - 1)), size)
        pattern.touched.clear()

    def touch(self, line: int, how: str, address: np.ndarray, size: int) -> None:
        """Mark `size` bytes at each address, "read" or "written" by a line."""
        if address.size:
            self._mark(line, how, address, size)

    def _mark(self, line: int, how: str, address: np.ndarray, size: int) -> None:
        self._of_all.clear()
        position = self.packed.positions(address.view(np.int64))
        touched = self.maps[line, how] = self._grown(self.maps.get((line, how), _NONE))
        self._met(int(position.min()), int(position.max()) + size)
        unit = min(size, 8)
        view = touched.view(f"u{unit}")
        ones = int.from_bytes(b"\1" * unit, "little")
        index = position >> unit.bit_length() - 1
        for part in range(size // unit):
            view[index + part if part else index] = ones

    def _met(self, first: int, end: int) -> None:
        """Something between two positions is touched."""
        more = self.packed.size // _PAGE + 2 - self._pages.size
        if more > 0:
            self._pages = np.append(self._pages, np.zeros(more, bool))
        self._pages[first // _PAGE : (end - 1) // _PAGE + 1] = True

    def _stretches(self) -> list[slice]:
        """The positions of pages of which something may be touched."""
        edges = np.flatnonzero(np.diff(self._pages, prepend=False, append=False)) * _PAGE
        return [slice(*two) for two in edges.reshape(-1, 2).tolist()]

    def _map(self, how: str, line: int | None) -> np.ndarray:
        """What one line has "read" or "written", or all."""
        maps = [m for (at, kind), m in self.maps.items() if kind == how and line in (None, at)]
        if len(maps) < 2:
            return maps[0] if maps else _NONE
        if how not in self._of_all:
            found = self._of_all[how] = np.zeros(self.packed.size, np.uint8)
            for part in self._stretches():
                for one in maps:
                    found[part][: one[part].size] |= one[part]
        return self._of_all[how]

    def _any(self, touched: np.ndarray, first: int, count: int, size: int) -> np.ndarray:
        """(count,) bool: is any byte touched of pieces of so many bytes from a position on?"""
        found, each = np.zeros(count, bool), _PAGE // size
        rows = count // each  # pages that begin at the position
        begin = first // _PAGE
        some = np.flatnonzero(self._pages[begin : begin + rows] | self._pages[begin + 1 :][:rows])
        part = touched[first : first + count * size]
        whole = part[: rows * _PAGE].view(np.uint64).reshape(rows, _PAGE // 8)
        for at in range(0, some.size, _AT_A_TIME):
            pages = some[at : at + _AT_A_TIME]
            words = np.moveaxis(whole[pages].reshape(pages.size, each, size // 8), 2, 0)
            of_rows = reduce(np.bitwise_or, words)  # faster than any() of rows
            found[: rows * each].reshape(rows, each)[pages] = of_rows != 0
        found[rows * each :] = part[rows * _PAGE :].reshape(-1, size).any(1)
        return found

    def _grown(self, touched: np.ndarray) -> np.ndarray:
        """A map with room for every address met so far."""
        if touched.size == self.packed.size:
            return touched
        grown = np.zeros(self.packed.size, np.uint8)  # pages that nobody touches stay unused
        grown[: touched.size] = touched
        return grown

    def aligned_pieces(self, how: str, size: int, apart: int) -> list[tuple[int, int, int, int]]:
        """For each buffer, (its first byte, its bytes, distinct aligned pieces of `size` bytes, 16
        or more, that are touched so; those of them of which one half is touched, and nothing else
        of the buffer in an aligned stretch of `apart` pieces).
        """
        touched, found = self._map(how, None), []
        if not touched.size:
            return found
        touched, half = self._grown(touched), size // 2
        for first, position, length in self.packed.stretches():
            skipped = first % (size * apart)
            halves = np.zeros(-(-(skipped + length) // (size * apart)) * apart * 2, bool)
            head = min(-first % half, length)
            whole = (length - head) // half
            at, end = (skipped + head) // half, head + whole * half
            halves[at - 1] |= touched[position : position + head].any()
            halves[at + whole :][:1] |= touched[position + end : position + length].any()
            halves[at : at + whole] = self._any(touched, position + head, whole, half)
            of_stretch = halves.reshape(-1, 2 * apart)
            of_stretch = of_stretch[reduce(np.bitwise_or, of_stretch.view(np.uint16).T) > 0]
            pieces = int(np.count_nonzero(of_stretch.view(np.uint16)))
            alone = np.count_nonzero(np.count_nonzero(of_stretch, 1) == 1)
            found.append((first, length, pieces, int(alone)))
        return found

    def count(self, how: str, line: int | None = None) -> int:
        """Distinct bytes "read" or "written", by one line or by all."""
        touched = self._map(how, line)
        return sum(int(np.count_nonzero(touched[part])) for part in self._stretches())
