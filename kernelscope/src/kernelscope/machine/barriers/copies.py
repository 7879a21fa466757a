"""cp.async: copies from global to shared memory, and the waiting for them by commit groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from kernelscope.translate.control_flow import LOCAL_BASE, SHARED_BASE

from ..access import Memory
from ..lanes import ChunkLanes
from ..memory import scalar, spread

_BASES = (SHARED_BASE, LOCAL_BASE)
_WORD = np.dtype("u4")


@dataclass
class _Copy:
    """The copies of one instruction, lane by lane: (n,) arrays, data (n, words) uint32."""

    places: np.ndarray
    index: np.ndarray  # word of shared memory where each lane's data goes
    data: np.ndarray
    group: np.ndarray  # the lane's commit group
    number: int  # instructions of the chunk that started copies before

    def part(self, chosen: np.ndarray) -> _Copy:
        places, index, data = self.places[chosen], self.index[chosen], self.data[chosen]
        return _Copy(places, index, data, self.group[chosen], self.number)


class AsyncCopies:
    """cp.async: copies from global to shared memory that arrive when the thread waits for them.

    The data is read at once and kept aside; shared memory gets it when the lane that asked for it
    waits for its commit group. A kernel that reads too early reads the old bytes.
    pending: copies under way; committed: (places,) groups that each lane has closed; issued: how
    many instructions have started copies.
    """

    def __init__(self, lanes: ChunkLanes, memory: Memory):
        self.lanes, self.memory = lanes, memory
        self.pending: list[_Copy] = []
        self.committed = np.zeros(lanes.count, np.int64)
        self.issued = 0

    def start(self, to, source, size: int, available, ins) -> None:
        """Issue: `available` bytes of `size` come from `source`, the rest are zeros."""
        places = self.lanes.all_places()
        count = places.size
        source, available = spread(source, count), spread(available, count)
        data = self.read(source, size, available, ins)
        _, index, valid = self.memory.locate("shared", spread(to, count), 2, size, ins, "store")
        copy = _Copy(places, index, data, self.committed[places], self.issued)
        self.issued += 1
        self.pending.append(copy if valid is None else copy.part(valid))

    def read(self, source, size: int, available, ins) -> np.ndarray:
        """(lanes, size / 4) words from global memory; zeros where less is available."""
        words = size // 4
        data = np.zeros((source.size, words), _WORD)
        whole = np.nonzero(available >= size)[0]
        if whole.size:
            parts = self.load_some(source, whole, _WORD, 2, words, ins)
            data[whole] = np.stack([parts] if words == 1 else parts, axis=1)
        partly = (available > 0) & (available < size)
        for byte in range(size if partly.any() else 0):
            some = np.nonzero(partly & (available > byte))[0]
            if some.size:
                value = self.load_some(source + np.uint64(byte), some, np.dtype("u1"), 0, 1, ins)
                data.view(np.uint8)[some, byte] = value
        return data

    def load_some(self, address, some: np.ndarray, dtype, shift: int, count: int, ins):
        """Memory.load, by some of the running lanes."""
        arguments = ("generic", address[some], dtype, shift, count, ins)
        return self.lanes.narrowed(some, _BASES, lambda: self.memory.load(*arguments))

    def commit(self) -> None:
        """Close the commit group of each running lane."""
        self.committed[self.lanes.all_places()] += 1

    def wait(self, newer) -> None:
        """Wait for all but the `newer` newest commit groups of each lane; None: for all copies."""
        newer = newer if newer is None or scalar(newer) else newer[0]

        def is_awaited(copy: _Copy) -> np.ndarray:
            if newer is None:
                return np.ones(copy.places.size, bool)
            return copy.group < self.committed[copy.places] - int(newer)

        if self.pending:
            self.deliver(self.lanes.all_places(), is_awaited)

    def bring(self, places: np.ndarray, issued: int) -> None:
        """The copies of some lanes arrive that were among the first `issued` of the chunk."""
        self.deliver(places, lambda copy: np.full(copy.places.size, copy.number < issued))

    def deliver(self, places: np.ndarray, is_due: Callable[[_Copy], np.ndarray]) -> None:
        """Copies arrive that lanes at these places asked for, where is_due says so, (n,) bool."""
        mine = np.zeros(self.lanes.count, bool)
        mine[places] = True
        view, kept = self.memory.shared.view[_WORD], []
        for copy in self.pending:
            done = mine[copy.places] & is_due(copy)
            here = copy if done.all() else copy.part(done)
            view[here.index[:, None] + np.arange(here.data.shape[1])] = here.data
            if not done.all():
                kept.append(copy.part(~done))
        self.pending = kept
        self.memory.globals.version += 1
