"""The asynchronous proxy of one chunk: each event goes to the rules that it concerns."""

from __future__ import annotations

import numpy as np
from kernelscope.events import Access, AsyncOperation, InstructionEvent, MachineView

from ..findings import Naming
from ..races.context import Context
from ..races.ordering import ChunkOrder
from ..races.shared_races import SharedRaces
from ..traits import POSTS
from .gatherings import GroupGatherings
from .global_copies import GlobalCopies
from .operations import COPY, PRODUCT, STORE, AsyncWork
from .phases import Phases
from .sums import Sums
from .tiles import TileRules
from .value_flow import ValueFlow

_ROOTS = ("wgmma.", "cp.async.bulk", "cp.reduce.async.bulk", "mbarrier.", "setmaxnreg")
_FENCES = ("fence.proxy.async", "fence.mbarrier_init")


def is_concerned(opcode: str) -> bool:
    """Does an instruction matter to these rules, its accesses aside?"""
    return opcode.startswith((*_ROOTS, *_FENCES, *POSTS))


def has_asynchronous(opcodes) -> bool:
    """Is there work for these rules in a program with these opcodes?"""
    return any(one.startswith(_ROOTS) for one in opcodes)


class AsyncProxy:
    """The rules of a chunk. operations: all of the launch, by number; the first one is none."""

    def __init__(
        self,
        machine: MachineView,
        shared: SharedRaces,
        order: ChunkOrder,
        naming: Naming,
        flow: ValueFlow,
        globals_: GlobalCopies,
    ):
        self.machine, self.order, self.globals = machine, order, globals_
        self.operations = globals_.operations
        self.phases = Phases(machine, order, naming)
        self.tiles = TileRules(machine, shared, order, self.phases, self.operations, naming)
        self.sums = Sums(machine, naming, flow)
        self.gatherings = GroupGatherings(machine, naming)
        self.told: list[AsyncOperation] = []  # issued since the last instruction
        self.ends: list[tuple[AsyncOperation, bool]] = []  # (operation, is only its source read?)
        self.known: dict[int, AsyncWork] = {}  # by id of what was told of it, until its end
        self.groups: dict[int, list[list[AsyncWork]]] = {}  # of each warp: products by commit group
        self.hung = False
        self.first = len(self.operations)  # number of the chunk's first operation

    # -- instructions ---------------------------------------------------------------------------
    def instruction(self, event: InstructionEvent, line: int, tick) -> None:
        """An instruction that is_concerned(), or a step of the flow; tick: () -> a new time."""
        opcode = event.instruction.opcode
        if self.told or self.ends:
            self.note_ends(tick())
            self.issue(line, tick())
        if opcode.startswith("wgmma."):
            self.products(event, opcode.split(".")[1], line, tick())
        elif opcode.startswith("mbarrier."):
            self.phases.use(event, line, tick())
        elif opcode.startswith(POSTS):
            self.phases.post(event, line, tick())
        elif opcode.startswith(_FENCES):
            self.fence(event, opcode, tick())
        elif opcode.startswith("setmaxnreg"):
            self.gatherings.meet(event, line)
        else:
            self.sums.follow(event, line, tick())

    def issue(self, line: int, time: int) -> None:
        """Operations that the last instruction has started."""
        told, self.told = self.told, []
        for one in told:
            per_block = 32 * self.machine.warps_per_block
            lanes = one.lanes[one.lanes // per_block == one.lanes[0] // per_block]
            number, first_lane = len(self.operations), self.machine.first_lane
            operation = AsyncWork(number, one, lanes, first_lane, line, time)
            self.operations.append(operation)
            self.known[id(one)] = operation
            if operation.kind == COPY:
                self.phases.join(operation)
            if operation.kind == PRODUCT:
                for warp in (lanes[::32] >> 5).tolist():
                    self.groups.setdefault(warp, [[]])[-1].append(operation)
            else:
                self.globals.issue(operation, self.order)
            self.tiles.issue(operation)

    def products(self, event: InstructionEvent, what: str, line: int, time: int) -> None:
        if what == "fence":
            self.sums.fence(event, time)
        elif what == "commit_group":
            self.sums.commit(event)
            for warp in event.active_warps.tolist():
                self.groups.setdefault(warp, [[]]).append([])
        elif what == "wait_group":
            self.sums.wait(event)
            newer = int(event.instruction.operands[0].value)
            for warp in event.active_warps.tolist():
                self.wait(warp, newer, time)
        else:
            self.sums.follow(event, line, time)

    def wait(self, warp: int, newer: int, time: int) -> None:
        """A warp has waited for all but its newest groups of products."""
        groups = self.groups.get(warp, [[]])
        while len(groups) - 1 > newer:
            for operation in groups.pop(0):
                operation.ended[warp << 5] = time

    def fence(self, event: InstructionEvent, opcode: str, time: int) -> None:
        self.phases.started.note(event.lanes, time)
        if "mbarrier_init" in opcode:
            self.order.fence_inits(event.lanes, time)
            return
        spaces = opcode.partition("async")[2]
        if "global" not in spaces:
            self.tiles.fences.note(event.lanes, time)
        if "shared" not in spaces:
            self.globals.fences.note(event.lanes + self.machine.first_lane, time)

    # -- what operations do ---------------------------------------------------------------------
    def note_ends(self, time: int) -> None:
        """What the last instruction, a wait, has learned to be over."""
        ends, self.ends = self.ends, []
        for told, only_read in ends:
            operation = self.known.get(id(told))
            if operation is None:
                continue
            if only_read:
                operation.read[operation.lane] = time
                continue
            del self.known[id(told)]
            if operation.kind == COPY:
                self.phases.leave(operation)
            elif operation.kind == STORE:
                operation.ended[operation.lane] = time
                self.globals.complete(operation, time)

    # -- accesses of threads --------------------------------------------------------------------
    def access(self, access: Access, context: Context, opcode: str) -> None:
        """An access of threads, before the shadow learns of it."""
        if opcode.startswith("mbarrier.init") and access.space == "shared":
            self.phases.begin(access, context.line, context.time)
            self.tiles.shared.begin_mbarriers(access, context)
        if opcode.startswith(("mbarrier.", "cp.async.mbarrier")):
            return
        if access.space == "shared":
            self.tiles.access(access, context)
        else:
            self.globals.access(access, context)

    # -- the end --------------------------------------------------------------------------------
    def finish(self) -> None:
        """The chunk has ended."""
        self.phases.finish()
        self.gatherings.finish()
        for operation in self.operations[self.first :]:
            if self.hung or operation.first_lane != self.machine.first_lane:
                continue
            over = operation.read if operation.kind == STORE else operation.ended
            if operation.kind != PRODUCT and not (over and self.source_stays(operation)):
                self.tiles.report_exit(operation)

    def source_stays(self, operation: AsyncWork) -> bool:
        """Does a copy to another block end before its own block, whose memory it reads?"""
        if operation.kind != COPY or operation.source is None:
            return True
        time, waited = (
            np.array(list(one)) for one in (operation.ended.values(), operation.ended.keys())
        )
        home = operation.lane // (32 * self.machine.warps_per_block)
        return bool(self.order.known_to(home, time, waited).any())


def none_yet() -> list:
    """The operations of a launch before the first one, whose number is 1."""
    return [None]
