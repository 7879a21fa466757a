"""Shards: which rows of a sequence are whose.

A sequence is cut into twice as many chunks as there are ranks, and rank r has chunk r and, counted
from the end, chunk r again. In causal attention a late row sees more keys than an early one: so
each rank has as much work as any other. The order is known as zig-zag.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from kernelscope import asnumpy
from kernelscope.errors import InputError

TILE = 128  # rows of kernel 18's tiles: chunks of long sequences are cut where tiles end
MANY_TILES = 8  # in a chunk, from which on


@dataclass(frozen=True)
class Shards:
    """The rows of a sequence on a number of ranks.

    Raises:
        InputError: fewer than two rows a rank, or no rank.
    """

    length: int
    ranks: int

    def __post_init__(self):
        if self.ranks < 1:
            raise InputError(f"{self.ranks} ranks: at least 1 has the rows")
        if self.length < 2 * self.ranks:
            raise InputError(
                f"{self.length} rows for {self.ranks} ranks: each takes two chunks, so "
                f"{2 * self.ranks} rows are needed at least; use fewer ranks"
            )

    @property
    def bounds(self) -> tuple[int, ...]:
        """The first row of each chunk, and the length."""
        chunks = 2 * self.ranks
        step = TILE if self.length >= chunks * TILE * MANY_TILES else 1
        return (*(i * self.length // chunks // step * step for i in range(chunks)), self.length)

    def chunks(self, rank: int) -> tuple[slice, slice]:
        """Return the rows of a rank's two chunks, the early one first."""
        if not 0 <= rank < self.ranks:
            raise InputError(f"no rank {rank}: {self.ranks} share the rows, and the first is 0")
        ends, last = self.bounds, 2 * self.ranks - 1 - rank
        return slice(ends[rank], ends[rank + 1]), slice(ends[last], ends[last + 1])

    def sizes(self, rank: int) -> tuple[int, int]:
        """Return the numbers of rows of a rank's two chunks."""
        early, late = self.chunks(rank)
        return early.stop - early.start, late.stop - late.start

    def rows(self, rank: int) -> int:
        """Return the number of a rank's rows."""
        return sum(self.sizes(rank))

    def order(self, rank: int) -> np.ndarray:
        """Return a rank's rows, in the order in which it has them."""
        return np.concatenate([np.arange(one.start, one.stop) for one in self.chunks(rank)])

    def take(self, array, rank: int, xp):
        """Return a rank's rows of an array (B, H, length, ...), C-contiguous."""
        self._check_rows(f"an array has shape {array.shape}", array.shape)
        bits = array.view(f"u{array.dtype.itemsize}")  # not every library moves every 16-bit type
        return xp.take(bits, xp.asarray(self.order(rank)), axis=2).view(array.dtype)

    def whole(self, parts: Sequence):
        """Return (B, H, length, ...) on the host of the ranks' rows, by rank."""
        rows = np.concatenate([asnumpy(one) for one in parts], axis=2)
        self._check_rows(f"{len(parts)} parts make up {rows.shape}", rows.shape)
        found = np.empty_like(rows)
        found[:, :, np.concatenate([self.order(rank) for rank in range(self.ranks)])] = rows
        return found

    def _check_rows(self, what: str, shape: tuple[int, ...]) -> None:
        if len(shape) < 3 or shape[2] != self.length:
            raise InputError(
                f"{what}, not (B, H, {self.length}, ...), the rows of {self.ranks} ranks"
            )
