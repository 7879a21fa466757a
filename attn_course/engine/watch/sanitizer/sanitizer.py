"""Sanitizer: finds accesses that are wrong even where the result happens to be right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from attn_course.engine.events import (
    CLUSTER_BARRIER,
    BarrierEvent,
    FaultEvent,
    InstructionEvent,
    Launch,
    MachineView,
    Observer,
    WarpBarrierEvent,
)

from .exits import Exits
from .findings import Finding, Findings, Naming, describe_thread
from .global_races import GlobalRaces
from .local_memory import LocalMemory
from .ordering import ChunkOrder
from .races import Context, LaneStamps
from .refusals import refused
from .shared_races import SharedRaces

_STRONG = ("relaxed", "acquire", "release", "acq_rel", "mmio")
_ALL_LANES = (
    "let all lanes that the mask names reach the shuffle; give those without data a neutral value "
    "(0 for a sum, -infinity for a maximum)"
)
_MEETINGS = ("shfl.sync", "vote.sync", "match.", "redux.sync", "elect.sync")


@dataclass(frozen=True)
class _Nature:
    """The properties of an instruction that matter here, read from its opcode once."""

    parameter: bool  # ld.param and st.param: call arguments, nobody else's business
    atomic: bool  # atomics and accesses with a memory order, in any space
    swap: bool
    volatile: bool
    fence: bool  # of the device at least
    block_fence: bool  # of any scope
    meeting: bool
    shuffle: bool
    arrive: bool
    copy: str  # cp.async: "issue", "commit" or "wait"

    @classmethod
    def of(cls, instruction) -> _Nature:
        opcode = instruction.opcode
        parts = opcode.split(".")
        root = parts[0]
        ordered = any(part in _STRONG for part in parts)
        block_only = "cta" in parts
        releases = root in ("atom", "red", "st", "ld") and any(
            part in ("acquire", "release", "acq_rel") for part in parts
        )
        return cls(
            parameter="param" in opcode,
            atomic=root in ("atom", "red") or ordered and root in ("ld", "st"),
            swap=root == "atom" and "cas" in parts,
            volatile="volatile" in parts,
            fence=(root in ("membar", "fence") or releases) and not block_only,
            block_fence=root in ("membar", "fence") or releases,
            meeting=opcode.startswith(_MEETINGS),
            shuffle=root == "shfl",
            arrive=root in ("bar", "barrier") and "arrive" in parts,
            copy=_part_of_copy(opcode),
        )


def _part_of_copy(opcode: str) -> str:
    if not opcode.startswith("cp.async."):
        return ""
    if "commit_group" in opcode:
        return "commit"
    if "wait" in opcode:
        return "wait"
    return "issue" if opcode.startswith(("cp.async.ca.", "cp.async.cg.")) else ""


class _ChunkState:
    """What is known of one chunk while it runs."""

    def __init__(self, machine: MachineView, naming: Naming, findings: Findings, lines: list[int]):
        lanes = machine.block_count * naming.per_block
        self.order = ChunkOrder(machine)
        self.shared = SharedRaces(machine, naming, findings, lines)
        self.local = LocalMemory(machine, lanes, naming, findings)
        self.exits = Exits(machine, lanes, naming, findings)
        self.lanes: list[LaneStamps] = []  # those of the last few events

    def lanes_of(self, lanes: np.ndarray) -> LaneStamps:
        for known in self.lanes:
            if known.lane is lanes:
                return known
        made = LaneStamps(lanes, lanes + self.order.first_lane << 1)
        self.lanes = [made, *self.lanes[:3]]
        return made


class Sanitizer(Observer):
    """Finds out-of-bounds and misaligned accesses, reads of memory that nobody wrote, races in
    shared and global memory, barriers that not all threads reach, and illegal launches.

        with observe(Sanitizer(uninitialised=("out",))) as report:
            kernel(grid, block, args)
        report.findings

    uninitialised: names of kernel parameters whose arrays hold nothing yet, as cudaMalloc gives
    them. Shared and local memory always start uninitialised.

    It runs the debug build, where the optimiser has removed no access. A wrong access does not
    stop the kernel: refused stores are dropped and refused loads give zeros. What orders accesses
    is in `ordering`: barriers, __syncwarp(), fences with atomics; not shuffles and votes.
    What it does not judge: a barrier in a device function, or one that threads left the kernel
    before, as `if (t >= n) return;` has it (see Exits); reads of local memory by CUDA's headers;
    volatile shared memory in a program with a fence, taken for flags; mbarriers and bulk copies.

    `findings` is a list of Finding, equal ones merged, over all launches inside the `with`.
    """

    def __init__(self, uninitialised: Iterable[str] = ()):
        super().__init__()
        if isinstance(uninitialised, str):
            raise TypeError(f"uninitialised is {uninitialised!r}; give a tuple of argument names")
        self.build, self.keeps_going = "debug", True
        self.uninitialised = tuple(uninitialised)
        self.found = Findings()
        self.launches = 0
        self._natures: dict[int, tuple[object, tuple[_Nature, str]]] = {}
        self._reset()

    def _reset(self) -> None:
        self._lines: list[int] = [0]  # line of each event, by its time
        self._chunks: dict[MachineView, _ChunkState] = {}
        self._global: GlobalRaces | None = None
        self._last_line = 0
        self._pending: FaultEvent | None = None  # a refused access before its instruction

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
        self._naming = Naming(launch)
        functions = launch.source.module.functions.values()
        opcodes = {one.opcode for function in functions for one in function.body}
        self._has_fences = any(opcode.startswith(("membar", "fence.")) for opcode in opcodes)
        self.found.source_lines = launch.source_lines
        names = [b.name for b in launch.buffers if b.space == "global"]
        unknown = sorted(set(self.uninitialised) - set(names))
        if unknown:
            known = ", ".join(sorted(set(names) - {"kernel parameters"}))
            raise ValueError(f"{launch.kernel} has no array named {unknown[0]!r}; it has: {known}")

    def chunk_started(self, machine: MachineView) -> None:
        self._machine = machine
        if self._global is None:
            buffers = self._naming.buffers["global"]
            unwritten = [b for b in buffers if b.name in self.uninitialised]
            self._global = GlobalRaces(
                machine.memory("global"), self._naming, self.found, self._lines, unwritten
            )
        self._chunks[machine] = _ChunkState(machine, self._naming, self.found, self._lines)

    def chunk_finished(self, machine: MachineView) -> None:
        self._chunks.pop(machine, None)

    def launch_finished(self, launch: Launch) -> None:
        self._tell_pending()
        self._reset()

    # -- instructions ---------------------------------------------------------------------------
    def instruction(self, event: InstructionEvent) -> None:
        nature, header = self._nature(event.instruction)
        self._chunks[event.machine].exits.instruction(event)
        if nature.parameter:
            return
        if event.line:
            self._last_line = event.line
        elif event.accesses or nature.meeting:
            self._last_line = self._line_of_call(event) or self._last_line
        self.found.line, self.found.header = self._last_line, header
        if event.accesses:
            self._accesses(event, nature)
        if nature.meeting:
            order = self._chunks[event.machine].order
            order.warp_sync(event.lanes, event.members, self._tick(), False)
            if nature.shuffle:
                self._check_shuffle(event)
        elif nature.block_fence and self._global is not None:
            self._fence(event, nature, self._tick())
        elif nature.arrive:
            self._arrive(event)
        elif nature.copy == "commit":
            self._chunks[event.machine].shared.copies.commit(event.lanes)
        elif nature.copy == "wait":
            self._wait_for_copies(event)

    def _arrive(self, event: InstructionEvent) -> None:
        order, operands = self._chunks[event.machine].order, event.instruction.operands
        if operands:
            number = event.machine.operand(event.instruction, operands[0], event.lanes.size)
            order.arrive(event.lanes, number, self._tick())
        else:  # barrier.cluster.arrive
            order.at_cluster().arrive(event.lanes, event.machine.cluster_arrivals, self._tick())

    def _line_of_call(self, event: InstructionEvent) -> int:
        lines = set(event.machine.lines_of(event.instruction, event.lanes.size))
        return lines.pop() if len(lines) == 1 else 0

    def _nature(self, instruction) -> tuple[_Nature, str]:
        """What an instruction is, and its place in a header that the kernel includes, or ""."""
        known = self._natures.get(id(instruction))
        if known is None:
            header = self._naming.launch.source.place_in_header(instruction.position)
            known = (instruction, (_Nature.of(instruction), header))  # kept: its id stays its own
            self._natures[id(instruction)] = known
        return known[1]

    def _tick(self) -> int:
        self._lines.append(self._last_line)
        return len(self._lines) - 1

    def _accesses(self, event: InstructionEvent, nature: _Nature) -> None:
        state = self._chunks[event.machine]
        for access in event.accesses:
            if access.valid is not None:
                self._refused(access, event, state)
            if access.space == "local":
                state.local.access(access, event, self._last_line)
                continue
            time = self._tick()
            if nature.block_fence and access.kind != "load":
                self._fence(event, nature, time - 1)
            is_global = access.space == "global"
            strong = nature.atomic or nature.volatile and (is_global or self._has_fences)
            lanes = state.lanes_of(access.lanes)
            values = partial(event.machine.stored, event.instruction, access, event.lanes.size)
            context = Context(
                self._last_line, time, state.order, lanes, strong, nature.swap, values
            )
            if strong:
                self._publish(access, state, time)
            if is_global:
                self._global.access(access, context)
            elif nature.copy == "issue":
                state.shared.start_copy(access, context)
            else:
                state.shared.access(access, context)

    def _refused(self, access, event: InstructionEvent, state: _ChunkState) -> None:
        arrays = state.local.arrays.around(event) if access.space == "local" else ()
        for finding in refused(
            access, self._last_line, self._naming, state.order.first_lane, arrays
        ):
            self.found.add(finding)
        self._pending = None

    def _publish(self, access, state: _ChunkState, time: int) -> None:
        lanes = access.lanes + state.order.first_lane
        address = access.address.view(np.int64)
        writes = access.kind != "load"
        if access.space == "global":
            self._global.publications.strong(lanes, address, time, writes)
        else:
            address = address | 1 << 62  # another memory than the global one
        state.order.publications.strong(access.lanes, address, time, writes)

    def _fence(self, event: InstructionEvent, nature: _Nature, time: int) -> None:
        order = self._chunks[event.machine].order
        order.publications.fence(event.lanes, time)
        if nature.fence:
            self._global.publications.fence(event.lanes + order.first_lane, time)

    def _wait_for_copies(self, event: InstructionEvent) -> None:
        newer = None  # wait_all
        if "wait_group" in event.instruction.opcode:  # all but this number of the newest groups
            newer = int(event.instruction.operands[0].value)
        self._chunks[event.machine].shared.copies.wait(event.lanes, newer, self._tick())

    def _check_shuffle(self, event: InstructionEvent) -> None:
        inactive = event.machine.reads_inactive
        if inactive is None or np.size(inactive) != event.lanes.size or not np.any(inactive):
            return
        lanes = event.lanes[inactive] + self._chunks[event.machine].order.first_lane
        thread = self._naming.thread(int(lanes[0]))
        self.found.add(
            self._naming.finding(
                "uninitialised-read",
                self._last_line,
                f"{describe_thread(thread)} (lane {int(lanes[0]) % 32} of its warp) takes the "
                "value of a lane that does not take part in the shuffle: the value is undefined",
                lanes,
                remedy=_ALL_LANES,
            )
        )

    # -- barriers and faults --------------------------------------------------------------------
    def barrier(self, event: BarrierEvent) -> None:
        state = self._chunks[event.machine]
        if event.barrier == CLUSTER_BARRIER:
            for _, lanes in event.arrivals:
                state.order.at_cluster().wait(lanes, event.machine.cluster_arrivals, self._tick())
        else:
            state.order.barrier(event.arrivals, event.barrier, self._tick())
        state.exits.barrier(event)
        if event.complete and len({id(instruction) for instruction, _ in event.arrivals}) > 1:
            self._check_mixed(event, state)

    def warp_barrier(self, event: WarpBarrierEvent) -> None:
        order = self._chunks[event.machine].order
        order.warp_sync(event.lanes, event.members, self._tick(), True)

    def _check_mixed(self, event: BarrierEvent, state: _ChunkState) -> None:
        """Threads of one block that met at different barrier instructions."""
        per_block = self._naming.per_block
        groups: dict[int, list] = {}
        for instruction, lanes in event.arrivals:
            if "arrive" in instruction.opcode or len(instruction.operands) > 1:
                return  # a barrier with a count of its own: producers and consumers may differ
            known = groups.setdefault(id(instruction), [instruction, lanes])
            if known[1] is not lanes:
                known[1] = np.concatenate([known[1], lanes])
        blocks = [set(np.unique(lanes // per_block).tolist()) for _, lanes in groups.values()]
        pairs = [mine & other for i, mine in enumerate(blocks) for other in blocks[:i]]
        shared = sorted(set().union(*pairs))
        if not shared:
            return
        members = [
            (instruction, lanes[np.isin(lanes // per_block, shared)])
            for instruction, lanes in groups.values()
        ]
        self._report_mixed([m for m in members if m[1].size], state, len(shared))

    def _report_mixed(self, members, state: _ChunkState, blocks: int) -> None:
        members = sorted(members, key=lambda m: m[1].size)
        lines = [self._naming.launch.source.own_line(instruction) for instruction, _ in members]
        lanes = members[0][1] + state.order.first_lane
        waits = " and ".join(
            f"{who.size} threads at line {line}"
            for (_, who), line in zip(members, lines, strict=True)
        )
        self.found.add(
            self._naming.finding(
                "divergent-barrier",
                lines[0],
                f"threads of one block meet at different barriers: {waits}; which threads pass "
                "together is then an accident",
                lanes,
                count=blocks,
                other_line=lines[-1],
            )
        )

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
        opcode = event.instruction.opcode if event.instruction is not None else ""
        missed = event.kind == "divergent-barrier" and opcode.startswith(_MEETINGS)
        remedy = _ALL_LANES if missed else ""
        place = event.array, event.index
        self.found.add(Finding(event.kind, line, event.message, threads, *place, remedy=remedy))
