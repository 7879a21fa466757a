"""What orders the accesses of different lanes: barriers, warp barriers, and fences with atomics."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from .shadow import TIME_SHIFT


class ChunkOrder:
    """Barriers of one chunk of blocks: when each lane last passed one, as event times."""

    def __init__(self, lanes: int, per_block: int, first_block: int):
        self.per_block, self.first_lane = per_block, first_block * per_block
        self.lanes = lanes
        self.passed: np.ndarray | None = None  # (lanes,); None: every lane at `passed_by_all`
        self.passed_by_all = 1  # the first event's time: nothing is ordered yet
        self.released: np.ndarray | None = None  # where a barrier did not stop everybody
        self.fenced: np.ndarray | None = None  # last __syncwarp of each lane
        self.met: np.ndarray | None = None  # last shuffle, vote or the like
        self.clusters: np.ndarray | None = None  # (blocks,) each one's cluster, if there are any
        self.in_cluster: np.ndarray | None = None  # last barrier of each lane's cluster of blocks
        self.publications = LanePublications()

    def floor(self, lane: np.ndarray):
        """Stamps below it are ordered before what `lane` does now, by block barriers."""
        if self.released is not None:
            return 1 << TIME_SHIFT  # decide one by one
        if self.passed is None:
            return self.passed_by_all << TIME_SHIFT
        return self.passed[lane] << TIME_SHIFT

    def barrier(self, arrivals, alive: int, time: int) -> None:
        """A block barrier let the lanes of `arrivals`, (instruction, lanes) pairs, pass.

        alive: how many lanes of the chunk have not ended. A barrier for a whole block also orders
        what its ended threads did; one with a count of its own orders those who took part.
        """
        counted = any(len(instruction.operands) > 1 for instruction, _ in arrivals)
        if not counted and sum(lanes.size for _, lanes in arrivals) == alive:
            self.passed, self.passed_by_all, self.released = None, time, None
            return
        self._spread_out()
        if counted and self.released is None:
            self.released = self.passed.copy()
        for _, lanes in arrivals:
            if not counted:
                first = np.unique(lanes // self.per_block) * self.per_block
                lanes = (first[:, None] + np.arange(self.per_block)).ravel()
            self.passed[lanes] = time
            if self.released is not None:
                self.released[lanes] = time

    def cluster_barrier(self, arrivals, time: int) -> None:
        """A barrier of clusters: it orders what all threads of all their blocks did."""
        if self.in_cluster is None:
            self.in_cluster = np.zeros(self.lanes, np.int64)
        for _, lanes in arrivals:
            first = np.unique(lanes // self.per_block) * self.per_block
            self.in_cluster[(first[:, None] + np.arange(self.per_block)).ravel()] = time

    def cluster_orders(self, time, later) -> np.ndarray:
        """(n,) bool: did a cluster barrier come between? Lanes of one cluster."""
        if self.in_cluster is None:
            return np.zeros(time.size, bool)
        return time < self.in_cluster[later]

    def arrive(self, lanes: np.ndarray, time: int) -> None:
        """bar.arrive: what the lanes did before is ordered before who waits at the barrier."""
        self._spread_out()
        if self.released is None:
            self.released = self.passed.copy()
        self.released[lanes] = time

    def _spread_out(self) -> None:
        if self.passed is None:
            self.passed = np.full(self.lanes, self.passed_by_all, np.int64)

    def warp_sync(self, lanes: np.ndarray, time: int, orders_memory: bool) -> None:
        """__syncwarp orders memory; shuffles and votes only make the lanes meet."""
        if orders_memory:
            if self.fenced is None:
                self.fenced = np.zeros(self.lanes, np.int64)
            self.fenced[lanes] = time
        if self.met is None:
            self.met = np.zeros(self.lanes, np.int64)
        self.met[lanes] = time

    def barrier_orders(self, time, earlier, later) -> np.ndarray:
        """(n,) bool: did a block barrier come between? Lanes of one block, counted in the chunk."""
        if self.passed is None:
            return time < self.passed_by_all
        between = time < self.passed[later]
        if self.released is not None:
            between &= time < self.released[earlier]
        return between

    def fence_orders(self, time, earlier, later) -> np.ndarray:
        return self._both(self.fenced, time, earlier, later)

    def only_met(self, time, earlier, later) -> np.ndarray:
        return self._both(self.met, time, earlier, later)

    @staticmethod
    def _both(clock, time, earlier, later) -> np.ndarray:
        if clock is None:
            return np.zeros(time.size, bool)
        return (earlier >> 5 == later >> 5) & (time < clock[earlier]) & (time < clock[later])


class Publications:
    """Order between blocks: writes, a fence, and an atomic that another block reads afterwards.

    The rule: an access of block A is ordered before one of block B when A, after its access, ran
    __threadfence() (or a releasing atomic) and then an atomic or volatile write at an address
    where B, before its own access and after A's atomic, did an atomic or volatile access. That
    covers tickets ("the last block to finish"), flags and locks. A fence by one thread after a
    block barrier counts for its block.
    """

    def __init__(self, per_block: int):
        self.per_block = per_block
        self.fences: dict[int, int] = {}  # block -> time of its last fence
        self.given: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(dict)
        self.taken: dict[int, dict[int, int]] = defaultdict(dict)

    def fence(self, lanes: np.ndarray, time: int) -> None:
        for block in np.unique(lanes // self.per_block).tolist():
            self.fences[block] = time

    def strong(self, lanes, addresses, time: int, writes: bool) -> None:
        """Atomic or volatile accesses at global addresses; of use only after a first fence."""
        if not self.fences:
            return
        pairs = np.unique(np.stack([addresses, lanes // self.per_block]), axis=1)
        for address, block in pairs.T.tolist():
            if writes and block in self.fences:
                given = self.given[block].setdefault(address, [])
                if not given or given[-1][0] != self.fences[block]:
                    given.append((self.fences[block], time))
            self.taken[block][address] = time

    def orders(self, time: np.ndarray, earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
        """(n,) bool for accesses at `time` by block `earlier`, followed now by block `later`."""
        if not self.fences:
            return np.zeros(time.size, bool)
        cases, place = np.unique(np.stack([time, earlier, later]), axis=1, return_inverse=True)
        known = [self._ordered(*case) for case in cases.T.tolist()]
        return np.array(known, bool)[place.ravel()]

    def _ordered(self, time: int, earlier: int, later: int) -> bool:
        given, taken = self.given.get(earlier, {}), self.taken.get(later, {})
        for address in given.keys() & taken.keys():
            # Atomics of one instruction are done in the order of the blocks.
            last = taken[address] + (earlier < later)
            if any(fenced > time and at < last for fenced, at in given[address]):
                return True
        return False


class LanePublications:
    """Order inside a block: the rule of Publications between warps, and between lanes of one warp.

    A fence by one lane counts for its whole warp where another warp reads; lanes of one warp are
    told apart. Fences of any scope do.
    """

    def __init__(self):
        self.warps, self.single = Publications(32), Publications(1)

    def fence(self, lanes: np.ndarray, time: int) -> None:
        self.warps.fence(lanes, time)
        self.single.fence(lanes, time)

    def strong(self, lanes, addresses, time: int, writes: bool) -> None:
        self.warps.strong(lanes, addresses, time, writes)
        self.single.strong(lanes, addresses, time, writes)

    def orders(self, time, earlier, later) -> np.ndarray:
        """(n,) bool for accesses at `time` by lane `earlier`, followed now by lane `later`."""
        if not self.warps.fences:
            return np.zeros(time.size, bool)
        return np.where(
            earlier >> 5 != later >> 5,
            self.warps.orders(time, earlier >> 5, later >> 5),
            self.single.orders(time, earlier, later),
        )
