"""The machine: runs some of a kernel's blocks, thousands of lanes at once.

A chunk is a set of thread blocks run together, one lane a thread. Lanes at the same place in the
program form a group; the group with the lowest key runs first, so that the lanes that took both
sides of a branch meet again. A group that holds every lane works on the registers directly; a
smaller one gathers the registers it reads, works on short arrays, and scatters what it wrote when
it stops. Registers are immutable values: an array over lanes, or a scalar where all lanes agree.
"""

from __future__ import annotations

import numpy as np

from attn_course.engine.events import FaultEvent, InstructionEvent
from attn_course.engine.ptx.syntax import Register
from attn_course.engine.translate.control_flow import LANE, LOCAL_BASE, SHARED_BASE, Block, Key
from attn_course.engine.translate.function import call_parts

from .access import MemoryInstructions
from .async_copies import AsyncCopies
from .barriers import Barriers, Waiting
from .clusters import Clusters
from .device_calls import Intrinsics
from .errors import SimulatorError, Trap
from .lanes import Groups
from .memory import FUNCTION_WINDOW, FlatMemory, aligned, scalar
from .special_registers import special_registers
from .view import ChunkView
from .waiting import WaitingLanes, is_warp_barrier

_CLOCK_EVERY = 1024  # activations between two looks at the clock
MAX_STACK_BYTES = 1 << 30  # local memory of a chunk


class Chunk(Groups, Barriers, Clusters, WaitingLanes, MemoryInstructions, AsyncCopies, Intrinsics):
    """Some consecutive thread blocks of a launch, run in lockstep.

    R: registers of the lanes that run, by slot; R[LANE] their lane ids, which count 32 for each
    warp of each block from `first_block` on. ready: groups by the key of their next block; queue:
    sets of groups that run once `ready` is empty, the last first.
    """

    def __init__(self, run, first_block: int, count: int):
        self.run_, self.kernel, self.memory = run, run.kernel, run.memory
        self.blocks = run.kernel.blocks
        self.first_block, self.block_count = first_block, count
        self.warps_per_block = -(-run.threads // 32)
        self.watchers = run.observers
        self.accesses: list | None = [] if self.watchers else None
        self.block_of_place = np.repeat(np.arange(count), run.threads)
        thread = np.tile(np.arange(run.threads, dtype=np.int64), count)
        lane = self.block_of_place * (self.warps_per_block * 32) + thread
        self.lane_count = lane.size
        self.alive = np.zeros(count * self.warps_per_block * 32, bool)  # by lane id
        self.alive[lane] = True
        self.set_up_registers(lane)
        self.set_up_memory()
        self.start_waiting()
        self.start_copies()
        self.start_clusters()
        self.waiting: list[Waiting] = []
        self.arrived: dict[tuple[int, int], int] = {}  # (block, barrier) -> bar.arrive threads
        self.ready: dict[Key, np.ndarray | None] = {}
        self.queue: list[dict[Key, np.ndarray | None]] = self.starting_groups()
        self.activations = 0
        self.block: Block = self.blocks[(0,)]  # the one that runs
        self.reads_inactive: np.ndarray | None = None  # of the last shuffle; see warps.shuffle
        self.view = ChunkView(self) if self.watchers else None

    # -- setting up -----------------------------------------------------------------------------
    def set_up_registers(self, lane: np.ndarray) -> None:
        self.home: list = [None] * len(self.kernel.slot_types)
        self.home[LANE] = lane
        self.places: np.ndarray | None = None  # the running group; None: every lane
        self.dirty = 0
        self.R = self.home

    def set_up_memory(self) -> None:
        run, count = self.run_, self.block_count
        self.shared_size, self.local_size = run.shared_size, run.local_stride
        self.shared = FlatMemory("shared", np.zeros(count * run.shared_stride, np.uint8))
        self.local = FlatMemory("local", np.zeros(self.lane_count * self.local_size, np.uint8))
        base = (self.block_of_place * run.shared_stride).astype(np.uint64)
        self.home[SHARED_BASE] = np.uint64(0) if count == 1 else base
        self.home[LOCAL_BASE] = self.frame_starts()
        self.fill_registers()

    def frame_starts(self) -> np.ndarray:
        return np.arange(self.lane_count, dtype=np.uint64) * np.uint64(self.local_size)

    def fill_registers(self) -> None:
        """Special registers, and zeros for what may be read before it is written."""
        wanted = {
            slot: name
            for slot, name in self.kernel.specials.items()
            if self.home[slot] is None and name not in ("%lane", "%shared_base", "%local_base")
        }
        for slot, value in special_registers(wanted, self, self.run_).items():
            self.home[slot] = value
        for slot, code in self.kernel.unset.items():
            if self.home[slot] is None:
                self.home[slot] = np.dtype(code).type(0)

    def starting_groups(self) -> list[dict]:
        """One group of all lanes; or, with a warp order, one group for each team of warps."""
        if self.run_.warp_order is not None:
            rng = np.random.default_rng([self.run_.warp_order, self.first_block])
            warp = (self.home[LANE] >> 5) % self.warps_per_block
            self.team = rng.permutation(self.warps_per_block)[warp]
        return self.split_teams({(0,): None})

    def split_teams(self, groups: dict) -> list[dict]:
        """With a warp order, the groups of each warp of a block by themselves; else as they are."""
        if self.run_.warp_order is None:
            return [groups]
        parts = []
        for team in range(self.warps_per_block):
            part = {}
            for key, places in groups.items():
                places = np.arange(self.lane_count) if places is None else places
                mine = places[self.team[places] == team]
                if mine.size:
                    part[key] = mine
            if part:
                parts.append(part)
        return parts

    # -- the run loop ---------------------------------------------------------------------------
    def run(self) -> bool:
        """Run until every lane has ended (True), or only lanes are left that spin (False)."""
        while True:
            if self.polls >= self.patience:
                self.take_turns()
            if not self.ready:
                if self.queue:
                    self.ready = self.queue.pop()
                elif not self.release():
                    return not self.spinning
                continue
            key = min(self.ready)
            self.activations += 1
            if self.activations % _CLOCK_EVERY == 0:
                self.check_time(self.blocks[key])
            self.activate(self.ready.pop(key))
            self.follow(key)

    def release(self) -> bool:
        """Nothing is ready: let waiting lanes go on. False when all have ended or only spin."""
        if self.waiting and self.release_barriers():
            return True
        if self.release_warps():
            return True
        if self.aside:
            self.ready, self.aside = self.aside, {}
        elif self.wake_spinning():
            pass
        elif self.parked and (not self.spinning or self.stalled_at == self.memory.version):
            self.force_parked()  # what other chunks write has been waited for
        elif self.waiting and not self.spinning:
            self.report_deadlock()
        else:
            self.stalled_at = self.memory.version
            return False
        return True

    def follow(self, key: Key | None) -> None:
        """Run the active group from `key` until it stops or another group has to go first."""
        while key is not None:
            block = self.block = self.blocks[key]
            if self.places is not None:
                if block.warp_level and not self.converge(block):
                    return
                self.fetch(block.uses)
            if self.watchers:
                self.run_observed(block)
            else:
                R = self.R
                for operation in block.operations:
                    operation(R, self)
            self.dirty |= block.definitions
            after = self.next_key(block)
            if after is None:
                return
            if block.polls:
                self.polls, self.polled = self.polls + 1, block
            if self.polls >= self.patience or self.ready and min(self.ready) <= after:
                self.suspend(after)
                return
            if after <= key and self.jumped_back(after, block):
                return
            key = after

    def suspend(self, key: Key) -> None:
        self.flush(self.blocks[key].live_in)
        self.join(key, self.places)

    # -- how blocks end -------------------------------------------------------------------------
    def next_key(self, block: Block) -> Key | None:
        """Follow the block's terminator; None when the active group ends here."""
        t = block.terminator
        if t.kind == "jump":
            return t.target
        if t.kind == "branch":
            return self.branch(block)
        if t.kind == "exit":
            self.exit(self.places)
            return None
        return getattr(self, f"end_{t.kind}")(block)

    def branch(self, block: Block) -> Key | None:
        t = block.terminator
        predicate = self.R[t.slot]
        if scalar(predicate):
            return t.target if bool(predicate) != t.negated else t.fall
        holds = int(np.count_nonzero(predicate))
        if holds in (0, predicate.size):
            return t.target if bool(holds) != t.negated else t.fall
        taken = ~predicate if t.negated else predicate
        return self.diverge([(t.target, taken), (t.fall, ~taken)])

    def diverge(self, sides) -> None:
        """Split the active group; sides that go straight to the end of the kernel end now."""
        places = self.all_places()
        live = 0
        for key, _ in sides:
            live |= self.blocks[key].live_in
        self.flush(live)
        for key, mask in sides:
            mine, target = places[mask], self.blocks[key]
            if target.instructions or target.terminator.kind != "exit":
                self.join(key, mine)
                continue
            if self.watchers and target.terminator.instruction is not None:
                self.activate(mine)
                self.run_observed(target)
            self.exit(mine)

    def end_table(self, block: Block) -> Key | None:
        """brx.idx: a jump table."""
        return self.jump_by(self.R[block.terminator.slot], block.terminator.targets)

    def end_return(self, block: Block) -> Key | None:
        """ret of a recursive function: each lane goes back to where it was called from."""
        return self.jump_by(self.R[block.terminator.slot], block.terminator.action.return_keys)

    def jump_by(self, index, targets) -> Key | None:
        if scalar(index):
            return targets[int(index)]
        chosen = np.unique(index).tolist()
        if len(chosen) == 1:
            return targets[chosen[0]]
        return self.diverge([(targets[i], index == i) for i in chosen])

    def exit(self, places: np.ndarray | None) -> None:
        lane = self.home[LANE]
        self.alive[lane if places is None else lane[places]] = False

    def alive_count(self) -> int:
        return int(np.count_nonzero(self.alive))

    def end_trap(self, block: Block) -> None:
        where = self.block.instance.where(block.terminator.instruction)
        raise Trap(
            f"{self.kernel.function.name} executed trap at {where}, "
            f"{self.thread_text(self.R[LANE])}"
        )

    # -- calls ----------------------------------------------------------------------------------
    def end_call(self, block: Block) -> Key | None:
        _, target, _ = call_parts(block.terminator.instruction)
        if isinstance(target, Register):
            return self.call_pointer(block, self.R[block.terminator.action.slot(target.name)])
        return self.call(block, target.name)

    def call(self, block: Block, callee: str) -> Key:
        """Go into a function; what it returns to is known to its instance."""
        if callee in self.intrinsics:
            self.intrinsics[callee](self, block)
            return block.terminator.fall
        t, kernel = block.terminator, self.kernel
        key, instance, site = kernel.expand_call(t.action, block, callee)
        missing = len(kernel.slot_types) - len(self.home)
        if missing:
            self.home.extend([None] * missing)
            if self.R is not self.home:
                self.R.extend([None] * missing)
            self.fill_registers()
        if kernel.local_bytes > self.local_size:
            self.grow_stack(t.instruction)
        if instance.return_slot >= 0:
            self.R[instance.return_slot] = np.uint32(site)
            self.dirty |= 1 << instance.return_slot
        return key

    def call_pointer(self, block: Block, pointer) -> Key | None:
        """A call through a function pointer; lanes that call different functions part."""
        if not scalar(pointer):
            chosen = np.unique(pointer)
            if chosen.size > 1:
                places, masks = self.all_places(), [pointer == p for p in chosen]
                self.flush(-1)
                for mask in masks[1:]:
                    self.join((*block.key, -2), places[mask])
                self.call_again(block)
                self.activate(places[masks[0]])
                self.fetch(block.uses)
            pointer = chosen[0]
        number = int(pointer) - FUNCTION_WINDOW
        functions = self.kernel.functions
        if not 0 <= number < len(functions):
            where = self.block.instance.where(block.terminator.instruction)
            raise SimulatorError(
                f"{self.kernel.function.name} calls address {int(pointer):#x} at {where}, which is "
                f"no function, {self.thread_text(self.R[LANE])}. Is the pointer set?"
            )
        return self.call(block, functions[number])

    def call_again(self, block: Block) -> None:
        """A block with nothing but the call, for lanes whose turn to call comes later."""
        key = (*block.key, -2)
        if key not in self.blocks:
            uses = tuple(range(len(self.home)))
            self.blocks[key] = Block(
                key, [], block.terminator, uses=uses, live_in=-1, instance=block.instance
            )

    def grow_stack(self, instruction) -> None:
        """More local memory for every thread: the calls have become nested deeper."""
        old, size = self.local_size, aligned(max(self.kernel.local_bytes, 2 * self.local_size))
        if size * self.lane_count > MAX_STACK_BYTES:
            raise SimulatorError(
                f"the stacks of {self.lane_count} threads, {size} bytes each, are too much at "
                f"{self.block.instance.where(instruction)}. Does the recursion end? If it "
                f"does, launch fewer threads"
            )
        frames = np.zeros((self.lane_count, size), np.uint8)
        frames[:, :old] = self.local.bytes[: self.lane_count * old].reshape(-1, old)
        self.local, self.local_size = FlatMemory("local", frames.ravel()), size
        self.home[LOCAL_BASE] = self.frame_starts()
        if self.places is not None:
            self.R[LOCAL_BASE] = self.home[LOCAL_BASE][self.places]

    # -- observers ------------------------------------------------------------------------------
    def run_observed(self, block: Block) -> None:
        R = self.R
        if self.parked and block.instructions:
            self.seen[R[LANE]] = block.key[0]
        members = block.members(R, self) if block.warp_level and block.members else None
        if members is not None and is_warp_barrier(block):
            self.tell_warp_barrier(R[LANE], members)
        for instruction, operation in zip(block.instructions, block.operations, strict=True):
            self.accesses = []
            operation(R, self)
            self.tell(instruction, members=members)
            members = None  # only a block's first instruction can be one of a whole warp
        t = block.terminator
        if t.instruction is not None and t.counted:
            self.accesses = []
            taken = None
            if t.kind == "branch":
                taken = np.logical_not(R[t.slot]) if t.negated else R[t.slot]
            self.tell(t.instruction, taken)

    def tell(self, instruction, taken=None, members=None) -> None:
        line = self.kernel.program.own_line(instruction)
        event = InstructionEvent(
            instruction, line, self.R[LANE], tuple(self.accesses), self.view, taken, members
        )
        for observer in self.watchers:
            observer.instruction(event)

    def report(self, event: FaultEvent) -> bool:
        """Tell the observers of a fault; True when one of them wants the run to go on."""
        for observer in self.watchers:
            observer.fault(event)
        return any(observer.keeps_going for observer in self.watchers)

    # -- threads by name ------------------------------------------------------------------------
    def threads(self, lanes: np.ndarray) -> list[tuple[tuple[int, int, int], tuple[int, int, int]]]:
        """((block x, y, z), (thread x, y, z)) of each lane id."""
        per_block = 32 * self.warps_per_block
        found = []
        for lane in lanes.tolist():
            block, thread = self.first_block + lane // per_block, lane % per_block
            found.append((_unravel(block, self.run_.grid), _unravel(thread, self.run_.block)))
        return found

    def thread_text(self, lanes: np.ndarray) -> str:
        """The first of these lanes in words."""
        block, thread = self.threads(lanes[:1])[0]
        return f"block {block}, thread {thread}"


def _unravel(number: int, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    return number % shape[0], number // shape[0] % shape[1], number // (shape[0] * shape[1])
