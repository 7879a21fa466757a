"""What a chunk does for memory and warp instructions: gather, scatter, update, exchange.

The generated lines call these methods; a memory instruction names its space ("global", "shared",
"local" or "generic") first. An item is what one lane moves at a time, 2**shift bytes of `dtype`.
"""

from __future__ import annotations

import numpy as np

from attn_course.engine.translate.control_flow import LANE

from . import warps
from .addressing import Addressing
from .memory import scalar, spread


class MemoryInstructions(Addressing):
    """Mixed into Chunk."""

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
            part = self.within(places, lambda a=arguments: self.load(*a))
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

    def store_mixed(self, address, values: tuple, dtype, shift: int, ins) -> None:
        """Generic addresses in different spaces: one space after the other."""
        for space, places, relative in self.space_parts(address):
            arguments = (space, relative, _some(values, places), dtype, shift, ins)
            self.within(places, lambda a=arguments: self.store(*a))

    @staticmethod
    def changes(view, index, values):
        """Where a store writes something else than is there already, one item after another."""
        for i, value in enumerate(values):
            yield view.take(index + i) != value

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
        count = self.R[LANE].size
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
            seen = self.within(places, lambda a=arguments: self.atomic(*a))
            if wanted:
                old[places] = seen
        return old

    def update(self, view, index: np.ndarray, operation, operands: tuple, wanted: bool):
        """Update the view's items at `index`, one lane after the other where two meet."""
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
        """Cut a value into `count` unsigned parts, the low bits first."""
        size = value.dtype.itemsize // count
        kind = np.dtype(f"u{size}")
        bits = value.dtype.type(8 * size)
        return [(value >> value.dtype.type(int(bits) * i)).astype(kind) for i in range(count)]

    def clock(self, dtype: np.dtype):
        """A count that grows with every reading, as the clock registers do."""
        self.clock_ticks += 1
        self.memory.version += 1  # time goes on: a loop that waits for it does not stand still
        return dtype.type(self.clock_ticks & ((1 << 8 * dtype.itemsize) - 1))

    # -- warp level -----------------------------------------------------------------------------
    def shuffle(self, mode, value, b, c):
        """shfl.sync: (the source lanes' values, was the source in bounds)."""
        if scalar(value) and self.accesses is None and mode == "bfly":
            return value, np.bool_(True)
        result, inside, inactive = warps.shuffle(mode, value, b, c, self.R[LANE])
        self.reads_inactive = inactive
        return result, inside

    def vote(self, mode, predicate, members):
        return warps.vote(mode, predicate, self.R[LANE], members)

    def match_any(self, value, members):
        return warps.match_any(value, self.R[LANE], members)

    def match_all(self, value, members):
        return warps.match_all(value, self.R[LANE], members)

    def redux(self, mode, value, members):
        return warps.reduce(mode, value, self.R[LANE], members)

    def elect(self, members):
        return warps.first_active(self.R[LANE], members)

    def active_mask(self):
        return warps.ballot(np.bool_(True), self.R[LANE], np.uint32(0xFFFFFFFF))


def _some(values: tuple, chosen: np.ndarray) -> tuple:
    """The values of some of the lanes; what all lanes share stays as it is."""
    return tuple(value if scalar(value) else value[chosen] for value in values)
