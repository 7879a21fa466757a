"""Shared memory as bulk copies find it: by address, block of the cluster, and swizzle."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .boxes import UNITS

CHUNK = 16  # bytes that a swizzle leaves together
_LINE = 7  # a swizzle takes its number from the bits of the address from here on: 128 bytes a line
_CHUNK_BITS = 4
_PERIOD = 1024  # bytes after which all swizzles repeat


@dataclass
class SharedPlaces:
    """Places in shared memory, (n,) each: address in the block, the block's start, its number."""

    address: np.ndarray
    base: np.ndarray
    block: np.ndarray

    def part(self, chosen: np.ndarray) -> SharedPlaces:
        return SharedPlaces(self.address[chosen], self.base[chosen], self.block[chosen])

    def chunk_addresses(self, size: int, swizzle: int) -> np.ndarray:
        """(n, size / 16) int64: the address in the block of each chunk, in the order of the box."""
        return swizzled(self.address[:, None] + np.arange(0, size, CHUNK), swizzle)

    def indices(self, size: int, swizzle: int) -> np.ndarray:
        """(n, size / 16) int64: the same as places in a view of chunks of all shared memory."""
        phase = self.address % _PERIOD
        if not swizzle or (phase == phase[0]).all():
            start = self.address + self.base >> _CHUNK_BITS
            return start[:, None] + _chunks(size, swizzle, int(phase[0]) if swizzle else 0)
        return (self.chunk_addresses(size, swizzle) + self.base[:, None]) >> _CHUNK_BITS

    def read(self, shared: np.ndarray, size: int, swizzle: int) -> np.ndarray:
        """(n, size) uint8: what is there."""
        return shared.view(UNITS[CHUNK]).take(self.indices(size, swizzle)).view(np.uint8)

    def write(self, shared: np.ndarray, data: np.ndarray, swizzle: int) -> None:
        """Put (n, size) uint8 there; of places that overlap the last one stays."""
        index = self.indices(data.shape[1], swizzle)
        shared.view(UNITS[CHUNK])[index] = data.view(UNITS[CHUNK])


@lru_cache(maxsize=256)
def _chunks(size: int, swizzle: int, phase: int) -> np.ndarray:
    """(size / 16,) int64: the place of each chunk, in chunks from the first address on."""
    return (swizzled(phase + np.arange(0, size, CHUNK), swizzle) - phase) >> _CHUNK_BITS


def swizzled(address: np.ndarray, swizzle: int) -> np.ndarray:
    """Addresses in shared memory with the chunks of each line exchanged.

    Of a swizzle of 128 bytes, bits 4 to 6 of the address are xor-ed with bits 7 to 9; of 64 bytes
    two bits, of 32 bytes one.
    """
    if not swizzle:
        return address
    mask = swizzle // CHUNK - 1
    return address ^ (address >> _LINE & mask) << _CHUNK_BITS
