"""Shared memory of a chunk's blocks: races between two barriers, reads of what nobody wrote."""

from __future__ import annotations

import numpy as np

from .findings import Findings, Naming
from .races import Context, Lanes, SharedState
from .shadow import NEVER, Shadow, lane_of, time_of


class SharedMemory(SharedState):
    """One chunk's shared memory; every block has a slice of it, and starts with nothing in it."""

    space = "shared"
    remedy = (
        "put __syncthreads() between the two accesses (__syncwarp() is enough inside one warp), "
        "or make both atomic"
    )

    def __init__(self, chunk, naming: Naming, findings: Findings, lines: list[int]):
        image = chunk.shared.bytes
        super().__init__(Shadow(image.size, NEVER, image), naming, findings, lines)
        self.per_block = naming.per_block
        self.stride = image.size // max(chunk.block_count, 1)
        self.one_block = chunk.block_count == 1
        self.first_lane = chunk.first_block * self.per_block

    def flat(self, address: np.ndarray, lanes: Lanes, context: Context) -> np.ndarray:
        if self.one_block:
            return address
        return address + lanes.lane // self.per_block * self.stride

    def floor(self, lanes: Lanes, context: Context):
        return context.order.floor(lanes.lane)

    def relation(self, prior: np.ndarray, lane: np.ndarray, context: Context):
        time, earlier = time_of(prior), lane_of(prior) - self.first_lane
        order = context.order
        ordered = order.barrier_orders(time, earlier, lane)
        ordered |= order.fence_orders(time, earlier, lane)
        return ordered, order.only_met(time, earlier, lane)

    def address_of(self, unit: int) -> int:
        return (unit << self.shadow.shift) % self.stride
