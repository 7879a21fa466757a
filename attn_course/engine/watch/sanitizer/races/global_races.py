"""Global memory over a launch: races between threads and blocks, reads of unwritten outputs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from attn_course.engine.events import Buffer

from ..findings import Findings, Naming
from .ordering import Publications
from .shadow import FIRST, HOST, NEVER, Shadow, lane_of, time_of
from .shared_state import Context, LaneStamps, SharedState


class GlobalRaces(SharedState):
    """All arrays of a launch. Inside a block barriers order; between blocks only publications."""

    space = "global"
    remedy = (
        "give each element to one thread, or use atomic operations; blocks run in any order, and "
        "no barrier reaches from one to another"
    )

    def __init__(
        self,
        image: np.ndarray,
        naming: Naming,
        findings: Findings,
        lines: list[int],
        unwritten: Iterable[Buffer],
    ):
        super().__init__(Shadow(image.size, HOST, image), naming, findings, lines)
        self.per_block = naming.per_block
        self.publications = Publications(naming.per_block)
        for buffer in unwritten:
            if buffer.start % 4 or buffer.size % 4:
                while self.shadow.shift:
                    self.shadow.split()
        for buffer in unwritten:
            start, end = buffer.start, buffer.start + buffer.size
            self.shadow.writer[start >> self.shadow.shift : end >> self.shadow.shift] = NEVER

    def flat(self, address: np.ndarray, lanes: LaneStamps, context: Context) -> np.ndarray:
        return address

    def floor(self, lanes: LaneStamps, context: Context) -> int:
        return FIRST  # accesses of other blocks have no lower bound

    def relation(self, prior: np.ndarray, lane: np.ndarray, context: Context):
        order = context.order
        time = time_of(prior)
        earlier = lane_of(prior) - order.first_lane
        inside = earlier // self.per_block == lane // self.per_block
        ordered, met, taken = np.zeros((3, prior.size), bool)
        one = time[inside], earlier[inside], lane[inside]
        ordered[inside] = order.barrier_orders(*one) | order.warp_orders(*one)
        ordered[inside] |= order.publications.orders(*one)
        met[inside] = order.only_met(*one)
        outside = ~inside
        if outside.any():
            first = order.first_lane // self.per_block
            pairs = (
                time[outside],
                lane_of(prior[outside]) // self.per_block,
                lane[outside] // self.per_block + first,
            )
            taken[outside] = self.publications.orders(*pairs)
            if taken.any():
                ordered[outside] = self.publications.orders(*pairs, fenced=True)
        return ordered | order.cluster_orders(time, earlier, lane), met, taken

    def address_of(self, unit: int) -> int:
        return unit << self.shadow.shift
