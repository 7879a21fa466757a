"""When each thread has executed a fence of some kind."""

from bisect import bisect_right

import numpy as np


class FenceLog:
    """The fences of lanes, by their warps: the first one that a lane made after a time."""

    def __init__(self):
        self.times: dict[int, list[int]] = {}  # by warp, ascending
        self.lanes: dict[int, list[int]] = {}  # the bits of the lanes, at each of these times

    def note(self, lanes: np.ndarray, time: int) -> None:
        warp = lanes >> 5
        first = np.flatnonzero(np.diff(warp, prepend=-1))
        bits = np.bitwise_or.reduceat(np.uint32(1) << (lanes & 31).astype(np.uint32), first)
        for one, mask in zip(warp[first].tolist(), bits.tolist(), strict=True):
            self.times.setdefault(one, []).append(time)
            self.lanes.setdefault(one, []).append(mask)

    def first_after(self, time: np.ndarray, lane: np.ndarray) -> np.ndarray:
        """(n,) int64: when each lane first fenced after a time; 0: it did not."""
        return np.array(
            [self._first(*one) for one in zip(time.tolist(), lane.tolist(), strict=True)]
        )

    def _first(self, time: int, lane: int) -> int:
        times = self.times.get(lane >> 5, ())
        for at in range(bisect_right(times, time), len(times)):
            if self.lanes[lane >> 5][at] >> (lane & 31) & 1:
                return times[at]
        return 0
