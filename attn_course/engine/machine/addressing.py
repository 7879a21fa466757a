"""From addresses to places in memory: what is in bounds is located, what is not is refused."""

from __future__ import annotations

import numpy as np

from attn_course.engine.events import VERBS, Access, FaultEvent
from attn_course.engine.ptx.demangle import demangle
from attn_course.engine.translate.control_flow import LANE, LOCAL_BASE, SHARED_BASE

from .errors import MemoryFault
from .memory import CLUSTER_SHIFT, RANGES, RED_ZONE, WINDOWS, bounds, scalar, spread

_GLOBAL_END, _GLOBAL_AGAIN = RANGES["shared"][0], RANGES["local"][1]
_SHIFT = [np.uint64(i) for i in range(5)]


def _flat(address, shift: int):
    """Byte addresses as indices into a view of items of 2**shift bytes."""
    return (address >> _SHIFT[shift]).view(np.int64)


class Addressing:
    """Mixed into Chunk. Addresses are uint64, (lanes,) or one scalar, relative to their space;
    those of "generic" tell the space by the window that they are in.
    """

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
        return self.locate_slice(space, address, shift, size, ins, kind)

    def locate_global(self, address, shift: int, size: int, ins, kind: str):
        """`locate` in global memory."""
        low, high, bits = bounds(address)
        memory, valid = self.memory, None
        if bits & (size - 1) or low < memory.low or high + size > memory.high:
            if bits & (size - 1) or not memory.covers(low, high + size):
                address = spread(address, self.R[LANE].size)
                valid = memory.valid(address, size) & (address & np.uint64(size - 1) == 0)
                if valid.all():
                    valid = None
                else:
                    self.refuse("global", address, valid, size, ins, kind)
        if self.accesses is not None:
            self.tell_access("global", kind, address, size, valid)
        return memory, _flat(address, shift), valid

    def locate_slice(self, space: str, address, shift: int, size: int, ins, kind: str):
        """Shared and local memory: each block or thread has a slice of the flat array."""
        slot, memory, limit = (
            (SHARED_BASE, self.shared, self.shared_size)
            if space == "shared"
            else (LOCAL_BASE, self.local, self.local_size)
        )
        base = self.R[slot]
        if base is None:
            self.fetch((slot,))
            base = self.R[slot]
        _, high, bits = bounds(address)
        valid = None
        if high >> CLUSTER_SHIFT and space == "shared" and self.names_block(high):
            return self.locate_in_cluster(address, shift, size, ins, kind)
        if bits & (size - 1) or high + size > limit:
            address = spread(address, self.R[LANE].size)
            fits = (address <= np.uint64(max(limit - size, 0))) & (limit >= size)
            valid = fits & (address & np.uint64(size - 1) == 0)
            self.refuse(space, address, valid, size, ins, kind)
        if self.accesses is not None:
            self.tell_access(space, kind, address, size, valid)
        return memory, _flat(address + base, shift), valid

    def locate_in_cluster(self, address, shift: int, size: int, ins, kind: str):
        """Shared memory of any block of the cluster; observers hear which."""
        address = spread(address, self.R[LANE].size)
        inside, base, exists = self.cluster_base(address)
        fits = (inside <= np.uint64(max(self.shared_size - size, 0))) & (self.shared_size >= size)
        valid = fits & exists & (inside & np.uint64(size - 1) == 0)
        if valid.all():
            valid = None
        else:
            self.refuse("shared", np.where(exists, inside, address), valid, size, ins, kind)
        if self.accesses is not None:
            place = inside if valid is None else np.where(exists, inside, address)
            holder = base.astype(np.int64) // max(self.run_.shared_stride, 1)
            told = Access("shared", kind, place, self.R[LANE], size, valid, holder)
            self.accesses.append(told)
        return self.shared, _flat(inside + base, shift), valid

    def locate_generic(self, address, shift: int, size: int, ins, kind: str):
        """`locate` where all lanes are in one space; memory is None where they are not."""
        low, high, _ = bounds(address)
        for space, (start, end) in RANGES.items():
            if start <= low and high < end:
                relative = address - np.uint64(WINDOWS[space])
                return self.locate_slice(space, relative, shift, size, ins, kind)
        if high < _GLOBAL_END or low >= _GLOBAL_AGAIN:
            return self.locate_global(address, shift, size, ins, kind)
        return None, None, None  # lanes in different spaces

    def is_in(self, space: str, address):
        """isspacep: (lanes,) bool. Parameters and constants count as global memory here."""
        if space in ("const", "param"):
            return np.zeros(np.shape(address), bool)[()]
        if space == "global":
            return (address < np.uint64(_GLOBAL_END)) | (address >= np.uint64(_GLOBAL_AGAIN))
        start, end = RANGES[space]
        return (address >= np.uint64(start)) & (address < np.uint64(end))

    def space_parts(self, address):
        """For generic addresses in different spaces: (space, lanes' places, relative addresses)."""
        for space, start in WINDOWS.items():
            mine = self.is_in(space, address)
            if mine.any():
                yield space, np.nonzero(mine)[0], address[mine] - np.uint64(start)

    def within(self, places: np.ndarray, action):
        """Run `action` with only some of the active lanes."""
        R = self.R
        self.fetch((SHARED_BASE, LOCAL_BASE))
        narrow: list = [None] * len(R)
        for slot in (LANE, SHARED_BASE, LOCAL_BASE):
            narrow[slot] = R[slot] if scalar(R[slot]) else R[slot][places]
        self.R = narrow
        try:
            return action()
        finally:
            self.R = R

    # -- what PTX names -------------------------------------------------------------------------
    def address_of(self, place: tuple, offset: int) -> np.uint64:
        """Address, within its own space, of a variable that PTX names."""
        kind, where = place
        if kind == "variable":
            return np.uint64(self.run_.symbols[where] + offset)
        if kind == "parameter":
            return np.uint64(self.run_.parameter_address + where + offset)
        if kind == "dynamic":
            return np.uint64(self.run_.dynamic_offset + offset)
        return np.uint64(where + offset)

    def parameter(self, offset: int, dtype: np.dtype):
        """The value of a kernel's parameter at a byte offset, the same in all lanes."""
        return np.frombuffer(self.run_.parameters, dtype, 1, offset)[0]

    # -- faults and observers -------------------------------------------------------------------
    def tell_access(self, space, kind, address, size, valid) -> None:
        """Note an access of the running lanes for observers."""
        lanes = self.R[LANE]
        self.accesses.append(Access(space, kind, spread(address, lanes.size), lanes, size, valid))

    def refuse(self, space: str, address, valid, size: int, ins, kind: str) -> None:
        """Report a bad access: raise, unless an observer wants the run to go on."""
        bad = np.nonzero(~valid)[0]
        first, lanes = int(address[bad[0]]), self.R[LANE][bad]
        array, index, place = self.describe(space, first, size)
        misaligned = first % size != 0
        fault = "misaligned" if misaligned else "out-of-bounds"
        what = f"{size} bytes that are not aligned to {size}: " if misaligned else ""
        message = (
            f"{self.run_.kernel.function.name} at {self.block.instance.where(ins)}: "
            f"{self.thread_text(lanes)} {VERBS[kind]} {what}{place} "
            f"({bad.size} of {valid.size} active threads do so). "
            + _remedy(misaligned, space == "global" and first < RED_ZONE)
        )
        event = FaultEvent(
            fault,
            message,
            ins,
            self.block.instance.line(ins),
            tuple(self.threads(lanes[:8])),
            array,
            index,
        )
        if not self.report(event):
            raise MemoryFault(message, fault, array, index, event.threads)

    def describe(self, space: str, address: int, size: int) -> tuple[str, object, str]:
        """(array, index in it, both in words) of an address, as the message about a fault says."""
        if space == "global":
            return self.memory.describe(address, size)
        if space == "local":
            text = f"byte {address} of its {self.local_size} bytes of local memory"
            return "local memory", address, text
        return self.describe_shared(address)

    def describe_shared(self, address: int) -> tuple[str, object, str]:
        """`describe` for shared memory: which array, and which byte of it."""
        for bits in (64, 32):  # shared addresses have either width
            if address >> bits - 1 == 1:
                address -= 1 << bits
        for name, (offset, variable) in self.kernel.shared_places.items():
            if offset <= address < offset + variable.size:
                name, at = demangle(name), address - offset
                return name, at, f"byte {at} of the shared array {name} ({variable.size} bytes)"
        text = f"byte {address} of the block's {self.shared_size} bytes of shared memory"
        return "shared memory", address, text


def _remedy(misaligned: bool, is_null: bool) -> str:
    if misaligned:
        return "Use an address that is a multiple of the access size"
    if is_null:
        return "Pass an array for the argument that is None"
    return "Guard the access with a bounds check, or mend the index"
