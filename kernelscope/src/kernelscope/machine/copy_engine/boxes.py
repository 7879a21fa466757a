"""Boxes of a tensor map: which bytes of global memory each one holds, and which lie outside.

Axes go from the innermost one on. A unit is a power of two of bytes, at most 16, that no edge of
the array and no box cuts: one NumPy gather moves all units of all boxes of an instruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ...tensor_map.fields import ELEMENTS, FILLS, KINDS, unpacked

_UNIT = 16  # bytes, the most
UNITS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)} | {16: np.dtype("c16")}
NAN_BITS = {2: 0x7FF7, 4: 0x7FF77FF7, 8: 0x7FF77FF77FF77FF7}  # of a fill, by bytes of an element


@dataclass(frozen=True)
class ByteRange:
    """The bytes of an array that some boxes hold: [low, high) around all; empty: low == high."""

    low: int
    high: int


@dataclass(frozen=True)
class Box:
    """The boxes of one tensor map. Tuples are by axis, from the innermost one on.

    address: of the array's first element; sizes: elements of the array; strides: bytes; counts:
    elements of a box that are copied; steps: elements from one of them to the next.
    """

    address: int
    kind: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    counts: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int
    fill: str

    @property
    def axes(self) -> int:
        return len(self.sizes)

    @cached_property
    def item(self) -> int:
        """Bytes of an element."""
        return ELEMENTS[self.kind][1]

    @cached_property
    def bytes(self) -> int:
        """Bytes of a box in shared memory."""
        return int(np.prod(self.counts)) * self.item

    # -- where boxes are ------------------------------------------------------------------------
    def span(self, first: np.ndarray) -> ByteRange:
        """The bytes of the array that boxes hold; first: (n, axes) int64, coordinates."""
        step, count, size = (np.array(x) for x in (self.steps, self.counts, self.sizes))
        last = first + (count - 1) * step
        low = np.where(first < 0, first % step, first)  # the first element that is not below 0
        high = np.where(last < size, last, last - -(-(last - size + 1) // step) * step)
        inside = (low <= high).all(axis=1)
        if not inside.any():
            return ByteRange(self.address, self.address)
        low, high = low[inside] @ self._strides, high[inside] @ self._strides
        return ByteRange(self.address + int(low.min()), self.address + int(high.max()) + self.item)

    def unit(self, first: np.ndarray) -> int:
        """Bytes that may be moved at a time: a power of two."""
        edges = np.bitwise_or.reduce(first[:, 0]) * self.item | self.sizes[0] * self.item | _UNIT
        return int(edges & -edges)

    @cached_property
    def _strides(self) -> np.ndarray:
        return np.array(self.strides, np.int64)

    def indices(self, first: np.ndarray, unit: int) -> tuple[np.ndarray, np.ndarray | None]:
        """((n, units) int64 places in a view of units, (n, units) bool: inside the array?).

        The second is None where all are inside.
        """
        origin = self.address + first @ self._strides
        index = origin[:, None] // unit + _offsets(self, unit)
        reach = first + (np.array(self.counts) - 1) * np.array(self.steps)
        if first.min() >= 0 and (reach < np.array(self.sizes)).all():
            return index, None
        return index, self._inside(first, unit)

    def _inside(self, first: np.ndarray, unit: int) -> np.ndarray:
        """(n, units) bool: which units are in the array along every axis."""
        row = np.arange(self.counts[0] * self.item // unit) * unit
        place = first[:, :1] * self.item + row
        inside = (place >= 0) & (place < self.sizes[0] * self.item)
        for axis in range(1, self.axes):
            place = first[:, axis, None] + np.arange(self.counts[axis]) * self.steps[axis]
            along = (place >= 0) & (place < self.sizes[axis])
            inside = (along[:, :, None] & inside[:, None, :]).reshape(len(first), -1)
        return inside

    # -- values ---------------------------------------------------------------------------------
    def read(self, memory: np.ndarray, first: np.ndarray) -> np.ndarray:
        """(n, bytes) uint8: the boxes at some coordinates, from the bytes of global memory."""
        unit = self.unit(first)
        index, inside = self.indices(first, unit)
        view = memory.view(UNITS[unit])
        if inside is None:
            return self.converted(view.take(index).view(np.uint8))
        found = view.take(np.where(inside, index, 0)).view(np.uint8).reshape(*index.shape, unit)
        found[~inside] = self.outside(unit)
        return self.converted(found.reshape(len(first), -1))

    def outside(self, unit: int) -> np.ndarray:
        """(unit,) uint8: what stands for the array's bytes outside of it."""
        if self.fill == "zero":
            return np.zeros(unit, np.uint8)
        one = np.array([NAN_BITS[self.item]], f"u{self.item}")
        return np.resize(one.view(np.uint8), unit)

    def converted(self, data: np.ndarray) -> np.ndarray:
        """Elements as they stand in shared memory: those of "_ftz" types have no subnormals."""
        if self.kind.endswith("_ftz"):
            words = data.view(np.uint32)
            words[words & 0x7F800000 == 0] &= 0x80000000
        if self.kind.startswith("tfloat32"):
            words = data.view(np.uint32)
            words[...] = rounded_to_tf32(words)
        return data


def rounded_to_tf32(words: np.ndarray) -> np.ndarray:
    """Bits of float32 with 10 bits behind the point, rounded to the nearest, ties to even.

    Infinities and NaN keep their bits.
    """
    up = words + np.uint32(0xFFF) + (words >> np.uint32(13) & np.uint32(1))
    finite = words & np.uint32(0x7F800000) != 0x7F800000
    return np.where(finite, up & np.uint32(0xFFFFE000), words)


@lru_cache(maxsize=256)
def _offsets(box: Box, unit: int) -> np.ndarray:
    """(units,) int64: the units from a box's origin to each of its own."""
    offsets = np.arange(box.counts[0] * box.item // unit, dtype=np.int64) * unit
    for axis in range(1, box.axes):
        along = np.arange(box.counts[axis]) * box.steps[axis] * box.strides[axis]
        offsets = (along[:, None] + offsets).ravel()
    return offsets // unit


@lru_cache(maxsize=256)
def decoded(image: bytes) -> Box:
    """The box of 128 bytes that TensorMap has packed, or a kernel has filled in.

    Raises InputError where they are no map that can be used, see `unpacked`.
    """
    found = unpacked(image)
    axes, kind = int(found["rank"]) + 1, KINDS[found["kind"]]
    steps = (1, *found["step"][1:axes].tolist())
    pairs = zip(found["box"][:axes].tolist(), steps, strict=True)
    return Box(
        int(found["address"]),
        kind,
        tuple(found["sizes"][:axes].tolist()),
        (ELEMENTS[kind][1], *found["strides"][: axes - 1].tolist()),
        tuple(-(-count // step) for count, step in pairs),
        steps,
        int(found["swizzle"]),
        FILLS[found["fill"]],
    )
