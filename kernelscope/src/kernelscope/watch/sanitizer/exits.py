"""Barriers that pass only because threads that went around them have ended since."""

import numpy as np
from kernelscope.events import CLUSTER_BARRIER, BarrierEvent, InstructionEvent, MachineView
from kernelscope.ptx.syntax import Instruction

from .findings import Naming, key_of

_ON = -2
_LEAVING = ("bra", "brx", "ret", "exit")
_MEETING = ("bar.", "barrier.", "shfl.sync", "vote.sync", "match.", "redux.sync", "elect.sync")


class Exits:
    """Where the lanes of one chunk were in the kernel's code when they were last seen.

    A barrier of the kernel waits for no thread that has ended. Where such a thread ended from code
    behind the barrier (`if (t < 40) __syncthreads(); a[t] = 1;`), or a condition led it past the
    barrier to the kernel's end, it went around it, which CUDA leaves undefined: a warning. A thread
    that ended from code before the barrier, as after `if (t >= n) return;`, is left alone. A
    barrier in a device function counts as one at the kernel's call. The same holds for the lanes
    that the mask of a warp-level instruction names, and for those of a warp at an aligned barrier
    of the cluster, which all threads of the warp must execute.
    """

    def __init__(self, machine: MachineView, lanes: int, naming: Naming):
        launch = naming.launch
        function = launch.source.module.functions[launch.kernel]
        self.body, self.labels = function.body, function.labels
        self.naming = naming
        self.first_lane = machine.first_lane
        place = np.arange(lanes) % naming.per_block
        self.launched = place < launch.threads
        self.count = int(np.count_nonzero(self.launched))
        self.seen_by_all, self.seen = 0, None  # index in the body; (lanes,) where they differ
        self.leads: dict[int, int] = {}  # index in the body -> what `lead` says of it

    @staticmethod
    def concern(functions) -> bool:
        """Is there a barrier or a warp-level instruction in some functions?"""
        return any(one.opcode.startswith(_MEETING) for f in functions for one in f.body)

    def instruction(self, event: InstructionEvent) -> None:
        instruction = event.instruction
        index = instruction.index
        if index >= len(self.body) or self.body[index] is not instruction:
            return  # of a device function
        lanes, lead = event.lanes, self.leads.get(index)
        if lead is None:
            lead = self.leads[index] = self.lead(instruction)
        if lead != _ON:
            taken = event.taken
            if taken is None or lead < 0:
                return
            index = max(index, lead)
            if np.size(taken) == 1:
                if not np.all(taken):
                    return
            else:
                lanes = lanes[taken]
        if lanes.size == self.count:
            self.seen_by_all, self.seen = index, None
            return
        if self.seen is None:
            self.seen = np.full(self.launched.size, self.seen_by_all, np.int64)
        self.seen[lanes] = index

    def lead(self, instruction: Instruction) -> int:
        """Return the index that a branch of the kernel leads to, -1 where no label says so, and
        _ON for an instruction that leads to the next one.
        """
        if not instruction.opcode.startswith(_LEAVING):
            return _ON
        name = getattr(instruction.operands[0], "name", "") if instruction.operands else ""
        return self.labels.get(name, -1)

    def barrier(self, event: BarrierEvent) -> None:
        """Report the barrier when threads of its blocks went around it and have ended."""
        if not event.complete or self.seen is None:
            return
        if any(len(instruction.operands) > 1 for instruction, _ in event.arrivals):
            return
        arrived = np.concatenate([lanes for _, lanes in event.arrivals])
        around = self.launched & ~event.machine.alive
        around &= self.seen > self.seen[arrived].max()
        team, words = self.naming.per_block, "their blocks"
        if event.barrier == CLUSTER_BARRIER:
            if not all(is_aligned(instruction) for instruction, _ in event.arrivals):
                return
            team, words, count = 32, "their warps", event.machine.cluster_arrivals
            around &= count < np.repeat(of_warps(arrived, count), 32)  # others may have passed it
        here = np.zeros(self.launched.size // team, bool)
        here[arrived // team] = True
        around &= np.repeat(here, team)
        if around.any():
            last = max(range(len(event.sites)), key=lambda i: self.seen[event.arrivals[i][1][0]])
            line = event.machine.line_at(event.sites[last], event.arrivals[last][0])
            self.report(line, np.nonzero(around)[0], arrived.size, words)

    def meeting(self, event: InstructionEvent, members, line: int) -> None:
        """The same for a warp-level instruction; members: the masks of its lanes."""
        if self.seen is None:
            return
        lanes = event.lanes
        ended = self.launched & ~event.machine.alive & (self.seen > self.seen[lanes].max())
        if not ended.any():
            return
        named = np.zeros(self.launched.size >> 5, np.uint32)
        named[lanes >> 5] = members
        places = np.arange(self.launched.size)
        ended &= named[places >> 5] >> (places & 31).astype(np.uint32) & np.uint32(1) != 0
        known = key_of("divergent-barrier", line, "") in self.naming.findings
        if ended.any() and not known:  # lanes that had already waited for them
            self.report(line, np.nonzero(ended)[0], lanes.size, "their warps")

    def report(self, line: int, lanes: np.ndarray, arrived: int, team: str) -> None:
        who = self.naming.who(lanes[0] + self.first_lane)
        others = f"{lanes.size} others" if lanes.size > 1 else "another"
        blocks = np.unique(lanes // self.naming.per_block).size
        waits = "threads wait" if arrived > 1 else "thread waits"
        said = (
            f"{arrived} {waits} here, and {others} of {team} never came: {who} went around "
            "the barrier and has ended; the barrier passes only because of that"
        )
        how = {"severity": "warning", "count": blocks}
        self.naming.report("divergent-barrier", line, said, lanes + self.first_lane, **how)


def is_aligned(instruction: Instruction) -> bool:
    """Must all threads of a warp execute this barrier together?"""
    return "aligned" in instruction.opcode.split(".")


def of_warps(lanes: np.ndarray, value: np.ndarray) -> np.ndarray:
    """(warps,) the value of a lane of each warp that has some among these lanes, else 0."""
    found = np.zeros(value.size >> 5, value.dtype)
    found[lanes >> 5] = value[lanes]
    return found
