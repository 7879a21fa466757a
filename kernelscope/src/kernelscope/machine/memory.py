"""Simulated memory: one flat byte array a space, NumPy views of it, and exact checks.

A global address is an index into the arena of the process (see address_space), so a load is
`view.take(address >> shift)`. An access outside the arrays that a launch may use is refused with
the name of the nearest one. Shared and local memory are flat arrays with one slice a block or a
thread.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from kernelscope.events import Buffer

from ..address_space import SPACE, Allocation, Span, host_bytes

FAR = 1 << 28  # bytes: a wrong address this far from all arrays says nothing about any of them
_POINTER = np.dtype("u8")
# The methods min() and max() of an array take twice the time of these for a few lanes.
_lowest, _highest, _all_bits = np.minimum.reduce, np.maximum.reduce, np.bitwise_or.reduce
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
    """The global memory of one launch: its arrays, variables, parameters and heap.

    Arrays of the process are copied in when the launch begins, or when a pointer first leads to
    them, and back at its end. Of an array that the launch is given in parts, only these parts can
    be used, and those whose address was asked for.

    recent, recent_writable: the last extent that an access met, [first, end). read, written: all
    extents that accesses met. marks: notes each access for the processes that share a launch.
    """

    def __init__(self):
        self.space, self.bytes, self.view = "global", *_arena()
        self.buffers: list[Buffer] = []
        self.version = 0  # counts writes that may have changed something; for hang detection
        self._items: dict[int, int] = {}  # id of a buffer -> bytes of an element of it
        self._sources: list[tuple[Buffer, np.ndarray]] = []  # copied back
        self._given: set[Allocation] = set()
        self._followed: set[Allocation] = set()
        self._kept: list[object] = []
        self.read: set[tuple[int, int]] = set()
        self.written: set[tuple[int, int]] = set()
        self.marks = None
        self.ready()

    # -- what the launch may use ----------------------------------------------------------------
    def give(self, array: np.ndarray, name: str) -> int:
        """Let the launch use an array; return the address of its first element."""
        address, allocation, span = SPACE.give(array, name)
        self._given.add(allocation)
        self._use(span, allocation, array)
        for more in allocation.addressed:
            self._use(more, allocation, array)
        return address

    def use(self, address: int) -> None:
        """Let the launch use a variable or the heap, by the address where it begins."""
        allocation = SPACE.at(address)
        self._followed.add(allocation)
        self._use(allocation.spans[0])

    def use_parameters(self, start: int, size: int) -> None:
        self._use(Span("kernel parameters", start, size))

    def _use(self, span: Span, allocation: Allocation | None = None, owner=None, name="") -> None:
        buffer = Buffer(
            span.name or name or "an array",
            "global",
            span.start,
            span.size,
            span.shape,
            span.dtype,
            span.writable,
            span.strided,
        )
        self.buffers.append(buffer)
        self._items[id(buffer)] = span.item
        if allocation is None or not allocation.host:
            return
        pointer = allocation.host + span.start - allocation.start
        data = host_bytes(pointer, span.size, owner)
        self.bytes[span.start : span.start + span.size] = data
        self._kept.append(owner)
        if span.writable:
            self._sources.append((buffer, data))

    def ready(self) -> None:
        """Find the extents of what the launch may use now."""
        every = [b for b in self.buffers if b.size]
        self.extents = _merge([(b.start, b.start + b.size) for b in every])
        self.writable = _merge([(b.start, b.start + b.size) for b in every if b.writable])
        self._edges = [np.array(e, np.uint64).reshape(-1, 2) for e in (self.extents, self.writable)]
        self.recent = self.recent_writable = (0, 0)

    def follow(self, addresses: np.ndarray, name: str = "") -> bool:
        """Let the launch use what pointers have led to; True if that is anything new.

        name: of what has none.
        """
        found = [one for one in SPACE.at_any(addresses) if one not in self._followed | self._given]
        for allocation in found:
            owner = allocation.owner()
            self._followed.add(allocation)
            for span in allocation.spans + allocation.addressed:
                self._use(span, allocation, owner, name)
        if found:
            self.ready()
        return bool(found)

    def follow_pointers(self) -> None:
        """Look for pointers in the memory of the launch, and in what they lead to."""
        low, high, start = np.uint64(SPACE.start), np.uint64(SPACE.bytes.size), 0
        while start < len(self.buffers):
            buffer, start = self.buffers[start], start + 1
            first, end = -(-buffer.start // 8), (buffer.start + buffer.size) // 8
            words = self.view[_POINTER][first:end]
            words = words[(words >= low) & (words < high)]
            if words.size:
                self.follow(words)

    def copy_back(self) -> None:
        for buffer, data in self._sources:
            data[...] = self.bytes[buffer.start : buffer.start + buffer.size]

    # -- checks ---------------------------------------------------------------------------------
    def covers(self, low: int, high: int, kind: str) -> bool:
        """Is [low, high) inside one extent? Remembers the extent for the next question."""
        reads = kind == "load"
        for extent in self.extents if reads else self.writable:
            if extent[0] <= low and high <= extent[1]:
                if reads:
                    self.recent = extent
                    self.read.add(extent)
                else:
                    self.recent_writable = extent
                    self.written.add(extent)
                return True
        return False

    def reaches(self, low: int, high: int, kind: str) -> bool:
        """covers(), after a look at what the pointer leads to."""
        if self.covers(low, high, kind):
            return True
        return self.follow(np.array([low], np.uint64)) and self.covers(low, high, kind)

    def read_and_written(self) -> set[str]:
        """The names of the arrays that accesses have met in both ways."""
        extents = self.read & self.written
        if not extents:
            return set()
        return {b.name for b in self.buffers for e in extents if e[0] <= b.start < e[1]}

    def extents_of(self, names: set[str]) -> set[tuple[int, int]]:
        """The extents that hold the arrays of these names."""
        places = [b.start for b in self.buffers if b.name in names]
        return {e for e in self.extents for place in places if e[0] <= place < e[1]}

    def valid(self, address: np.ndarray, size: int, kind: str) -> np.ndarray:
        """(lanes,) bool: which accesses of `size` bytes are inside one array that allows them."""
        found = self._inside(address, size, kind)
        if not found.all() and self.follow(address[~found]):
            found = self._inside(address, size, kind)
        return found

    def _inside(self, address: np.ndarray, size: int, kind: str) -> np.ndarray:
        starts, ends = self._edges[kind != "load"].T
        if not starts.size:
            return np.zeros(address.shape, bool)
        slot = np.searchsorted(starts, address, side="right") - 1
        inside = address + np.uint64(size) <= ends[slot]
        return (slot >= 0) & inside & (address <= ends[-1])

    def describe(self, address: int, size: int, kind: str) -> tuple[str, object, str]:
        """(buffer name, index, sentence) for the buffer nearest to a bad address."""
        if self.is_null(address):
            plus = f" plus {address} bytes" if address else ""
            return "", None, f"address {address:#x}, a null pointer{plus}"
        ended = SPACE.past_name(address) if SPACE.at(address) is None else ""
        if ended:
            text = f"address {address:#x} of {ended}, an array that has ended since then"
            return ended, None, text
        if not self.buffers:
            return "", None, "the kernel has no buffer at all"
        buffer = min(self.buffers, key=lambda b: _distance(b, address))
        if _distance(buffer, address) > buffer.size + FAR:
            text = (
                f"address {address:#x}, far from every array: a pointer that is not set, or an "
                f"index that wrapped around (unsigned below 0, int beyond 2^31)"
            )
            return "", None, text
        item = buffer.dtype.itemsize if buffer.dtype else min(size, self._items[id(buffer)])
        index, text = _index_text(buffer, address - buffer.start, item)
        if kind != "load" and not _distance(buffer, address) and not buffer.writable:
            constant = self.is_in("const", address)
            text += ". It is constant memory" if constant else ". The array is read-only"
        return buffer.name, index, text

    @staticmethod
    def is_null(address: int) -> bool:
        """Is it where no array is, a null pointer or an index from one?"""
        return address < SPACE.start

    @staticmethod
    def is_in(window: str, address):
        """Is an address, or which of (lanes,) addresses are, among "const" or "param"?"""
        first, end = SPACE.windows[window]
        return (address >= first) & (address < end)


@lru_cache(maxsize=1)
def _arena() -> tuple[np.ndarray, dict]:
    return SPACE.bytes, {dtype: SPACE.bytes.view(dtype) for dtype in _VIEWS}


def _distance(buffer: Buffer, address: int) -> int:
    if address < buffer.start:
        return buffer.start - address
    return max(0, address - (buffer.start + buffer.size - 1))


def _index_text(buffer: Buffer, offset: int, item: int) -> tuple[object, str]:
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


def differs(new, old):
    """Where two values of one dtype differ in a bit: NaN is NaN, and -0.0 is not 0.0."""
    if new.dtype.kind == "f":
        new, old = new.view(f"u{new.itemsize}"), old.view(f"u{old.itemsize}")
    return new != old


def bounds(address) -> tuple[int, int, int]:
    """(lowest, highest, all bits or-ed) of the addresses: one pass each, no array made."""
    if scalar(address):
        value = int(address)
        return value, value, value
    return int(_lowest(address)), int(_highest(address)), int(_all_bits(address))
