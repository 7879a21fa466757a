"""Calls of functions that PTX does not contain: printf, assert, malloc and free."""

from __future__ import annotations

import re
import struct

import numpy as np

from attn_course.engine.translate.control_flow import LANE, LOCAL_BASE, SHARED_BASE

from ..addresses import FUNCTION_WINDOW, LOCAL_WINDOW, SHARED_WINDOW, aligned
from ..errors import KernelAssertion
from .access import Memory
from .lanes import ChunkLanes
from .memory import spread

_ARGUMENTS = 256  # bytes of a thread's printf arguments: 32 of them at most
_LONGEST = 1 << 16  # bytes of a string
_FRAMES = 4096  # bytes of a thread's local memory for frames of calls behind the first alloca


class DeviceCalls:
    """The functions of the device runtime, methods by name in `functions`: each takes
    the calling block.

    tops: (places,) the first byte of each thread's local memory behind what alloca has given; None
    before the first alloca. It starts behind the frames, with room for deeper calls.
    """

    def __init__(self, run, lanes: ChunkLanes, memory: Memory):
        self.run, self.lanes, self.memory = run, lanes, memory
        self.tops: np.ndarray | None = None

    # -- arguments and results ------------------------------------------------------------------
    def call_argument(self, block, number: int, dtype) -> np.ndarray:
        """The `number`-th argument of a call, (lanes,), read from its .param variable."""
        instance, call = block.terminator.action, block.terminator.instruction
        names = [operand for operand in call.operands if isinstance(operand, tuple)][-1]
        dtype = np.dtype(dtype)
        return self.memory.local.view[dtype].take(self.item(instance, names[number].name, dtype))

    def store_result(self, block, value) -> None:
        instance, call = block.terminator.action, block.terminator.instruction
        results = call.operands[0]
        if isinstance(results, tuple) and results:
            at = self.item(instance, results[0].name, value.dtype)
            self.memory.local.view[value.dtype][at] = value

    def item(self, instance, name: str, dtype: np.dtype) -> np.ndarray:
        """(lanes,) where a .param variable is in local memory seen as items of `dtype`."""
        self.lanes.fetch((LOCAL_BASE,))
        _, offset = instance.place_of(name)
        R = self.lanes.R
        start = spread(R[LOCAL_BASE], R[LANE].size) + np.uint64(offset)
        return (start // np.uint64(dtype.itemsize)).astype(np.int64)

    def bytes_at(self, address: int, lane: int, count: int) -> bytes:
        """Memory at a generic address of the `lane`-th running lane."""
        memory, start = self.memory.globals, int(address)
        for low, high, space, slot in (
            (SHARED_WINDOW, LOCAL_WINDOW, self.memory.shared, SHARED_BASE),
            (LOCAL_WINDOW, FUNCTION_WINDOW, self.memory.local, LOCAL_BASE),
        ):
            if low <= address < high:
                self.lanes.fetch((slot,))
                base = spread(self.lanes.R[slot], self.lanes.R[LANE].size)[lane]
                memory, start = space, int(base) + int(address) - low
        if memory is self.memory.globals:
            memory.follow(np.array([start], np.uint64))
        return memory.bytes[start : start + count].tobytes()

    def string_at(self, address: int, lane: int = 0) -> str:
        """A C string; lane: which of the running lanes it belongs to, in local memory."""
        if not address:
            return "(null)"
        data = self.bytes_at(address, lane, _LONGEST)
        return data.partition(b"\0")[0].decode("utf-8", "replace")

    # -- functions ------------------------------------------------------------------------------
    def vprintf(self, block) -> None:
        """Print each running lane's message, in lane order."""
        formats = self.call_argument(block, 0, "u8").tolist()
        pointers = self.call_argument(block, 1, "u8").tolist()
        for lane, (text, pointer) in enumerate(zip(formats, pointers, strict=True)):
            data = self.bytes_at(pointer, lane, _ARGUMENTS) if pointer else b""
            message = format_message(
                self.string_at(text),
                data.ljust(_ARGUMENTS, b"\0"),
                lambda address, lane=lane: self.string_at(address, lane),
            )
            print(message, end="")
        self.store_result(block, np.uint32(1))

    def assert_failed(self, block) -> None:
        """__assertfail(message, file, line, ...): what assert() calls when it fails."""
        message, file = (self.string_at(self.call_argument(block, i, "u8")[0]) for i in (0, 1))
        line = int(self.call_argument(block, 2, "u4")[0])
        name = file.rsplit("/", 1)[-1]
        text = self.run.program.text_of(name, line)
        raise KernelAssertion(
            f"{self.run.kernel.function.name}: the assertion `{message}` failed at {name}:{line}"
            f"{text}, {self.lanes.thread_text(self.lanes.R[LANE])}"
        )

    def malloc(self, block) -> None:
        """Memory from the heap, 16-byte aligned; null when there is not as much."""
        sizes = self.call_argument(block, 0, "u8").tolist()
        starts = [self.run.heap.allocate(size) for size in sizes]
        if not all(starts) and not self.run.refused_bytes:
            self.run.refused_bytes = sizes[starts.index(0)]
        self.store_result(block, np.array(starts, np.uint64))

    def free(self, block) -> None:
        for address in self.call_argument(block, 0, "u8").tolist():
            self.run.heap.release(address)

    # -- alloca ---------------------------------------------------------------------------------
    def stack_top(self, dtype=np.uint64) -> np.ndarray:
        """stacksave: (lanes,) where each thread's next alloca starts, an address in .local."""
        if self.tops is None:
            start = aligned(self.run.kernel.local_bytes) + _FRAMES
            self.tops = np.full(self.lanes.count, start, np.uint64)
        return self.tops[self.lanes.all_places()].astype(dtype)

    def restore_stack(self, tops) -> None:
        """stackrestore: what alloca has given since the stacksave may be given again."""
        self.stack_top()
        self.tops[self.lanes.all_places()] = tops

    def allocate(self, size, align: int) -> np.ndarray:
        """alloca: (lanes,) uint64, the .local address of so many bytes for each thread.

        They are given back by stackrestore, not by the end of a function that is not inlined.
        """
        start = (self.stack_top() + np.uint64(align - 1)) & ~np.uint64(align - 1)
        end = start + np.asarray(size).astype(np.uint64)
        needed = int(end.max())
        if needed > self.memory.local_size:
            block = self.memory.reports.block
            where = block.instance.where(block.instructions[0])
            self.memory.grow_stack(needed, where)
        self.tops[self.lanes.all_places()] = end
        return start

    functions = {"vprintf": vprintf, "__assertfail": assert_failed, "malloc": malloc, "free": free}


# -- printf ---------------------------------------------------------------------------------------
_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d+))?"
    r"(?P<length>hh|h|ll|l|z|t|j)?(?P<kind>[diouxXfFeEgGaAcsp%])"
)


_LONG = ("l", "ll", "z", "t", "j")  # lengths of 64-bit integers


def format_message(text: str, arguments: bytes, read_string) -> str:
    """Render one thread's message.

    text: the C format; arguments: the bytes from the thread's argument buffer onwards, laid out as
    C varargs (4-byte integers, 8-byte doubles and pointers, each at its natural alignment);
    read_string(address) returns the string a %s pointer names.
    """
    varargs = _Varargs(arguments)
    return _CONVERSION.sub(lambda match: _rendered(match, varargs, read_string), text)


class _Varargs:
    """Arguments one after another, each at a multiple of its size."""

    def __init__(self, data: bytes):
        self.data, self.offset = data, 0

    def take(self, code: str):
        """The next argument, of a type that `struct` knows by this letter."""
        size = struct.calcsize(code)
        self.offset = -(-self.offset // size) * size
        (value,) = struct.unpack_from("<" + code, self.data, self.offset)
        self.offset += size
        return value


def _rendered(match: re.Match, varargs: _Varargs, read_string) -> str:
    """The text of one conversion; a width or precision of * is an argument of its own."""
    flags, width, precision, length, kind = match.groups()
    if kind == "%":
        return "%"
    width = str(varargs.take("i")) if width == "*" else width or ""
    precision = str(varargs.take("i")) if precision == "*" else precision
    shape = f"%{flags}{width}" + (f".{precision}" if precision is not None else "")
    if kind in "di":
        return (shape + "d") % varargs.take("q" if length in _LONG else "i")
    if kind in "ouxX":
        value = varargs.take("Q" if length in _LONG else "I")
        return (shape + ("d" if kind == "u" else kind)) % value
    if kind in "fFeEgG":
        return (shape + kind) % varargs.take("d")
    if kind in "aA":
        text = re.sub(r"\.?0*p", "p", varargs.take("d").hex())  # C writes no trailing zeros
        return (shape.split(".")[0] + "s") % (text.upper() if kind == "A" else text)
    if kind == "c":
        return (shape + "c") % chr(varargs.take("i") & 0xFF)
    if kind == "p":
        return (shape + "s") % hex(varargs.take("Q"))
    return (shape + "s") % read_string(varargs.take("Q"))
