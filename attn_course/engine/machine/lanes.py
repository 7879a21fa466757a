"""Lanes that run together, and their registers.

A chunk's lanes have places 0, 1, ... A group is a sorted array of places, or None for all of them.
`home` holds every register over all places. The group that runs works on `R`: for all lanes
that is `home` itself; a smaller group gathers what it reads and scatters what it wrote.
"""

from __future__ import annotations

import numpy as np

from attn_course.engine.translate.control_flow import LANE, Key

from .memory import scalar


class Groups:
    """Mixed into Chunk."""

    def activate(self, places: np.ndarray | None) -> None:
        """Make a group the one that runs."""
        if places is not None and places.size == self.lane_count:
            places = None
        self.places, self.dirty = places, 0
        self.forget_probe()
        if places is None:
            self.R = self.home
            return
        self.R = [None] * len(self.home)
        self.R[LANE] = self.home[LANE][places]

    def fetch(self, slots) -> None:
        """Gather the registers that a block reads, if not done already."""
        R, home, places = self.R, self.home, self.places
        for slot in slots:
            if R[slot] is None and home[slot] is not None:
                value = home[slot]
                R[slot] = value if scalar(value) else value[places]

    def flush(self, live: int) -> None:
        """Scatter what the running group wrote, where it is still needed."""
        if self.places is None:
            return
        mask = self.dirty & live
        while mask:
            low = mask & -mask
            mask ^= low
            slot = low.bit_length() - 1
            if self.R[slot] is not None:
                self.home[slot] = self.scatter(self.home[slot], self.R[slot], self.places)
        self.dirty = 0

    def scatter(self, old, value, places: np.ndarray):
        """A register over all lanes with new values at some places."""
        if old is None:
            if scalar(value):
                return value  # no other lane has a value yet
            new = np.zeros(self.lane_count, value.dtype)
        elif scalar(old):
            if scalar(value) and old.tobytes() == value.tobytes():
                return old
            new = np.full(self.lane_count, old)
        else:
            new = old.copy()
        new[places] = value
        return new

    def all_places(self) -> np.ndarray:
        return np.arange(self.lane_count) if self.places is None else self.places

    def join(self, key: Key, places: np.ndarray | None) -> None:
        """Add lanes to the group that is ready at `key`."""
        if places is None:
            self.ready[key] = None
        else:
            self.ready[key] = merged(self.ready.get(key), places)


def merged(group: np.ndarray | None, others: np.ndarray) -> np.ndarray:
    """Two groups as one; the first may be missing."""
    if group is None:
        return others
    return np.sort(np.concatenate([group, others]))
