"""Lanes and their registers, and the group of lanes that runs.

A chunk's lanes have places 0, 1, ... A group is a sorted array of places, or None for all of them.
`home` holds every register over all places. The running group works on `R`: for all lanes that is
`home` itself; a smaller group gathers the registers it reads and scatters the ones it wrote.
Registers are immutable values: an array over lanes, or a scalar where all lanes agree.
"""

import numpy as np
from kernelscope.events import place_in
from kernelscope.translate.control_flow import LANE

from ..isa.special_registers import special_registers
from .memory import scalar


class ChunkLanes:
    """The lanes of a chunk: `count` threads of `block_count` blocks, from `first_block` on.

    R: registers of the running group, by slot; R[LANE] are lane ids, 32 for each warp of each block
    of the chunk. places: the running group. dirty: bit mask of the slots it has written.
    block_of_place: (count,) number in the chunk. alive: bool by lane id, which threads have not
    ended. jumps, probe: what the scheduler knows of the running group's loop. local_changes: counts
    writes that have changed a thread's local memory.
    """

    def __init__(self, run, first_block: int, block_count: int):
        self.run, self.kernel = run, run.kernel
        self.first_block, self.block_count = first_block, block_count
        self.warps_per_block = -(-run.threads // 32)
        self.block_of_place = np.repeat(np.arange(block_count), run.threads)
        thread = np.tile(np.arange(run.threads, dtype=np.int64), block_count)
        lane = self.block_of_place * (self.warps_per_block * 32) + thread
        self.count = lane.size
        self.alive = np.zeros(block_count * self.warps_per_block * 32, bool)
        self.alive[lane] = True
        self.home: list = [None] * len(self.kernel.slot_types)
        self.home[LANE] = lane
        self.R = self.home
        self.places: np.ndarray | None = None
        self.dirty = self.local_changes = 0
        self.jumps, self.probe = 0, None
        self.fill()

    def fill(self) -> None:
        """Set special registers, and zeros where a register may be read before it is written."""
        wanted = {
            slot: name
            for slot, name in self.kernel.specials.items()
            if self.home[slot] is None and name not in ("%lane", "%shared_base", "%local_base")
        }
        if wanted:
            lane, per_block = self.home[LANE], self.warps_per_block * 32
            block = self.first_block + lane // per_block
            found = special_registers(wanted, lane % per_block, block, self.run)
            for slot, value in found.items():
                self.home[slot] = value
        for slot, code in self.kernel.unset.items():
            if self.home[slot] is None:
                self.home[slot] = np.dtype(code).type(0)

    def extend(self) -> None:
        """Make room for the registers of functions that were translated since."""
        missing = len(self.kernel.slot_types) - len(self.home)
        if missing:
            self.home.extend([None] * missing)
            if self.R is not self.home:
                self.R.extend([None] * missing)
            self.fill()

    # -- the running group ----------------------------------------------------------------------
    def activate(self, places: np.ndarray | None) -> None:
        """Make a group the one that runs."""
        if places is not None and places.size == self.count:
            places = None
        self.places, self.dirty = places, 0
        self.jumps, self.probe = 0, None
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
        """Scatter the registers that the running group wrote, where they are still needed."""
        if self.places is None:
            return
        mask = self.dirty & live
        while mask:
            low = mask & -mask
            mask ^= low
            slot = low.bit_length() - 1
            if self.R[slot] is not None:
                self.scatter(slot, self.R[slot], self.places)
        self.dirty = 0

    def scatter(self, slot: int, value, places: np.ndarray) -> None:
        """Give a register new values at some places."""
        old = self.home[slot]
        if old is None:
            if scalar(value):  # no other lane has a value yet
                self.home[slot] = value
                return
            new = np.zeros(self.count, value.dtype)
        elif scalar(old):
            if scalar(value) and old.tobytes() == value.tobytes():
                return
            new = np.full(self.count, old)
        else:
            new = old.copy()
        new[places] = value
        self.home[slot] = new

    def narrowed(self, chosen: np.ndarray, slots, action):
        """Return action(), run with some of the active lanes and these registers only."""
        R = self.R
        self.fetch(slots)
        narrow: list = [None] * len(R)
        for slot in (LANE, *slots):
            narrow[slot] = R[slot] if scalar(R[slot]) else R[slot][chosen]
        self.R = narrow
        try:
            return action()
        finally:
            self.R = R

    def end(self, places: np.ndarray | None) -> None:
        """The threads at these places have ended."""
        lane = self.home[LANE]
        self.alive[lane if places is None else lane[places]] = False

    # -- questions ------------------------------------------------------------------------------
    def all_places(self) -> np.ndarray:
        """The running group as an array."""
        return np.arange(self.count) if self.places is None else self.places

    def are_all(self) -> bool:
        """Does the running group hold every thread that has not ended?"""
        return self.places is None or self.places.size == int(np.count_nonzero(self.alive))

    def at(self, places: np.ndarray | None) -> np.ndarray:
        """Lane ids at some places."""
        return self.home[LANE] if places is None else self.home[LANE][places]

    def running_blocks(self) -> np.ndarray:
        """(lanes,) number in the chunk of each running lane's block."""
        return self.R[LANE] // (32 * self.warps_per_block)

    def threads(self, lanes: np.ndarray) -> list[tuple[tuple[int, int, int], tuple[int, int, int]]]:
        """((block x, y, z), (thread x, y, z)) of each lane id."""
        per_block = 32 * self.warps_per_block
        found = []
        for lane in lanes.tolist():
            block, thread = self.first_block + lane // per_block, lane % per_block
            found.append((place_in(block, self.run.grid), place_in(thread, self.run.block)))
        return found

    def thread_text(self, lanes: np.ndarray) -> str:
        """The first of these lanes in words."""
        block, thread = self.threads(lanes[:1])[0]
        return f"block {block}, thread {thread}"

    def who(self, lanes: np.ndarray) -> str:
        """Lanes of one block that wait, in words, sorted: how many, of which warps, the first."""
        warps = np.unique(lanes >> 5) % self.warps_per_block
        few = f"warp {warps[0]}" if warps.size == 1 else f"warps {', '.join(map(str, warps))}"
        if warps.size > 2 and warps[-1] - warps[0] == warps.size - 1:
            few = f"warps {warps[0]} to {warps[-1]}"
        waits = "thread waits" if lanes.size == 1 else "threads wait"
        return f"{lanes.size} {waits} ({few}; first: {self.thread_text(lanes)})"


def merged(group: np.ndarray | None, others: np.ndarray) -> np.ndarray:
    """Two groups as one; the first may be missing."""
    if group is None:
        return others
    return np.sort(np.concatenate([group, others]))
