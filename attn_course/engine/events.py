"""What observers see of a run, and the `observe` context manager that attaches them.

The simulator builds one event for each executed instruction of a chunk of blocks, holding arrays
over the active lanes; nothing is built while nobody listens. Observers import this module only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Buffer:
    """A named stretch of memory: an array argument, a variable, or a shared array."""

    name: str
    space: str  # "global", "shared" or "local"
    start: int  # address of its first byte in that space
    size: int  # bytes
    shape: tuple[int, ...] = ()
    dtype: np.dtype | None = None
    writable: bool = True


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `threads` and `warps` are counted per block."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    build: str  # "optimised" or "debug"
    source_name: str
    source_lines: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    program: object = None  # the Program, for its debug names

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        return -(-self.threads // 32)


@dataclass(frozen=True)
class Access:
    """One space's part of a memory instruction.

    address: (lanes,) uint64, byte addresses relative to the space (to the block's window for
    shared, to the thread's frame for local); lanes: (lanes,) int64, which lanes made the access;
    size: bytes a lane; kind: "load", "store" or "atomic"; valid: (lanes,) bool, None: all;
    block: for shared memory, (lanes,) int64, the chunk's block that holds it; None: their own.
    """

    space: str
    kind: str
    address: np.ndarray
    lanes: np.ndarray
    size: int
    valid: np.ndarray | None = None
    block: np.ndarray | None = None


@dataclass(frozen=True)
class InstructionEvent:
    """One instruction executed once by `lanes` (sorted lane ids; lane = 32 * warp + place in warp,
    warps numbered through the chunk's blocks, `warps_per_block` each, from `first_block` on).

    taken: for branches, (lanes,) bool or one bool; None otherwise.
    members: for shuffles, votes and warp barriers the mask of the lanes that are to meet, (lanes,)
    uint32 or one; None for other instructions, and where lanes go on without all of those.
    """

    instruction: object  # parser.Instruction: opcode, operands, position
    line: int
    lanes: np.ndarray
    accesses: tuple[Access, ...]
    chunk: object
    taken: object = None
    members: object = None

    @property
    def warps(self) -> np.ndarray:
        return self.lanes >> 5


@dataclass(frozen=True)
class BarrierEvent:
    """Blocks passing a barrier. `arrivals`: (instruction, lanes) groups released together."""

    blocks: np.ndarray  # block numbers in the grid, linear
    barrier: int
    arrivals: tuple
    chunk: object
    complete: bool = True  # False: released although threads of the block never arrive


@dataclass(frozen=True)
class WarpBarrierEvent:
    """Lanes passing __syncwarp() together, be it at different places in the program.

    lanes: (lanes,) int64 lane ids as in InstructionEvent, sorted; members: their masks, (lanes,)
    uint32 or one. Lanes of one warp with the same mask have met; those with different masks not.
    """

    lanes: np.ndarray
    members: object
    chunk: object


@dataclass(frozen=True)
class FaultEvent:
    """An access that hardware would refuse, or an illegal launch."""

    kind: str  # "out-of-bounds", "misaligned", "divergent-barrier", "bad-launch", ...
    message: str
    instruction: object
    line: int
    threads: tuple = ()
    array: str = ""
    index: object = None


@dataclass
class Observer:
    """Base class: override what you want to hear. `build` says which build the kernel is run in."""

    build: str = field(default="optimised", init=False)
    keeps_going: bool = field(default=False, init=False)  # True: faults are reported, not raised

    def launch_started(self, launch: Launch) -> None: ...

    def chunk_started(self, chunk) -> None: ...

    def instruction(self, event: InstructionEvent) -> None: ...

    def barrier(self, event: BarrierEvent) -> None: ...

    def warp_barrier(self, event: WarpBarrierEvent) -> None: ...

    def fault(self, event: FaultEvent) -> None: ...

    def chunk_finished(self, chunk) -> None: ...

    def launch_finished(self, launch: Launch) -> None: ...


_active: ContextVar[tuple[Observer, ...]] = ContextVar("active_observers", default=())


def active_observers() -> tuple[Observer, ...]:
    """The observers attached by the `observe` blocks around this call, outermost first."""
    return _active.get()


@contextmanager
def observe(*observers: Observer) -> Iterator[Observer | tuple[Observer, ...]]:
    """Attach observers to every kernel call inside the block; yields the observer, or a tuple."""
    for observer in observers:
        if not isinstance(observer, Observer):
            raise TypeError(
                f"observe() takes observers such as Counters(), Sanitizer() or Tracer(), "
                f"not {type(observer).__name__!r}"
            )
    token = _active.set(_active.get() + observers)
    try:
        yield observers[0] if len(observers) == 1 else observers
    finally:
        _active.reset(token)
