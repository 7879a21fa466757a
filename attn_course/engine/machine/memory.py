"""Simulated memory: one flat byte array a space, NumPy views of it, and exact checks.

A global address is an offset into the flat array, so a load is `view.take(address >> shift)`. Every
buffer sits between red zones: an access outside it is refused with the buffer's name and index.
Shared and local memory are the same flat arrays with one slice a block or a thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_course.engine.events import Buffer

RED_ZONE = 512  # bytes between buffers; also their alignment, as cudaMalloc's
FAR = 1 << 28  # bytes: a wrong address this far from all arrays says nothing about any of them
_VIEWS = tuple(
    np.dtype(t)
    for t in ("u1", "i1", "u2", "i2", "u4", "i4", "f4", "u8", "i8", "f8")  # what ld and st name
)


@dataclass
class FlatMemory:
    """The bytes of one space, and views of them as items of each dtype."""

    space: str
    bytes: np.ndarray

    def __post_init__(self):
        size = -(-self.bytes.size // 16) * 16
        if size != self.bytes.size:
            self.bytes = np.concatenate([self.bytes, np.zeros(size - self.bytes.size, np.uint8)])
        self.view = {dtype: self.bytes.view(dtype) for dtype in _VIEWS}


class GlobalMemory(FlatMemory):
    """The kernel's array arguments and variables, copied in at launch and back afterwards."""

    def __init__(self):
        super().__init__("global", np.zeros(0, np.uint8))
        self.buffers: list[Buffer] = []
        self.sources: list[np.ndarray] = []
        self.version = 0  # counts writes that may have changed something; for hang detection

    def place(self, items) -> list[int]:
        """items: (name, flat uint8 array, shape, dtype, writable); returns each one's address.

        Arrays that overlap on the host overlap here too. A view keeps how far it is into its
        owner's memory modulo 16, so that it is as little aligned as on a GPU.
        """
        order = sorted(range(len(items)), key=lambda i: _pointer(items[i][1]))
        starts, top, host_end, base = [0] * len(items), RED_ZONE, -1, 0
        for i in order:
            _, data, shape, dtype, writable = items[i]
            pointer = _pointer(data)
            if pointer >= host_end or not data.size:  # a buffer of its own, not an overlapping one
                top = -(-(top + RED_ZONE) // RED_ZONE) * RED_ZONE
                base = top + _misalignment(data) - pointer
            starts[i] = pointer + base
            host_end = max(host_end, pointer + data.size)
            top = max(top, starts[i] + data.size)
            self.buffers.append(
                Buffer(items[i][0], "global", starts[i], data.size, shape, dtype, writable)
            )
            self.sources.append(data)
        self.bytes = np.zeros(top + RED_ZONE, np.uint8)
        self.__post_init__()
        for buffer, data in zip(self.buffers, self.sources, strict=True):
            self.bytes[buffer.start : buffer.start + buffer.size] = data
        self.extents = _merge([(b.start, b.start + b.size) for b in self.buffers if b.size])
        self.extent_starts = np.array([e[0] for e in self.extents], np.uint64)
        self.extent_ends = np.array([e[1] for e in self.extents], np.uint64)
        self.low, self.high = self.extents[0] if self.extents else (0, 0)
        return starts

    def copy_back(self) -> None:
        for buffer, data in zip(self.buffers, self.sources, strict=True):
            if buffer.writable:
                data[...] = self.bytes[buffer.start : buffer.start + buffer.size]

    def covers(self, low: int, high: int) -> bool:
        """Is [low, high) inside one extent? Remembers the extent for the next question."""
        if self.low <= low and high <= self.high:
            return True
        for start, end in self.extents:
            if start <= low and high <= end:
                self.low, self.high = start, end
                return True
        return False

    def valid(self, address: np.ndarray, size: int) -> np.ndarray:
        """(lanes,) bool: which accesses of `size` bytes are inside one buffer."""
        if not self.extents:
            return np.zeros(address.shape, bool)
        slot = np.searchsorted(self.extent_starts, address, side="right") - 1
        inside = address + np.uint64(size) <= self.extent_ends[slot]
        return (slot >= 0) & inside & (address <= self.extent_ends[-1])

    def describe(self, address: int, size: int) -> tuple[str, object, str]:
        """(buffer name, index, sentence) for the buffer nearest to a bad address."""
        if not self.buffers:
            return "", None, "the kernel has no buffer at all"
        if address < RED_ZONE:
            plus = f" plus {address} bytes" if address else ""
            return "", None, f"address {address:#x}, a null pointer{plus}"
        buffer = min(self.buffers, key=lambda b: _distance(b, address))
        if _distance(buffer, address) > self.bytes.size + FAR:
            text = (
                f"address {address:#x}, far from every array: a pointer that is not set, or an "
                f"index that wrapped around (unsigned below 0, int beyond 2^31)"
            )
            return "", None, text
        return (buffer.name, *_index_text(buffer, address - buffer.start))


class _Bytes:
    """The memory from an array's lowest to its highest element, for NumPy to view."""

    def __init__(self, base: np.ndarray, low: int, high: int):
        self.base = base
        writable = base.flags.writeable
        self.__array_interface__ = {
            "data": (low, not writable),
            "shape": (high - low,),
            "typestr": "|u1",
            "version": 3,
        }


def span(array: np.ndarray) -> tuple[np.ndarray, int]:
    """Return (bytes, offset): an array's memory as flat uint8, and where its first element starts.

    The memory of a strided array is all between its lowest and its highest element; its first
    element is not at the start where a stride is negative.
    """
    if array.flags.forc:
        return array.ravel(order="K").view(np.uint8), 0
    low, high = np.lib.array_utils.byte_bounds(array)
    return np.asarray(_Bytes(array, low, high)), _pointer(array) - low


def _pointer(data: np.ndarray) -> int:
    return data.__array_interface__["data"][0]


def _misalignment(data: np.ndarray) -> int:
    """Bytes modulo 16 from the start of the memory that owns the data, which is aligned."""
    owner = data
    while isinstance(owner.base, (np.ndarray, _Bytes)):
        owner = owner.base
    return (_pointer(data) - _pointer(owner)) % 16


def _distance(buffer: Buffer, address: int) -> int:
    if address < buffer.start:
        return buffer.start - address
    return max(0, address - (buffer.start + buffer.size - 1))


def _index_text(buffer: Buffer, offset: int) -> tuple[object, str]:
    item = buffer.dtype.itemsize if buffer.dtype is not None else 1
    index, count = offset // item, buffer.size // item
    where = f"element {index}" if offset % item == 0 else f"byte {offset}"
    shape = f" of shape {buffer.shape}" if buffer.shape else ""
    return index, f"{where} of {buffer.name}{shape}; valid elements are 0 to {count - 1}"


def _merge(extents: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(extents):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def scalar(value) -> bool:
    """Registers hold an array over the active lanes, or one NumPy scalar where all lanes agree."""
    return not isinstance(value, np.ndarray)


def spread(value, count: int) -> np.ndarray:
    """The value as an array over `count` lanes."""
    return np.full(count, value) if scalar(value) else value


def bounds(address) -> tuple[int, int, int]:
    """(lowest, highest, all bits or-ed) of the addresses: one pass each, no array made."""
    if scalar(address):
        value = int(address)
        return value, value, value
    return int(address.min()), int(address.max()), int(np.bitwise_or.reduce(address))
