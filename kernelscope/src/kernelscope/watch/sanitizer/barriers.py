"""Warp-level instructions and barriers at which the wrong threads meet."""

import numpy as np
from kernelscope.events import CLUSTER_BARRIER, BarrierEvent, InstructionEvent, MachineView

from .exits import Exits, is_aligned, of_warps
from .findings import Naming

ALL_LANES = (
    "let all lanes that the mask names reach the shuffle; give those without data a neutral value "
    "(0 for a sum, -infinity for a maximum)"
)


def _bits(members: np.ndarray, lane: np.ndarray) -> np.ndarray:
    """(lanes,) bool: does each mask name this lane?"""
    return members >> lane.astype(np.uint32) & np.uint32(1) != 0


class Gatherings:
    """The masks of warp-level instructions, and the barriers, of one chunk."""

    def __init__(self, machine: MachineView, naming: Naming, exits: Exits):
        self.naming, self.exits, self.first_lane = naming, exits, machine.first_lane
        # Aligned arrivals at the barrier of the cluster: their places, and each lane's last one.
        self.places: dict[tuple, tuple[int, int]] = {}  # key of a place -> its number, its line
        self.arrival = np.zeros(exits.launched.size, np.int64)  # 0: none

    def members(self, event: InstructionEvent, line: int, shuffle: bool) -> None:
        """The mask of a warp-level instruction."""
        instruction, members = event.instruction, event.members
        if members is None and instruction.operands:
            members = event.machine.operand(instruction, instruction.operands[-1], event.lanes.size)
        if members is None:
            return
        members = np.asarray(members).astype(np.uint32)
        lane = event.lanes & 31
        mine = _bits(members, lane)
        if not mine.all():
            self._report_mask(event.lanes[~mine], line)
        self.exits.meeting(event, members, line)
        if shuffle:
            self._check_shuffle(event, line, members)

    def _report_mask(self, lanes: np.ndarray, line: int) -> None:
        lanes = lanes + self.first_lane
        said = (
            f"{self.naming.who(lanes[0])} is lane {lanes[0] % 32} of its warp, and the mask it "
            "gives does not name that lane: what it then waits for and gets is undefined"
        )
        remedy = "name in the mask the lanes that come here, all of them and no others"
        self.naming.report("divergent-barrier", line, said, lanes, remedy=remedy)

    def _check_shuffle(self, event: InstructionEvent, line: int, members: np.ndarray) -> None:
        inactive, sources = event.machine.reads_inactive, event.machine.shuffle_sources
        if inactive is None or inactive.size != event.lanes.size:
            return
        which = "that does not take part in the shuffle"
        self._report_shuffle(event.lanes[inactive], line, which, "error")
        others = ~inactive & ~_bits(members, sources) & (sources != event.lanes & 31)
        which = "that its mask does not name"
        self._report_shuffle(event.lanes[others], line, which, "warning")

    def _report_shuffle(self, lanes: np.ndarray, line: int, which: str, severity: str) -> None:
        """which: of lanes they read from."""
        if not lanes.size:
            return
        lanes = lanes + self.first_lane
        said = (
            f"{self.naming.who(lanes[0])} (lane {lanes[0] % 32} of its warp) takes the value of a "
            f"lane {which}: the value is undefined"
        )
        how = {"severity": severity, "remedy": ALL_LANES}
        self.naming.report("uninitialised-read", line, said, lanes, **how)

    def mixed(self, event: BarrierEvent) -> None:
        """Threads of one block that met at different barrier instructions; of one warp at those of
        the cluster.
        """
        in_cluster = event.barrier == CLUSTER_BARRIER
        if in_cluster and event.complete:
            self._mixed_arrivals(event)
        if not event.complete or len(event.arrivals) < 2:
            return
        team = 32 if in_cluster else self.naming.per_block
        groups: dict[tuple[int, int], list] = {}
        for (instruction, lanes), site in zip(event.arrivals, event.sites, strict=True):
            if "arrive" in instruction.opcode or len(instruction.operands) > 1:
                return  # a barrier with a count of its own: producers and consumers may differ
            if in_cluster and not is_aligned(instruction):
                return
            key = id(instruction), id(site)
            known = groups.setdefault(key, [instruction, lanes, site])
            if known[1] is not lanes:
                known[1] = np.concatenate([known[1], lanes])
        if len(groups) < 2:
            return
        teams = [set(np.unique(lanes // team).tolist()) for _, lanes, _ in groups.values()]
        pairs = [mine & other for i, mine in enumerate(teams) for other in teams[:i]]
        shared = sorted(set().union(*pairs))
        if not shared:
            return
        members = [  # of the first of these teams
            (event.machine.line_at(site, instruction), lanes[lanes // team == shared[0]])
            for instruction, lanes, site in groups.values()
        ]
        self._report_mixed([m for m in members if m[1].size], len(shared))

    def arrive(self, event: InstructionEvent, line: int) -> None:
        """An arrival at the barrier of the cluster."""
        instruction, number = event.instruction, 0
        if is_aligned(instruction):
            sites = event.machine.running(instruction, event.lanes.size)
            key = id(instruction), *map(id, sites)
            number, _ = self.places.setdefault(key, (len(self.places) + 1, line))
        self.arrival[event.lanes] = number

    def _mixed_arrivals(self, event: BarrierEvent) -> None:
        """Threads of one warp that arrived at the barrier of the cluster at different places."""
        count = event.machine.cluster_arrivals
        passing = np.concatenate([lanes for _, lanes in event.arrivals])
        together = event.machine.alive & (self.arrival > 0)
        together &= count == np.repeat(of_warps(passing, count), 32)
        lanes = np.nonzero(together)[0]
        number = self.arrival[lanes]
        odd = number != of_warps(lanes, self.arrival)[lanes >> 5]
        if not odd.any():
            return
        here = lanes >> 5 == lanes[odd][0] >> 5
        members = [
            (line, lanes[here & (number == one)])
            for one, line in self.places.values()
            if one in number[here]
        ]
        self._report_mixed(members, np.unique(lanes[odd] >> 5).size)

    def _report_mixed(self, members, blocks: int) -> None:
        """members: (line, lanes) of each barrier."""
        members = sorted(members, key=lambda m: m[1].size)
        lines = [line for line, _ in members]
        lanes = members[0][1] + self.first_lane
        waits = []
        for i, (line, who) in enumerate(members):
            where = f"line {line}"
            if lines.count(line) > 1:  # two barriers, or two calls of one
                where = f"{'another' if line in lines[:i] else 'one'} barrier of line {line}"
            waits.append(f"{who.size} thread{'s' * (who.size > 1)} at {where}")
        said = (
            f"threads of block {self.naming.thread(lanes[0])[0]} meet at different barriers: "
            f"{' and '.join(waits)}; which threads pass together is then an accident"
        )
        how = {"count": blocks, "other_line": lines[-1]}
        self.naming.report("divergent-barrier", lines[0], said, lanes, **how)
