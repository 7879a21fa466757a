"""Global memory over a launch: races between threads and blocks, reads of unwritten outputs."""

import math
from collections.abc import Iterable

import numpy as np
from kernelscope.addresses import Packed
from kernelscope.events import Access, Buffer

from ..findings import Naming
from .context import Context, LaneStamps
from .publications import GridPublications
from .shadow import FIRST, HOST, NEVER, Shadow, lane_of, time_of
from .shared_state import SharedState


class GlobalShadow(Shadow):
    """The shadow of a launch's arrays, one after another without the gaps between them.

    image: global memory by its addresses; stretches: (first, end) addresses of the arrays.
    """

    def __init__(self, image: np.ndarray, stretches):
        self.packed = Packed(stretches)
        super().__init__(self.packed.size, HOST, np.zeros(0, np.uint8))
        self.memory, self.before = image, np.zeros(self.packed.size, np.uint8)
        self.note_values(0)

    def note_values(self, start: int) -> None:
        """Copy the bytes of the stretches that begin at a position or behind it."""
        for first, place, size in self.packed.stretches():
            if place >= start:
                self.before[place : place + size] = self.memory[first : first + size]

    def positions(self, address: np.ndarray) -> np.ndarray:
        """Return the positions of (n,) int64 addresses, in arrays that have come up since too."""
        found = self.packed.positions(address)
        if self.packed.size != self.before.size:
            self.grow()
        return found

    def grow(self) -> None:
        """Make room for the addresses met since the last call."""
        old, units = self.before.size, self.packed.size >> self.shift
        self.before = np.resize(self.before, self.packed.size)
        self.note_values(old)
        more = np.zeros(units - self.writer.size, np.int64)
        self.writer = np.concatenate([self.writer, more + HOST])
        self.reader = np.concatenate([self.reader, more])
        self.other = np.concatenate([self.other, more])
        self.marks = {name: np.concatenate([old, more]) for name, old in self.marks.items()}

    def now(self, unit: np.ndarray) -> np.ndarray:
        address = self.packed.address(unit << self.shift)
        return self.values(self.memory)[address >> self.shift]


class GlobalRaces(SharedState):
    """All arrays of a launch. Inside a block barriers order; between blocks only publications."""

    space = "global"

    def __init__(
        self, image: np.ndarray, naming: Naming, lines: list[int], unwritten: Iterable[Buffer]
    ):
        stretches = [(b.start, b.start + b.size) for b in naming.buffers["global"]]
        super().__init__(GlobalShadow(image, stretches), naming, lines)
        self.replicates = naming.launch.source.managed_shared  # a compiler's layout of threads
        self.per_block = naming.per_block
        warps = math.prod(naming.launch.grid) * naming.launch.warps
        self.publications = GridPublications(naming.per_block, warps)
        for buffer in unwritten:
            if buffer.start % 4 or buffer.size % 4:
                while self.shadow.shift:
                    self.shadow.split()
        for buffer in unwritten:
            start = int(self.shadow.packed.positions(np.array([buffer.start]))[0])
            end = start + buffer.size
            self.shadow.writer[start >> self.shadow.shift : end >> self.shadow.shift] = NEVER

    def access(self, access: Access, context: Context) -> None:
        super().access(access, context)
        if self.replicates and access.kind == "load":
            touch, _ = self.touch(access, context)
            self.shadow.mark("first", touch.reverse())  # the lowest lane of those that load a unit

    def flat(self, address: np.ndarray, lanes: LaneStamps, context: Context) -> np.ndarray:
        return self.shadow.positions(address)

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
        ordered[inside] |= order.phase_orders(*one)
        fenced, taken[inside] = order.publications.relation(*one)
        ordered[inside] |= fenced
        met[inside] = order.only_met(*one)
        outside = ~inside
        if outside.any():
            pairs = time[outside], lane_of(prior[outside]), lane[outside] + order.first_lane
            ordered[outside], taken[outside] = self.publications.relation(*pairs)
        return ordered | order.cluster_orders(time, earlier, lane), met, taken

    def remedy(self, hazard: str, earlier: int, later: int) -> str:
        if not self.in_one_block(earlier, later):
            return (
                "give each element to one thread, or use atomic operations; blocks run in any "
                "order, and no barrier reaches from one to another"
            )
        if hazard == "WAW":
            return "give each element to one thread, or use atomic operations"
        return "put __syncthreads() between the two accesses, or give each element to one thread"

    def has_fenced(self, lane: int, time: int) -> bool:
        return self.publications.fences.get(int(lane) // self.per_block, 0) > time

    def address_of(self, unit: int) -> int:
        return int(self.shadow.packed.address(unit << self.shadow.shift))
