"""Matrix descriptors of wgmma: where the tile of A or B is in shared memory.

PTX ISA 9.0, "Matrix Descriptor Format" and "Shared Memory Matrix Layout". A tile is made of chunks
of 16 bytes. K-major means that the elements of a chunk follow one another along K, else along the
rows of A or the columns of B, which are both called rows here. In bytes of the tile, before the
swizzle, with W = 2, 4 or 8 chunks in a line of 32, 64 or 128 bytes:

    K-major, no swizzle      row: 16 (row % 8) + stride (row / 8);  chunk of K: leading
    K-major, swizzle         row: 16 W (row % 8) + stride (row / 8);  chunk of K: 16
    MN-major, no swizzle     chunk of rows: stride;  k: 16 (k % 8) + leading (k / 8)
    MN-major, swizzle        chunk of rows: 16 (chunk % W) + leading (chunk / W);
                             k: 16 W (k % 8) + stride (k / 8)

The swizzle exchanges chunks of a line: bits 4 to 6 of the address (4 to 5 of 64 bytes, 4 of 32)
are combined with bits 7 to 9 by exclusive or. So a tile may start within a line.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

CHUNK = 16  # bytes
_LINES = {0: 16, 1: 128, 2: 64, 3: 32}  # swizzle mode -> bytes of a line
_GROUP = 8  # lines of a pattern
_ROW_BIT = 7  # the address bits from here on choose how a line is exchanged
_FIELD, _START_BITS = 0x3FFF, 4
RESERVED = 0x3FF1C000C000C000  # bits of a descriptor that sm_90 does not use


@dataclass(frozen=True)
class Descriptor:
    """A decoded matrix descriptor, in bytes.

    start: of the tile; leading, stride: the two offsets; base: the base offset, 0 to 7; line: of
    the swizzle, 16 where there is none.
    """

    start: int
    leading: int
    stride: int
    base: int
    line: int

    @property
    def alignment(self) -> int:
        """The bytes after which the pattern of the swizzle repeats."""
        return _GROUP * self.line

    @property
    def is_aligned(self) -> bool:
        """Does the base offset say where in the pattern the tile's first line is?"""
        return not (self._line_number(self.start) - self.base) & self._exchanged

    @property
    def _exchanged(self) -> int:
        """The bits of a chunk's number in a line that the swizzle changes."""
        return self.line // CHUNK - 1

    @staticmethod
    def _line_number(address):
        return address >> _ROW_BIT

    def swizzled(self, address: np.ndarray) -> np.ndarray:
        """Where chunks are that would be at these byte addresses without the swizzle."""
        moved = (self._line_number(address) - self.base) & self._exchanged
        return address ^ moved * CHUNK


@lru_cache(maxsize=4096)
def descriptor(bits: int) -> Descriptor:
    """Decode the 64 bits of a matrix descriptor."""
    start, leading, stride = (((bits >> at) & _FIELD) << _START_BITS for at in (0, 16, 32))
    return Descriptor(start, leading, stride, bits >> 49 & 7, _LINES[bits >> 62])


@lru_cache(maxsize=4096)
def chunk_addresses(bits: int, rows: int, k: int, k_major: bool) -> np.ndarray:
    """Byte addresses of a tile's chunks in the block's shared memory, int64.

    bits: the descriptor; rows: of A, or columns of B; k: elements of a row. K-major: (rows, 2), the
    chunks of each row; else (k, rows / 8), those of each k, of 16-bit elements.
    """
    form = descriptor(bits)
    within = np.arange(rows if k_major else k)
    lines = within % _GROUP * form.line
    if k_major:
        across = np.arange(2) * (form.leading if form.line == CHUNK else CHUNK)
        along = lines + within // _GROUP * form.stride
    else:
        chunk, width = np.arange(rows // _GROUP), form.line // CHUNK
        far, near = form.leading, form.stride
        if width == 1:
            far, near = near, far
        across = chunk % width * CHUNK + chunk // width * far
        along = lines + within // _GROUP * near
    return form.swizzled(form.start + along[:, None] + across)


@lru_cache(maxsize=1024)
def runs(bits: int, rows: int, k: int, k_major: bool) -> tuple[np.ndarray, int]:
    """(addresses, bytes of each) of the runs of memory that a tile is made of.

    All runs of a tile are of one size, the largest in which it can be cut.
    """
    chunks = np.unique(chunk_addresses(bits, rows, k, k_major))
    first = np.flatnonzero(np.diff(chunks, prepend=-2 * CHUNK) != CHUNK)
    lengths = np.diff(first, append=chunks.size)
    step = int(np.gcd.reduce(lengths))
    return chunks[::step], step * CHUNK
