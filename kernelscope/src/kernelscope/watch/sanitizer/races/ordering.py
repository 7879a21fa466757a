"""The order of accesses by different lanes: barriers of blocks and warps, mbarriers, and fences
with atomics.

Of the instructions in which the lanes of a warp meet, only __syncwarp() (bar.warp.sync) orders
memory, for the lanes of its mask that meet there. Shuffles, votes, matches and reductions
synchronise what lanes execute, and CUDA promises nothing of memory for them: accesses with only
these between them are in a race. It is reported as a warning, since no hardware of today reorders
such accesses. __activemask() does not even make lanes meet.
"""

from __future__ import annotations

import numpy as np
from kernelscope.events import MachineView

from .meetings import MbarrierPhases, NamedBarriers, WarpMeetings, block_of_phase
from .publications import GridPublications, LanePublications
from .shadow import TIME_SHIFT


class ChunkOrder:
    """Barriers of one chunk of blocks: when each lane last passed one, as event times."""

    def __init__(self, machine: MachineView, of_grid: GridPublications):
        """of_grid: what flags in global memory order, of the whole launch."""
        self.alive = machine.alive  # the machine keeps it up to date
        self.per_block, self.first_lane = 32 * machine.warps_per_block, machine.first_lane
        self.lanes = lanes = machine.block_count * self.per_block
        self.passed: np.ndarray | None = None  # (lanes,); None: every lane at `passed_by_all`
        self.passed_by_all = 1  # the first event's time: nothing is ordered yet
        self.released: np.ndarray | None = None  # where a barrier did not stop everybody
        self.named: NamedBarriers | None = None  # from the first barrier with a count on
        self.synced = WarpMeetings(lanes)  # at __syncwarp()
        # There, or at a shuffle or vote, by whole warps or last. It makes an error a warning only.
        self.met = WarpMeetings(lanes, history=False)
        self.phases: MbarrierPhases | None = None  # from the first arrival at an mbarrier on
        self.causes: MbarrierPhases | None = None  # the same, and bulk copies: for `causes_order`
        self.clusters: ClusterBarriers | None = None  # where threads come to some
        self.cluster_of_block = machine.cluster_of_block
        self.publications = LanePublications()
        self.of_grid = of_grid
        # When each warp last released by a fence, for its block and for others.
        self.fences = np.zeros((2, lanes >> 5), np.int64)

    def floor(self, lane: np.ndarray):
        """Stamps below it are ordered before what `lane` does now, by block barriers."""
        if self.released is not None:
            return 1 << TIME_SHIFT  # decide one by one
        if self.passed is None:
            return self.passed_by_all << TIME_SHIFT
        return self.passed[lane] << TIME_SHIFT

    def barrier(self, arrivals, number: int, time: int) -> None:
        """A block barrier let the lanes of `arrivals`, (instruction, lanes) pairs, pass.

        A barrier for a whole block also orders what its ended threads did; one with a count of its
        own orders those who took part.
        """
        for one in self.of_phases():
            one.meet_at_barrier(np.concatenate([lanes for _, lanes in arrivals]), number, time)
        if self.publications.single.fresh:
            self.publications.barrier(np.concatenate([lanes for _, lanes in arrivals]), time)
        counted = any(len(instruction.operands) > 1 for instruction, _ in arrivals)
        count = sum(lanes.size for _, lanes in arrivals)
        if not counted and count == np.count_nonzero(self.alive):
            self.passed, self.passed_by_all, self.released = None, time, None
            self.named = None
            return
        self._spread_out()
        if counted:
            self._tell_apart()
        if self.named is not None:
            every = np.concatenate([lanes for _, lanes in arrivals])
            self.named.meet(every, number, not counted, time)
        for _, lanes in arrivals:
            if not counted:
                first = np.unique(lanes // self.per_block) * self.per_block
                lanes = (first[:, None] + np.arange(self.per_block)).ravel()
            self.passed[lanes] = time
            if self.released is not None:
                self.released[lanes] = time

    def arrive(self, lanes: np.ndarray, number, time: int) -> None:
        """bar.arrive: what the lanes did before is ordered before who waits at the barrier."""
        self._spread_out()
        self._tell_apart()
        self.named.arrive(lanes, number, time)
        self.released[lanes] = time
        for one in self.of_phases():
            one.arrive_at_barrier(lanes, number, time)

    def of_phases(self) -> list[MbarrierPhases]:
        """Those that there are, of memory and of causes."""
        return [one for one in (self.phases, self.causes) if one is not None]

    def arrive_at_phase(
        self, lanes: np.ndarray, keys: np.ndarray, time: int, relaxed: bool = False
    ) -> None:
        """mbarrier.arrive: what the lanes did before comes before who waits for the phase.

        keys: (n,) int64, a number of each lane's mbarrier and phase; relaxed: only what they did
        before their last fences.
        """
        self._begin_phases()
        passed = self._passed_by(lanes)
        self.causes.arrive(lanes, keys, passed, time)
        if not relaxed:
            self.phases.arrive(lanes, keys, passed, time)
            return
        others = (block_of_phase(keys) != lanes // self.per_block).astype(np.int64)
        fenced = self.fences[others, lanes >> 5]
        for last in np.unique(fenced).tolist():
            mine = fenced == last
            known = np.where(passed[mine] <= last, passed[mine], 0)
            self.phases.arrive(lanes[mine], keys[mine], known, last)

    def copy_starts(self, lane: int, key: int, time: int) -> None:
        """A bulk copy of this lane counts its bytes in a phase, which ends after its start.

        To memory that is no order of what the lane did before; but it happened.
        """
        self._begin_phases()
        lanes = np.array([lane])
        self.causes.arrive(lanes, np.array([key]), self._passed_by(lanes), time)

    def _begin_phases(self) -> None:
        if self.phases is None:
            self.phases = MbarrierPhases(self.lanes, self.per_block)
            self.causes = MbarrierPhases(self.lanes, self.per_block)
            if self.named is not None:
                for one in self.of_phases():
                    one.begin(self.named)

    def _passed_by(self, lanes: np.ndarray) -> np.ndarray:
        """(n,) when each lane last passed a barrier of its block; 0 where others know it."""
        passed = np.full(lanes.size, self.passed_by_all)
        if self.passed is not None:
            passed = self.passed[lanes] if self.released is None else passed * 0
        return passed

    def wait_for_phase(self, lanes: np.ndarray, keys: np.ndarray) -> None:
        """The lanes have found these phases complete."""
        for one in self.of_phases():
            one.wait(lanes, keys)

    def phase_orders(self, time, earlier, later) -> np.ndarray:
        """(n,) bool: did a phase of an mbarrier come between? Lanes counted in the chunk."""
        if self.phases is None:
            return np.zeros(time.size, bool)
        return self.phases.orders(time, earlier, later)

    def causes_order(self, time, earlier, later) -> np.ndarray:
        """(n,) bool: as `settles`, where a bulk copy also tells who waits for it that what came
        before its start has happened.
        """
        ordered = self.settles(time, earlier, later)
        if self.causes is not None:
            ordered |= self.causes.orders(time, earlier, later)
        return ordered

    def _spread_out(self) -> None:
        if self.passed is None:
            self.passed = np.full(self.lanes, self.passed_by_all, np.int64)

    def at_cluster(self) -> ClusterBarriers:
        """The barriers of clusters, made where a program has some."""
        if self.clusters is None:
            cluster = np.repeat(self.cluster_of_block, self.per_block)
            self.clusters = ClusterBarriers(self.lanes, cluster, self.per_block)
        return self.clusters

    def arrive_at_cluster(
        self, lanes: np.ndarray, phase: np.ndarray, time: int, relaxed: bool
    ) -> None:
        """Lanes arrive at the barrier of their cluster; arguments as of ClusterBarriers.arrive."""
        passed = self._passed_by(lanes)
        self.at_cluster().arrive(lanes, phase, passed, time, relaxed)

    def fence(self, lanes: np.ndarray, time: int, wide: bool) -> None:
        """A fence that releases, by some lanes. wide: of more than the block."""
        self.fences[: 1 + wide, lanes >> 5] = time
        if wide and self.clusters is not None:
            self.clusters.released[lanes] = time

    def fence_inits(self, lanes: np.ndarray, time: int) -> None:
        """fence.mbarrier_init: it orders what mbarrier.init of these lanes did, and no more."""
        if self.clusters is not None:
            self.clusters.fenced[lanes] = time

    def begin_mbarriers(self, time: int) -> None:
        """mbarrier.init, by any lanes."""
        if self.clusters is not None:
            self.clusters.inits.append(time)

    def cluster_orders(self, time, earlier, later) -> np.ndarray:
        """(n,) bool; lanes counted through the chunk. Those outside of it are not ordered."""
        if self.clusters is None:
            return np.zeros(time.size, bool)
        here = (earlier >= 0) & (earlier < self.lanes)
        known = np.where(here, earlier, 0)
        return here & self.clusters.orders(time, known, later)

    def orders_init(self, time, earlier, later) -> np.ndarray:
        """(n,) bool: did fence.mbarrier_init and a barrier of the cluster come between?"""
        if self.clusters is None:
            return np.zeros(time.size, bool)
        return self.clusters.orders_init(time, earlier, later)

    def _tell_apart(self) -> None:
        """From now on barriers order some warps of a block and not others."""
        if self.released is None:
            self.released = self.passed.copy()
            self.named = NamedBarriers(self.passed, self.per_block)

    def warp_sync(self, lanes: np.ndarray, members, time: int, orders_memory: bool) -> None:
        """Lanes of warps meet; see WarpMeetings.meet. orders_memory: it is __syncwarp()."""
        if orders_memory:
            self.synced.meet(lanes, members, self.alive, time)
            self.publications.barrier(lanes, time)
        self.met.meet(lanes, members, self.alive, time)

    def barrier_orders(self, time, earlier, later) -> np.ndarray:
        """(n,) bool: did a block barrier come between? Lanes of one block, counted in the chunk."""
        if self.passed is None:
            return time < self.passed_by_all
        between = time < self.passed[later]
        if self.released is not None:
            between &= time < self.released[earlier]
            between &= self.named.orders(time, earlier, later)
        return between

    def settles(self, time, earlier, later) -> np.ndarray:
        """(n,) bool: does what `later` does now come after what `earlier` did at `time`?

        Lanes counted through the chunk, of any of its blocks.
        """
        inside = earlier // self.per_block == later // self.per_block
        ordered = self.barrier_orders(time, earlier, later) & inside
        ordered |= self.warp_orders(time, earlier, later) | self.cluster_orders(
            time, earlier, later
        )
        ordered |= self.phase_orders(time, earlier, later)
        if not ordered.all():
            ordered |= self.publications.relation(time, earlier, later)[0]
        return ordered

    def has_started(self, block: np.ndarray, later: np.ndarray) -> np.ndarray:
        """(n,) bool: does what `later` does now come after anything that a block did?"""
        begin, first = np.zeros(later.size, np.int64), block * self.per_block
        known = self.cluster_orders(begin, first, later)
        for warp in range(0, self.per_block, 32):
            if known.all():
                break
            known |= self.happened(begin, first + warp, later)
        return known

    def known_to(self, block: int, time: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        """(n,) bool: does the last thing that a thread of a block did come after what `earlier`
        did at `time`?
        """
        known = earlier // self.per_block == block
        each = np.arange(block * self.per_block, (block + 1) * self.per_block).reshape(-1, 32)
        phase = np.zeros_like(each) if self.clusters is None else self.clusters.phase[each]
        for later in each[np.arange(len(each)), phase.argmax(axis=1)].tolist():
            open_ = np.nonzero(~known)[0]
            if not open_.size:
                break
            case = time[open_], earlier[open_], np.full(open_.size, later)
            known[open_] = self.happened(*case)
        return known

    def happened(self, time, earlier, later) -> np.ndarray:
        """(n,) bool: causes_order(), where a relaxed arrival at a barrier of the cluster tells of
        what came before it, too, and a flag in global memory, of what the whole block did.
        """
        known = self.causes_order(time, earlier, later)
        if self.clusters is not None:
            known |= self.clusters.orders(time, earlier, later, relaxed=True)
        if not known.all():
            lanes = earlier + self.first_lane, later + self.first_lane
            known |= self.of_grid.relation(time, *lanes)[0]
        return known

    def warp_orders(self, time, earlier, later) -> np.ndarray:
        """(n,) bool: did __syncwarp() come between, directly or over other lanes of the warp?"""
        return self.synced.orders(time, earlier, later)

    def only_met(self, time, earlier, later) -> np.ndarray:
        """The same of any instruction in which lanes of a warp meet."""
        return self.met.orders(time, earlier, later)


class ClusterBarriers:
    """Barriers of clusters of blocks, at which threads first arrive and later wait.

    What a thread does between the two is not ordered by that barrier. Nobody waits for a thread
    that has ended, and what it did after its last arrival is ordered before nothing: but for what a
    barrier of its block ordered before an arrival of another thread there.
    """

    _KEPT = 4  # phases: a thread can be two ahead of another

    def __init__(self, lanes: int, cluster_of_lane: np.ndarray, per_block: int):
        self.cluster, self.per_block = cluster_of_lane, per_block
        self.passed = np.zeros((self._KEPT, lanes // per_block), np.int64)  # by phase and block
        self.arrived = np.zeros((self._KEPT, lanes), np.int64)  # when, by phase
        # The same two where a relaxed arrival counts as any other.
        self.told_passed, self.came = np.zeros_like(self.passed), np.zeros_like(self.arrived)
        self.arrivals = np.zeros(lanes, np.int64)  # how many
        # A relaxed arrival orders what its lane did before its last fence, and the mbarrier.inits
        # before its last fence.mbarrier_init.
        self.released = np.ones(lanes, np.int64)
        self.fenced = np.zeros(lanes, np.int64)
        self.phase = np.zeros(lanes, np.int64)  # the last one waited for
        self.inits: list[int] = []  # times of mbarrier.init
        self.told = np.zeros((self._KEPT, lanes), np.int64)  # `fenced`, by phase

    def arrive(
        self, lanes: np.ndarray, phase: np.ndarray, passed: np.ndarray, time: int, relaxed: bool
    ) -> None:
        """phase: (all lanes,) how often each has arrived; passed: when each of these lanes last
        passed a barrier of its block.

        relaxed: it tells the others that the thread has come so far, and orders nothing that the
        thread did since its last fence or releasing arrival.
        """
        self.arrivals[lanes] = phase[lanes]
        released = self.released[lanes] if relaxed else time
        number = phase[lanes] % self._KEPT
        place = number, lanes // self.per_block
        np.maximum.at(self.told_passed, place, passed)
        np.maximum.at(self.passed, place, np.where(passed <= released, passed, 0))
        self.released[lanes] = released
        self.arrived[number, lanes], self.came[number, lanes] = released, time
        self.told[number, lanes] = self.fenced[lanes]

    def wait(self, lanes: np.ndarray, phase: np.ndarray) -> None:
        self.phase[lanes] = phase[lanes]

    def orders(self, time, earlier, later, relaxed: bool = False) -> np.ndarray:
        """(n,) bool: did a barrier of their cluster come between? relaxed: or a relaxed arrival."""
        arrived, passed = self.arrived, self.passed
        if relaxed:
            arrived, passed = self.came, self.told_passed
        phase = np.minimum(self.phase[later], self.arrivals[earlier])  # fewer: it has ended
        before = arrived[phase % self._KEPT, earlier]
        by_block = passed[self.phase[later] % self._KEPT, earlier // self.per_block]
        known = (time < before) | (time < by_block) & (self.phase[later] > 0)
        known &= self.cluster[earlier] == self.cluster[later]
        return known | self.orders_init(time, earlier, later)

    def orders_init(self, time, earlier, later) -> np.ndarray:
        """(n,) bool: was it an mbarrier.init, its fence behind it, and then a barrier of theirs?"""
        phase = np.minimum(self.phase[later], self.arrivals[earlier])
        known = time < self.told[phase % self._KEPT, earlier]
        if not known.any():
            return known
        return known & np.isin(time, self.inits) & (self.cluster[earlier] == self.cluster[later])
