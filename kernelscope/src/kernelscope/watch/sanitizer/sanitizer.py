"""Sanitizer: finds accesses that are wrong even where the result happens to be right."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
from kernelscope.events import (
    CLUSTER_BARRIER,
    Access,
    AsyncOperation,
    BarrierEvent,
    FaultEvent,
    InstructionEvent,
    Launch,
    MachineView,
    Observer,
    WarpBarrierEvent,
)

from ...errors import InputError, InputTypeError
from .async_proxy.global_copies import GlobalCopies
from .async_proxy.proxy import AsyncProxy, has_asynchronous, is_concerned, none_yet
from .async_proxy.value_flow import ValueFlow, flow_of
from .barriers import Gatherings
from .elements import Array
from .exits import Exits
from .findings import Finding, Findings, Naming
from .lifetimes import LEAVES
from .local_memory import LocalMemory
from .pointers import Bounds
from .races.context import Context, LaneStamps
from .races.global_races import GlobalRaces
from .races.handshakes import Handshakes
from .races.meetings import phase_key
from .races.ordering import ChunkOrder
from .races.shared_races import SharedRaces
from .refusals import leaving, nearest, refused, remedy_of
from .traits import InstructionTraits, is_fence
from .unset.copies import Copies
from .unset.registers import Registers
from .unset.unassigned import RegisterPlan, plan_of


class _ChunkState:
    """What is known of one chunk while it runs."""

    def __init__(
        self,
        machine: MachineView,
        races: GlobalRaces,
        naming: Naming,
        lines: list[int],
        plan: RegisterPlan | None,
    ):
        lanes = machine.block_count * naming.per_block
        self.order = ChunkOrder(machine, races.publications)
        self.shared = SharedRaces(machine, naming, lines)
        self.local = LocalMemory(machine, lanes, naming)
        self.registers = Registers(machine, lanes, naming, plan, self.local) if plan else None
        self.copies = Copies(self.local.values)
        self.exits = Exits(machine, lanes, naming)
        self.gatherings = Gatherings(machine, naming, self.exits)
        self.proxy: AsyncProxy | None = None
        self.lanes: list[LaneStamps] = []  # those of the last few events

    def lanes_of(self, lanes: np.ndarray) -> LaneStamps:
        for known in self.lanes:
            if known.lane is lanes:
                return known
        made = LaneStamps(lanes, lanes + self.order.first_lane << 1)
        self.lanes = [made, *self.lanes[:3]]
        return made


class Sanitizer(Observer):
    """Finds out-of-bounds and misaligned accesses, reads of memory that nobody wrote and of local
    variables that the thread has not set, races in shared and global memory, barriers that not all
    threads reach, and illegal launches.

        with observe(Sanitizer(uninitialised=("out",))) as report:
            kernel(grid, block, args)
        report.findings

    uninitialised: names of kernel parameters whose arrays hold nothing yet, as cudaMalloc gives
    them. Shared and local memory always start uninitialised.

    It runs the debug build, where the optimiser has removed no access. A wrong access does not
    stop the kernel: refused stores are dropped and refused loads give zeros. What orders accesses
    is in `races.ordering`: barriers, mbarriers, __syncwarp(), fences with atomics; not shuffles and
    votes. Acquiring an inter-block lock without a following fence usually works on current GPUs,
    but the memory model does not guarantee it; reported as a warning. The same holds for a flag,
    and inside a block; a block barrier serves as the fence. Volatile accesses may be flags or data;
    `races.flags` says which, and when they are in a race with each other.
    What it does not judge: an unset local variable that the compiler has replaced by a constant,
    where neither its warnings nor the source tell; what printf prints; a barrier that threads left
    the kernel before, as `if (t >= n) return;` has it (see Exits); reads of local memory by CUDA's
    headers; members of a struct that is passed by value, in the function that gets it; unset sums
    of wgmma, where a predicate says whether it reads them. Bulk copies, products of warp groups
    and their mbarriers are judged in `async_proxy`.
    `pointers` says which accesses that leave their array are found inside shared and local memory.
    In global memory an index finds nothing but its own array for 32 MiB around it.

    `findings` is a list of Finding, equal ones merged, over all launches inside the `with`.
    """

    def __init__(self, uninitialised: Iterable[str] = ()):
        super().__init__()
        if isinstance(uninitialised, str):
            raise InputTypeError(
                f"uninitialised is {uninitialised!r}; give a tuple of argument names"
            )
        self.build, self.keeps_going = "debug", True
        self.uninitialised = tuple(uninitialised)
        self.found = Findings()
        self.launches = 0
        self._traits: dict[int, tuple[object, InstructionTraits, str, bool]] = {}  # by id
        self._reset()

    def _reset(self) -> None:
        self._lines: list[int] = [0]  # line of each event, by its time
        self._chunks: dict[MachineView, _ChunkState] = {}
        self._global: GlobalRaces | None = None
        self._last_line = 0
        self._handshakes = Handshakes()
        self._pending: FaultEvent | None = None  # a refused access before its instruction
        self._flow: ValueFlow | None = None  # of a program with asynchronous work
        self._copies: GlobalCopies | None = None

    @property
    def findings(self) -> list[Finding]:
        """All findings in the order of their first sight."""
        return list(self.found)

    @property
    def errors(self) -> list[Finding]:
        """The findings that are not mere warnings."""
        return [finding for finding in self.found if finding.severity == "error"]

    def __repr__(self) -> str:
        if len(self.found):
            return "\n".join(map(str, self.found))
        if not self.launches:
            return "no kernel ran"
        return f"no findings in {self.launches} launch{'es' if self.launches > 1 else ''}"

    # -- launches and chunks --------------------------------------------------------------------
    def launch_started(self, launch: Launch) -> None:
        self._reset()
        self.launches += 1
        self._naming, self._bounds = Naming(launch, self.found), Bounds(launch)
        self._plan = plan_of(launch.source, launch.kernel) or None
        functions = launch.source.module.functions.values()
        opcodes = {one.opcode for function in functions for one in function.body}
        self._has_fences = any(map(is_fence, opcodes))
        self._in_clusters = any(one.startswith("barrier.cluster.") for one in opcodes)
        self._may_miss = Exits.concern(functions)
        self._flow = flow_of(launch.source) if has_asynchronous(opcodes) else None
        self.found.source_lines, self.found.source = launch.source_lines, launch.source
        names = [b.name for b in launch.buffers if b.space == "global"]
        unknown = sorted(set(self.uninitialised) - set(names))
        if unknown:
            known = ", ".join(sorted(set(names) - {"kernel parameters"}))
            raise InputError(f"{launch.kernel} has no array named {unknown[0]!r}; it has: {known}")

    def chunk_started(self, machine: MachineView) -> None:
        self._machine = machine
        if self._global is None:
            buffers = self._naming.buffers["global"]
            unwritten = [b for b in buffers if b.name in self.uninitialised]
            image = machine.memory("global")
            self._global = GlobalRaces(image, self._naming, self._lines, unwritten)
            self._global.handshakes = self._handshakes
        state = _ChunkState(machine, self._global, self._naming, self._lines, self._plan)
        state.shared.handshakes = self._handshakes
        if self._in_clusters:
            state.order.at_cluster()
        self._chunks[machine] = state
        if self._flow is not None:
            if self._copies is None:
                self._copies = GlobalCopies(self._global, none_yet(), self._naming)
            parts = state.shared, state.order, self._naming, self._flow, self._copies
            state.proxy = AsyncProxy(machine, *parts)

    def chunk_finished(self, machine: MachineView) -> None:
        state = self._chunks.pop(machine, None)
        if state is not None and state.proxy is not None:
            state.proxy.finish()
        if state is not None and not (state.proxy is not None and state.proxy.hung):
            state.shared.finish(state.order)
        self.found.event = None  # it holds the chunk's memory

    def launch_finished(self, launch: Launch) -> None:
        self._tell_pending()
        self._reset()

    # -- instructions ---------------------------------------------------------------------------
    def concerns(self, instruction) -> bool:
        known = self._traits.get(id(instruction)) or self._learn(instruction)
        return (
            known[3] or not known[1].plain or self._plan is not None and self._plan.has(instruction)
        )

    def instruction(self, event: InstructionEvent) -> None:
        known = self._traits.get(id(event.instruction)) or self._learn(event.instruction)
        _, traits, header, watched = known
        if self._may_miss:
            self._chunks[event.machine].exits.instruction(event)
        followed = self._plan is not None and self._plan.has(event.instruction)
        if traits.parameter and not (followed or watched):
            return
        if event.line:
            self._last_line = event.line
        elif event.accesses or traits.meeting or traits.warp_barrier or followed or watched:
            calls = set(event.machine.lines_of(event.instruction, event.lanes.size))
            if len(calls) == 1:
                self._last_line = calls.pop() or self._last_line
        self.found.line, self.found.header, self.found.event = self._last_line, header, event
        if event.machine.clustered and event.instruction.opcode in LEAVES:
            state = self._chunks[event.machine]
            state.shared.lifetimes.leave(event.lanes, self._last_line)
        registers = self._chunks[event.machine].registers if followed else None
        if registers is not None:
            registers.use(event, self._last_line)
        if event.accesses and not traits.parameter:
            self._accesses(event, traits)
        if registers is not None:
            registers.follow(event, self._last_line)
        if watched:
            self._chunks[event.machine].proxy.instruction(event, self._last_line, self._tick)
        if traits.plain or traits.parameter:
            return
        if traits.meeting or traits.warp_barrier:
            state = self._chunks[event.machine]
            if traits.meeting:
                state.order.warp_sync(event.lanes, event.members, self._tick(), False)
            state.gatherings.members(event, self._last_line, traits.shuffle)
        elif traits.block_fence and self._global is not None:
            self._fence(event, traits, self._tick())
        elif traits.arrive:
            self._arrive(event)
        elif traits.copy == "commit":
            self._chunks[event.machine].shared.copies.commit(event.lanes)
        elif traits.copy == "wait":
            self._wait_for_copies(event)
        elif traits.phase:
            self._use_phase(event, traits.phase)

    def _arrive(self, event: InstructionEvent) -> None:
        order, operands = self._chunks[event.machine].order, event.instruction.operands
        if operands:
            number = event.machine.operand(event.instruction, operands[0], event.lanes.size)
            order.arrive(event.lanes, number, self._tick())
        else:  # barrier.cluster.arrive
            phase, relaxed = event.machine.cluster_arrivals, ".relaxed" in event.instruction.opcode
            order.arrive_at_cluster(event.lanes, phase, self._tick(), relaxed)

    def _use_phase(self, event: InstructionEvent, what: str) -> None:
        """An arrival at the phase of an mbarrier, or the question whether one is complete."""
        state, use = self._chunks[event.machine], event.machine.phase_use
        if use is None or not event.accesses or not use.chosen.size:
            return
        access, lanes = event.accesses[0], event.lanes[use.chosen]
        if use.place is not None:
            holder, address = use.place
        else:
            address = access.address[use.chosen].view(np.int64)
            own = lanes // self._naming.per_block
            holder = own if access.block is None else access.block[use.chosen]
        keys = phase_key(holder, address, use.parity)
        if what == "wait":
            state.shared.copies.complete(np.unique(keys[use.passed]))
            state.order.wait_for_phase(lanes[use.passed], keys[use.passed])
            if self._has_fences:
                passed = lanes[use.passed] + state.order.first_lane
                self._global.publications.meet(passed, self._tick())
            return
        if what == "follow":
            state.shared.copies.follow(lanes, keys, self._tick())
        state.order.arrive_at_phase(lanes, keys, self._tick(), what == "relaxed")

    def _learn(self, instruction) -> tuple[object, InstructionTraits, str, bool]:
        """What an instruction is, its place in a header that the kernel includes, or "", and
        whether it matters to asynchronous work.
        """
        header = self._naming.launch.source.place_in_header(instruction.position)
        traits = InstructionTraits.of(instruction, self._bounds.origins.values)
        watched = self._flow is not None and (
            is_concerned(instruction.opcode) or id(instruction) in self._flow.steps
        )
        known = self._traits[id(instruction)] = (instruction, traits, header, watched)
        return known

    def _tick(self) -> int:
        self._lines.append(self._last_line)
        return len(self._lines) - 1

    def _accesses(self, event: InstructionEvent, traits: InstructionTraits) -> None:
        state = self._chunks[event.machine]
        for access in event.accesses:
            if access.valid is not None:
                self._refused(access, event, state)
            if access.space != "global":
                access = self._within_variable(access, event, state)
            if access.space == "local":
                state.local.access(access, event, self._last_line)
                if state.copies.loads and access.kind == "store":
                    self._store_copy(access, event, state, None)
                continue
            if state.local.copied and access.kind == "store":
                state.local.leave(access, event, self._last_line)
            time = self._tick()
            if traits.releases:  # a fence, and then a store
                time = self._tick()
            is_global = access.space == "global"
            strong = traits.atomic or traits.volatile
            lanes = state.lanes_of(access.lanes)
            values = partial(event.machine.stored, event.instruction, access, event.lanes.size)
            context = Context(
                self._last_line, time, state.order, lanes, strong, traits, values, state.copies
            )
            if strong:
                self._publish(access, state, time, self._may_lock(event, traits), traits)
            if state.proxy is not None:
                state.proxy.access(access, context, event.instruction.opcode)
            if is_global:
                self._global.access(access, context)
                copies = state.shared.copies
                if traits.copy == "issue":
                    copies.read(access.lanes, access.address.view(np.int64))
                elif copies.batches and access.kind != "load":
                    state.shared.check_source(access, context)
            elif traits.copy == "issue":
                state.shared.start_copy(access, context)
            elif traits.copy == "post":
                state.shared.post(access, context, event.machine.phase_use)
            else:
                state.shared.access(access, context)
            if state.copies.loads and access.kind == "store":
                self._store_copy(access, event, state, context)

    def _store_copy(self, access, event: InstructionEvent, state: _ChunkState, context) -> None:
        """A store of what was loaded from shared memory before it was written, by some lanes."""
        found = state.copies.lacking(event.instruction, access.lanes)
        if found is None:
            return
        lacking, where = found
        if access.space == "local":
            state.local.lose(access, 0, 1, lacking)
        elif access.space == "shared":
            state.shared.forget(access, lacking, context)
        else:
            lanes = access.lanes[lacking] + state.order.first_lane
            said = (
                f"{self._naming.who(lanes[0])} copies {where.text} to global memory, and nothing "
                "has written it yet: its value is whatever was in shared memory before"
            )
            remedy = f"write {where.array} before it is read, for example zero"
            how = {"remedy": remedy}
            self._naming.report("uninitialised-read", self._last_line, said, lanes, where, **how)

    def _refused(self, access, event: InstructionEvent, state: _ChunkState) -> None:
        arrays = state.local.arrays.around(event) if access.space == "local" else ()
        for finding in refused(
            access, self._last_line, self._naming, state.order.first_lane, arrays
        ):
            self.found.add(finding)
        self._pending = None

    def _within_variable(
        self, access: Access, event: InstructionEvent, state: _ChunkState
    ) -> Access:
        """Report the lanes that leave the variable that they count from; return the others'."""
        out = self._bounds.exceeding(access, event)
        if out is None:
            return access
        wrong, start, end = out
        if access.space == "local":
            arrays = state.local.arrays.around(event)
            inside = [a for a in arrays if start <= a.start < end]
            address = int(access.address.view(np.int64)[wrong][0])
            array = nearest(inside, address, self._last_line, self._naming)
        else:
            buffer = self._naming.buffer("shared", start)
            array = self._naming.array(buffer, access.size) if buffer is not None else None
        if array is None:
            array = Array(f"{access.space} memory", start, end - start, min(access.size, 4))
        first_lane = state.order.first_lane
        self.found.add(leaving(access, wrong, self._last_line, self._naming, first_lane, array))
        return replace(access, valid=~wrong if access.valid is None else access.valid & ~wrong)

    def _may_lock(self, event: InstructionEvent, traits: InstructionTraits) -> bool:
        """May an atomic take a lock? An exchange whose result nobody uses frees one."""
        if not (self._has_fences and traits.exchange):
            return self._has_fences and traits.swap
        values = self._bounds.origins.values
        sites = event.machine.running(event.instruction, event.lanes.size)
        return any(values.result_is_used(event.instruction, site) for site in sites)

    def _publish(
        self, access, state: _ChunkState, time: int, lock: bool, traits: InstructionTraits
    ) -> None:
        lanes = access.lanes + state.order.first_lane
        address = access.address.view(np.int64)
        if access.space == "global":
            self._handshakes.note(lanes, address, time)
        else:  # another memory than the global one
            holder = (
                access.lanes // self._naming.per_block if access.block is None else access.block
            )
            self._handshakes.note(lanes, address | 1 << 62 | holder << 32, time)
            address = address | 1 << 62
        how = {"writes": access.kind != "load", "lock": lock, "releases": traits.releases}
        every = [(state.order.publications, access.lanes)]
        if access.space == "global" and not traits.narrow:
            every.append((self._global.publications, lanes))
        for publications, who in every:
            publications.strong(who, address, time, **how)
            if traits.acquires:
                publications.acquire_at(who, address, self._tick())
        if self._has_fences and access.kind != "store":
            self._global.publications.meet(lanes, time)

    def _fence(self, event: InstructionEvent, traits: InstructionTraits, time: int) -> None:
        order = self._chunks[event.machine].order
        order.publications.fence(event.lanes, time)
        if traits.fence:
            self._global.publications.fence(event.lanes + order.first_lane, time)
        if not event.instruction.opcode.startswith("fence.acquire."):
            order.fence(event.lanes, time, traits.fence)

    def _wait_for_copies(self, event: InstructionEvent) -> None:
        newer = None  # wait_all
        if "wait_group" in event.instruction.opcode:  # all but this number of the newest groups
            newer = int(event.instruction.operands[0].value)
        self._chunks[event.machine].shared.copies.wait(event.lanes, newer, self._tick())

    def async_issued(self, operation: AsyncOperation, machine: MachineView) -> None:
        self._chunks[machine].proxy.told.append(operation)

    def async_read(self, operation: AsyncOperation, machine: MachineView) -> None:
        self._chunks[machine].proxy.ends.append((operation, True))

    def async_completed(self, operation: AsyncOperation, machine: MachineView) -> None:
        self._chunks[machine].proxy.ends.append((operation, False))
        for access in operation.accesses:
            if access.space == "shared" and access.kind != "load":
                self._chunks[machine].shared.deliver(access)

    # -- barriers and faults --------------------------------------------------------------------
    def barrier(self, event: BarrierEvent) -> None:
        state = self._chunks[event.machine]
        if event.barrier == CLUSTER_BARRIER:
            for _, lanes in event.arrivals:
                state.order.at_cluster().wait(lanes, event.machine.cluster_arrivals)
                state.order.publications.barrier(lanes, self._tick())
            self._global.publications.barrier(event.blocks, self._tick())
            state.shared.lifetimes.settle(state.order)
        else:
            state.order.barrier(event.arrivals, event.barrier, self._tick())
            self._global.publications.barrier(event.blocks, self._tick())
        state.exits.barrier(event)
        state.gatherings.mixed(event)

    def warp_barrier(self, event: WarpBarrierEvent) -> None:
        order = self._chunks[event.machine].order
        order.warp_sync(event.lanes, event.members, self._tick(), True)

    def fault(self, event: FaultEvent) -> None:
        """A refused access is reported with its instruction, which has every lane's address."""
        self._tell_pending()
        if event.kind in ("out-of-bounds", "misaligned"):
            self._pending = event
            return
        self._report_fault(event)

    def _tell_pending(self) -> None:
        """Report a refused access whose instruction never came."""
        event, self._pending = self._pending, None
        if event is not None:
            self._report_fault(event)

    def _report_fault(self, event: FaultEvent) -> None:
        """Code of a header is reported at the call that leads there; at the first of several."""
        line = event.line
        if not line and event.kind != "bad-launch":
            lines = self._machine.lines_of(event.instruction)
            line = next(filter(None, lines), self._last_line)
        threads = tuple(event.threads)
        if event.kind == "divergent-barrier" and "mbarrier" in event.message:
            for state in self._chunks.values():
                if state.proxy is not None:
                    state.proxy.hung |= " hangs " in event.message
        place, called = (event.array, event.index), self.found.calls({event.call_line} - {line})
        self.found.event = None  # that of another instruction
        finding = Finding(event.kind, line, event.message, threads, *place, remedy=remedy_of(event))
        self.found.add(replace(finding, called=called))
