"""The tracer: every step of one thread block, with its variables by their names in the source.

It runs the debug build, where variables survive, and keeps a copy of the registers that hold one:
a register is read right after the instruction that wrote it, so what is shown never depends on
what the machine still keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ..events import BarrierEvent, FaultEvent, InstructionEvent, Launch, Observer
from .recording import GONE, Recording, plain_values

_VALUES_PER_TRACE = 4_000_000  # a frame of a large block holds thousands


class Tracer(Observer):
    """Records blocks of a launch, step by step.

    block: (x, y, z) of the block, or a list of such; warp: record the lanes of this warp only;
    limit: steps kept for each block, after which recording stops and `truncated` says so.

    `recordings` has one Recording for each launch and block; the attributes and methods of the
    first (`frames`, `lines`, `variables_at`, `shared_at`, `barriers`, `tiles`, ...) can be asked
    of the tracer itself. Raises ValueError at the launch for a block outside of the grid.
    """

    def __init__(self, block=(0, 0, 0), warp: int | None = None, limit: int = 5000):
        super().__init__()
        self.build = "debug"
        several = bool(block) and isinstance(block[0], Sequence)
        self.blocks = [_extents(one) for one in (block if several else [block])]
        self.warp, self.limit = warp, limit
        self._recorders: list[_Recorder] = []
        self._open: list[_Recorder] = []

    # -- what was recorded ----------------------------------------------------------------------
    @property
    def recordings(self) -> list[Recording]:
        for recorder in self._open:
            recorder.close_frame()
        return [recorder.recording for recorder in self._recorders]

    @property
    def recording(self) -> Recording:
        """The first recording. Raises RuntimeError before any launch."""
        if not self._recorders:
            raise RuntimeError("nothing traced yet: call a kernel inside `with observe(tracer):`")
        return self.recordings[0]

    def __getattr__(self, name: str):
        if name.startswith("_") or not (
            hasattr(Recording, name) or name in Recording.__dataclass_fields__
        ):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.recording, name)

    def show(self, **options):
        """The stepper, for a notebook; see attn_course.stepper.show."""
        return _stepper().show(self, **options)

    def to_html(self, path=None, **options) -> str:
        """The stepper as one HTML page that needs nothing else; written to `path` if given."""
        return _stepper().to_html(self, path, **options)

    # -- events ---------------------------------------------------------------------------------
    def launch_started(self, launch: Launch) -> None:
        for block in self.blocks:
            if any(at >= extent for at, extent in zip(block, launch.grid, strict=True)):
                last = tuple(extent - 1 for extent in launch.grid)
                raise ValueError(
                    f"block {block} is not in the grid of {launch.kernel}: blocks go from "
                    f"(0, 0, 0) to {last}"
                )
        if self.warp is not None and not 0 <= self.warp < launch.warps:
            raise ValueError(f"warp {self.warp}: {launch.kernel} has {launch.warps} in a block")
        self._open = [_Recorder(launch, block, self.warp, self.limit) for block in self.blocks]
        self._recorders += self._open

    def instruction(self, event: InstructionEvent) -> None:
        for recorder in self._open:
            recorder.instruction(event)

    def barrier(self, event: BarrierEvent) -> None:
        for recorder in self._open:
            if recorder.number in event.blocks:
                recorder.barrier(event.barrier)

    def fault(self, event: FaultEvent) -> None:
        for recorder in self._open:
            if not event.threads or any(b == recorder.recording.block for b, _ in event.threads):
                recorder.fault(event)

    def launch_finished(self, launch: Launch) -> None:
        for recorder in self._open:
            recorder.close_frame()
        self._open = []


def _stepper():
    """Observers stand below the stepper, so it is looked up when somebody asks for it."""
    import importlib

    return importlib.import_module("attn_course.stepper")


def _extents(block) -> tuple[int, int, int]:
    """A block number such as 2 or (1, 0) as (x, y, z)."""
    parts = (block,) if isinstance(block, (int, np.integer)) else tuple(block)
    if not 1 <= len(parts) <= 3 or any(int(part) < 0 for part in parts):
        raise ValueError(f"block {block!r}: give (x, y, z), each at least 0")
    return (*map(int, parts), *[0] * (3 - len(parts)))


class _Recorder:
    """Follows one block of one launch and writes its frames."""

    def __init__(self, launch: Launch, block, warp: int | None, limit: int):
        self.program, self.limit = launch.program, limit
        self.recording = Recording(
            launch.kernel, launch.grid, launch.block, block, warp, launch.source_name,
            launch.source_lines,
        )  # fmt: skip
        gx, gy, _ = launch.grid
        self.number = block[0] + gx * (block[1] + gy * block[2])
        self.warps, self.threads = launch.warps, launch.threads
        self.room = 32 * launch.warps  # lane ids a block has
        self.first_thread = 0 if warp is None else 32 * warp
        self.end_thread = self.threads if warp is None else min(self.threads, 32 * warp + 32)
        self.buffers = launch.buffers
        self.describe_arrays(launch)
        self.functions: dict[str, tuple] = {}
        self.calls: list[tuple[int, ...]] = [()] * self.threads  # call sites around each thread
        self.call_lines: dict[tuple[int, ...], int] = {(): 0}
        self.registers: dict[tuple, tuple[np.ndarray, np.ndarray]] = {}
        self.state: dict[str, list] = {}
        self.owner: dict[str, tuple[int, ...]] = {}
        self.frame: dict | None = None
        self.ran: set[tuple[int, ...]] = set()
        self.finding: FaultEvent | None = None
        self.elsewhere: list[dict] = []
        self.values = 0
        self.in_frame: list[tuple] = []  # (offset, name, variable) of those in local memory
        self.local_written = np.zeros((0, 0), bool)  # (threads, bytes of local memory)

    def describe_arrays(self, launch: Launch) -> None:
        shapes = self.program.debug.shared_arrays(self.program, launch.kernel)
        for buffer in launch.buffers:
            if buffer.name == "kernel parameters":
                continue
            dtype, shape = buffer.dtype, buffer.shape
            if buffer.space == "shared":
                array = shapes.get(buffer.name)
                dtype = np.dtype(array.dtype if array else "u4")
                count = buffer.size // dtype.itemsize
                shape = array.shape if array and prod(array.shape) == count else (count,)
            dtype = np.dtype(dtype if dtype is not None else "u1")
            self.recording.arrays[buffer.name] = {
                "space": buffer.space, "dtype": dtype.str[1:], "size": buffer.size,
                "shape": list(shape or (buffer.size // dtype.itemsize,)),
                "start": buffer.start % 128 if buffer.space == "global" else buffer.start,
            }  # fmt: skip

    # -- events of this block -------------------------------------------------------------------
    def mine(self, lanes: np.ndarray, chunk) -> tuple[slice, np.ndarray]:
        """Which of the sorted lanes are this block's, and their thread numbers."""
        base = (self.number - chunk.first_block) * self.room
        low, high = np.searchsorted(lanes, (base, base + self.room))
        return slice(low, high), lanes[low:high] - base

    def instruction(self, event: InstructionEvent) -> None:
        where, threads = self.mine(event.lanes, event.chunk)
        if not threads.size or self.recording.truncated:
            return
        calls = self.calls[int(threads[0])]
        seen = (threads >= self.first_thread) & (threads < self.end_thread)
        if not seen.any():
            self.write_elsewhere(event)
        else:
            self.step(event, calls, threads[seen])
            self.copy_registers(event, calls, where, threads)
            self.record_accesses(event)
        self.follow_calls(event.instruction, calls, threads, event.line)

    def step(self, event: InstructionEvent, calls: tuple, threads: np.ndarray) -> None:
        """Go on with the current frame, or close it and open the next."""
        line = event.line or self.call_lines.get(calls, 0)
        key = (*calls, event.instruction.index)
        active = threads.tolist()
        frame = self.frame
        if (
            frame is None
            or frame["line"] != line
            or frame["threads"] != active
            or frame["barrier"] is not None
            or frame["finding"] is not None
            or key in self.ran
        ):
            self.close_frame()
            if self.recording.truncated:
                return
            self.open_frame(line, active)
        self.ran.add(key)
        self.last = (event, calls)
        if self.finding is not None:
            self.attach(self.finding)

    def open_frame(self, line: int, threads: list[int]) -> None:
        self.frame = {
            "step": len(self.recording.frames), "line": line, "function": "", "threads": threads,
            "variables": {}, "shared": self.elsewhere, "global": [], "barrier": None,
            "finding": None,
        }  # fmt: skip
        self.ran, self.elsewhere, self.last = set(), [], None

    def barrier(self, number: int) -> None:
        if self.frame is not None:
            self.frame["barrier"] = number

    def fault(self, event: FaultEvent) -> None:
        """The instruction's own event comes next, if the run goes on at all."""
        self.finding = event

    def attach(self, fault: FaultEvent) -> None:
        index = fault.index if isinstance(fault.index, (int, type(None))) else str(fault.index)
        self.frame["finding"] = {
            "kind": fault.kind, "message": fault.message, "array": fault.array, "index": index,
        }  # fmt: skip
        self.finding = None

    def close_frame(self) -> None:
        if self.finding is not None and not self.recording.truncated:  # the run was stopped by it
            fault, self.finding = self.finding, None
            self.close_frame()
            threads = [self.linear(t) for b, t in fault.threads if b == self.recording.block]
            self.open_frame(fault.line, sorted(threads))
            self.attach(fault)
        frame, self.frame = self.frame, None
        if frame is None:
            return
        if self.last is not None:
            self.record_variables(frame, *self.last)
        self.recording.frames.append(frame)
        self.values += _size(frame)
        if len(self.recording.frames) >= self.limit or self.values > _VALUES_PER_TRACE:
            self.recording.truncated = (
                f"recording stopped after {len(self.recording.frames)} steps; trace a smaller "
                "shape, one warp (warp=0), or raise limit="
            )

    def linear(self, thread: tuple[int, int, int]) -> int:
        x, y, _ = self.recording.block_shape
        return thread[0] + x * (thread[1] + y * thread[2])

    # -- calls ----------------------------------------------------------------------------------
    def follow_calls(self, instruction, calls: tuple, threads: np.ndarray, line: int) -> None:
        root = instruction.opcode.split(".")[0]
        if root == "call" and self.enters(instruction):
            inner = (*calls, instruction.index)
            self.call_lines[inner] = line or self.call_lines.get(calls, 0)
        elif root == "ret" and calls:
            inner = calls[:-1]
        else:
            return
        for thread in threads.tolist():
            self.calls[thread] = inner

    def enters(self, call) -> bool:
        """Does the call run PTX of the module, not a built-in such as vprintf?"""
        functions = self.program.module.functions
        names = [getattr(operand, "name", "") for operand in call.operands]
        return any(name in functions and functions[name].defined for name in names)

    def instance(self, chunk, calls: tuple):
        return chunk.kernel.instances.get(calls)

    def names_of(self, function) -> tuple:
        """(variables, registers that each instruction writes) of a function, read once."""
        if function.name not in self.functions:
            debug = self.program.debug
            self.functions[function.name] = (
                debug.variables(self.program, function.name),
                debug.written_registers(self.program, function.name),
                debug.source_name(self.program, function.name),
            )
        return self.functions[function.name]

    # -- variables ------------------------------------------------------------------------------
    def copy_registers(self, event: InstructionEvent, calls: tuple, where: slice, threads) -> None:
        instance = self.instance(event.chunk, calls)
        if instance is None:
            return
        for name in self.names_of(instance.function)[1][event.instruction.index]:
            value = event.chunk.R[instance.slot(name)]
            if value is None:
                continue
            value = value[where] if isinstance(value, np.ndarray) else value
            kept = self.registers.get((calls, name))
            if kept is None:
                kept = (np.zeros(self.threads, value.dtype), np.zeros(self.threads, bool))
                self.registers[calls, name] = kept
            kept[0][threads] = value
            kept[1][threads] = True

    def record_variables(self, frame: dict, event: InstructionEvent, calls: tuple) -> None:
        """Compare every variable in scope with what was last recorded."""
        index = event.instruction.index
        jumps = event.instruction.opcode.split(".")[0] in ("bra", "brx", "ret", "exit", "call")
        line = event.line
        while line == 0 and calls:  # a function from a header: look at who called it
            index, calls, jumps = calls[-1], calls[:-1], True
            line = self.call_lines.get(calls, 0) if calls else 1
        instance = self.instance(event.chunk, calls)
        if instance is None:
            return
        threads = np.array(frame["threads"])
        found, _, frame["function"] = self.names_of(instance.function)
        prefix = f"{frame['function']}." if calls else ""
        visible = {}
        for variable in sorted(found, key=lambda v: v.depth):
            place = None if jumps else variable.place_at(index + 1)
            place = place or variable.place_at(index)
            if place is not None:
                inlined = f"{variable.function}." if variable.function else ""
                visible[prefix + inlined + variable.name] = (variable, place)
        self.in_frame = [
            (instance.places[place.name][1] + place.offset, name, variable)
            for name, (variable, place) in visible.items()
            if place.kind == "local"
        ]
        for name, (variable, place) in visible.items():
            values = self.read(event.chunk, instance, calls, variable, place, threads)
            if values is not None:
                self.describe_variable(name, variable)
                self.owner[name] = calls
                self.change(frame, name, threads.tolist(), values)
        for name, owner in self.owner.items():
            is_outer = calls[: len(owner)] == owner and len(owner) < len(calls)
            if name not in visible and not is_outer:
                self.change(frame, name, threads.tolist(), [GONE] * threads.size)

    def describe_variable(self, name: str, variable) -> None:
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

    def read(self, chunk, instance, calls, variable, place, threads) -> list | None:
        """The variable's value for each thread; None where it has none yet."""
        if not variable.dtype:
            return None
        dtype = np.dtype(variable.dtype)
        if place.kind == "register":
            kept = self.registers.get((calls, place.name))
            if kept is None:
                return None
            if variable.is_pointer:
                values = self.pointers(chunk, kept[0][threads])
            else:
                values = plain_values(_as(kept[0][threads], dtype))
            has = kept[1][threads]
            return [value if ok else GONE for value, ok in zip(values, has.tolist(), strict=True)]
        if place.kind == "local":
            return self.read_local(chunk, instance, variable, place, threads, dtype)
        return None  # shared and global variables are shown as arrays

    def read_local(self, chunk, instance, variable, place, threads, dtype) -> list:
        start = instance.places[place.name][1] + place.offset
        end = start + prod(variable.shape) * dtype.itemsize
        lane = (self.number - chunk.first_block) * self.threads + threads
        at = (lane * chunk.local_size)[:, None] + np.arange(start, end)
        values = chunk.local.bytes[at].view(dtype)
        if variable.is_pointer:
            values = self.pointers(chunk, values.ravel())
        else:
            values = plain_values(values.reshape(threads.size, *variable.shape))
        if self.local_written.size == 0:
            return [GONE] * threads.size
        has = self.local_written[threads, start:end].any(axis=1).tolist()
        return [value if ok else GONE for value, ok in zip(values, has, strict=True)]

    def pointers(self, chunk, addresses: np.ndarray) -> list[str]:
        """Addresses as "array + element"."""
        found = [""] * addresses.size
        for space, places, relative in chunk.space_parts(addresses):
            for place, address in zip(places.tolist(), relative.tolist(), strict=True):
                found[place] = self.pointer(space, address)
        return found

    def pointer(self, space: str, address: int) -> str:
        if space == "global" and address == 0:
            return "null"
        if space == "local":
            return self.local_pointer(address)
        for buffer in self.buffers:
            # One past the end is a legal pointer, as C has it.
            inside = buffer.start <= address <= buffer.start + buffer.size
            if buffer.space == space and inside and buffer.name in self.recording.arrays:
                size = np.dtype(self.recording.arrays[buffer.name]["dtype"]).itemsize
                element, rest = divmod(address - buffer.start, size)
                tail = f" + {element}" if element else ""
                return f"{buffer.name}{tail}" + (f" and {rest} bytes" if rest else "")
        return f"{space} {address:#x}"

    def local_pointer(self, address: int) -> str:
        """A place in the thread's own frame by the variable that lives there."""
        for start, name, variable in self.in_frame:
            dtype = np.dtype(variable.dtype or "u1")
            element, rest = divmod(address - start, dtype.itemsize)
            if 0 <= element < prod(variable.shape) and not rest:
                return f"&{name}" + (f" + {element}" if element else "")
        return f"local {address:#x}"

    # -- memory ---------------------------------------------------------------------------------
    def record_accesses(self, event: InstructionEvent) -> None:
        if self.frame is None:
            return
        for access in event.accesses:
            if access.space != "local":
                self.frame[access.space] += self.access(access, event.chunk)
            elif access.kind != "load":
                self.mark_local(access, event.chunk)

    def mark_local(self, access, chunk) -> None:
        """Remember which bytes of their frames threads have written: the rest has no value yet."""
        where, threads = self.mine(access.lanes, chunk)
        if self.local_written.shape[1] != chunk.local_size:
            self.local_written = np.zeros((self.threads, chunk.local_size), bool)
        offset = access.address[where].astype(np.int64)[:, None] + np.arange(access.size)
        inside = (offset < chunk.local_size).all(axis=1)
        self.local_written[threads[inside, None], offset[inside]] = True

    def write_elsewhere(self, event: InstructionEvent) -> None:
        """Another warp's stores, shown with the next step of the warp that is traced."""
        for access in event.accesses:
            if access.space == "shared" and access.kind != "load":
                for record in self.access(access, event.chunk):
                    self.elsewhere.append(record | {"elsewhere": True})

    def access(self, access, chunk) -> list[dict]:
        """One record for each array that an access touches: which elements, with what values."""
        where, threads = self.mine(access.lanes, chunk)
        address = access.address[where].astype(np.int64)
        valid = np.ones(address.size, bool) if access.valid is None else access.valid[where]
        found = []
        for buffer in self.buffers:
            inside = valid & (address >= buffer.start) & (address < buffer.start + buffer.size)
            array = self.recording.arrays.get(buffer.name)
            if buffer.space != access.space or array is None or not inside.any():
                continue
            dtype = np.dtype(array["dtype"])
            per_thread = max(1, access.size // dtype.itemsize)
            first = (address[inside] - buffer.start) // dtype.itemsize
            index = (first[:, None] + np.arange(per_thread)).ravel()
            found.append({
                "array": buffer.name,
                "kind": {"load": "read", "store": "write"}.get(access.kind, "update"),
                "size": access.size,
                "threads": threads[inside].tolist(),
                "index": index.tolist(),
                "values": plain_values(self.memory(buffer, chunk, dtype)[index]),
            })
            valid = valid & ~inside
        return found

    def memory(self, buffer, chunk, dtype: np.dtype) -> np.ndarray:
        """The elements of a buffer as they are now."""
        start = buffer.start
        if buffer.space == "global":
            data = chunk.memory.bytes
        else:
            data = chunk.shared.bytes
            start += (self.number - chunk.first_block) * (data.size // chunk.block_count)
        count = buffer.size // dtype.itemsize
        return data[start : start + count * dtype.itemsize].view(dtype)


def _as(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Registers as a C type: the same bits, or the low ones where the register is wider."""
    if values.dtype.itemsize == dtype.itemsize:
        return values.view(dtype)
    if values.dtype.kind == "f" or dtype.kind == "f":
        return values.astype(dtype)
    return values.astype(dtype) if dtype != np.bool_ else values != 0


def _size(frame: dict) -> int:
    """How many numbers a frame holds, about."""
    changed = sum(len(change["values"]) for change in frame["variables"].values())
    accesses = (*frame["shared"], *frame["global"])
    return changed + sum(2 * len(access["index"]) for access in accesses)
