"""Copies to shared memory that are not there before somebody has waited for them.

Those of cp.async, and what st.async and red.async store.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .shadow import STRONG, TIME_SHIFT, Shadow

CP_ASYNC, RED_ASYNC = "cp.async", "red.async"


@dataclass(frozen=True)
class _Batch:
    """The copies of one instruction that are under way: (n,) each."""

    address: np.ndarray  # byte positions in the shadow
    size: int
    lane: np.ndarray
    bits: np.ndarray  # the lane as a stamp
    group: np.ndarray  # the lane's number of this commit group
    phase: np.ndarray  # key of the mbarrier's phase that tells of its end, or -1
    arrival: np.ndarray  # and when the lane asked for that
    origin: np.ndarray  # byte addresses in global memory, or -1
    line: int
    name: str  # CP_ASYNC, RED_ASYNC or "st.async"

    def part(self, chosen: np.ndarray) -> _Batch:
        names = ("address", "lane", "bits", "group", "phase", "arrival", "origin")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})


class CopiesUnderWay:
    """The copies of one chunk, those of cp.async lane by lane and commit group by commit group.

    A copy of cp.async is not there before its thread has waited for it; what st.async and
    red.async store, before somebody has found its phase complete.
    """

    def __init__(self, shadow: Shadow, lanes: int):
        self.shadow = shadow
        self.batches: list[_Batch] = []
        self.committed = np.zeros(lanes, np.int64)  # groups that each lane has closed
        self.sources = np.full(lanes, -1)  # what each lane's last copy reads

    def read(self, lanes: np.ndarray, address: np.ndarray) -> None:
        """The global half of a copy: it reads from these byte addresses, until it is done."""
        self.sources[lanes] = address

    def issue(self, address, size: int, lane, bits, line: int) -> None:
        none = np.full(lane.size, -1)
        asked = self.committed[lane], none, none.copy(), self.sources[lane], line, CP_ASYNC
        self.batches.append(_Batch(address, size, lane, bits, *asked))
        self.sources[lane] = -1

    def post(self, address, size: int, lane, bits, line: int, name: str, keys, time: int) -> None:
        """Stores of st.async and red.async, each of which a phase tells of."""
        none = np.full(lane.size, -1)
        asked = none, keys, np.full(lane.size, time), none, line, name
        self.batches.append(_Batch(address, size, lane, bits, *asked))

    def reading(self, address: np.ndarray, size: int) -> tuple[np.ndarray, int]:
        """(n,) bool: which accesses to global memory meet what is still read; the copy's line."""
        found, line = np.zeros(address.size, bool), 0
        for batch in self.batches:
            first, last = int(batch.origin.min()), int(batch.origin.max()) + batch.size
            near = (address + size > first) & (address < last)
            if not near.any():
                continue
            words = (batch.origin[batch.origin >= 0, None] + np.arange(0, batch.size, 4)) >> 2
            for start in range(0, size, 4):
                met = near & np.isin((address + start) >> 2, words)
                found, line = found | met, batch.line if met.any() else line
        return found, line

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
            done = waiting[batch.lane] & (batch.name == CP_ASYNC)
            if newer is not None:
                done &= batch.group < self.committed[batch.lane] - newer
            self.finish(batch, done, np.full(batch.lane.size, time), kept)
        self.batches = kept

    def follow(self, lanes: np.ndarray, keys: np.ndarray, time: int) -> None:
        """cp.async.mbarrier.arrive: the lanes' copies are done when a phase is complete."""
        phase = np.full(self.committed.size, -1)
        phase[lanes] = keys
        for batch in self.batches:
            mine = (batch.phase < 0) & (phase[batch.lane] >= 0)
            batch.phase[mine] = phase[batch.lane[mine]]
            batch.arrival[mine] = time

    def complete(self, keys: np.ndarray) -> None:
        """Somebody found these phases complete. A copy counts as written when its lane arrived."""
        kept = []
        for batch in self.batches:
            self.finish(batch, np.isin(batch.phase, keys), batch.arrival, kept)
        self.batches = kept

    def finish(self, batch: _Batch, done: np.ndarray, time: np.ndarray, kept: list) -> None:
        """Some copies of a batch are written, at a time each; the others are kept."""
        unit = self.shadow.units(batch.address[done], batch.size)
        stamp = batch.bits[done] + (time[done] << TIME_SHIFT)
        stamp |= STRONG * (batch.name == RED_ASYNC)
        self.shadow.writer[unit] = np.tile(stamp, unit.size // max(stamp.size, 1))
        self.shadow.keep_values(unit)  # it was issued before its bytes were there
        if not done.all():
            kept.append(batch.part(~done))

    def under_way(self, unit: np.ndarray, atomic: bool) -> np.ndarray:
        """(n,) int64: which batch, counted from 1, is still on its way to each unit, or 0.

        atomic: of an atomic operation, which reductions under way may meet.
        """
        flying = np.zeros(self.shadow.writer.size, np.int64)
        for number, batch in enumerate(self.batches, 1):
            if not (atomic and batch.name == RED_ASYNC):
                flying[self.shadow.units(batch.address, batch.size)] = number
        return flying[unit]
