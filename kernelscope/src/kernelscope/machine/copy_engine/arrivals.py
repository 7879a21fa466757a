"""Copies into shared memory that no mbarrier has been asked about yet."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..access import Memory
from ..reports import Reports
from .places import PLAIN, SharedPlaces
from .transfers import Arrival


class Arrivals:
    """Copies into shared memory that are under way, in the order of their issue.

    They arrive when a thread asks an mbarrier for the phase that they belong to, and finds it not
    complete without them: a kernel that reads without waiting finds the old bytes.
    """

    def __init__(self, memory: Memory, reports: Reports):
        self.memory, self.reports = memory, reports
        self.pending: list[Arrival] = []

    def land(self, asked: np.ndarray) -> Iterator[Arrival]:
        """Put in place what the asked mbarriers (words of shared memory) wait for, and yield it."""
        landed, kept = [], []
        for arrival in self.pending:
            due = np.isin(arrival.mbarrier, asked)
            if due.any():
                landed.append(arrival if due.all() else arrival.part(due))
            if not due.all():
                kept.append(arrival.part(~due) if due.any() else arrival)
        self.pending = kept
        for arrival in landed:
            self.put(arrival)
            yield arrival
            self.reports.async_completed(arrival.told)

    def put(self, arrival: Arrival) -> None:
        shared = self.memory.shared.bytes
        self.memory.globals.version += 1
        if arrival.data is None:
            data = arrival.source.read(shared, arrival.size, PLAIN)
        else:
            data = arrival.data[arrival.row]
        if arrival.reduction is None:
            arrival.to.write(shared, data, arrival.layout)
            return
        dtype, fn = arrival.reduction.dtype, arrival.reduction.operation.fn
        for row, to in enumerate(_one_by_one(arrival.to)):  # of which some may meet
            before = to.read(shared, arrival.size, PLAIN).view(dtype)
            to.write(shared, fn(before, data[row : row + 1].view(dtype)).view(np.uint8), PLAIN)


def _one_by_one(places: SharedPlaces) -> Iterator[SharedPlaces]:
    for i in range(places.address.size):
        yield places.part(slice(i, i + 1))
