"""Volatile accesses: they order nothing, but a thread that waits for a value comes after its write.

A volatile write over another thread's is in order where the writer's block has read the earlier
value since, in a way that may decide a branch: it waited for a flag, or got a turn. Else two
threads write the flag as they please, which is an error where they write different values, or
where one of them computes what it writes from what it has read (`x = x + 1`).
"""

import numpy as np

from ..traits import InstructionTraits
from .shadow import FIRST, LANE_MASK, Shadow, Touch, lane_of, time_of


class Flags:
    """The volatile reads of one memory.

    Marks in the shadow: "flag", the last volatile write; "updater", the last volatile read whose
    value is computed with and stored again.
    """

    def __init__(self, shadow: Shadow, per_block: int):
        self.shadow, self.per_block = shadow, per_block
        self.seen: dict[tuple[int, int], int] = {}  # (byte, block) -> time it read another's value

    def block_of(self, stamps: np.ndarray) -> np.ndarray:
        return lane_of(stamps) // self.per_block

    def read(self, touch: Touch, traits: InstructionTraits, time: int) -> None:
        if traits.updates:
            self.shadow.mark("updater", touch)
        if not traits.decides:
            return
        writer = self.shadow.writer[touch.unit]
        others = (writer >= FIRST) & ((writer ^ touch.stamp) & LANE_MASK != 0)
        if others.any():
            place = touch.unit[others] << self.shadow.shift
            pairs = np.unique(np.stack([place, self.block_of(touch.stamp[others])]), axis=1)
            self.seen.update(((byte, block), time) for byte, block in pairs.T.tolist())

    def overwritten(self, prior: np.ndarray, touch: Touch) -> np.ndarray:
        """Places whose last write was another lane's volatile one."""
        flags = self.shadow.marked("flag", touch.unit)
        others = (prior ^ touch.stamp) & LANE_MASK != 0
        return np.nonzero((prior == flags) & (prior >= FIRST) & others)[0]

    def seen_by(self, places: np.ndarray, prior: np.ndarray, touch: Touch) -> np.ndarray:
        """(n,) bool: has the block of the lane read what was written there?"""
        byte = touch.unit[places] << self.shadow.shift
        who = zip(byte.tolist(), self.block_of(touch.stamp[places]).tolist(), strict=True)
        read = np.array([self.seen.get(pair, 0) for pair in who], np.int64)
        return read > time_of(prior[places])

    def updates(self, unit: np.ndarray, stamps: np.ndarray) -> np.ndarray:
        """(n,) bool: was the lane of the stamp the last to read the unit for an update?"""
        last = self.shadow.marked("updater", unit)
        return (last >= FIRST) & ((last ^ stamps) & LANE_MASK == 0)
