"""Shared memory as bulk copies find it: by address, block of the cluster, and swizzle."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .boxes import UNITS

CHUNK = 16  # bytes that a swizzle leaves together
LINE = 128  # bytes: a swizzle takes its number from that of the line, and boxes begin with one
_LINE_BITS = 7
_CHUNK_BITS = 4
_PERIOD = 1024  # bytes after which all swizzles repeat


@dataclass(frozen=True)
class RowLayout:
    """How bytes that are copied together stand in shared memory.

    swizzle: bytes, 0 for none; row: bytes of a row of a box. Rows that are shorter than the swizzle
    are as far apart as it is long, with gaps that are not copied (as seen on an H200).
    """

    swizzle: int = 0
    row: int = 0

    def offsets(self, size: int) -> np.ndarray:
        """(size / 16,) int64: of each chunk, in the order of the box, before the swizzle."""
        offsets = np.arange(0, size, CHUNK)
        if self.swizzle:
            offsets += offsets // self.row * (self.swizzle - self.row)
        return offsets

    def room(self, size: int) -> int:
        """Bytes of shared memory that copies of `size` bytes take up, gaps included."""
        return size // self.row * self.swizzle if self.swizzle else size


PLAIN = RowLayout()


@dataclass
class SharedPlaces:
    """Places in shared memory, (n,) each: address in the block, the block's start, its number."""

    address: np.ndarray
    base: np.ndarray
    block: np.ndarray

    def part(self, chosen: np.ndarray) -> SharedPlaces:
        return SharedPlaces(self.address[chosen], self.base[chosen], self.block[chosen])

    def chunk_addresses(self, size: int, layout: RowLayout) -> np.ndarray:
        """(n, size / 16) int64: the address in the block of each chunk, in the order of the box."""
        return swizzled(self.address[:, None] + layout.offsets(size), layout.swizzle)

    def indices(self, size: int, layout: RowLayout) -> np.ndarray:
        """(n, size / 16) int64: the same as places in a view of chunks of all shared memory.

        Of fewer bytes than a chunk has: (n, 1), places in a view of items of that size.
        """
        if size < CHUNK:
            return ((self.address + self.base) // size)[:, None]
        phase = self.address % _PERIOD
        if not layout.swizzle or (phase == phase[0]).all():
            start = self.address + self.base >> _CHUNK_BITS
            return start[:, None] + _chunks(size, layout, int(phase[0]) if layout.swizzle else 0)
        return (self.chunk_addresses(size, layout) + self.base[:, None]) >> _CHUNK_BITS

    def read(self, shared: np.ndarray, size: int, layout: RowLayout) -> np.ndarray:
        """(n, size) uint8: what is there."""
        unit = UNITS[min(size, CHUNK)]
        return shared.view(unit).take(self.indices(size, layout)).view(np.uint8)

    def write(self, shared: np.ndarray, data: np.ndarray, layout: RowLayout) -> None:
        """Put (n, size) uint8 there; of places that overlap the last one stays."""
        size = data.shape[1]
        unit = UNITS[min(size, CHUNK)]
        shared.view(unit)[self.indices(size, layout)] = data.view(unit)


@lru_cache(maxsize=256)
def _chunks(size: int, layout: RowLayout, phase: int) -> np.ndarray:
    """(size / 16,) int64: the place of each chunk, in chunks from the first address on."""
    return (swizzled(phase + layout.offsets(size), layout.swizzle) - phase) >> _CHUNK_BITS


def swizzled(address: np.ndarray, swizzle: int) -> np.ndarray:
    """Addresses in shared memory with the chunks of each line exchanged.

    Of a swizzle of 128 bytes, bits 4 to 6 of the address are xor-ed with bits 7 to 9; of 64 bytes
    two bits, of 32 bytes one.
    """
    if not swizzle:
        return address
    mask = swizzle // CHUNK - 1
    return address ^ (address >> _LINE_BITS & mask) << _CHUNK_BITS
