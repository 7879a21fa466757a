"""Follows one block of a launch and writes its frames: the tracer's working part.

A copy is kept of the registers that hold a variable, taken right after the instruction that wrote
them, so what a frame shows never depends on what the machine still keeps.
"""

from math import prod

import numpy as np
from kernelscope.events import (
    AsyncOperation,
    BarrierEvent,
    CallSite,
    FaultEvent,
    InstructionEvent,
    Launch,
    MachineView,
)
from kernelscope.ptx.debug_names import source_name, variables, written_registers
from kernelscope.ptx.demangle import demangle
from kernelscope.ptx.syntax import Instruction, Register

from .engines import Engines, opcodes_of, uses_engines
from .recording import GONE, Recording, finding_record, plain_values
from .traced_block import TracedBlock, as_type, values_of, where_present

_VALUES_PER_TRACE = 4_000_000  # a frame of a large block holds thousands
_JUMPS = ("bra", "brx", "ret", "exit", "call")  # what runs next is not the next instruction

Calls = tuple[int, ...]  # the call sites around a thread, outermost first


class Recorder:
    """Records one block; `recording` holds the frames so far (call close_frame first).

    warp, limit, threads, names: as Tracer has them.
    """

    def __init__(self, launch: Launch, block, warp: int | None, limit: int, threads, names):
        self.source, self.limit = launch.source, limit
        self.memory = TracedBlock(launch, block, threads)
        self.recording = Recording(
            demangle(launch.kernel),
            launch.grid,
            launch.block,
            block,
            warp,
            launch.source_name,
            launch.source_lines,
            self.memory.arrays,
            kept=None if threads is None else sorted(threads),
        )
        opcodes = opcodes_of(launch.source, launch.kernel)
        self.engines = Engines(self.memory, opcodes, names) if uses_engines(opcodes) else None
        if self.engines is not None:
            self.recording.groups = self.engines.groups
            self.recording.mbarriers = self.engines.mbarriers
            self.recording.destinations = self.engines.destinations
        self.alive = np.ones(launch.threads, bool)
        self.threads = launch.threads
        self.first_thread = 0 if warp is None else 32 * warp
        self.end_thread = self.threads if warp is None else min(self.threads, 32 * warp + 32)
        self.functions: dict[str, tuple] = {}
        self.sites: dict[Calls, CallSite | None] = {}
        self.calls: list[Calls] = [()] * self.threads
        self.call_lines: dict[Calls, int] = {}
        self.registers: dict[tuple[Calls, str], tuple[np.ndarray, np.ndarray]] = {}
        self.state: dict[str, list] = {}  # name -> each thread's value as last recorded
        self.owner: dict[str, Calls] = {}  # name -> the function that it belongs to
        self.in_frame: list[tuple] = []  # (offset, name, variable) of those in local memory
        self.frame: dict | None = None
        self.ran: set[Calls] = set()  # instructions of the current frame
        self.last: tuple[InstructionEvent, Calls] | None = None
        self.finding: FaultEvent | None = None
        self.elsewhere: list[dict] = []  # what warps that are not traced wrote meanwhile
        self.values = 0

    # -- events ---------------------------------------------------------------------------------
    def instruction(self, event: InstructionEvent) -> None:
        where, threads = self.memory.mine(event.lanes, event.machine)
        if not threads.size or self.recording.truncated:
            return
        calls = self.calls[int(threads[0])]
        seen = threads[(threads >= self.first_thread) & (threads < self.end_thread)]
        if seen.size:
            self.step(event, calls, seen)
            self.copy_registers(event, calls, where, threads)
            self.record_accesses(event)
            self.record_product(event)
        else:
            self.record_elsewhere(event)
        if self.engines is not None:
            self.record_engines(event, threads)
        self.follow_calls(event, calls, threads)

    def barrier(self, event: BarrierEvent) -> None:
        if self.frame is not None:
            self.frame["barrier"] = event.barrier
        if self.engines is not None:
            self.engines.barrier(event)

    def engine(self, what: str, operation: AsyncOperation, machine: MachineView) -> None:
        """A copy or product was "issued", its source was "read", or it "completed"."""
        if self.engines is not None and self.engines.concerns(operation, machine):
            self.engines.told.append((what, operation))

    def fault(self, event: FaultEvent) -> None:
        """The instruction's own event comes next, if the run goes on at all."""
        self.finding = event

    # -- frames ---------------------------------------------------------------------------------
    def step(self, event: InstructionEvent, calls: Calls, threads: np.ndarray) -> None:
        """Go on with the current frame, or close it and open the next."""
        line = self.line_of(event, calls)
        key = (*calls, event.instruction.index)
        active, frame = threads.tolist(), self.frame
        if (
            frame is None
            or frame["line"] != line
            or frame["threads"] != active
            or frame["barrier"] is not None
            or frame["finding"] is not None
            or key in self.ran  # a loop came round
        ):
            self.close_frame()
            if self.recording.truncated:
                return
            self.open_frame(line, active, calls)
        self.ran.add(key)
        self.last = (event, calls)
        if self.finding is not None:
            self.attach_finding(stops=False)

    def line_of(self, event: InstructionEvent, calls: Calls) -> int:
        """The event's line; for code inlined from a header, that of the kernel's file that asks."""
        if event.line:
            return event.line
        site = self.site(event.machine, calls, event.instruction)
        found = event.machine.line_at(site, event.instruction) if site else 0
        return found or self.call_lines.get(calls, 0)

    def open_frame(self, line: int, threads: list[int], calls: Calls) -> None:
        self.frame = {
            "step": len(self.recording.frames),
            "line": line,
            "function": "",
            "callers": [self.call_lines[calls[: n + 1]] for n in range(len(calls))],
            "threads": threads,
            "variables": {},
            "shared": self.elsewhere,
            "global": [],
            "products": [],
            "engines": {},
            "barrier": None,
            "finding": None,
        }
        self.ran, self.elsewhere, self.last = set(), [], None

    def attach_finding(self, stops: bool) -> None:
        self.frame["finding"], self.finding = finding_record(self.finding, stops), None

    def close_frame(self) -> None:
        frame, self.frame = self.frame, None
        if frame is not None:
            if self.last is not None:
                self.record_variables(frame, *self.last)
            if self.engines is not None:
                frame["engines"] = self.engines.changes(self.alive)
            self.keep(frame)
        if self.frame is None and self.finding is not None and not self.recording.truncated:
            self.record_stop(self.finding)

    def keep(self, frame: dict) -> None:
        self.recording.frames.append(frame)
        self.values += _size(frame)
        if len(self.recording.frames) >= self.limit or self.values > _VALUES_PER_TRACE:
            self.recording.truncated = (
                f"recording stopped after {len(self.recording.frames)} steps; trace a smaller "
                "problem, one warp only, or raise the limit"
            )

    def record_stop(self, fault: FaultEvent) -> None:
        """The frame of an instruction that ended the run, so that its own event never came."""
        threads = sorted(self.recording.threads_of(fault))
        self.open_frame(fault.line, threads, self.calls[threads[0]] if threads else ())
        self.attach_finding(stops=True)
        frame, self.frame = self.frame, None
        self.keep(frame)

    # -- calls ----------------------------------------------------------------------------------
    def follow_calls(self, event: InstructionEvent, calls: Calls, threads: np.ndarray) -> None:
        instruction = event.instruction
        root = instruction.opcode.split(".")[0]
        if root == "call" and self.enters(instruction):
            inner = (*calls, instruction.index)
            self.call_lines[inner] = self.line_of(event, calls)
        elif root == "ret" and calls:
            inner = calls[:-1]
        else:
            return
        for thread in threads.tolist():
            self.calls[thread] = inner

    def enters(self, call) -> bool:
        """Does the call run PTX of the module, not a built-in such as vprintf?"""
        target = next(o for o in call.operands if not isinstance(o, tuple))
        functions = self.source.module.functions
        called = functions.get(target.name)
        return isinstance(target, Register) or called is not None and called.defined

    def site(self, machine: MachineView, calls: Calls, instruction: Instruction) -> CallSite | None:
        """The machine's call site for these calls, of the function with the instruction."""
        known = self.sites.get(calls)
        if known is None or not known.has(instruction):
            caller = self.sites.get(calls[:-1]) if calls else None
            known = None
            if caller is not None or not calls:
                known = machine.callee(caller, calls[-1] if calls else 0, instruction)
            self.sites[calls] = known
        return known

    def names_of(self, function) -> tuple:
        """(variables, registers each instruction writes, name in the source) of a function."""
        if function.name not in self.functions:
            self.functions[function.name] = (
                variables(self.source, function.name),
                written_registers(self.source, function.name),
                source_name(self.source, function.name),
            )
        return self.functions[function.name]

    # -- variables ------------------------------------------------------------------------------
    def copy_registers(self, event, calls: Calls, where: slice, threads: np.ndarray) -> None:
        site = self.site(event.machine, calls, event.instruction)
        if site is None:
            return
        for name in self.names_of(site.function)[1][event.instruction.index]:
            value = event.machine.register(site, name)
            if value is None:
                continue
            value = value[where] if isinstance(value, np.ndarray) else value
            kept = self.registers.get((calls, name))
            if kept is None:
                kept = (np.zeros(self.threads, value.dtype), np.zeros(self.threads, bool))
                self.registers[calls, name] = kept
            kept[0][threads] = value
            kept[1][threads] = True

    def record_variables(self, frame: dict, event: InstructionEvent, calls: Calls) -> None:
        """Compare every variable in scope with what was last recorded."""
        index, line = event.instruction.index, event.line
        next_index = None if event.instruction.opcode.split(".")[0] in _JUMPS else index + 1
        while line == 0 and calls:  # a function from a header: look at who called it
            index, next_index, calls = calls[-1], None, calls[:-1]
            line = self.call_lines.get(calls, 0) if calls else frame["line"]
        site = self.sites.get(calls)
        if site is None:
            return
        found, _, frame["function"] = self.names_of(site.function)
        visible = self.visible(found, index, next_index, frame["function"] if calls else "")
        self.in_frame = [
            (site.frame[place.name] + place.offset, name, variable)
            for name, (variable, place) in visible.items()
            if place.kind == "local"
        ]
        threads = self.memory.kept_of(np.array(frame["threads"]))
        if not threads.size:
            return
        mine = threads.tolist()
        for name, (variable, place) in visible.items():
            values = self.read(event.machine, site, calls, variable, place, threads)
            if values is not None:
                self.describe_variable(name, variable, calls)
                self.change(frame, name, mine, values)
        for name, owner in self.owner.items():
            is_outer = calls[: len(owner)] == owner and len(owner) < len(calls)
            if name not in visible and not is_outer:
                self.change(frame, name, mine, [GONE] * threads.size)

    @staticmethod
    def visible(variables, index: int, next_index: int | None, function: str) -> dict:
        """Name -> (variable, place) of what is in scope after an instruction; inner hides outer."""
        found = {}
        for variable in sorted(variables, key=lambda v: v.depth):
            place = None if next_index is None else variable.place_at(next_index)
            place = place or variable.place_at(index)
            if place is not None:
                parts = (function, variable.function, variable.name)
                found[".".join(part for part in parts if part)] = (variable, place)
        return found

    def describe_variable(self, name: str, variable, calls: Calls) -> None:
        self.owner[name] = calls
        if name not in self.recording.variables:
            self.recording.variables[name] = {
                "type": variable.type,
                "dtype": "" if variable.is_pointer else variable.dtype,
                "shape": list(variable.shape),
                "line": variable.line,
            }

    def change(self, frame: dict, name: str, threads: list[int], values: list) -> None:
        state = self.state.setdefault(name, [GONE] * self.threads)
        changed = [
            (thread, value)
            for thread, value in zip(threads, values, strict=True)
            if state[thread] != value
        ]
        for thread, value in changed:
            state[thread] = value
        if changed:
            frame["variables"][name] = {
                "threads": [thread for thread, _ in changed],
                "values": [value for _, value in changed],
            }

    def read(
        self, machine: MachineView, site, calls: Calls, variable, place, threads
    ) -> list | None:
        """The variable's value for each thread; None where nobody has one."""
        if not variable.dtype or place.kind not in ("register", "local"):
            return None  # shared and global variables are shown as arrays
        if place.kind == "local":
            start = site.frame[place.name] + place.offset
            size = prod(variable.shape) * np.dtype(variable.dtype).itemsize
            raw, present = self.memory.local_bytes(machine, threads, start, size)
            if variable.is_pointer:
                addresses = np.ascontiguousarray(raw).view(np.uint64).ravel()
                values = self.memory.pointers(machine, addresses, self.in_frame)
            else:
                values = values_of(raw, variable)
            return where_present(values, present)
        kept = self.registers.get((calls, place.name))
        if kept is None:
            return None
        if variable.is_pointer:
            values = self.memory.pointers(machine, kept[0][threads], self.in_frame)
        else:
            values = values_of(_bytes(as_type(kept[0][threads], variable.dtype)), variable)
        return where_present(values, kept[1][threads])

    # -- memory ---------------------------------------------------------------------------------
    def record_accesses(self, event: InstructionEvent) -> None:
        if self.frame is None:
            return
        for access in event.accesses:
            if access.space != "local":
                self.frame[access.space] += self.memory.touched(access, event.machine)
            elif access.kind != "load":
                self.memory.mark_local(access, event.machine)

    def record_product(self, event: InstructionEvent) -> None:
        """The fragments of a matrix product, for each warp that is recorded."""
        if self.frame is None or not event.instruction.opcode.startswith(("mma.", "wmma.mma.")):
            return
        product, opcode = event.machine.matrix_product, event.instruction.opcode
        if opcode not in self.recording.fragments:
            self.recording.fragments[opcode] = {
                one.name: {
                    "kind": one.kind,
                    "shape": [one.rows, one.columns],
                    "row": one.row.tolist(),
                    "column": one.column.tolist(),
                    "register": one.register.tolist(),
                }
                for one in product.fragments
            }
        first = event.machine.lane_of(self.memory.number) >> 5
        for at, warp in enumerate((product.warps - first).tolist()):
            if self.first_thread <= 32 * warp < self.end_thread:
                values = {one.name: plain_values(one.values[at]) for one in product.fragments}
                self.frame["products"].append({"opcode": opcode, "warp": warp, "values": values})

    def record_engines(self, event: InstructionEvent, threads: np.ndarray) -> None:
        """Mbarriers, copies, products and waits; of small arrays, what copies have brought."""
        first = event.machine.lane_of(self.memory.number)
        self.alive = event.machine.alive[first : first + self.threads].copy()
        self.engines.instruction(event, threads)
        if self.frame is None:
            return
        for tile in self.engines.landed:
            self.frame["shared"] += self.memory.filled(tile.start, tile.end, event.machine)
        self.engines.landed.clear()

    def record_elsewhere(self, event: InstructionEvent) -> None:
        """Another warp's stores, shown with the next step of the warp that is traced."""
        for access in event.accesses:
            if access.space == "shared" and access.kind != "load":
                for record in self.memory.touched(access, event.machine):
                    self.elsewhere.append(record | {"elsewhere": True})


def _bytes(values: np.ndarray) -> np.ndarray:
    """(threads,) of any type -> (threads, bytes of one) uint8."""
    return np.ascontiguousarray(values).view(np.uint8).reshape(values.size, -1)


def _size(frame: dict) -> int:
    """How many numbers a frame holds, about."""
    changed = sum(len(change["values"]) for change in frame["variables"].values())
    accesses = (*frame["shared"], *frame["global"])
    products = sum(32 * len(part[0]) for p in frame["products"] for part in p["values"].values())
    return changed + products + sum(2 * len(access["index"]) for access in accesses)
