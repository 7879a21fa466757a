"""What a chunk does for memory and warp instructions: check, gather, scatter, tell observers."""

from __future__ import annotations

import numpy as np

from ..events import Access, FaultEvent
from . import warp
from .blocks import LANE, LOCAL_BASE, SHARED_BASE
from .errors import MemoryFault
from .memory import CLUSTER_SHIFT, RANGES, RED_ZONE, WINDOWS, bounds, scalar, spread
from .names import demangle

_GLOBAL_END, _GLOBAL_AGAIN = RANGES["shared"][0], RANGES["local"][1]
_SHIFT = [np.uint64(i) for i in range(5)]


def _flat(address, shift: int):
    """Byte addresses as indices into a view of items of 2**shift bytes."""
    return (address >> _SHIFT[shift]).view(np.int64)


class MemoryInstructions:
    """Mixed into Chunk. `locate_*` turn an address into (memory, index, valid): `valid` is None, or
    says which lanes' accesses are allowed where an observer wants the run to go on after a fault.
    """

    # -- addresses ------------------------------------------------------------------------------
    def locate_global(self, address, shift: int, size: int, ins, kind: str):
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

    def locate_shared(self, address, shift: int, size: int, ins, kind: str):
        return self.locate_slice("shared", address, shift, size, ins, kind)

    def locate_local(self, address, shift: int, size: int, ins, kind: str):
        return self.locate_slice("local", address, shift, size, ins, kind)

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
        return np.frombuffer(self.run_.parameters, dtype, 1, offset)[0]

    # -- loads and stores -----------------------------------------------------------------------
    def load(self, locate, address, dtype, shift, count, ins):
        memory, index, valid = locate(address, shift, count << shift, ins, "load")
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

    def load_mixed(self, address, dtype, shift, count, ins):
        result = [np.zeros(address.size, dtype) for _ in range(count)]
        for space, places, relative in self.space_parts(address):
            locate = getattr(self, f"locate_{space}")
            part = self.within(
                places, lambda a=relative, at=locate: self.load(at, a, dtype, shift, count, ins)
            )
            for whole, piece in zip(result, [part] if count == 1 else part, strict=True):
                whole[places] = piece
        return result[0] if count == 1 else result

    def load_global(self, address, dtype, shift, count, ins):
        return self.load(self.locate_global, address, dtype, shift, count, ins)

    def load_shared(self, address, dtype, shift, count, ins):
        return self.load(self.locate_shared, address, dtype, shift, count, ins)

    def load_local(self, address, dtype, shift, count, ins):
        return self.load(self.locate_local, address, dtype, shift, count, ins)

    def load_generic(self, address, dtype, shift, count, ins):
        return self.load(self.locate_generic, address, dtype, shift, count, ins)

    def store(self, locate, address, values, dtype, shift, ins):
        memory, index, valid = locate(address, shift, len(values) << shift, ins, "store")
        if memory is None:
            for space, places, relative in self.space_parts(address):
                part = tuple(v if scalar(v) else v[places] for v in values)
                to = getattr(self, f"locate_{space}")
                self.within(
                    places, lambda a=relative, p=part, t=to: self.store(t, a, p, dtype, shift, ins)
                )
            return
        view = memory.view[dtype]
        if memory is not self.local and self.probe is None:
            self.memory.version += 1  # other threads may wait for this
        elif valid is not None or any(map(np.any, self.changes(view, index, values))):
            self.memory.version += 1
        for i, value in enumerate(values):
            if valid is not None:
                view[index[valid] + i] = value if scalar(value) else value[valid]
            elif scalar(index):  # all lanes write one place: the last lane's value stays
                view[index + i] = value if scalar(value) else value[-1]
            else:
                view[index + i if i else index] = value

    @staticmethod
    def changes(view, index, values):
        """Where a store writes something else than is there already, one item after another."""
        for i, value in enumerate(values):
            yield view.take(index + i) != value

    def store_global(self, address, values, dtype, shift, ins):
        self.store(self.locate_global, address, values, dtype, shift, ins)

    def store_shared(self, address, values, dtype, shift, ins):
        self.store(self.locate_shared, address, values, dtype, shift, ins)

    def store_local(self, address, values, dtype, shift, ins):
        self.store(self.locate_local, address, values, dtype, shift, ins)

    def store_generic(self, address, values, dtype, shift, ins):
        self.store(self.locate_generic, address, values, dtype, shift, ins)

    # -- atomics --------------------------------------------------------------------------------
    def atomic(self, locate, address, operation, operands, dtype, shift, wanted, ins):
        """Read-modify-write in lane order; returns the old values where `wanted`."""
        memory, index, valid = locate(address, shift, 1 << shift, ins, "atomic")
        if memory is None:
            return self.atomic_mixed(address, operation, operands, dtype, shift, wanted, ins)
        if memory is self.shared and operation.in_shared is not None:
            operation = operation.in_shared
        count = self.R[LANE].size
        view, index = memory.view[dtype], spread(index, count)
        operands = tuple(spread(o, count) for o in operands)
        if valid is not None:
            old = np.zeros(count, dtype)
            part = tuple(o[valid] for o in operands)
            if valid.any():
                old[valid] = self.update(view, index[valid], operation, part, True)
            return old
        return self.update(view, index, operation, operands, wanted)

    def atomic_mixed(self, address, operation, operands, dtype, shift, wanted, ins):
        """Generic addresses in different spaces: one space after the other."""
        old = np.zeros(address.size, dtype)
        for space, places, relative in self.space_parts(address):
            part = tuple(o if scalar(o) else o[places] for o in operands)
            locate = getattr(self, f"locate_{space}")
            arguments = (locate, relative, operation, part, dtype, shift, wanted, ins)
            seen = self.within(places, lambda a=arguments: self.atomic(*a))
            if wanted:
                old[places] = seen
        return old

    def update(self, view, index, operation, operands, wanted: bool):
        if np.unique(index).size == index.size:
            old = view.take(index)
            new = operation.fn(old, *operands)
            if (new.view(f"u{new.itemsize}") != old.view(f"u{old.itemsize}")).any():
                self.memory.version += 1
            view[index] = new
            return old
        if not wanted and operation.in_order(view, index, operands):
            self.memory.version += 1
            return None
        before = view.take(index)
        old = operation.update(view, index, operands)
        if (view.take(index) != before).any():
            self.memory.version += 1
        return old

    def atomic_global(self, *arguments):
        return self.atomic(self.locate_global, *arguments)

    def atomic_shared(self, *arguments):
        return self.atomic(self.locate_shared, *arguments)

    def atomic_generic(self, *arguments):
        return self.atomic(self.locate_generic, *arguments)

    # -- faults and observers -------------------------------------------------------------------
    def tell_access(self, space, kind, address, size, valid) -> None:
        lanes = self.R[LANE]
        self.accesses.append(Access(space, kind, spread(address, lanes.size), lanes, size, valid))

    def refuse(self, space: str, address, valid, size: int, ins, kind: str) -> None:
        """Report a bad access: raise, unless an observer wants the run to go on."""
        bad = np.nonzero(~valid)[0]
        first = int(address[bad[0]])
        lanes = self.R[LANE][bad]
        misaligned = first % size != 0
        array, index, text = self.describe(space, first, size)
        verb = {"load": "reads", "store": "writes", "atomic": "updates"}[kind]
        where = self.block.instance.where(ins)
        what = f"{size} bytes that are not aligned to {size}: " if misaligned else ""
        message = (
            f"{self.run_.kernel.function.name} at {where}: {self.thread_text(lanes)} {verb} {what}"
            f"{text} ({bad.size} of {valid.size} active threads do so). "
            + (
                "Use an address that is a multiple of the access size"
                if misaligned
                else "Pass an array for the argument that is None"
                if space == "global" and first < RED_ZONE
                else "Guard the access with a bounds check, or mend the index"
            )
        )
        fault = "misaligned" if misaligned else "out-of-bounds"
        event = FaultEvent(
            fault, message, ins, self.block.instance.line(ins),
            tuple(self.threads(lanes[:8])), array, index,
        )  # fmt: skip
        if not self.report(event):
            raise MemoryFault(message, fault, array, index, event.threads)

    def describe(self, space: str, address: int, size: int) -> tuple[str, object, str]:
        if space == "global":
            return self.memory.describe(address, size)
        if space == "local":
            text = f"byte {address} of its {self.local_size} bytes of local memory"
            return "local memory", address, text
        signed = address
        for bits in (64, 32):  # shared addresses have either width
            if signed >> bits - 1 == 1:
                signed -= 1 << bits
        buffers = sorted(
            (offset, variable.size, name)
            for name, (offset, variable) in self.kernel.shared_places.items()
        )
        for offset, length, name in buffers:
            if offset <= signed < offset + length:
                name, at = demangle(name), signed - offset
                return name, at, f"byte {at} of the shared array {name} ({length} bytes)"
        text = f"byte {signed} of the block's {self.shared_size} bytes of shared memory"
        return "shared memory", signed, text

    # -- values ---------------------------------------------------------------------------------
    @staticmethod
    def pack(dtype: np.dtype, parts: tuple):
        """Join parts, the first in the low bits."""
        bits = 8 * dtype.itemsize // len(parts)
        whole = parts[0].astype(dtype)
        for i, part in enumerate(parts[1:], 1):
            whole = whole | (part.astype(dtype) << dtype.type(bits * i))
        return whole

    @staticmethod
    def unpack(value, count: int) -> list:
        size = value.dtype.itemsize // count
        kind = np.dtype(f"u{size}")
        bits = value.dtype.type(8 * size)
        return [(value >> value.dtype.type(int(bits) * i)).astype(kind) for i in range(count)]

    def clock(self, dtype: np.dtype):
        self.clock_ticks += 1
        self.memory.version += 1  # time goes on: a loop that waits for it does not stand still
        return dtype.type(self.clock_ticks & ((1 << 8 * dtype.itemsize) - 1))

    # -- warp level -----------------------------------------------------------------------------
    def shuffle(self, mode, value, b, c):
        if scalar(value) and self.accesses is None and mode == "bfly":
            return value, np.bool_(True)
        result, inside, inactive = warp.shuffle(mode, value, b, c, self.R[LANE])
        self.reads_inactive = inactive
        return result, inside

    def vote(self, mode, predicate, members):
        return warp.vote(mode, predicate, self.R[LANE], members)

    def match_any(self, value, members):
        return warp.match_any(value, self.R[LANE], members)

    def match_all(self, value, members):
        return warp.match_all(value, self.R[LANE], members)

    def redux(self, mode, value, members):
        return warp.reduce(mode, value, self.R[LANE], members)

    def elect(self, members):
        return warp.first_active(self.R[LANE], members)

    def active_mask(self):
        return warp.ballot(np.bool_(True), self.R[LANE], np.uint32(0xFFFFFFFF))
