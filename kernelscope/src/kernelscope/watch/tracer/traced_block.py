"""One block's view of memory for the tracer: its lanes, its arrays, the elements of an access."""

from math import prod

import numpy as np
from kernelscope.events import Access, Buffer, Launch, MachineView
from kernelscope.ptx.c_types import NARROW_FLOATS, dtype_of
from kernelscope.ptx.debug_names import shared_arrays

from .recording import GONE, linear, plain_values

_MOST_FILLED = 4096  # elements of an array whose contents are recorded when a copy lands
_KINDS = {"load": "read", "store": "write"}  # the rest are updates


class TracedBlock:
    """A thread block of a launch: which lanes are its own, and which bytes.

    kept: the threads whose variables are recorded, None: all; number: the block's linear number in
    the grid; arrays: as Recording.arrays describes them; untyped: those of shared memory whose
    declaration is not understood are among these names.
    """

    def __init__(self, launch: Launch, block: tuple[int, int, int], kept=None):
        self.number = linear(block, launch.grid)
        self.threads = launch.threads
        self.arrays: dict[str, dict] = {}
        self.buffers: list[Buffer] = []
        shapes = shared_arrays(launch.source, launch.shared_sizes)
        self.untyped = {one.name for one in launch.buffers if one.name not in shapes}
        for buffer in launch.buffers:
            if not buffer.name.endswith(" parameters"):  # those have names as variables
                self.buffers.append(buffer)
                self.arrays[buffer.name] = _described(buffer, shapes.get(buffer.name))
        self.is_kept = np.full(launch.threads, kept is None)
        self.is_kept[list(kept or ())] = True
        self.pointer_texts: dict[str, dict[int, str]] = {}  # space -> address -> its text
        self.local_written = np.zeros((0, 0), bool)  # (threads, bytes of local memory)
        self.found: tuple = (None, 0, ())  # lanes, their base, and what mine() said of them

    def mine(self, lanes: np.ndarray, machine: MachineView) -> tuple[slice, np.ndarray]:
        """Return where this block's lanes are in sorted lanes, and their thread numbers."""
        base = machine.lane_of(self.number)
        if self.found[0] is not lanes or self.found[1] != base:  # most follow others of the same
            low, high = np.searchsorted(lanes, (base, base + self.threads))
            self.found = lanes, base, (slice(low, high), lanes[low:high] - base)
        return self.found[2]

    def kept_of(self, threads: np.ndarray) -> np.ndarray:
        """Return those of some threads that are kept."""
        return threads[self.is_kept[threads]]

    # -- global and shared memory ---------------------------------------------------------------
    def touched(self, access: Access, machine: MachineView) -> list[dict]:
        """Return one record for each array that an access touches: its elements and their values.

        Shared memory is the block's own: accesses of other blocks, or to theirs, are left out.
        """
        where, threads = self.mine(access.lanes, machine)
        address = access.address[where].astype(np.int64)
        left = np.ones(address.size, bool) if access.valid is None else access.valid[where]
        if access.block is not None:
            left = left & (access.block[where] == self.number - machine.first_block)
        found = []
        for buffer in self.buffers:
            inside = left & (address >= buffer.start) & (address < buffer.start + buffer.size)
            if buffer.space != access.space or not inside.any():
                continue
            left = left & ~inside
            dtype = dtype_of(self.arrays[buffer.name]["dtype"])
            each = max(1, access.size // dtype.itemsize)
            first = (address[inside] - buffer.start) // dtype.itemsize
            index = (first[:, None] + np.arange(each)).ravel()
            found.append(
                {
                    "array": buffer.name,
                    "kind": _KINDS.get(access.kind, "update"),
                    "size": access.size,
                    "threads": threads[inside].tolist(),
                    "index": index.tolist(),
                    "values": plain_values(self.elements(buffer, machine, dtype)[index]),
                }
            )
        return found

    def filled(self, start: int, end: int, machine: MachineView) -> list[dict]:
        """Return a record of a small shared array's bytes that a copy has brought."""
        for buffer in self.buffers:
            inside = buffer.start <= start and end <= buffer.start + buffer.size
            item = dtype_of(self.arrays[buffer.name]["dtype"]).itemsize
            if buffer.space != "shared" or not inside or buffer.size > _MOST_FILLED * item:
                continue
            first, last = (start - buffer.start) // item, (end - buffer.start) // item
            values = self.elements(buffer, machine, dtype_of(self.arrays[buffer.name]["dtype"]))
            return [
                {
                    "array": buffer.name,
                    "kind": "write",
                    "size": end - start,
                    "threads": [],
                    "index": list(range(first, last)),
                    "values": plain_values(values[first:last]),
                    "elsewhere": True,
                }
            ]
        return []

    def elements(self, buffer: Buffer, machine: MachineView, dtype: np.dtype) -> np.ndarray:
        """Return a buffer's present contents, for this block."""
        data = machine.memory(buffer.space)
        if buffer.space == "shared":
            data = data.reshape(machine.block_count, -1)[self.number - machine.first_block]
        count = buffer.size // dtype.itemsize
        return data[buffer.start : buffer.start + count * dtype.itemsize].view(dtype)

    # -- local memory ---------------------------------------------------------------------------
    def mark_local(self, access: Access, machine: MachineView) -> None:
        """Remember which bytes of their frames threads have written: the rest has no value yet."""
        where, threads = self.mine(access.lanes, machine)
        known = self.local_written.shape[1]
        if known != machine.local_bytes:  # calls may make it larger
            written = np.zeros((self.threads, machine.local_bytes), bool)
            written[: self.local_written.shape[0], :known] = self.local_written
            self.local_written = written
        offset = access.address[where].astype(np.int64)[:, None] + np.arange(access.size)
        inside = ((offset >= 0) & (offset < machine.local_bytes)).all(axis=1)
        self.local_written[threads[inside, None], offset[inside]] = True

    def local_bytes(self, machine: MachineView, threads: np.ndarray, start: int, size: int):
        """((threads, size) uint8, (threads,) bool: has the thread written any of them)."""
        first = (self.number - machine.first_block) * self.threads
        at = ((first + threads) * machine.local_bytes)[:, None] + np.arange(start, start + size)
        raw = machine.memory("local")[at]
        if self.local_written.size == 0:
            return raw, np.zeros(threads.size, bool)
        return raw, self.local_written[threads, start : start + size].any(axis=1)

    # -- pointers -------------------------------------------------------------------------------
    def pointers(self, machine: MachineView, addresses: np.ndarray, in_frame) -> list[str]:
        """Return generic addresses as "array + element".

        in_frame: (offset, name, variable) of each variable in the threads' own local memory.
        """
        found = [""] * addresses.size
        for space, places, relative in machine.by_space(addresses):
            texts = {} if space == "local" else self.pointer_texts.setdefault(space, {})
            for place, address in zip(places.tolist(), relative.tolist(), strict=True):
                if address not in texts:
                    texts[address] = self.pointer(space, address, in_frame)
                found[place] = texts[address]
        return found

    def pointer(self, space: str, address: int, in_frame) -> str:
        if space == "global" and address == 0:
            return "null"
        if space == "local":
            return _local_pointer(address, in_frame)
        for buffer in self.buffers:
            # One past the end is a legal pointer, as C has it.
            inside = buffer.start <= address <= buffer.start + buffer.size
            if buffer.space == space and inside:
                size = dtype_of(self.arrays[buffer.name]["dtype"]).itemsize
                element, rest = divmod(address - buffer.start, size)
                tail = f" + {element}" if element else ""
                return f"{buffer.name}{tail}" + (f" and {rest} bytes" if rest else "")
        return f"{space} {address:#x}"


def _described(buffer: Buffer, shared_array) -> dict:
    """A buffer as Recording.arrays has it."""
    dtype, shape = buffer.dtype, buffer.shape
    if buffer.space == "shared":
        dtype = dtype_of(shared_array.dtype if shared_array else "u4")
        count = buffer.size // dtype.itemsize
        known = shared_array is not None and prod(shared_array.shape) == count
        shape = shared_array.shape if known else (count,)
    dtype = np.dtype(dtype if dtype is not None else "u1")
    return {
        "space": buffer.space,
        "dtype": dtype.name if dtype.name in NARROW_FLOATS.values() else dtype.str[1:],
        "shape": list(shape or (buffer.size // dtype.itemsize,)),
        "start": buffer.start % 128 if buffer.space == "global" else buffer.start,
        "size": buffer.size,
    }


def _local_pointer(address: int, in_frame) -> str:
    """A place in the thread's own frame by the variable that lives there."""
    for start, name, variable in in_frame:
        element, rest = divmod(address - start, np.dtype(variable.dtype or "u1").itemsize)
        if 0 <= element < prod(variable.shape) and not rest:
            return f"&{name}" + (f" + {element}" if element else "")
    return f"local {address:#x}"


def values_of(raw: np.ndarray, variable) -> list:
    """Bytes of local memory, (threads, size), as one value a thread."""
    values = np.ascontiguousarray(raw).view(variable.dtype)
    return plain_values(values.reshape(raw.shape[0], *variable.shape))


def as_type(values: np.ndarray, dtype: str) -> np.ndarray:
    """Registers as a C type: the same bits, or the low ones where the register is wider."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return values != 0
    if values.dtype.itemsize == dtype.itemsize:
        return values.view(dtype)
    return values.astype(dtype)


def where_present(values: list, present: np.ndarray) -> list:
    return [value if here else GONE for value, here in zip(values, present.tolist(), strict=True)]
