"""Shadow memory: for each piece of memory, who wrote it last and who read it since.

An access is stamped with the time it happened (the number of the sanitizer's event), the lane
that made it and whether it was atomic, all in one 64-bit number, so that one gather and one
comparison tell whether an earlier access can still be in a race with this one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TIME_SHIFT = 32
STRONG = 1  # lowest bit: atomics and the like, which are in no race with each other
LANE_MASK = (1 << TIME_SHIFT) - 2
NEVER = 0  # not written since the block began: uninitialised
HOST = 2  # written before the launch
FIRST = 1 << TIME_SHIFT  # every stamp of a kernel's own access is at least this


def time_of(stamps: np.ndarray) -> np.ndarray:
    return stamps >> TIME_SHIFT


def lane_of(stamps: np.ndarray) -> np.ndarray:
    """The lane, counted through the whole grid."""
    return (stamps & LANE_MASK) >> 1


@dataclass(frozen=True)
class Touch:
    """One access of a group of lanes, as units of shadow memory.

    unit: (n,) int64; stamp: (n,) int64; lane: (n,) int64, counted through the chunk; floor: the
    stamps below it are ordered before this access, one number or (n,). A wide access has several
    units a lane: entry i belongs to lane i % lanes.
    """

    unit: np.ndarray
    stamp: np.ndarray
    lane: np.ndarray
    strong: bool
    floor: object

    def part(self, chosen: np.ndarray) -> Touch:
        """The accesses of some places, (n,) bool."""
        floor = self.floor[chosen] if isinstance(self.floor, np.ndarray) else self.floor
        return Touch(self.unit[chosen], self.stamp[chosen], self.lane[chosen], self.strong, floor)

    def reverse(self) -> Touch:
        """The accesses in the opposite order, for what the first of them decides."""
        floor = self.floor[::-1] if isinstance(self.floor, np.ndarray) else self.floor
        return Touch(self.unit[::-1], self.stamp[::-1], self.lane[::-1], self.strong, floor)


class Shadow:
    """Stamps of the last write and of two different last readers of each unit of memory.

    A unit is four bytes until an access is narrower; then the shadow is split, so that findings
    are exact to the byte.
    """

    def __init__(self, size: int, initial: int, image: np.ndarray):
        self.shift = 2
        units = -(-size // 4)
        self.writer = np.full(units, initial, np.int64)
        self.reader = np.zeros(units, np.int64)
        self.other = np.zeros(units, np.int64)  # a reader whose lane is not `reader`'s
        self.marks: dict[str, np.ndarray] = {}  # stamps of accesses of some kind, by its name
        self.memory = image  # the simulated bytes, as they are after each access
        self.before = image.copy()  # and as they were before it

    def units(self, address: np.ndarray, size: int) -> np.ndarray:
        """(lanes * units a lane,) unit numbers of accesses of `size` bytes at int64 addresses."""
        while size < 1 << self.shift:
            self.split()
        first = address >> self.shift
        count = size >> self.shift
        if count == 1:
            return first
        return (first + np.arange(count)[:, None]).ravel()

    def split(self) -> None:
        """Halve the unit."""
        self.shift -= 1
        self.writer, self.reader, self.other = (
            np.repeat(stamps, 2) for stamps in (self.writer, self.reader, self.other)
        )
        self.marks = {name: np.repeat(stamps, 2) for name, stamps in self.marks.items()}

    def values(self, image: np.ndarray) -> np.ndarray:
        """The bytes of an image as one unsigned number a unit."""
        whole = image.size >> self.shift << self.shift
        return image[:whole].view(f"u{1 << self.shift}")

    def now(self, unit: np.ndarray) -> np.ndarray:
        """The present values of some units, as `values` gives them."""
        return self.values(self.memory)[unit]

    def note_read(self, touch: Touch) -> None:
        """Keep the readers: the last one, and another lane's where there was one."""
        unit, stamp = touch.unit, touch.stamp
        last = self.reader[unit]
        fresh = last >= touch.floor
        if np.count_nonzero(fresh):
            fresh &= (last ^ stamp) & LANE_MASK != 0
            self.other[unit[fresh]] = last[fresh]
        self.reader[unit] = stamp
        beaten = self.reader[unit] != stamp  # several lanes read one unit; one of them stays
        if np.count_nonzero(beaten):
            self.other[unit[beaten]] = stamp[beaten]

    def mark(self, name: str, touch: Touch) -> None:
        """Keep the stamps of accesses of a kind of which there are few."""
        if name not in self.marks:
            self.marks[name] = np.zeros(self.writer.size, np.int64)
        self.marks[name][touch.unit] = touch.stamp

    def marked(self, name: str, unit: np.ndarray):
        """(n,) stamps of the last access of a kind; 0: none."""
        return self.marks[name][unit] if name in self.marks else np.zeros(unit.size, np.int64)

    def note_write(self, touch: Touch) -> np.ndarray:
        """Keep the writer. Returns the places whose unit another lane wrote at the same time."""
        self.writer[touch.unit] = touch.stamp
        beaten = np.nonzero(self.writer[touch.unit] != touch.stamp)[0]
        self.keep_values(touch.unit)
        return beaten

    def keep_values(self, unit: np.ndarray) -> None:
        """Keep what units hold now, for comparison with what is written next."""
        self.values(self.before)[unit] = self.now(unit)


def suspects(prior: np.ndarray, touch: Touch) -> np.ndarray:
    """Places whose earlier access was another lane's and may be unordered with this one."""
    hot = prior >= touch.floor
    if not np.count_nonzero(hot):
        return _NONE
    hot &= (prior ^ touch.stamp) & LANE_MASK != 0
    if touch.strong:
        hot &= prior & STRONG == 0
    return np.nonzero(hot)[0]


_NONE = np.zeros(0, np.int64)
