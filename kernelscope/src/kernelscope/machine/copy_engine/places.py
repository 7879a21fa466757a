"""Shared memory as bulk copies find it: by address, block of the cluster, and swizzle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .boxes import UNITS

CHUNK = 16  # bytes that a swizzle leaves together
_LINE = 7  # a swizzle takes its number from the bits of the address from here on: 128 bytes a line
_CHUNK_BITS = 4


@dataclass
class SharedPlaces:
    """Places in shared memory, (n,) each: address in the block, the block's first byte, its number."""

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
        return (self.chunk_addresses(size, swizzle) + self.base[:, None]) >> _CHUNK_BITS

    def read(self, shared: np.ndarray, size: int, swizzle: int) -> np.ndarray:
        """(n, size) uint8: what is there."""
        return shared.view(UNITS[CHUNK]).take(self.indices(size, swizzle)).view(np.uint8)

    def write(self, shared: np.ndarray, data: np.ndarray, swizzle: int) -> None:
        """Put (n, size) uint8 there; of places that overlap the last one stays."""
        index = self.indices(data.shape[1], swizzle)
        shared.view(UNITS[CHUNK])[index] = data.view(UNITS[CHUNK])


def swizzled(address: np.ndarray, swizzle: int) -> np.ndarray:
    """Addresses in shared memory with the chunks of each line exchanged.

    Of a swizzle of 128 bytes, bits 4 to 6 of the address are xor-ed with bits 7 to 9; of 64 bytes
    two bits, of 32 bytes one.
    """
    if not swizzle:
        return address
    mask = swizzle // CHUNK - 1
    return address ^ (address >> _LINE & mask) << _CHUNK_BITS
