"""cp.async: copies into shared memory that are not there before the thread has waited for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .shadow import TIME_SHIFT, Shadow


@dataclass(frozen=True)
class _Batch:
    """The copies of one instruction that are under way: (n,) each."""

    address: np.ndarray  # byte positions in the shadow
    size: int
    lane: np.ndarray
    bits: np.ndarray  # the lane as a stamp
    group: np.ndarray  # the lane's number of this commit group


class AsyncCopies:
    """Copies under way in one chunk, lane by lane and commit group by commit group."""

    def __init__(self, shadow: Shadow, lanes: int):
        self.shadow = shadow
        self.batches: list[_Batch] = []
        self.committed = np.zeros(lanes, np.int64)  # groups that each lane has closed

    def issue(self, address, size: int, lane, bits) -> None:
        self.batches.append(_Batch(address, size, lane, bits, self.committed[lane]))

    def commit(self, lanes: np.ndarray) -> None:
        self.committed[lanes] += 1

    def wait(self, lanes: np.ndarray, newer: int | None, time: int) -> None:
        """The lanes waited for all but their `newer` newest groups; None: for all copies.

        A copy counts as written by its lane now.
        """
        waiting = np.zeros(self.committed.size, bool)
        waiting[lanes] = True
        kept = []
        for batch in self.batches:
            done = waiting[batch.lane]
            if newer is not None:
                done &= batch.group < self.committed[batch.lane] - newer
            unit = self.shadow.units(batch.address[done], batch.size)
            stamp = batch.bits[done] + (time << TIME_SHIFT)
            self.shadow.writer[unit] = np.tile(stamp, unit.size // max(stamp.size, 1))
            rest = ~done
            if rest.any():
                parts = {
                    name: getattr(batch, name)[rest]
                    for name in ("address", "lane", "bits", "group")
                }
                kept.append(replace(batch, **parts))
        self.batches = kept

    def under_way(self, unit: np.ndarray) -> np.ndarray:
        """(n,) bool: which units are still being copied."""
        flying = np.zeros(self.shadow.writer.size, bool)
        for batch in self.batches:
            flying[self.shadow.units(batch.address, batch.size)] = True
        return flying[unit]
