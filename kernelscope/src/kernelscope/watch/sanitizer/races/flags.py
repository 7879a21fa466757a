"""Volatile accesses: they order nothing, but a thread that waits for a value comes after its write.

A volatile load reads a flag where its value may end the loop around it or goes into an atomic, and,
in most places, where it decides a branch. Any other one reads data: where another lane has written
them by a volatile store, a barrier or a fence with a flag has to come between, as for plain
accesses. Without it the hardware gives the old value or the new one. It is an error between the
warps of a block and a warning between blocks. Between the lanes of a warp, whose code may rely on
running in step, it is a warning too: since Volta they need __syncwarp().

A volatile write over another thread's is in order where the writer's block has read the earlier
value since, in a way that may decide a branch: it waited for a flag, or got a turn. Else two
threads write the flag as they please, which is an error where they write different values, or
where one of them computes what it writes from what it has read (`x = x + 1`). So is a volatile
store of another value over an atomic, or the reverse, but where the store belongs to the atomics.
A load with a memory order counts as such a reading where it waits: where its value may end the loop
around it. Which value was waited for is not looked at, and it counts for the whole block.
"""

import numpy as np
from kernelscope.events import Access

from ..traits import InstructionTraits
from .shadow import FIRST, LANE_MASK, STRONG, Shadow, Touch, lane_of, time_of

_KEYS = 256  # arrays of keys that are kept apart
_WARP_BITS = 26  # of a key
_NONE = np.zeros(0, np.int64)


class Flags:
    """The reads of one memory that may be of flags.

    Marks in the shadow: "flag", the last volatile write; "updater", the last volatile read whose
    value is computed with and stored again.
    """

    def __init__(self, shadow: Shadow, per_block: int, mixes: bool):
        """mixes: the program has volatile stores, which may meet atomics."""
        self.shadow, self.per_block, self.mixes = shadow, per_block, mixes
        self.seen: dict[tuple[int, int], int] = {}  # (byte, block) -> time it saw another's value
        self.updated: list[np.ndarray] = []  # (n,) keys of the elements and warps of atomics

    def block_of(self, stamps: np.ndarray) -> np.ndarray:
        return lane_of(stamps) // self.per_block

    def reads_data(
        self, touch: Touch, access: Access, traits: InstructionTraits, space: str
    ) -> bool:
        """Is a volatile load one of data? It is one of a flag where it may end the loop around it.

        A branch that it decides otherwise may test a flag too; not in shared memory where the lanes
        of a block read different elements, as a maximum over an array does.
        """
        if traits.waits:
            return False
        if not traits.decides:
            return True
        if space == "global":
            return False
        wide = max(access.size >> self.shadow.shift, 1)
        blocks = np.unique(self.block_of(touch.stamp)).size
        return np.unique(touch.unit).size > wide * blocks

    def read(self, touch: Touch, traits: InstructionTraits, time: int) -> None:
        if traits.updates:
            self.shadow.mark("updater", touch)
        if traits.decides:
            self.see(touch, time)

    def see(self, touch: Touch, time: int) -> None:
        """Loads of a flag: their blocks know what others have written there."""
        writer = self.shadow.writer[touch.unit]
        others = (writer >= FIRST) & ((writer ^ touch.stamp) & LANE_MASK != 0)
        if others.any():
            place = touch.unit[others] << self.shadow.shift
            pairs = np.unique(np.stack([place, self.block_of(touch.stamp[others])]), axis=1)
            self.seen.update(((byte, block), time) for byte, block in pairs.T.tolist())

    def update(self, touch: Touch) -> None:
        """An atomic operation."""
        if self.mixes:
            self.updated.append(self.key(touch.unit, lane_of(touch.stamp) >> 5))
            if len(self.updated) > _KEYS:
                self.updated = [np.unique(np.concatenate(self.updated))]

    def key(self, unit: np.ndarray, warp: np.ndarray) -> np.ndarray:
        return unit << self.shadow.shift + _WARP_BITS | warp

    def has_updated(self, unit: np.ndarray, stored: np.ndarray, other: np.ndarray) -> np.ndarray:
        """(n,) bool: has the lane of a stamp `stored`, or one near it, used atomics on the unit?

        Near is its warp where the lane of `other` is in the same block, else its block.
        """
        every = np.concatenate([*self.updated, np.zeros(0, np.int64)])
        mine = np.isin(self.key(unit, lane_of(stored) >> 5), every)
        warps = self.per_block >> 5
        element, warp = every >> _WARP_BITS, every & (1 << _WARP_BITS) - 1
        blocks = element << _WARP_BITS | warp // warps
        near = np.isin(self.key(unit, self.block_of(stored)), blocks)
        return np.where(self.block_of(stored) == self.block_of(other), mine, near)

    def mixed(self, prior: np.ndarray, touch: Touch, volatile: bool) -> np.ndarray:
        """Places where a volatile store meets another lane's atomic, in either order.

        volatile: this access is the store. Where the block that stores (or, inside one block, the
        warp) has used atomics on the element, the store belongs to them, as one that frees a lock.
        """
        if not self.mixes or not volatile and "flag" not in self.shadow.marks:
            return _NONE
        met = (prior >= np.maximum(touch.floor, FIRST)) & (prior & STRONG != 0)
        if not np.count_nonzero(met):
            return _NONE
        met &= (prior ^ touch.stamp) & LANE_MASK != 0
        met &= (prior == self.shadow.marked("flag", touch.unit)) != volatile
        places = np.nonzero(met)[0]
        if not places.size:
            return places
        stored, other = touch.stamp[places], prior[places]
        if not volatile:
            stored, other = other, stored
        places = places[~self.has_updated(touch.unit[places], stored, other)]
        return places[~self.seen_by(places, prior, touch)]

    def overwritten(self, prior: np.ndarray, touch: Touch) -> np.ndarray:
        """Places whose last write was another lane's volatile one, since the last barrier."""
        if "flag" not in self.shadow.marks:
            return _NONE
        recent = prior >= np.maximum(touch.floor, FIRST)
        if not np.count_nonzero(recent):
            return _NONE
        recent &= (prior ^ touch.stamp) & LANE_MASK != 0
        return np.nonzero(recent & (prior == self.shadow.marks["flag"][touch.unit]))[0]

    def seen_by(self, places: np.ndarray, prior: np.ndarray, touch: Touch) -> np.ndarray:
        """(n,) bool: has the block of the lane read what was written there?"""
        if not (self.seen and places.size):
            return np.zeros(places.size, bool)
        byte = touch.unit[places] << self.shadow.shift
        who = zip(byte.tolist(), self.block_of(touch.stamp[places]).tolist(), strict=True)
        read = np.array([self.seen.get(pair, 0) for pair in who], np.int64)
        return read > time_of(prior[places])

    def updates(self, unit: np.ndarray, stamps: np.ndarray) -> np.ndarray:
        """(n,) bool: was the lane of the stamp the last to read the unit for an update?"""
        last = self.shadow.marked("updater", unit)
        return (last >= FIRST) & ((last ^ stamps) & LANE_MASK == 0)
