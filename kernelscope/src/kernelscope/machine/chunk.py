"""A chunk: some of a launch's blocks, run together, thousands of lanes at once.

Lanes at the same place in the program form a group; the group with the lowest key runs first, so
that the lanes that took both sides of a branch meet again. A group that holds every lane works on
the registers directly; a smaller one gathers the registers it reads, works on short arrays, and
scatters what it wrote when it stops.
"""

import traceback
from time import monotonic

import numpy as np
from kernelscope.ptx.syntax import Register
from kernelscope.translate.control_flow import LANE, Block, Key
from kernelscope.translate.function import TRANSLATED, call_parts

from ..addresses import FUNCTION_WINDOW
from ..errors import Hang, SimulatorError, Trap
from ..events import GRID_BARRIER
from .access import Memory
from .barriers import AsyncCopies, Barriers, Mbarriers, RegisterPool
from .clock import Clock
from .clusters import Cluster
from .copy_engine.arrivals import Arrivals
from .copy_engine.engine import CopyEngine
from .device_calls import DeviceCalls
from .lanes import ChunkLanes
from .matrix import Matrices, WarpGroups
from .memory import scalar
from .reports import Reports
from .scheduler import Scheduler, placed_in
from .speed import FEW, Single, Swaps
from .view import ChunkView
from .warps import Warps, is_warp_barrier

_GRID_SYNC = "(in sync.h:"  # the header of cooperative groups where blocks wait for each other


class Chunk:
    """Some consecutive thread blocks of a launch: their parts, and the loop that runs them.

    The generated lines call methods of the parts: c.memory.load(...), c.warps.shuffle(...).
    """

    def __init__(self, run, first_block: int, block_count: int):
        self.kernel, self.blocks = run.kernel, run.kernel.blocks
        self.first_block, self.block_count = first_block, block_count
        self.lanes = ChunkLanes(run, first_block, block_count)
        self.reports = Reports(run.observers, self.lanes)
        self.cluster = Cluster(run, self.lanes)
        self.memory = Memory(run, self.lanes, self.cluster, self.reports)
        self.clock = Clock(run.memory)
        self.copies = AsyncCopies(self.lanes, self.memory)
        self.scheduler = Scheduler(run, self.lanes, self.memory, self.clock)
        self.barriers = Barriers(self.lanes, self.scheduler, self.cluster, self.reports)
        arrivals = Arrivals(self.memory, self.reports)
        self.mbarriers = Mbarriers(
            self.lanes, self.memory, self.copies, arrivals, self.scheduler, self.reports
        )
        self.copy_engine = CopyEngine(
            self.lanes, self.memory, self.cluster, arrivals, self.mbarriers, self.reports
        )
        self.registers = RegisterPool(self.lanes, self.scheduler, self.reports)
        self.warps = Warps(self.lanes, self.scheduler, self.reports)
        self.matrices = Matrices(self.lanes, self.memory, self.reports)
        self.groups = WarpGroups(self.lanes, self.memory, self.reports, self.matrices)
        self.calls = DeviceCalls(run, self.lanes, self.memory)
        self.single, self.swaps = Single(self), Swaps(self)
        self.reports.machine = ChunkView(self) if run.observers else None

    def close(self) -> None:
        """Drop the references back to the chunk, so that its memory is freed at once."""
        self.reports.machine = self.single = self.swaps = None

    # -- the run loop ---------------------------------------------------------------------------
    def run(self) -> bool:
        """Run until every lane has ended (True), or only lanes are left that spin (False)."""
        scheduler = self.scheduler
        while True:
            if scheduler.polls >= scheduler.patience:
                self.take_turns()
            if scheduler.ready:
                self.follow(scheduler.next())
            elif scheduler.queue:
                scheduler.ready = scheduler.queue.pop()
            elif not self.release():
                if not scheduler.spinning:
                    self.copy_engine.finish()
                return not scheduler.spinning

    def follow(self, key: Key | None) -> None:
        """Run the active group from `key` until it stops or another group has to go first."""
        lanes, scheduler, reports, clock = self.lanes, self.scheduler, self.reports, self.clock
        start = 0
        while key is not None:
            block = reports.block = self.blocks[key]
            if lanes.places is not None:
                if block.warp_level and not self.warps.converge(block):
                    return
                lanes.fetch(block.uses)
            if reports.observers:
                self.run_observed(block)
            elif not (block.polls and self.swaps.settle(block)):
                R = lanes.R
                for operation in block.operations[start:] if start else block.operations:
                    operation(R, self)
            clock.instructions += len(block.operations)
            lanes.dirty |= block.definitions
            t = block.terminator
            after = t.target if t.kind == "jump" else ENDS[t.kind](self, block)
            if after is None:
                return
            if block.polls:
                scheduler.polls, scheduler.polled = scheduler.polls + 1, block
            ready = scheduler.ready
            if scheduler.polls >= scheduler.patience or ready and min(ready) <= after:
                scheduler.suspend(after)
                return
            start = 0
            if after <= key:
                if scheduler.jumped_back(after, block):
                    return
                if self.single.allowed and lanes.R[LANE].size <= FEW:
                    after, start = self.single.go_on(after, block)
                    if after is None:
                        return
                    if not start and ready and min(ready) <= after:
                        scheduler.suspend(after)
                        return
            key = after

    def run_observed(self, block: Block) -> None:
        """Run a block's instructions and report each of them."""
        R, reports, warps = self.lanes.R, self.reports, self.warps
        if warps.parked and block.instructions:
            warps.seen[R[LANE]] = block.key[0]
        members = block.members(R) if block.warp_level and block.members else None
        if members is not None and is_warp_barrier(block):
            reports.warp_barrier(R[LANE], members)
        for instruction, operation, told in reports.steps(block):
            operation(R, self)
            if told or reports.accesses:
                reports.instruction(instruction, members=members)
            members = None  # only a block's first instruction can be one of a whole warp
        t = block.terminator
        if t.instruction is not None and t.counted:
            taken = None
            if t.kind == "branch":
                taken = np.logical_not(R[t.slot]) if t.negated else R[t.slot]
            reports.instruction(t.instruction, taken)

    def take_turns(self) -> None:
        """Groups that poll memory let other groups run."""
        if self.scheduler.give_up_polling():
            return
        self.scheduler.wake_spinning()
        self.barriers.release()
        self.registers.release()
        self.warps.release()
        self.scheduler.take_turns()

    def release(self) -> bool:
        """Nothing is ready: let waiting lanes go on. False when all have ended or only spin."""
        scheduler, waiting = self.scheduler, self.barriers.waiting
        if waiting and self.barriers.release() or self.warps.release():
            return True
        if self.registers.waiting:
            if self.registers.release():
                return True
            waiting = True
        version = self.memory.globals.version
        if scheduler.aside:
            scheduler.ready, scheduler.aside = scheduler.aside, {}
        elif scheduler.wake_spinning():
            pass
        elif self.warps.parked and (not scheduler.spinning or scheduler.stalled_at == version):
            self.warps.force()  # writes of other chunks have been waited for
        elif waiting and not scheduler.spinning:
            self.report_deadlock()
        elif scheduler.polled is None and self.clock.leap():
            pass  # they wait for a time, and for no other block
        else:
            scheduler.stalled_at = version
            return False
        return True

    def hang(self) -> Hang:
        """The error that names the loop in which lanes spin, and what all others wait for."""
        scheduler, lanes = self.scheduler, self.lanes
        groups = [np.arange(lanes.count) if p is None else p for _, p, _ in scheduler.spinning]
        places = np.sort(np.concatenate(groups))
        blocks = self.cluster.together_with(int(lanes.block_of_place[places[0]]))
        places = places[np.isin(lanes.block_of_place[places], blocks)]
        asked = self.mbarriers.describe(places)
        parts = [scheduler.describe_spinning(asked), *asked]
        if self.barriers.waiting and not asked and not self.registers.waiting:
            parts.append(self.barriers.describe_deadlock())
        else:
            parts += [*self.barriers.describe(blocks), *self.registers.describe(blocks)]
        block = scheduler.spinning_at()
        return Hang("; ".join(parts), block.instance.kernel_line(placed_in(block)))

    def report_deadlock(self) -> None:
        """All lanes wait at barriers, or for registers: raise Hang, or let them pass."""
        registers = self.registers
        if not registers.waiting:
            self.barriers.report_deadlock()
            return
        first = self.lanes.block_of_place[registers.waiting[0].places[0]]
        blocks = self.cluster.together_with(int(first))
        parts = [*registers.describe(blocks), *self.barriers.describe(blocks)]
        registers.report_deadlock(f"{self.kernel.name} hangs: {'; '.join(parts)}")

    def missed_in_grid(self) -> bool:
        """Do lanes wait at grid.sync(), where blocks of the grid never come?

        Then it is a fault; True where an observer wants to go on, and so ends the launch here.
        """
        block = self.scheduler.spinning_at()
        instruction = placed_in(block)
        if _GRID_SYNC not in block.instance.where(instruction):
            return False
        lanes = self.lanes.at(self.scheduler.spinning[0][1])
        text = (
            f"{self.lanes.thread_text(lanes)} waits at {GRID_BARRIER} for ever: other blocks of "
            "the grid end, or wait elsewhere, without reaching it"
        )
        return (
            self.reports.fault("divergent-barrier", text, block.instance, instruction, lanes)
            is None
        )

    def missed_at_mbarrier(self) -> bool:
        """Do lanes wait for phases of mbarriers that never end? As missed_in_grid()."""
        if not (self.mbarriers.awaited >= 0).any():
            return False
        block = self.scheduler.spinning_at()
        lanes = self.lanes.at(self.scheduler.spinning[0][1])
        where = block.instance, placed_in(block)
        return self.reports.fault("divergent-barrier", str(self.hang()), *where, lanes) is None

    def where(self, error: BaseException) -> str:
        """The source line of the instruction, or of the block, that an error has ended."""
        block, index = self.reports.block, line_of(error)
        if block is None:
            return "its beginning"
        if index is None:
            return self.scheduler.where(block)
        return block.instance.where(block.instance.function.body[index])

    # -- how blocks end -------------------------------------------------------------------------
    def branch(self, block: Block) -> Key | None:
        """bra with a guard."""
        t = block.terminator
        predicate = self.lanes.R[t.slot]
        if scalar(predicate):
            return t.target if bool(predicate) != t.negated else t.fall
        holds = int(np.count_nonzero(predicate))
        if holds in (0, predicate.size):
            return t.target if bool(holds) != t.negated else t.fall
        taken = ~predicate if t.negated else predicate
        return self.diverge([(t.target, taken), (t.fall, ~taken)])

    def diverge(self, sides) -> None:
        """Split the active group; sides that go straight to the end of the kernel end now."""
        lanes = self.lanes
        places = lanes.all_places()
        live = 0
        for key, _ in sides:
            live |= self.blocks[key].live_in
        lanes.flush(live)
        for key, mask in sides:
            mine, target = places[mask], self.blocks[key]
            if target.instructions or target.terminator.kind != "exit":
                self.scheduler.join(key, mine)
                continue
            if self.reports.observers and target.terminator.instruction is not None:
                lanes.activate(mine)
                self.run_observed(target)
            lanes.end(mine)

    def pause(self, block: Block) -> Key:
        """The end of a part of long straight code."""
        if monotonic() >= self.scheduler.budget.next_look:
            self.scheduler.check_budget(block)
        return block.terminator.target

    def jump_by_table(self, block: Block) -> Key | None:
        """brx.idx; or ret of a recursive function: each lane goes back to the place of its call."""
        t = block.terminator
        index, targets = self.lanes.R[t.slot], t.targets or t.action.return_keys
        if scalar(index):
            return targets[self.checked_entry(block, int(index), len(targets))]
        chosen = np.unique(index).tolist()
        self.checked_entry(block, chosen[-1], len(targets))
        if len(chosen) == 1:
            return targets[chosen[0]]
        return self.diverge([(targets[i], index == i) for i in chosen])

    def checked_entry(self, block: Block, entry: int, count: int) -> int:
        """Return the entry of a jump table; raise SimulatorError where the table has none."""
        if entry < count:
            return entry
        instance, jump = block.instance, block.terminator.instruction
        raise SimulatorError(
            f"{self.scheduler.name} jumps to entry {entry} of a table of {count}, at "
            f"{instance.where(jump)}",
            instance.line(jump),
        )

    def exit(self, block: Block) -> None:
        self.lanes.end(self.lanes.places)

    def trap(self, block: Block) -> None:
        instance, instruction = block.instance, block.terminator.instruction
        thread = self.lanes.thread_text(self.lanes.R[LANE])
        raise Trap(
            f"{self.scheduler.name} executed trap at {instance.where(instruction)}, {thread}",
            instance.line(instruction),
        )

    # -- calls ----------------------------------------------------------------------------------
    def call(self, block: Block) -> Key | None:
        """call, of a function by its name or through a pointer."""
        _, target, _ = call_parts(block.terminator.instruction)
        if isinstance(target, Register):
            return self.call_pointer(block, self.lanes.R[block.terminator.action.slot(target.name)])
        return self.enter(block, target.name)

    def enter(self, block: Block, callee: str) -> Key:
        """Go into a function, whose instance knows where it returns to."""
        t, lanes = block.terminator, self.lanes
        if callee in self.calls.functions:
            self.calls.functions[callee](self.calls, block)
            return t.fall
        key, instance, site = self.kernel.expand_call(t.action, block, callee)
        lanes.extend()
        if self.calls.tops is not None:
            self.calls.check_frames(instance, lambda: block.instance.where(t.instruction))
        if instance.local_bytes > self.memory.local_size:
            self.memory.grow_stack(instance.local_bytes, block.instance.where(t.instruction))
        if instance.return_slot >= 0:
            lanes.R[instance.return_slot] = np.uint32(site)
            lanes.dirty |= 1 << instance.return_slot
        return key

    def call_pointer(self, block: Block, pointer) -> Key | None:
        """A call through a function pointer; lanes that call different functions part."""
        lanes = self.lanes
        if not scalar(pointer):
            chosen = np.unique(pointer)
            if chosen.size > 1:
                places, masks = lanes.all_places(), [pointer == p for p in chosen]
                lanes.flush(-1)
                for mask in masks[1:]:
                    self.scheduler.join((*block.key, -2), places[mask])
                self.call_again(block)
                lanes.activate(places[masks[0]])
                lanes.fetch(block.uses)
            pointer = chosen[0]
        number = int(pointer) - FUNCTION_WINDOW
        functions = self.kernel.functions
        if not 0 <= number < len(functions):
            self.refuse_call(block, int(pointer))
            return None
        return self.enter(block, functions[number])

    def refuse_call(self, block: Block, address: int) -> None:
        """Raise SimulatorError; or, where an observer wants the run to go on, end the lanes."""
        lanes, call = self.lanes, block.terminator.instruction
        message = (
            f"{self.scheduler.name} calls address {address:#x} at "
            f"{block.instance.where(call)}, which is no function, "
            f"{lanes.thread_text(lanes.R[LANE])}. Is the pointer set?"
        )
        if self.reports.fault("out-of-bounds", message, block.instance, call, lanes.R[LANE]):
            raise SimulatorError(message)
        lanes.end(lanes.places)

    def call_again(self, block: Block) -> None:
        """A block with nothing but the call, for lanes whose turn to call comes later."""
        key = (*block.key, -2)
        if key not in self.blocks:
            uses = tuple(range(len(self.lanes.home)))
            self.blocks[key] = Block(
                key, [], block.terminator, uses=uses, live_in=-1, instance=block.instance
            )


def line_of(error: BaseException) -> int | None:
    """The index of the instruction whose line was running; None where it was none of them."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((int(c.co_name[2:]) for c in codes if c.co_filename == TRANSLATED), None)


# How a block ends, other than with a jump -> the key of the next block, or None where the running
# group stops. The table belongs to the module: methods bound to a chunk would keep it, and its
# memory, until the garbage collector runs.
ENDS = {
    "branch": Chunk.branch,
    "pause": Chunk.pause,
    "table": Chunk.jump_by_table,
    "return": Chunk.jump_by_table,
    "exit": Chunk.exit,
    "trap": Chunk.trap,
    "call": Chunk.call,
    "barrier": lambda chunk, block: chunk.barriers.meet(block),
    "registers": lambda chunk, block: chunk.registers.meet(block),
    "cluster_wait": lambda chunk, block: chunk.barriers.meet_cluster(block),
}
