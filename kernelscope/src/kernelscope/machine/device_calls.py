"""Calls of functions that PTX does not contain: printf, assert, malloc and free."""

from collections.abc import Callable

import numpy as np
from kernelscope.translate.control_flow import LANE, LOCAL_BASE, SHARED_BASE

from ..addresses import FUNCTION_WINDOW, LOCAL_WINDOW, SHARED_WINDOW, aligned
from ..errors import KernelAssertion, SimulatorError, UnsupportedKernel
from ..printf import ARGUMENT_BYTES, format_message
from .access import Memory
from .lanes import ChunkLanes
from .memory import spread

_SHORT = 1 << 8  # bytes of a string that are looked at first
_LONGEST = 1 << 16  # bytes of a string
_FRAMES = 4096  # bytes of a thread's local memory for frames of calls behind the first alloca


class DeviceCalls:
    """The functions of the device runtime, methods by name in `functions`: each takes
    the calling block.

    tops: (places,) the first byte of each thread's local memory behind what alloca has given; None
    before the first alloca. bases: (places,) where that begins: behind the frame of the function
    that asked first, with room for deeper calls. A thread whose top is its base holds nothing.
    """

    def __init__(self, run, lanes: ChunkLanes, memory: Memory):
        self.run, self.lanes, self.memory = run, lanes, memory
        self.tops: np.ndarray | None = None
        self.bases: np.ndarray | None = None

    # -- arguments and results ------------------------------------------------------------------
    def call_argument(self, block, number: int, dtype) -> np.ndarray:
        """The `number`-th argument of a call, (lanes,), read from its .param variable."""
        instance, call = block.terminator.action, block.terminator.instruction
        names = next((one for one in reversed(call.operands) if isinstance(one, tuple)), ())
        if number >= len(names):
            why = f"it passes {len(names)} arguments, and its function has more"
            raise UnsupportedKernel(instance.complaint(call, why))
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
        count, data = _SHORT, self.bytes_at(address, lane, _SHORT)
        while b"\0" not in data and len(data) == count < _LONGEST:
            count *= 16
            data = self.bytes_at(address, lane, count)
        return data.partition(b"\0")[0].decode("utf-8", "replace")

    # -- functions ------------------------------------------------------------------------------
    def vprintf(self, block) -> None:
        """Print each running lane's message, in lane order."""
        formats = self.call_argument(block, 0, "u8").tolist()
        pointers = self.call_argument(block, 1, "u8").tolist()
        budget, name = self.run.budget, self.run.kernel.name
        messages: list[str] = []
        try:
            for lane, (text, pointer) in enumerate(zip(formats, pointers, strict=True)):
                budget.check(name, lambda: block.instance.where(block.terminator.instruction))
                data = self.bytes_at(pointer, lane, ARGUMENT_BYTES) if pointer else b""
                message = format_message(
                    self.string_at(text, lane),
                    data.ljust(ARGUMENT_BYTES, b"\0"),
                    lambda address, lane=lane: self.string_at(address, lane),
                    lambda size: budget.output(size, name),
                )
                messages.append(message)
        finally:
            print("".join(messages), end="")
        self.store_result(block, np.uint32(1))

    def assert_failed(self, block) -> None:
        """__assertfail(message, file, line, ...): what assert() calls when it fails."""
        message, file = (self.string_at(self.call_argument(block, i, "u8")[0]) for i in (0, 1))
        line = int(self.call_argument(block, 2, "u4")[0])
        name = file.rsplit("/", 1)[-1]
        text = self.run.program.text_of(name, line)
        raise KernelAssertion(
            f"{self.run.kernel.name}: the assertion `{message}` failed at "
            f"{name}:{line}{text}, {self.lanes.thread_text(self.lanes.R[LANE])}",
            block.instance.line(block.terminator.instruction),
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
        places, running = self.lanes.all_places(), self.memory.reports.block.instance
        if self.tops is None:
            self.tops, self.bases = np.zeros((2, self.lanes.count), np.uint64)
        base = aligned(running.local_bytes + self.run.kernel.callee_bytes) + _FRAMES
        free = places[self.tops[places] <= self.bases[places]]
        self.tops[free] = self.bases[free] = base
        return self.tops[places].astype(dtype)

    def check_frames(self, callee, where: Callable[[], str]) -> None:
        """Raise SimulatorError where a callee's frame comes to what alloca has given."""
        places = self.lanes.all_places()
        room = self.bases[places][self.tops[places] > self.bases[places]]
        if room.size and callee.local_bytes > room.min():
            raise SimulatorError(
                f"{self.run.kernel.name}: calls are nested too deeply behind an alloca, at "
                f"{where()}; the simulator has {room.min()} bytes a thread for them. Let the "
                "recursion end sooner, or use an array of a fixed size"
            )

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
