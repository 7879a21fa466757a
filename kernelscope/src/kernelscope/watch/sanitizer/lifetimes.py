"""Shared memory of other blocks of a cluster: there from the start of its block to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from kernelscope.events import VERBS, Access, MachineView

from .findings import Naming

if TYPE_CHECKING:
    from .races.context import Context
    from .races.ordering import ChunkOrder

LEAVES = ("ret", "exit")  # opcodes
MEET_FIRST = (
    "let all blocks of the cluster meet first: cluster.sync(), or barrier.cluster.arrive and "
    "barrier.cluster.wait"
)
MEET_LAST = (
    "let all blocks of the cluster meet at the end: cluster.sync(), or barrier.cluster.arrive "
    "behind the last access and barrier.cluster.wait; or let that block wait at an mbarrier of "
    "its own for an arrival behind the access"
)


class Lifetimes:
    """The accesses of one chunk to shared memory of other blocks.

    CUDA promises no shared memory of a block that has not started, and none of one that has ended.
    So each access comes after something that the block did, and before something that one of its
    threads did. Kept is the last access of each lane to each block of its cluster. Stores of
    st.async and bulk copies end with a phase of an mbarrier in the block that they write to, for
    which only that block can wait: who never does is found elsewhere.
    """

    def __init__(self, machine: MachineView, naming: Naming):
        self.naming, self.first_lane = naming, machine.first_lane
        self.alive, self.per_block = machine.alive, naming.per_block
        self.cluster = machine.cluster_of_block
        self.rank = _ranks(self.cluster)
        self.judged = np.zeros(self.rank.size, bool)
        self.left_at = np.zeros(self.rank.size, np.int64)  # line where each block's threads ended
        # (ranks, lanes) each: when a lane last used the memory of the block of that rank, or 0
        self.time: np.ndarray | None = None
        self.address = self.site = np.zeros((0, 0), np.int64)
        # (line, kind, size) -> (its number, the header that it is in, the calls that lead there)
        self.sites: dict[tuple[int, str, int], tuple[int, str, str]] = {}

    def leave(self, lanes: np.ndarray, line: int) -> None:
        """Lanes return; the last ones of a block end it."""
        self.left_at[np.unique(lanes // self.per_block)] = line

    def access(self, access: Access, context: Context) -> None:
        """Judge and note an access that may be to other blocks' memory."""
        lane, holder = context.lanes.lane, access.block
        remote = holder != lane // self.per_block
        if access.valid is not None:
            remote &= access.valid
        if not remote.any():
            return
        lane, holder = lane[remote], holder[remote]
        address, what = access.address.view(np.int64)[remote], (access.kind, access.size)
        early = ~context.order.has_started(holder, lane)
        if early.any():
            about = lane[early], holder[early], address[early]
            why = "may not have started: no barrier of the cluster lies before"
            self.report(context.line, *about, what, why, remedy=MEET_FIRST)
        if context.traits.copy == "post":
            return
        there = self.alive.reshape(-1, self.per_block).any(1)[holder]
        if not there.all():
            for block in np.unique(holder[~there]).tolist():
                mine = holder == block
                self.report_ended(block, lane[mine], address[mine], (context.line, *what))
            lane, holder, address = lane[there], holder[there], address[there]
        if self.time is None:
            self.time, self.address, self.site = np.zeros(
                (3, int(self.rank.max()) + 1, self.alive.size), np.int64
            )
        place = self.rank[holder], lane
        self.time[place], self.address[place] = context.time, address
        site = context.line, *what
        if site not in self.sites:
            findings = self.naming.findings
            self.sites[site] = len(self.sites), findings.header, findings.called()
        self.site[place] = self.sites[site][0]

    def settle(self, order: ChunkOrder) -> None:
        """Judge the accesses to memory of blocks that have ended since the last time."""
        if self.time is None:
            return
        ended = ~self.alive.reshape(-1, self.per_block).any(1) & ~self.judged
        self.judged |= ended
        sites = list(self.sites)
        for block in np.nonzero(ended)[0].tolist():
            of_cluster = np.repeat(self.cluster == self.cluster[block], self.per_block)
            row = self.rank[block]
            lanes = np.nonzero((self.time[row] > 0) & of_cluster)[0]
            late = lanes[~order.known_to(block, self.time[row, lanes], lanes)]
            for site in np.unique(self.site[row, late]).tolist():
                mine = late[self.site[row, late] == site]
                self.report_ended(block, mine, self.address[row, mine], sites[site])

    # -- findings -------------------------------------------------------------------------------
    def report_ended(self, block: int, lanes, address, site: tuple[int, str, int]) -> None:
        line, *what = site
        _, header, called = self.sites.get(site, (0, "", ""))
        end = int(self.left_at[block])
        where = f" on line {end}" if end else ""
        why = f"may have ended: nothing lets it wait for this before its end{where}"
        holder = np.full(lanes.size, block)
        how = {"remedy": MEET_LAST, "other_line": end, "header": header, "called": called}
        self.report(line, lanes, holder, address, what, why, **how)

    def report(self, line: int, lanes, holder, address, what, why: str, **how) -> None:
        """what: (kind, size) of the accesses."""
        kind, size = what
        element = self.naming.element("shared", int(address[0]), size)
        lanes = lanes + self.first_lane
        owner = self.naming.thread(int(holder[0]) * self.per_block + self.first_lane)[0]
        said = f"{self.naming.who(lanes[0])} {VERBS[kind]} {element.text} of block {owner}, which "
        self.naming.report("race", line, said + why, lanes, element, **how)


def _ranks(cluster: np.ndarray) -> np.ndarray:
    """(blocks,) int64: how many blocks of its cluster come before each block."""
    order = np.argsort(cluster, kind="stable")
    rank = np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size) - np.searchsorted(cluster[order], cluster[order])
    return rank
