"""The machine: runs a kernel's blocks for thousands of lanes at once.

A chunk is a set of thread blocks run together, one lane a thread. Lanes at the same place form a
group; the group with the lowest program counter runs first, so that both sides of a branch meet
again. A group that holds every lane of the chunk works on the registers directly; a smaller one
gathers the registers it reads, works on short arrays, and scatters what it wrote when it stops.
"""

from __future__ import annotations

import os
import time

import numpy as np

from ..events import BarrierEvent, Buffer, FaultEvent, InstructionEvent, Launch
from .access import MemoryInstructions
from .blocks import Block, Key
from .memory import FlatMemory, GlobalMemory, SimulatorError, scalar, spread
from .program import LANE, LOCAL_BASE, SHARED_BASE, Executable, Program
from .special import special_registers
from .system import Intrinsics

LANES_PER_CHUNK = 32768
_PROBE_EVERY = 2048  # backward jumps between two looks for a loop that makes no progress


class Hang(SimulatorError):
    """The kernel can not finish: names the line it hangs on and who waits for what."""


class Trap(SimulatorError):
    """The kernel stopped itself: trap, or a failed assert."""


class _Waiting:
    """A group of lanes at a barrier."""

    def __init__(self, places, key, instruction, barrier, expected, predicate, slot, mode):
        self.places, self.key, self.instruction = places, key, instruction
        self.barrier, self.expected = barrier, expected
        self.predicate, self.slot, self.mode = predicate, slot, mode


class Chunk(MemoryInstructions, Intrinsics):
    """Some consecutive thread blocks of a launch, run in lockstep."""

    def __init__(self, run: Run, first_block: int, count: int):
        self.run_, self.kernel, self.memory = run, run.kernel, run.memory
        self.blocks = run.kernel.blocks
        self.first_block, self.block_count = first_block, count
        self.warps_per_block = -(-run.threads // 32)
        self.watchers = run.observers
        self.accesses: list | None = [] if self.watchers else None
        self.ticks = 0
        thread = np.arange(run.threads, dtype=np.int64)
        block = np.arange(count, dtype=np.int64)
        lane = (block[:, None] * self.warps_per_block * 32 + thread).ravel()
        self.lane_count = lane.size
        self.home: list = [None] * len(run.kernel.slot_types)
        self.R = self.home
        self.places: np.ndarray | None = None  # None: every lane of the chunk is active
        self.dirty = 0
        self.set_up_memory(count, run)
        self.home[LANE] = lane
        which = np.repeat(np.arange(count), run.threads)
        shared_base = (which * run.shared_stride).astype(np.uint64)
        self.home[SHARED_BASE] = np.uint64(0) if count == 1 else shared_base
        self.home[LOCAL_BASE] = np.arange(lane.size, dtype=np.uint64) * np.uint64(run.local_stride)
        self.fill_special_registers()
        self.block_of_place = which
        self.alive = np.ones(lane.size, bool)
        self.ready: dict[Key, np.ndarray | None] = {}
        self.queue: list[dict[Key, np.ndarray | None]] = self.starting_groups()
        self.parked: dict[Key, np.ndarray] = {}
        self.forced: set[Key] = set()
        self.waiting: list[_Waiting] = []
        self.arrived: dict[tuple[int, int], int] = {}  # (block, barrier) -> bar.arrive threads
        self.spinning: list[tuple[Key, np.ndarray | None, int]] = []
        self.jumps, self.probe = 0, None

    def set_up_memory(self, count: int, run: Run) -> None:
        self.shared = FlatMemory("shared", np.zeros(count * run.shared_stride, np.uint8))
        self.shared_size = run.shared_size
        self.local = FlatMemory("local", np.zeros(self.lane_count * run.local_stride, np.uint8))
        self.local_size = run.local_stride

    def fill_special_registers(self) -> None:
        wanted = {
            slot: name
            for slot, name in self.kernel.specials.items()
            if self.home[slot] is None and name not in ("%lane", "%shared_base", "%local_base")
        }
        for slot, value in special_registers(wanted, self, self.run_).items():
            self.home[slot] = value

    def starting_groups(self) -> list[dict]:
        """One group of all lanes; or, with a warp order, one group for each team of warps."""
        if self.run_.warp_order is None:
            return [{(0,): None}]
        rng = np.random.default_rng([self.run_.warp_order, self.first_block])
        warp = (self.home[LANE] >> 5) % self.warps_per_block
        self.team = rng.permutation(self.warps_per_block)[warp]
        return self.split_teams({(0,): None})

    def split_teams(self, groups: dict) -> list[dict]:
        """Released groups, team by team, in random order (last one runs first)."""
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

    # -- groups of lanes ------------------------------------------------------------------------
    def activate(self, places: np.ndarray | None) -> None:
        if places is not None and places.size == self.lane_count:
            places = None
        self.places, self.dirty, self.probe = places, 0, None
        if places is None:
            self.R = self.home
            return
        self.R = [None] * len(self.home)
        self.R[LANE] = self.home[LANE][places]

    def fetch(self, slots) -> None:
        """Gather the registers a block reads from all lanes' registers, if not done already."""
        R, home, places = self.R, self.home, self.places
        for slot in slots:
            if R[slot] is None and home[slot] is not None:
                value = home[slot]
                R[slot] = value if scalar(value) else value[places]

    def flush(self, live: int) -> None:
        """Scatter what the active group wrote, where it is still needed."""
        if self.places is None:
            return
        mask = self.dirty & live
        while mask:
            low = mask & -mask
            mask ^= low
            slot = low.bit_length() - 1
            if self.R[slot] is not None:
                self.home[slot] = self.scatter(self.home[slot], self.R[slot])
        self.dirty = 0

    def scatter(self, old, value):
        if old is None:
            if scalar(value):
                return value  # no other lane has a value yet
            new = np.zeros(self.lane_count, value.dtype)
        elif scalar(old):
            if scalar(value) and old.tobytes() == value.tobytes():
                return old
            new = np.full(self.lane_count, old)
        else:
            new = old.copy()
        new[self.places] = value
        return new

    def all_places(self) -> np.ndarray:
        return np.arange(self.lane_count) if self.places is None else self.places

    def join(self, key: Key, places: np.ndarray | None) -> None:
        """Add lanes to the group that is ready at `key`."""
        other = self.ready.get(key)
        if other is not None:
            places = np.sort(np.concatenate([other, places]))
        self.ready[key] = places

    # -- the run loop ---------------------------------------------------------------------------
    def run(self) -> bool:
        """Run until every lane has finished (True) or only spinning lanes are left (False)."""
        while True:
            if not self.ready:
                if self.queue:
                    self.ready = self.queue.pop()
                elif not self.release():
                    return not self.spinning
                continue
            key = min(self.ready)
            self.activate(self.ready.pop(key))
            self.follow(key)

    def follow(self, key: Key | None) -> None:
        """Run the active group from `key` until it stops or another group has to go first."""
        while key is not None:
            block = self.blocks[key]
            if self.places is not None:
                if block.members is not None or self.is_warp_block(block):
                    if not self.converged(block):
                        return
                self.fetch(block.uses)
            if self.watchers:
                self.run_observed(block)
            else:
                R = self.R
                for operation in block.operations:
                    operation(R, self)
            self.ticks += len(block.operations) + 1
            self.dirty |= block.definitions
            after = self.next_key(block)
            if after is not None and self.ready and min(self.ready) <= after:
                self.suspend(after)
                return
            if after is not None and after <= key:
                self.jumps += 1
                if self.probe is not None or self.jumps % _PROBE_EVERY == 0:
                    if self.is_spinning(after, block):
                        return
            key = after

    def suspend(self, key: Key) -> None:
        self.flush(self.blocks[key].live_in)
        self.join(key, self.all_places())

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

    def diverge(self, sides) -> Key | None:
        """Split the active group; sides that go straight to the end of the kernel end now."""
        places = self.all_places()
        live = 0
        for key, _ in sides:
            live |= self.blocks[key].live_in
        self.flush(live)
        for key, mask in sides:
            mine = places[mask]
            target = self.blocks[key]
            if not target.instructions and target.terminator.kind == "exit":
                if self.watchers and target.terminator.instruction is not None:
                    self.activate(mine)
                    self.run_observed(target)
                self.exit(mine)
            else:
                self.join(key, mine)
        return None

    def end_table(self, block: Block) -> Key | None:
        index = self.R[block.terminator.slot]
        targets = block.terminator.targets
        if scalar(index):
            return targets[int(index)]
        return self.diverge([(targets[i], index == i) for i in np.unique(index)])

    def exit(self, places: np.ndarray | None) -> None:
        if places is None:
            self.alive[:] = False
        else:
            self.alive[places] = False

    def end_call(self, block: Block) -> Key | None:
        instruction = block.terminator.instruction
        names = [getattr(o, "name", "") for o in instruction.operands]
        intrinsic = next((n for n in names if n in self.intrinsics), None)
        if intrinsic is not None:
            self.intrinsics[intrinsic](self, block)
            return block.terminator.fall
        key = self.kernel.expand_call(block.terminator.action, block)
        missing = len(self.kernel.slot_types) - len(self.home)
        if missing:
            self.home.extend([None] * missing)
            if self.R is not self.home:
                self.R.extend([None] * missing)
            self.fill_special_registers()
        self.check_stack(instruction)
        return key

    def end_trap(self, block: Block) -> None:
        instruction = block.terminator.instruction
        where = self.kernel.describe_position(instruction)
        raise Trap(f"the kernel executed trap at {where}, {self.thread_text(self.R[LANE][:1])}")

    # -- barriers -------------------------------------------------------------------------------
    def end_barrier(self, block: Block) -> Key | None:
        instruction, fall = block.terminator.instruction, block.terminator.fall
        parts = instruction.opcode.split(".")
        number, expected, predicate, slot, mode = self.barrier_operands(block, parts)
        if "arrive" in parts:
            self.arrive(number, instruction)
            return fall
        whole = self.places is None or self.places.size == int(np.count_nonzero(self.alive))
        if whole and expected is None and scalar(number) and not self.arrived:
            if mode:
                self.R[slot] = self.reduce_over_blocks(mode, predicate, self.all_places())
            if self.watchers:
                self.tell_barrier(int(number), [(instruction, self.R[LANE])])
            return fall
        self.flush(self.blocks[fall].live_in)
        self.waiting.append(
            _Waiting(self.all_places(), fall, instruction, number, expected, predicate, slot, mode)
        )
        return None

    def barrier_operands(self, block: Block, parts: list[str]):
        instance, operands = block.terminator.action, list(block.terminator.instruction.operands)
        slot = mode = predicate = None
        if "red" in parts:
            mode = next(p for p in parts if p in ("popc", "and", "or"))
            slot = instance.slot(operands.pop(0).name)
            predicate = self.value_of(instance, operands.pop())
        number = self.value_of(instance, operands[0]) if operands else np.uint32(0)
        expected = self.value_of(instance, operands[1]) if len(operands) > 1 else None
        return number, expected, predicate, slot, mode

    def value_of(self, instance, operand):
        """A register, `!register` or immediate operand of a terminator."""
        if hasattr(operand, "value"):
            return np.uint32(operand.value)
        if hasattr(operand, "operand"):
            return np.logical_not(self.R[instance.slot(operand.operand.name)])
        return self.R[instance.slot(operand.name)]

    def arrive(self, number, instruction) -> None:
        places = self.all_places()
        for block, count in zip(*np.unique(self.block_of_place[places], return_counts=True), strict=True):
            key = (int(block), int(np.max(number)))
            self.arrived[key] = self.arrived.get(key, 0) + int(count)

    def reduce_over_blocks(self, mode: str, predicate, places):
        predicate = spread(predicate, places.size)
        block = self.block_of_place[places]
        true = np.bincount(block, weights=predicate, minlength=self.block_count).astype(np.uint32)
        if mode == "popc":
            return true[block]
        total = np.bincount(block, minlength=self.block_count)
        return (true == total)[block] if mode == "and" else (true > 0)[block]

    def release(self) -> bool:
        """Nothing is ready: let waiting lanes go on. False when all have ended or only spin."""
        if self.parked:
            key = min(self.parked)
            self.forced.add(key)
            self.ready[key] = self.parked.pop(key)
            return True
        if self.waiting and self.release_barriers():
            return True
        version = self.memory.version
        for i, (key, places, seen) in enumerate(self.spinning):
            if seen != version:
                del self.spinning[i]
                self.ready[key] = self.all_lanes_of(places)
                return True
        if self.waiting and not self.spinning:
            self.report_deadlock()
            return bool(self.ready)
        return False

    def all_lanes_of(self, places):
        return np.arange(self.lane_count) if places is None else places

    def release_barriers(self) -> bool:
        """Release the blocks whose threads have all arrived at a barrier of one number."""
        alive = np.bincount(self.block_of_place[self.alive], minlength=self.block_count)
        released: dict[Key, np.ndarray] = {}
        for number in {int(n) for w in self.waiting for n in np.unique(w.barrier)}:
            count = np.zeros(self.block_count, np.int64)
            needed = alive.copy()
            groups = []
            for w in self.waiting:
                here = w.places[spread(w.barrier, w.places.size) == number]
                groups.append((w, here))
                count += np.bincount(self.block_of_place[here], minlength=self.block_count)
                if w.expected is not None and here.size:
                    needed[self.block_of_place[here]] = int(np.max(w.expected))
            for (block, n), extra in self.arrived.items():
                if n == number:
                    count[block] += extra
            complete = (count >= needed) & (count > 0)
            if complete.any():
                self.pass_barrier(number, groups, complete, released)
        if released:
            self.queue = self.split_teams(released)
        return bool(released)

    def pass_barrier(self, number, groups, complete, released) -> None:
        arrivals = []
        going = [(w, here[complete[self.block_of_place[here]]]) for w, here in groups]
        for w, here in going:
            if not here.size:
                continue
            arrivals.append((w.instruction, self.home[LANE][here]))
            if w.mode:
                everyone = np.sort(np.concatenate([h for _, h in going]))
                values = self.gather_predicates([(x, h) for x, h in going if h.size], everyone)
                result = self.reduce_over_blocks(w.mode, values, everyone)
                self.places = everyone
                self.home[w.slot] = self.scatter(self.home[w.slot], result)
            stay = np.setdiff1d(w.places, here, assume_unique=True)
            if w.predicate is not None and stay.size:
                w.predicate = spread(w.predicate, w.places.size)[np.isin(w.places, stay)]
            w.barrier = w.barrier if scalar(w.barrier) else w.barrier[np.isin(w.places, stay)]
            w.places = stay
            old = released.get(w.key)
            released[w.key] = here if old is None else np.sort(np.concatenate([old, here]))
        self.waiting = [w for w in self.waiting if w.places.size]
        self.arrived = {k: v for k, v in self.arrived.items() if not (k[1] == number and complete[k[0]])}
        if self.watchers:
            self.tell_barrier(number, arrivals)

    @staticmethod
    def gather_predicates(groups, everyone):
        values = np.zeros(everyone.size, bool)
        for w, here in groups:
            mine = spread(w.predicate, w.places.size)[np.isin(w.places, here)]
            values[np.searchsorted(everyone, here)] = mine
        return values

    def tell_barrier(self, number: int, arrivals: list) -> None:
        lanes = np.concatenate([lanes for _, lanes in arrivals])
        blocks = self.first_block + np.unique(lanes // (32 * self.warps_per_block))
        event = BarrierEvent(blocks, number, tuple(arrivals), self)
        for observer in self.watchers:
            observer.barrier(event)

    def report_deadlock(self) -> None:
        """Threads wait at barriers that can never complete: a finding, or an error."""
        lines = []
        for w in self.waiting:
            where = self.kernel.describe_position(w.instruction)
            lines.append(f"{w.places.size} threads wait at {where} (barrier {int(np.max(w.barrier))})")
        message = (
            "barriers that never complete: " + "; ".join(lines) + "; not every thread of the block "
            "arrives there. Move the barrier out of the divergent branch"
        )
        first = self.waiting[0]
        event = FaultEvent("divergent-barrier", message, first.instruction,
                           self.kernel.program.own_line(first.instruction))  # fmt: skip
        if not self.report(event):
            raise Hang(message)
        groups: dict[Key, np.ndarray] = {}
        for w in self.waiting:
            old = groups.get(w.key)
            groups[w.key] = w.places if old is None else np.sort(np.concatenate([old, w.places]))
        self.waiting = []
        self.queue = self.split_teams(groups)
        self.ready = self.queue.pop()

    def report(self, event: FaultEvent) -> bool:
        """Tell the observers; True when one of them wants the run to go on."""
        for observer in self.watchers:
            observer.fault(event)
        return any(observer.keeps_going for observer in self.watchers)

    # -- warp-level instructions in a diverged warp --------------------------------------------
    @staticmethod
    def is_warp_block(block: Block) -> bool:
        return bool(block.instructions) and block.instructions[0].opcode.startswith("bar.warp")

    def converged(self, block: Block) -> bool:
        """Are all live lanes named by the member mask here? If not, the group waits for them."""
        key = block.key
        if key in self.forced:
            self.forced.discard(key)
            return True
        places = self.places
        if places.size == int(np.count_nonzero(self.alive)):
            return True
        self.fetch(block.uses)
        members = block.members(self.R, self) if block.members else np.uint32(0xFFFFFFFF)
        members = spread(members, places.size)
        lane = self.home[LANE]
        warps = int(lane[-1] >> 5) + 1
        wanted = np.zeros(warps, np.uint32)
        np.bitwise_or.at(wanted, lane[places] >> 5, members.astype(np.uint32))
        present = np.zeros(warps, np.uint32)
        bit = np.uint32(1) << (lane & 31).astype(np.uint32)
        np.bitwise_or.at(present, lane[places] >> 5, bit[places])
        living = np.zeros(warps, np.uint32)
        alive = np.nonzero(self.alive)[0]
        np.bitwise_or.at(living, lane[alive] >> 5, bit[alive])
        if not (wanted & living & ~present).any():
            return True
        self.flush(block.live_in)
        other = self.parked.get(key)
        if other is not None:
            places = np.sort(np.concatenate([other, places]))
        self.parked[key] = places
        if self.others_can_run() or other is not None:
            return False
        return False

    def others_can_run(self) -> bool:
        return bool(self.ready or self.queue)

    # -- loops that make no progress ------------------------------------------------------------
    def is_spinning(self, key: Key, block: Block) -> bool:
        """Has nothing that the loop reads changed since it last came here? Then it waits for others."""
        if time.monotonic() > self.run_.deadline:
            raise Hang(
                f"the launch ran longer than {self.run_.seconds:g} s and is now at "
                f"{self.where(block)}; set ATTN_COURSE_TIMEOUT to allow more seconds"
            )
        live = self.blocks[key].live_in
        state = [self.R[s] for s in range(live.bit_length()) if live >> s & 1]
        if self.probe is None or self.probe[0] != key:
            if self.probe is None:
                self.probe = (key, state, self.memory.version)
                self.probe_left = 64
            else:
                self.probe_left -= 1
                if self.probe_left == 0:
                    self.probe = None
            return False
        _, before, version = self.probe
        self.probe = None
        if version != self.memory.version or not all(map(_same, before, state)):
            return False
        self.flush(live)
        self.spinning.append((key, self.places, version))
        self.spin_block = block
        return True

    def where(self, block: Block) -> str:
        last = block.terminator.instruction or (block.instructions or [None])[-1]
        return self.kernel.describe_position(last)

    # -- observers ------------------------------------------------------------------------------
    def run_observed(self, block: Block) -> None:
        R = self.R
        for instruction, operation in zip(block.instructions, block.operations, strict=True):
            self.accesses = []
            operation(R, self)
            self.tell(instruction)
        t = block.terminator
        if t.instruction is not None and t.counted:
            self.accesses = []
            taken = None
            if t.kind == "branch":
                taken = np.logical_not(R[t.slot]) if t.negated else R[t.slot]
            self.tell(t.instruction, taken)

    def tell(self, instruction, taken=None) -> None:
        line = self.kernel.program.own_line(instruction)
        event = InstructionEvent(instruction, line, self.R[LANE], tuple(self.accesses), self, taken)
        for observer in self.watchers:
            observer.instruction(event)

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
        block, thread = self.threads(lanes[:1])[0]
        return f"block {block}, thread {thread}"


def _same(a, b) -> bool:
    if a is b:
        return True
    if a is None or b is None:
        return False
    return a.dtype == b.dtype and np.array_equal(a, b)


def _unravel(number: int, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    return number % shape[0], number // shape[0] % shape[1], number // (shape[0] * shape[1])


class Run:
    """One launch: geometry, memory, and the chunks."""

    def __init__(self, program: Program, kernel: Executable, grid, block, shared_bytes, observers, warp_order):
        self.program, self.kernel, self.grid, self.block = program, kernel, grid, block
        self.observers, self.warp_order = tuple(observers), warp_order
        self.threads = block[0] * block[1] * block[2]
        self.blocks = grid[0] * grid[1] * grid[2]
        self.dynamic_offset = -(-kernel.shared_bytes // 16) * 16
        self.dynamic_bytes = shared_bytes
        self.shared_size = (self.dynamic_offset if shared_bytes else kernel.shared_bytes) + shared_bytes
        self.shared_stride = -(-self.shared_size // 16) * 16
        self.local_stride = -(-self.stack_bytes() // 16) * 16
        self.memory = GlobalMemory()
        self.symbols: dict[str, int] = {}
        self.seconds = float(os.environ.get("ATTN_COURSE_TIMEOUT", "600"))
        self.deadline = time.monotonic() + self.seconds

    def stack_bytes(self) -> int:
        """Local memory a thread: the kernel's frame, and room for the frames of what it calls."""
        functions = self.kernel.module.functions.values()
        frames = sum(
            -(-v.size // 16) * 16
            for f in functions
            if not f.is_entry
            for v in f.variables.values()
            if v.space in ("local", "param")
        )
        calls = any(i.opcode.startswith("call") for i in self.kernel.function.body)
        return self.kernel.local_bytes + (max(4 * frames, 1024) if calls else 0)

    def place_arguments(self, arguments, names) -> None:
        kernel = self.kernel
        items, pointers = [], []
        for i, argument in enumerate(arguments):
            if isinstance(argument, np.ndarray):
                name = names[i] if i < len(names) else f"argument {i}"
                flat = argument.ravel(order="K")
                pointers.append(i)
                items.append(
                    (name, flat.view(np.uint8), argument.shape, argument.dtype, argument.flags.writeable)
                )
        variables = list(self.program.variables.items())
        items += [(demangled(n), data, (), np.dtype(np.uint8), True) for n, data in variables]
        size = sum(p.size for p in kernel.parameters) + 16 * (1 + len(kernel.parameters))
        image = np.zeros(size, np.uint8)
        items.append(("kernel parameters", image, (), np.dtype(np.uint8), False))
        addresses = self.memory.place(items)
        self.symbols = {
            name: addresses[len(pointers) + i] for i, (name, _) in enumerate(variables)
        }
        values = list(arguments)
        for i, address in zip(pointers, addresses[: len(pointers)], strict=True):
            values[i] = int(address).to_bytes(8, "little")
        for parameter, offset, value in zip(kernel.parameters, kernel.parameter_offsets, values, strict=True):
            data = bytes(value)[: parameter.size].ljust(parameter.size, b"\0")
            image[offset : offset + parameter.size] = np.frombuffer(data, np.uint8)
        self.parameter_address = addresses[-1]
        self.parameters = image.tobytes()
        start = self.parameter_address
        self.memory.bytes[start : start + size] = image
        self.relocate(variables)

    def relocate(self, variables) -> None:
        """Variables whose initial value is another variable's address."""
        for name, _ in variables:
            for offset, symbol in self.program.module.variables[name].relocations:
                at = self.symbols[name] + offset
                field = self.memory.bytes[at : at + 8].view(np.uint64)
                field += np.uint64(self.symbols.get(symbol, 0))

    def description(self) -> Launch:
        program = self.program
        buffers = list(self.memory.buffers)
        for name, (offset, variable) in self.kernel.shared_places.items():
            buffers.append(Buffer(demangled(name), "shared", offset, variable.size))
        if self.dynamic_bytes:
            name = demangled(self.kernel.dynamic_names[0]) if self.kernel.dynamic_names else "dynamic shared memory"
            buffers.append(Buffer(name, "shared", self.dynamic_offset, self.dynamic_bytes))
        return Launch(
            self.kernel.function.name, self.grid, self.block, self.shared_size, program.build,
            program.source_name, program.source_lines, tuple(buffers), program,
        )  # fmt: skip

    def chunks(self):
        per_block = -(-self.threads // 32) * 32
        memory_limit = (64 << 20) // max(self.shared_stride, 1) or 1
        size = max(1, min(LANES_PER_CHUNK // per_block, memory_limit))
        for first in range(0, self.blocks, size):
            yield Chunk(self, first, min(size, self.blocks - first))

    def execute(self) -> None:
        stalled: list[Chunk] = []
        for chunk in self.chunks():
            self.run_chunk(chunk, stalled, start=True)
        while stalled:
            before, pending = self.memory.version, stalled
            stalled = []
            for chunk in pending:
                self.run_chunk(chunk, stalled, start=False)
            if len(stalled) == len(pending) and self.memory.version == before:
                chunk = stalled[0]
                raise Hang(
                    f"the kernel hangs at {chunk.where(chunk.spin_block)}: {chunk.thread_text(chunk.home[LANE])} "
                    f"and others repeat a loop whose values no running thread can change"
                )

    def run_chunk(self, chunk: Chunk, stalled: list, start: bool) -> None:
        if start:
            for observer in self.observers:
                observer.chunk_started(chunk)
        if not chunk.run():
            stalled.append(chunk)
            return
        for observer in self.observers:
            observer.chunk_finished(chunk)


def demangled(name: str) -> str:
    from .program import demangle

    return demangle(name)


def launch(program: Program, name: str, grid, block, arguments, *, shared_bytes=0, observers=(), names=(), warp_order=None):
    """Run kernel `name` over its whole grid, in place on the array arguments.

    grid, block: 3 ints each. arguments: for each parameter a contiguous array (a pointer to it is
    passed) or the bytes of a by-value parameter. shared_bytes: dynamic shared memory. names: the
    arguments' names for messages. warp_order: a seed; warps of a block then run one after another
    in a random order between barriers, instead of in lockstep.
    Raises MemoryFault, Hang, Trap, UnsupportedKernel (all SimulatorError).
    """
    kernel = program.executable(name)
    run = Run(program, kernel, tuple(grid), tuple(block), shared_bytes, observers, warp_order)
    run.place_arguments(arguments, names)
    description = run.description() if observers else None
    for observer in run.observers:
        observer.launch_started(description)
    try:
        with np.errstate(all="ignore"):
            run.execute()
    finally:
        run.memory.copy_back()
    for observer in run.observers:
        observer.launch_finished(description)
