"""The address space of simulated global memory: one for the process, the same in every launch.

An address is an index into the arena, a sparse array of bytes that takes real memory only where
something is stored. A NumPy array gets its address when a kernel first sees it and keeps it while
the array lives; a launch copies its bytes in, and back at its end. Variables of modules and the
device heap live in the arena itself.

Between two stretches of addresses is a gap of 32 MiB, twice as long as the later one where that is
more (at most a 4,096th of the space, and less where thousands of arrays live). The lowest sixteenth
of the space is empty. So an index that leaves its array, or is added to a null pointer, meets
nothing; a far one can still meet another array, as on a GPU. Addresses of arrays that have ended
are the last to be used again.
"""

import gc
import mmap
import threading
import weakref
from bisect import bisect_left, bisect_right, insort
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from .addresses import aligned
from .errors import InputTypeError

ALIGNMENT = 512  # bytes, as cudaMalloc's
HEAP_BYTES = 8 << 20  # for malloc in kernels: what CUDA gives by default
_SIZES = tuple(1 << bits for bits in (40, 38, 36, 34, 32, 30))  # of the space: the first to be had
_GAP = 32 << 20  # bytes between two arrays, at least
_SMALL_GAP = 1 << 16
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.11 does not name it yet
_HUGE = 4 << 20  # bytes from which on huge pages are faster, as NumPy has it
_HALF, _NEAR = 1 << 32, 1 << 24
_SPANS = 256  # parts of one array that are told apart
_CROWD = 1024  # live arrays from which on garbage is looked for, before gaps become narrow
_REMEMBERED = 4096  # arrays that have ended whose addresses are still explained


@dataclass(frozen=True)
class Span:
    """A named part of an allocation that kernels may use.

    start: address; size: bytes; item: bytes of one element, where no dtype tells; strided: (extent,
    stride in bytes) of each axis of an array that is not in C's order.
    """

    name: str
    start: int
    size: int
    shape: tuple[int, ...] = ()
    dtype: np.dtype | None = None
    writable: bool = True
    item: int = 1
    strided: tuple[tuple[int, int], ...] = ()


@dataclass(eq=False)
class Allocation:
    """A stretch of addresses.

    owners: weak references to the arrays that own it, with their ids in `keys`; without any it is
    never freed. host: address of its first byte in the process, 0 where the bytes are in the arena
    only. spans: parts given to kernels; addressed: parts given to `device_address`.
    """

    start: int
    size: int
    host: int = 0
    owners: list[weakref.ref] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    addressed: list[Span] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def name(self) -> str:
        return next((span.name for span in self.spans if span.name), "an array")

    def remember(self, span: Span, addressed: bool) -> None:
        """Note a part that a kernel was given, or whose address was asked for."""
        spans = self.addressed if addressed else self.spans
        if span in spans or spans and spans[0].size == self.size and spans[0].writable:
            return
        spans.append(span)
        if len(spans) > _SPANS:
            whole = replace(span, start=self.start, size=self.size, shape=(), strided=())
            spans[:] = [replace(whole, writable=any(one.writable for one in spans))]

    def owner(self) -> object:
        """Return an owner that is alive, or None."""
        return next((found for one in self.owners if (found := one()) is not None), None)


class _Bytes:
    """Memory of the process as NumPy sees it; `kept` stays alive while it is in use."""

    def __init__(self, pointer: int, size: int, kept=None):
        self.kept = kept
        self.__array_interface__ = {
            "data": (pointer, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }


def host_bytes(pointer: int, size: int, kept) -> np.ndarray:
    """Return (size,) uint8, the memory of the process at `pointer`, which belongs to `kept`."""
    return np.asarray(_Bytes(pointer, size, kept)) if size else np.zeros(0, np.uint8)


def _pointer(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _bounds(array: np.ndarray) -> tuple[int, int]:
    """(address of the lowest byte in the process, one past the highest)."""
    low = high = _pointer(array)
    if not array.size:
        return low, low
    if array.flags.forc:
        return low, low + array.nbytes
    for extent, stride in zip(array.shape, array.strides, strict=True):
        reach = (extent - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + array.itemsize


def _owner_of(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _memory_of(owner: np.ndarray) -> tuple[int, int]:
    """Bounds of the memory that an array owns, or of the buffer that it was made from."""
    low, high = _bounds(owner)
    if owner.base is not None:
        try:
            whole = np.frombuffer(owner.base, np.uint8)
        except (TypeError, ValueError, BufferError):
            return low, high
        first, end = _bounds(whole)
        if first <= low and high <= end:
            return first, end
    return low, high


def _reserve() -> mmap.mmap:
    """Memory of the process that is not there before something is stored in it."""
    for size in _SIZES:
        with suppress(OSError):
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
            return mmap.mmap(-1, size, flags=flags)
    raise MemoryError(f"the simulator needs {_SIZES[-1] >> 30} GiB of address space")


class AddressSpace:
    """The addresses of one process. Threads may share it.

    bytes: the arena, (size,) uint8. start: the lowest address in use. windows: (first, end) of the
    addresses of "const" variables, of "param"eters, and of everything else, "". heap: the device's.
    """

    def __init__(self):
        self._lock = threading.RLock()
        self._starts: list[int] = []  # of the live allocations, sorted
        self._live: dict[int, Allocation] = {}
        self._by_owner: dict[int, Allocation] = {}
        self._hosts: list[int] = []  # sorted, of the live allocations that have one
        self._by_host: dict[int, Allocation] = {}
        self._next: dict[str, int] = {}
        self._ended: deque[Allocation] = deque()  # an owner has gone
        self._past: deque[tuple[int, int, str]] = deque(maxlen=_REMEMBERED)
        self._parameter_blocks: list[int] = []
        self._crowd = _CROWD
        self._arena = _reserve()
        self.bytes = np.frombuffer(self._arena, np.uint8)
        self._origin, self.start = _pointer(self.bytes), self.bytes.size // 16
        window = self.start // 4
        ends = self.start + window, self.start + 2 * window
        self.windows = {
            "const": (self.start, ends[0]),
            "param": ends,
            "": (ends[1], self.bytes.size),
        }
        allocation = self._allocate(HEAP_BYTES)
        allocation.spans.append(Span("heap", allocation.start, HEAP_BYTES))
        self.heap = DeviceHeap(allocation.spans[0])

    def renew_lock(self) -> None:
        """Free the lock in a forked process, where the thread that may hold it is not."""
        self._lock = threading.RLock()

    # -- the arena ------------------------------------------------------------------------------
    def _take(self, size: int, window: str) -> int:
        """A free start for that many bytes, behind the last one that was given away."""
        low, high = self.windows[window]
        most = aligned((high - low) >> 12, ALIGNMENT)
        wide = min(_GAP, (high - low) // (16 * len(self._starts) + 16))
        for gap in (wide, _SMALL_GAP):
            for start in (self._next.get(window, low), low):
                found = self._first_fit(size, start, high, min(max(gap, 2 * size), most))
                if found is not None:
                    self._next[window] = aligned(found + size + 1, ALIGNMENT)
                    return found
        raise MemoryError(f"the simulator has no room for {size} bytes of global memory")

    def _first_fit(self, size: int, start: int, high: int, gap: int) -> int | None:
        """The first place from `start` on that is `gap` bytes away from what is there."""
        at = bisect_right(self._starts, start)
        if at:
            start = max(start, aligned(self._live[self._starts[at - 1]].end + gap, ALIGNMENT))
        while start + size <= high:
            start = self._unlike_numbers(start, size)
            if at == len(self._starts) or start + size + gap <= self._starts[at]:
                return start if start + size <= high else None
            start = aligned(self._live[self._starts[at]].end + gap, ALIGNMENT)
            at += 1
        return None

    def _unlike_numbers(self, start: int, size: int) -> int:
        """A start from which no address has a low half that is near 0.

        Two small 32-bit integers side by side are then no address for a search for pointers.
        """
        low = start % _HALF
        if self.bytes.size < 64 * _HALF or size > _HALF - 2 * _NEAR:
            return start
        if low < _NEAR:
            return start - low + _NEAR
        return start if low + size <= _HALF - _NEAR else start - low + _HALF + _NEAR

    def _allocate(self, size: int, window: str = "") -> Allocation:
        if len(self._starts) >= self._crowd:
            gc.collect()  # arrays of modules that are only in cycles
            self._drop_ended()
            self._crowd = max(_CROWD, 2 * len(self._starts))
        start = self._take(size, window)
        found = self._live[start] = Allocation(start, size)
        insort(self._starts, start)
        if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without them
                self._advise(mmap.MADV_HUGEPAGE, found)
        return found

    def _advise(self, advice: int, allocation: Allocation) -> None:
        """Gaps are longer than a page: no page holds bytes of two allocations."""
        first = allocation.start // mmap.PAGESIZE * mmap.PAGESIZE
        end = aligned(allocation.end, mmap.PAGESIZE)
        if end > first:
            self._arena.madvise(advice, first, end - first)

    def _own(self, allocation: Allocation, owner) -> None:
        ended = self._ended  # a bound method of ours would keep the space alive
        allocation.owners.append(weakref.ref(owner, lambda _: ended.append(allocation)))

    def _drop_ended(self) -> None:
        while self._ended:
            allocation = self._ended.popleft()
            allocation.owners = [one for one in allocation.owners if one() is not None]
            if not allocation.owners and allocation.start in self._live:
                self._end(allocation)

    def _end(self, allocation: Allocation) -> None:
        del self._live[allocation.start]
        self._starts.pop(bisect_left(self._starts, allocation.start))
        if self._by_host.get(allocation.host) is allocation:
            del self._by_host[allocation.host]
            self._hosts.pop(bisect_left(self._hosts, allocation.host))
        for key in allocation.keys:
            if self._by_owner.get(key) is allocation:
                del self._by_owner[key]
        self._past.append((allocation.start, allocation.end, allocation.name))
        self._advise(mmap.MADV_DONTNEED, allocation)

    # -- arrays ---------------------------------------------------------------------------------
    def give(
        self, array: np.ndarray, name: str = "", addressed: bool = False
    ) -> tuple[int, Allocation, Span]:
        """(address of the first element, allocation, span) of an array that a kernel is to see.

        addressed: whether the address alone may lead a kernel there.
        """
        with self._lock:
            self._drop_ended()
            low, high = _bounds(array)
            if self._origin <= low < self._origin + self.bytes.size:
                allocation, delta = self.at(low - self._origin), -self._origin
            else:
                allocation = self._of_array(array, low, high)
                delta = allocation.start - allocation.host
            in_order = array.flags.c_contiguous
            span = Span(
                name,
                low + delta,
                high - low,
                array.shape if in_order else (),
                array.dtype,
                array.flags.writeable and (allocation.host > 0 or allocation.spans[0].writable),
                strided=() if in_order else tuple(zip(array.shape, array.strides, strict=True)),
            )
            if allocation.host:
                allocation.remember(span, addressed)
            return _pointer(array) + delta, allocation, span

    def _of_array(self, array: np.ndarray, low: int, high: int) -> Allocation:
        owner = _owner_of(array)
        found = self._by_owner.get(id(owner))
        if found is not None and found.host <= low and high <= found.host + found.size:
            if any(one() is owner for one in found.owners):
                return found  # else it is at the address of an owner that has gone
        first, end = _memory_of(owner)
        first, end = min(first, low), max(end, high)
        found = self._around(first, end)
        if found is None:
            found = self._allocate(end - first)
            # A view is as little aligned as on a GPU: the memory that owns it is aligned there.
            found.host = first
            if end > first:
                insort(self._hosts, first)
                self._by_host[first] = found
        self._own(found, owner)
        self._by_owner[id(owner)] = found
        found.keys.append(id(owner))
        return found

    def _around(self, first: int, end: int) -> Allocation | None:
        """The allocation that holds [first, end) of the process; those that it overlaps end."""
        at = max(bisect_right(self._hosts, first) - 1, 0)
        if at < len(self._hosts) and self._hosts[at] <= first < end:
            near = self._by_host[self._hosts[at]]
            if end <= near.host + near.size:
                return near
        while at < len(self._hosts) and self._hosts[at] < end:
            other = self._by_host[self._hosts[at]]
            if other.host + other.size > first:  # memory that was given back and taken again
                self._end(other)
            else:
                at += 1
        return None

    # -- variables and the heap -----------------------------------------------------------------
    def new_bytes(self, name: str, size: int, item: int, constant: bool) -> tuple[int, np.ndarray]:
        """(address, (size,) uint8 in the arena) of a variable; it lives as long as the array.

        constant: whether kernels may only read it.
        """
        with self._lock:
            self._drop_ended()
            allocation = self._allocate(size, "const" if constant else "")
            start = allocation.start
            allocation.spans.append(Span(name, start, size, (), None, not constant, item))
            holder = _Bytes(self._origin + start, size, self._arena)
            self._own(allocation, holder)
            data = np.asarray(holder)
            return start, data

    def take_parameters(self, size: int) -> int:
        """The start of a block for the parameters of one launch."""
        block = max(self.start // 4 >> 12, 1 << 16)
        with self._lock:
            if size > block // 2:
                raise MemoryError(f"{size} bytes of kernel parameters are too many")
            if self._parameter_blocks:
                return self._parameter_blocks.pop()
            low, high = self.windows["param"]
            start = self._next.get("param", low)
            if start + block > high:
                raise MemoryError("too many launches at once")
            self._next["param"] = start + block
            return start

    def return_parameters(self, start: int) -> None:
        """Take a block back from a launch that has ended."""
        with self._lock:
            self._parameter_blocks.append(start)

    # -- questions ------------------------------------------------------------------------------
    def at(self, address: int) -> Allocation | None:
        """Return the live allocation at an address."""
        with self._lock:
            self._drop_ended()
            index = bisect_right(self._starts, address) - 1
            found = self._live[self._starts[index]] if index >= 0 else None
            return found if found is not None and address < found.end else None

    def at_any(self, addresses: np.ndarray) -> list[Allocation]:
        """Return the live allocations at some addresses, each once."""
        if addresses.size == 1:  # printf asks for one string after the other
            found = self.at(int(addresses[0]))
            return [] if found is None else [found]
        with self._lock:
            self._drop_ended()
            every = [self._live[start] for start in self._starts]
        slots = np.searchsorted(
            np.array([one.start for one in every], np.uint64), addresses, "right"
        )
        ends = np.array([0, *(one.end for one in every)], np.uint64)
        return [every[slot - 1] for slot in np.unique(slots[addresses < ends[slots]]).tolist()]

    def past_name(self, address: int) -> str:
        """Return the name of the array that had an address before it ended, or ""."""
        return next((n for start, end, n in reversed(self._past) if start <= address < end), "")


class DeviceHeap:
    """The memory that malloc and free in kernels hand out; it outlives launches and modules.

    During a launch freed memory is used again only once the heap is full, for requests of the same
    size: until then an address belongs to one thread only, on which observers that look for races
    rely. Between launches all that is free is put together.
    """

    def __init__(self, span: Span):
        self.span = span
        self.sizes: dict[int, int] = {}  # of what is in use, by address
        self._lock = threading.Lock()
        self.put_together()

    def put_together(self) -> None:
        """Join the free parts: a launch begins."""
        with self._lock:
            self._freed: dict[int, list[int]] = {}  # addresses by size
            self._free: list[tuple[int, int]] = []  # (start, end), never allocated
            start, end = self.span.start, self.span.start + self.span.size
            for address in sorted(self.sizes):
                if address > start:
                    self._free.append((start, address))
                start = address + self.sizes[address]
            if end > start:
                self._free.append((start, end))

    @property
    def bytes_in_use(self) -> int:
        return sum(self.sizes.values())

    def allocate(self, size: int) -> int:
        """Return the address of that many bytes, aligned to 16; 0 when there is no room."""
        size = aligned(max(size, 1))
        with self._lock:
            address = self._fresh(size) or (self._freed.get(size) or [0]).pop()
            if address:
                self.sizes[address] = size
            return address

    def _fresh(self, size: int) -> int:
        for i, (start, end) in enumerate(self._free):
            if size <= end - start:
                self._free[i : i + 1] = [(start + size, end)] if start + size < end else []
                return start
        return 0

    def release(self, address: int) -> None:
        """Take memory back; an address that was not handed out is ignored."""
        with self._lock:
            size = self.sizes.pop(address, None)
            if size is not None:
                self._freed.setdefault(size, []).append(address)


SPACE = AddressSpace()


def device_address(array) -> int:
    """Return the address that kernels know an array by: a CuPy array's `data.ptr`.

    array: a NumPy array, for the simulator (its memory keeps one address while it lives, in all
    launches), what `get_global` returned, or a CuPy array. An integer array of such addresses,
    np.uint64, is an array of pointers; a field of a structured value is a pointer in a struct.
    Raises TypeError for other values.
    """
    if isinstance(array, np.ndarray):
        return SPACE.give(array, addressed=True)[0]
    pointer = getattr(getattr(array, "data", array), "ptr", None)
    if pointer is None:
        raise InputTypeError(f"device_address() takes an array, not {type(array).__name__!r}")
    return int(pointer)


def holds(address: int) -> bool:
    """Is this an address of an array, a variable or the heap that a kernel may use now?"""
    return SPACE.at(int(address)) is not None
