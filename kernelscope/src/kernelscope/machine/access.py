"""Memory instructions: addresses are located or refused, items are moved.

A memory instruction names its space ("global", "shared", "local" or "generic") first. An item is
the part that one lane moves at a time, 2**shift bytes of `dtype`. Addresses are uint64, (lanes,) or
one scalar, relative to their space; a generic address names its space by its window.
"""

from __future__ import annotations

import numpy as np
from kernelscope.ptx.debug_names import shared_arrays
from kernelscope.ptx.demangle import demangle
from kernelscope.translate.control_flow import LANE, LOCAL_BASE, SHARED_BASE

from ..addresses import CLUSTER_SHIFT, RANGES, WINDOWS, aligned
from ..errors import SimulatorError
from ..events import GIVE_MEMORY
from ..texture.objects import texels_of
from .clusters import Cluster
from .lanes import ChunkLanes
from .memory import FlatMemory, bounds, differs, scalar, spread
from .reports import Reports

MAX_STACK_BYTES = 1 << 30  # local memory of a chunk
_BASES = (SHARED_BASE, LOCAL_BASE)
_GLOBAL_END, _GLOBAL_AGAIN = RANGES["shared"][0], RANGES["local"][1]
_SHIFT = [np.uint64(i) for i in range(5)]
_LONG = np.dtype("u8")
_ADDRESS = (1 << 64) - 1  # offsets may be negative, and then addresses wrap around


def _flat(address, shift: int):
    """Byte addresses as indices into a view of items of 2**shift bytes."""
    return (address >> _SHIFT[shift]).view(np.int64)


class Memory:
    """The memory that a chunk's lanes see.

    globals: of the launch; shared, local: one slice a block or a thread, of which `shared_size` and
    `local_size` bytes may be used.
    """

    def __init__(self, run, lanes: ChunkLanes, cluster: Cluster, reports: Reports):
        self.run, self.lanes, self.cluster, self.reports = run, lanes, cluster, reports
        self.globals = run.memory
        self.shared_size, self.local_size = run.shared_size, run.local_stride
        self.holes = self.find_holes()
        self.shared_limit = 0 if self.holes is not None else run.shared_size
        count = lanes.block_count
        # at least one item, which refused lanes read
        self.shared = FlatMemory("shared", np.zeros(max(count * run.shared_stride, 1), np.uint8))
        self.local = FlatMemory("local", np.zeros(max(lanes.count * self.local_size, 1), np.uint8))
        base = (lanes.block_of_place * run.shared_stride).astype(np.uint64)
        lanes.home[SHARED_BASE] = np.uint64(0) if count == 1 else base
        lanes.home[LOCAL_BASE] = self.frame_starts()

    def frame_starts(self) -> np.ndarray:
        return np.arange(self.lanes.count, dtype=np.uint64) * np.uint64(self.local_size)

    def grow_stack(self, needed: int, where: str) -> None:
        """Give every thread more local memory: calls are nested deeper than before."""
        lanes, old = self.lanes, self.local_size
        size = aligned(max(needed, 2 * old))
        if size * lanes.count > min(MAX_STACK_BYTES, self.run.budget.memory_bytes):
            raise SimulatorError(
                f"the stacks of {lanes.count} threads, {size} bytes each, are too much at {where}. "
                f"Does the recursion end? If it does, launch fewer threads"
            )
        frames = np.zeros((lanes.count, size), np.uint8)
        frames[:, :old] = self.local.bytes[: lanes.count * old].reshape(lanes.count, old)
        self.local, self.local_size = FlatMemory("local", frames.ravel()), size
        lanes.home[LOCAL_BASE] = self.frame_starts()
        if lanes.places is not None:
            lanes.R[LOCAL_BASE] = lanes.home[LOCAL_BASE][lanes.places]

    # -- locating -------------------------------------------------------------------------------
    def locate(self, space: str, address, shift: int, size: int, ins, kind: str):
        """(memory, index, valid) of an access of `size` bytes, which observers are told of.

        index: int64 places in the memory's view of items of 2**shift bytes. valid: None, or
        (lanes,) bool, which lanes may go on where an observer lets the run continue after a fault.
        memory is None where generic addresses of several spaces meet, see `space_parts`.
        kind: load, store or atomic. Raises MemoryFault.
        """
        if space == "global":
            return self.locate_global(address, shift, size, ins, kind)
        if space == "generic":
            return self.locate_generic(address, shift, size, ins, kind)
        return self.locate_slice(space, address, bounds(address)[1:], shift, size, ins, kind)

    def locate_global(self, address, shift: int, size: int, ins, kind: str):
        """`locate` in global memory."""
        low, high, bits = bounds(address)
        memory, valid, apart = self.globals, None, False
        first, end = memory.recent if kind == "load" else memory.recent_writable
        if bits & (size - 1) or low < first or high + size > end:
            if bits & (size - 1) or not memory.covers(low, high + size, kind):
                address = spread(address, self.lanes.R[LANE].size)
                valid = memory.valid(address, size, kind)
                valid = self.admitted("global", address, valid, size, ins, kind)
                apart = True
        if memory.marks is not None:
            note = memory.marks.note_apart if apart else memory.marks.note
            note(kind, address, size)
        if self.reports.accesses is not None:
            self.reports.access("global", kind, address, size, valid)
        return memory, _flat(address, shift), valid

    def locate_slice(self, space: str, address, limits, shift: int, size: int, ins, kind: str):
        """Shared and local memory: each block or thread has a slice of the flat array.

        limits: (highest, all bits or-ed) of the addresses; of the bits, those below `size` count.
        """
        slot, memory, limit = (
            (SHARED_BASE, self.shared, self.shared_limit)
            if space == "shared"
            else (LOCAL_BASE, self.local, self.local_size)
        )
        base = self.lanes.R[slot]
        if base is None:
            self.lanes.fetch((slot,))
            base = self.lanes.R[slot]
        high, bits = limits
        valid = None
        if high >> CLUSTER_SHIFT and space == "shared" and self.cluster.names_block(high):
            return self.locate_in_cluster(address, shift, size, ins, kind)
        if bits & (size - 1) or high + size > limit:
            address = spread(address, self.lanes.R[LANE].size)
            valid = self.fits(space, address, size)
            valid = self.admitted(space, address, valid, size, ins, kind)
        if self.reports.accesses is not None:
            self.reports.access(space, kind, address, size, valid)
        return memory, _flat(address + base, shift), valid

    def find_holes(self) -> np.ndarray | None:
        """(shared bytes,) bool: what is between the shared variables of a debug build."""
        run = self.run
        if run.program.build != "debug":
            return None
        holes = np.ones(self.shared_size, bool)
        for offset, variable in run.kernel.shared_places.values():
            holes[offset : offset + variable.size] = False
        if run.dynamic_bytes:
            holes[run.dynamic_offset :] = False
        return holes if holes.any() else None

    def fits(self, space: str, address: np.ndarray, size: int) -> np.ndarray:
        """(lanes,) bool: which accesses of `size` bytes are inside the thread's or block's part."""
        limit = self.local_size if space == "local" else self.shared_size
        fits = (address <= np.uint64(max(limit - size, 0))) & (limit >= size)
        if space == "local":
            return fits
        if self.holes is not None:
            inside = address[fits].astype(np.int64)
            fits[fits] = ~(self.holes[inside] | self.holes[inside + size - 1])
        first, count = self.run.reserved
        if count:
            fits |= (address >= np.uint64(first)) & (address <= np.uint64(first + count - size))
        return fits

    def locate_in_cluster(self, address, shift: int, size: int, ins, kind: str):
        """Shared memory of any block of the cluster; observers hear which."""
        address = spread(address, self.lanes.R[LANE].size)
        inside, base, exists = self.cluster.base_of(address)
        place = inside if exists.all() else np.where(exists, inside, address)
        valid = self.fits("shared", inside, size) & exists
        valid = self.admitted("shared", place, valid, size, ins, kind)
        if self.reports.accesses is not None:
            holder = base.astype(np.int64) // max(self.run.shared_stride, 1)
            self.reports.access("shared", kind, place, size, valid, holder)
        return self.shared, _flat(inside + base, shift), valid

    def locate_generic(self, address, shift: int, size: int, ins, kind: str):
        """`locate` where all lanes are in one space; memory is None where they are not."""
        low, high, bits = bounds(address)
        for space, (start, end) in RANGES.items():
            if start <= low and high < end:
                window = WINDOWS[space]
                relative = address - np.uint64(window)
                # An index below zero gives a very large address.
                top = high - window if low >= window else bounds(relative)[1]
                return self.locate_slice(space, relative, (top, bits), shift, size, ins, kind)
        if high < _GLOBAL_END or low >= _GLOBAL_AGAIN:
            return self.locate_global(address, shift, size, ins, kind)
        return None, None, None  # lanes in different spaces

    def is_in(self, space: str, address):
        """isspacep: (lanes,) bool. Parameters of a kernel are in global memory, constants not."""
        if space in ("const", "param"):
            return self.globals.is_in(space, address)
        inside = self.in_window(space, address)
        if space == "global":
            inside &= np.logical_not(self.globals.is_in("const", address))
        return inside

    @staticmethod
    def in_window(space: str, address):
        """(lanes,) bool: which generic addresses reach this memory, constants the global one."""
        if space == "global":
            return (address < np.uint64(_GLOBAL_END)) | (address >= np.uint64(_GLOBAL_AGAIN))
        start, end = RANGES[space]
        return (address >= np.uint64(start)) & (address < np.uint64(end))

    def space_parts(self, address):
        """For generic addresses in different spaces: (space, lanes' places, relative addresses)."""
        for space, start in WINDOWS.items():
            mine = self.in_window(space, address)
            if mine.any():
                yield space, np.nonzero(mine)[0], address[mine] - np.uint64(start)

    # -- what PTX names -------------------------------------------------------------------------
    def address_of(self, place: tuple, offset: int) -> np.uint64:
        """Address, within its own space, of a variable that PTX names."""
        kind, where = place
        if kind == "variable":
            return np.uint64(self.run.program.addresses[where] + offset & _ADDRESS)
        if kind == "parameter":
            return np.uint64(self.run.parameter_address + where + offset & _ADDRESS)
        if kind == "dynamic":
            return np.uint64(self.run.dynamic_offset + offset & _ADDRESS)
        return np.uint64(where + offset & _ADDRESS)

    def parameter(self, offset: int, dtype: np.dtype):
        """The value of a kernel's parameter at a byte offset, the same in all lanes."""
        return np.frombuffer(self.run.parameters, dtype, 1, offset)[0]

    # -- loads and stores -----------------------------------------------------------------------
    def load(self, space: str, address, dtype, shift: int, count: int, ins):
        """One value of `dtype`, or a list of `count` of them (ld.v2, ld.v4) from adjacent items."""
        memory, index, valid = self.locate(space, address, shift, count << shift, ins, "load")
        if memory is None:
            return self.load_mixed(address, dtype, shift, count, ins)
        view = memory.view[dtype]
        if valid is not None:  # refused lanes read zeros
            index = np.where(valid, index, 0)
            parts = [np.where(valid, view.take(index + i), 0).astype(dtype) for i in range(count)]
            return parts[0] if count == 1 else parts
        if count == 1:
            return view.take(index)
        return [view.take(index + i) for i in range(count)]

    def load_mixed(self, address, dtype, shift: int, count: int, ins):
        """Generic addresses in different spaces: one space after the other."""
        result = [np.zeros(address.size, dtype) for _ in range(count)]
        for space, places, relative in self.space_parts(address):
            arguments = (space, relative, dtype, shift, count, ins)
            part = self.lanes.narrowed(places, _BASES, lambda a=arguments: self.load(*a))
            for whole, piece in zip(result, [part] if count == 1 else part, strict=True):
                whole[places] = piece
        return result[0] if count == 1 else result

    def store(self, space: str, address, values: tuple, dtype, shift: int, ins) -> None:
        """Write one value (st) or several to adjacent items (st.v2, st.v4); the last lane wins."""
        size = len(values) << shift
        memory, index, valid = self.locate(space, address, shift, size, ins, "store")
        if memory is None:
            self.store_mixed(address, values, dtype, shift, ins)
            return
        view = memory.view[dtype]
        if memory is not self.local and self.lanes.probe is None:
            self.globals.version += 1  # other threads may wait for this
        elif valid is not None or any(map(np.count_nonzero, self.changes(view, index, values))):
            if memory is self.local:
                self.lanes.local_changes += 1
            else:
                self.globals.version += 1
        for i, value in enumerate(values):
            if valid is not None:
                view[index[valid] + i] = value if scalar(value) else value[valid]
            elif scalar(index):  # all lanes write one place: the last lane's value stays
                view[index + i] = value if scalar(value) else value[-1]
            else:
                view[index + i if i else index] = value

    def store_mixed(self, address, values: tuple, dtype, shift: int, ins) -> None:
        """Generic addresses in different spaces: one space after the other."""
        for space, places, relative in self.space_parts(address):
            arguments = (space, relative, _some(values, places), dtype, shift, ins)
            self.lanes.narrowed(places, _BASES, lambda a=arguments: self.store(*a))

    @staticmethod
    def changes(view, index, values):
        """Where a store writes something else than is there already, one item after another."""
        for i, value in enumerate(values):
            yield differs(view.take(index + i), value)

    # -- atomics --------------------------------------------------------------------------------
    def atomic(
        self, space: str, address, operation, operands: tuple, dtype, shift: int, wanted: bool, ins
    ):
        """Read-modify-write in lane order; returns the old values where `wanted`."""
        memory, index, valid = self.locate(space, address, shift, 1 << shift, ins, "atomic")
        if memory is None:
            return self.atomic_mixed(address, operation, operands, dtype, shift, wanted, ins)
        if memory is self.shared and operation.in_shared is not None:
            operation = operation.in_shared
        count = self.lanes.R[LANE].size
        view, index = memory.view[dtype], spread(index, count)
        operands = tuple(spread(o, count) for o in operands)
        if valid is not None:
            old = np.zeros(count, dtype)
            part = _some(operands, valid)
            if valid.any():
                old[valid] = self.update(view, index[valid], operation, part, True)
            return old
        return self.update(view, index, operation, operands, wanted)

    def atomic_mixed(
        self, address, operation, operands: tuple, dtype, shift: int, wanted: bool, ins
    ):
        """Generic addresses in different spaces: one space after the other."""
        old = np.zeros(address.size, dtype)
        for space, places, relative in self.space_parts(address):
            part = _some(operands, places)
            arguments = (space, relative, operation, part, dtype, shift, wanted, ins)
            seen = self.lanes.narrowed(places, _BASES, lambda a=arguments: self.atomic(*a))
            if wanted:
                old[places] = seen
        return old

    def clear(self, address, size, ins) -> None:
        """st.bulk: bytes of shared memory from an address on, 8 at a time, become zero."""
        lanes = self.lanes.R[LANE].size
        address, size = spread(address, lanes), np.unique(size)
        if size.size > 1 or int(size[0]) % 8:
            why = f"{ins.opcode} takes one size for all threads, a multiple of 8 bytes"
            raise self.error_at(ins, why)
        zero = (np.zeros(lanes, np.uint64),)
        for offset in range(0, int(size[0]), 8):
            self.store("shared", address + np.uint64(offset), zero, _LONG, 3, ins)

    # -- textures -------------------------------------------------------------------------------
    def fetch(self, handle, coordinates: tuple, dtype: np.dtype, ins) -> tuple:
        """tex: the four channels, values of a dtype of 32 bits.

        handle: the texture object; coordinates: of float32 or int32, as many as dimensions.
        """
        count, kind = self.lanes.R[LANE].size, coordinates[0].dtype
        one = scalar(handle) and all(map(scalar, coordinates))
        places = [spread(each, 1 if one else count) for each in coordinates]
        if scalar(handle):
            words = self.texels(int(handle), len(places), kind, ins).fetch(places)
        else:
            words = np.zeros((4, count), np.uint32)
            for each in np.unique(handle).tolist():
                mine, texels = handle == each, self.texels(each, len(places), kind, ins)
                words[:, mine] = texels.fetch([place[mine] for place in places])
        return tuple(channel[0] if one else channel for channel in words.view(dtype))

    def texels(self, handle: int, dimensions: int, kind: np.dtype, ins):
        """The texels of a handle; SimulatorError where they are not what the kernel reads."""
        found, problem = texels_of(handle), ""
        if found is None:
            problem = f"{handle:#x} is no texture object. Pass a TextureObject that still exists"
        elif found.dimensions != dimensions:
            problem = (
                f"the texture has {found.dimensions} dimensions, and is read with {dimensions}"
            )
        elif found.from_memory and kind.kind == "f":
            problem = "a texture of linear memory is read with tex1Dfetch"
        if not problem:
            return found
        raise self.error_at(ins, problem)

    def error_at(self, ins, problem: str) -> SimulatorError:
        """An error that names the kernel and the instruction's line."""
        instance = self.reports.block.instance
        message = f"{self.lanes.kernel.name} at {instance.where(ins)}: {problem}"
        return SimulatorError(message, instance.line(ins))

    # -- atomics of several values --------------------------------------------------------------
    def atomic_vector(self, address, operation, items: tuple, dtype, shift: int, wanted: bool, ins):
        """red.v2, atom.v4: atomics on adjacent items of global memory, each by itself.

        items: the operand of each. Returns a list of the old values, zeros where not `wanted`.
        """
        size = len(items) << shift
        memory, index, valid = self.locate_global(address, shift, size, ins, "atomic")
        count = self.lanes.R[LANE].size
        view, index = memory.view[dtype], spread(index, count)
        chosen = np.ones(count, bool) if valid is None else valid
        old = [np.zeros(count, dtype) for _ in items]
        for i, value in enumerate(items):
            operands = (spread(value, count)[chosen],)
            found = self.update(view, index[chosen] + i, operation, operands, wanted)
            if wanted:
                old[i][chosen] = found
        return old

    def atomic_wide(self, space: str, address, items: tuple, ins):
        """atom.exch.b128 and atom.cas.b128: the old halves, two (lanes,) uint64, in lane order.

        items: (low, high) of the new value, and before it of the expected one for cas.
        """
        memory, index, valid = self.locate(space, address, 3, 16, ins, "atomic")
        if memory is None:
            why = f"{ins.opcode} of addresses in several spaces is not supported"
            raise self.error_at(ins, why)
        count, view = self.lanes.R[LANE].size, memory.view[_LONG]
        index = spread(index, count)
        values = [[spread(half, count) for half in item] for item in items]
        old = np.zeros((2, count), np.uint64)
        for lane in range(count) if valid is None else np.nonzero(valid)[0].tolist():
            place = slice(int(index[lane]), int(index[lane]) + 2)
            old[:, lane] = view[place]
            now = [[half[lane] for half in item] for item in values]
            if len(items) == 1 or (old[:, lane] == now[0]).all():
                view[place] = now[-1]
                self.globals.version += bool((view[place] != old[:, lane]).any())
        return old[0], old[1]

    def update(self, view, index: np.ndarray, operation, operands: tuple, wanted: bool):
        """Update the view's items at `index`, one lane after the other where two meet."""
        alone = index.size < 2 or (index[0] != index[-1] and np.unique(index).size == index.size)
        if alone:
            old = view.take(index)
            new = operation.fn(old, *operands)
            if differs(new, old).any():
                self.globals.version += 1
            view[index] = new
            return old
        if not wanted and operation.in_order(view, index, operands):
            self.globals.version += 1
            return None
        before = view.take(index)
        old = operation.update(view, index, operands)
        if differs(view.take(index), before).any():
            self.globals.version += 1
        return old

    # -- messages -------------------------------------------------------------------------------
    def admitted(self, space: str, address, valid, size: int, ins, kind: str):
        """(lanes,) bool: who of the `valid` is aligned too; None: all of them.

        Reports the other lanes, and raises unless an observer goes on.
        """
        valid = valid & (address & np.uint64(size - 1) == 0)
        if valid.all():
            return None
        first = int(address[np.argmin(valid)])
        found = self.describe(space, first, size, kind)
        remedy = self.remedy(space, first, found[2])
        self.reports.bad_access(found, remedy, space, address, valid, size, ins, kind)
        return valid

    def describe(self, space: str, address: int, size: int, kind: str) -> tuple[str, object, str]:
        """(array, index in it, both in words) of an address, as the message about a fault says."""
        if space == "global":
            return self.globals.describe(address, size, kind)
        if space == "local":
            index, item = (address - (address >> 63 << 64)) // min(size, 4), min(size, 4)
            text = (
                f"element {index} of the thread's local memory, in elements of {item} bytes; "
                f"valid elements are 0 to {self.local_size // item - 1}"
            )
            return "local memory", index, text
        return self.describe_shared(address)

    def remedy(self, space: str, address: int, place: str) -> str:
        """Return the remedy for an access that is out of bounds."""
        if space == "shared" and (missing := self.run.description().without_memory(address)):
            return f"The launch gives {missing} no memory: {GIVE_MEMORY}"
        if space != "global" or not self.globals.is_null(address):
            if place.endswith("read-only"):
                return "Pass an array that can be written, or do not write through this pointer"
            if place.endswith("constant memory"):
                return "Declare the variable __device__ if kernels are to write it"
            return "Guard the access with a bounds check, or correct the index"
        if self.run.refused_bytes:
            heap = self.run.heap
            return (
                f"malloc() or new found no room for {self.run.refused_bytes} bytes and returned "
                f"null: the device heap has {heap.span.size} bytes, of which {heap.bytes_in_use} "
                "are in use, since the process began. Free what is not needed, and check the "
                "pointer before its use; a new Python process has an empty heap"
            )
        return "Pass an array for the argument that is None, or set the pointer before its use"

    def describe_shared(self, address: int) -> tuple[str, object, str]:
        """`describe` for shared memory: which array, and which byte of it."""
        for bits in (64, 32):  # shared addresses have either width
            if address >> bits - 1 == 1:
                address -= 1 << bits
        behind = self.holes is not None and 0 <= address < self.shared_size
        for name, (offset, variable) in reversed(self.run.kernel.shared_places.items()):
            if offset <= address < offset + variable.size or behind and offset <= address:
                name, at = demangle(name), address - offset
                return name, at, f"byte {at} of the shared array {name} ({variable.size} bytes)"
        text = f"byte {address} of the block's {self.shared_size} bytes of shared memory"
        return "shared memory", address, text

    def name_shared(self, address: int) -> str:
        """The element of a shared array at an address; its bytes where its type is not known."""
        name, offset, text = self.describe_shared(address)
        launch = self.run.description()
        known = shared_arrays(launch.source, launch.shared_sizes).get(name)
        return text if known is None else known.element(offset)


def _some(values: tuple, chosen: np.ndarray) -> tuple:
    """The values of some of the lanes; what all lanes share stays as it is."""
    return tuple(value if scalar(value) else value[chosen] for value in values)
