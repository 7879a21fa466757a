"""Asynchronous operations as the rules keep them, and who has learned of their ends."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from kernelscope.events import Access, AsyncOperation

from ..races.ordering import ChunkOrder

COPY, STORE, PRODUCT = "copy", "store", "product"
_KINDS = {"mbarrier": COPY, "bulk_group": STORE, "wgmma_group": PRODUCT}


@dataclass(eq=False)
class AsyncWork:
    """A bulk copy into shared memory, one out of it ("store"), or the product of a warp group.

    number: its place among all of the launch; lanes: those that issued it, counted through the
    chunk, first_lane: that of the chunk; line, time: of the issue; mbarrier, phase: where a copy's
    bytes are counted. read: lane -> when it learned that the source has been read; ended: the same
    of the whole operation. known: the warps that come after it, as far as this was asked.
    """

    number: int
    told: AsyncOperation
    lanes: np.ndarray
    first_lane: int
    line: int
    time: int
    phase: int = 0
    landed: bool = False
    read: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)

    @property
    def kind(self) -> str:
        return _KINDS[self.told.completion]

    @property
    def lane(self) -> int:
        return int(self.lanes[0])

    @property
    def name(self) -> str:
        """As messages call it."""
        what = {COPY: "the bulk copy", STORE: "the bulk copy out of shared memory"}
        return f"{what.get(self.kind, 'the wgmma')} of line {self.line}"

    @property
    def source(self) -> Access | None:
        """What it reads of shared memory."""
        loads = [one for one in self.told.accesses if (one.space, one.kind) == ("shared", "load")]
        return loads[0] if loads else None

    @property
    def reduces(self) -> bool:
        """Does it add to its destination, or the like? Those of several threads may meet there."""
        return self.told.accesses[-1].kind == "atomic"


def comes_after(seen: dict[int, int], lane: int, order: ChunkOrder, by_warp: bool) -> bool:
    """Does what `lane` does now come after what others have learned?

    seen: lane -> when it learned it; by_warp: a wait counts for the lane's warp.
    """
    if not seen:
        return False
    if lane in seen or by_warp and any(one >> 5 == lane >> 5 for one in seen):
        return True
    earlier = np.array(list(seen))
    time = np.array(list(seen.values()))
    return bool(order.settles(time, earlier, np.full(earlier.size, lane)).any())
