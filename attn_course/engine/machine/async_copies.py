"""cp.async: copies from global to shared memory that arrive when the thread waits for them.

What is copied is read at once and kept aside; shared memory gets it when the lane that asked for
it waits for its commit group. A kernel that reads too early therefore reads what was there before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .memory import scalar, spread

_WORD = np.dtype("u4")


@dataclass
class _Copy:
    """What one instruction copies, lane by lane: (n,) arrays, data (n, words) uint32."""

    places: np.ndarray
    index: np.ndarray  # word of shared memory where each lane's data goes
    data: np.ndarray
    group: np.ndarray  # the lane's commit group

    def part(self, chosen: np.ndarray) -> _Copy:
        return _Copy(self.places[chosen], self.index[chosen], self.data[chosen], self.group[chosen])


class AsyncCopies:
    """Mixed into Chunk."""

    def start_copies(self) -> None:
        self.copies: list[_Copy] = []
        self.committed = np.zeros(self.lane_count, np.int64)  # groups that each lane has closed

    def copy_async(self, to, source, size: int, available, ins) -> None:
        """Issue: `available` bytes of `size` come from `source`, the rest are zeros."""
        places = self.all_places()
        count = places.size
        source, available = spread(source, count), spread(available, count)
        data = self.read_copy(source, size, available, ins)
        memory, index, valid = self.locate("shared", spread(to, count), 2, size, ins, "store")
        copy = _Copy(places, index, data, self.committed[places])
        self.copies.append(copy if valid is None else copy.part(valid))

    def read_copy(self, source, size: int, available, ins) -> np.ndarray:
        """(lanes, size / 4) words from global memory; zeros where less is available."""
        words = size // 4
        data = np.zeros((source.size, words), _WORD)
        whole = np.nonzero(available >= size)[0]
        if whole.size:
            parts = self.within(
                whole, lambda: self.load("generic", source[whole], _WORD, 2, words, ins)
            )
            data[whole] = np.stack([parts] if words == 1 else parts, axis=1)
        partly = (available > 0) & (available < size)
        for byte in range(size if partly.any() else 0):
            some = np.nonzero(partly & (available > byte))[0]
            if some.size:
                self.copy_byte(data, source, some, byte, ins)
        return data

    def copy_byte(self, data, source, some, byte: int, ins) -> None:
        address, kind = source[some] + np.uint64(byte), np.dtype("u1")
        value = self.within(some, lambda: self.load("generic", address, kind, 0, 1, ins))
        data.view(np.uint8)[some, byte] = value

    def commit_copies(self) -> None:
        self.committed[self.all_places()] += 1

    def wait_copies(self, newer) -> None:
        """Wait for all but the `newer` newest commit groups of each lane; None: for all copies."""
        if not self.copies:
            return
        waits = np.zeros(self.lane_count, bool)
        waits[self.all_places()] = True
        view, kept = self.shared.view[_WORD], []
        for copy in self.copies:
            done = waits[copy.places]
            if newer is not None:
                newer = newer if scalar(newer) else newer[0]
                done &= copy.group < self.committed[copy.places] - int(newer)
            here = copy if done.all() else copy.part(done)
            view[here.index[:, None] + np.arange(here.data.shape[1])] = here.data
            if not done.all():
                kept.append(copy.part(~done))
        self.copies = kept
        self.memory.version += 1
