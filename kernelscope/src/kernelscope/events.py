"""What observers see of a run, and the `observe` context manager that attaches them.

The simulator builds one event for each executed instruction of a chunk of blocks, holding arrays
over the active lanes; nothing is built while nobody listens. Every event carries the MachineView of
its chunk. Observers read events, views and parsed PTX, and nothing else of the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np
from kernelscope.ptx.demangle import demangle
from kernelscope.ptx.source_module import SourceModule
from kernelscope.ptx.syntax import Function, Instruction

from .errors import InputTypeError

BULK_SIZE = "a bulk copy takes a multiple of 16"  # as a fault's message says it
GRID_BARRIER = "a barrier of the grid"  # as a fault's message says it
CLUSTER_BARRIER = -1  # number of the barrier of a cluster of blocks
_MOST_SHARED = 1 << 20  # bytes: no device gives a block as much
GIVE_MEMORY = (
    "pass the bytes that it needs (shared_mem=BYTES from Python, --shared-mem BYTES at a shell)"
)
VERBS = {"load": "reads", "store": "writes", "atomic": "updates"}  # kind of an access, in a message


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
    strided: tuple[tuple[int, int], ...] = ()  # (extent, stride in bytes) by axis, if not C's order


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `threads` and `warps` are counted per block.

    source: the PTX module with its source, for lines and debug names; shared_places: PTX name of
    each shared variable that the kernel may touch -> its byte address in the block's shared memory.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    build: str  # "optimised" or "debug"
    source_name: str
    source_lines: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    source: SourceModule | None = None
    shared_places: Mapping[str, int] = field(default_factory=dict)

    @property
    def shared_sizes(self) -> dict[str, int]:
        """Bytes of each shared array, by its name in the source."""
        return {one.name: one.size for one in self.buffers if one.space == "shared"}

    def without_memory(self, address: int) -> str:
        """Return the dynamic shared array at a byte address, where the launch gives it none; ""."""
        given = {one.start for one in self.buffers if one.space == "shared"}
        names = (
            demangle(name)
            for name, start in self.shared_places.items()
            if start not in given and start <= address < _MOST_SHARED
        )
        return next(names, "")

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        return -(-self.threads // 32)


@dataclass(slots=True)  # not frozen: one is made for each access of an instruction
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


@dataclass(frozen=True, eq=False)
class CallSite:
    """A function of the kernel as it is called from one place; the kernel itself is called by none.

    caller, call: the call site and the instruction that it is called from; frame: name of each
    variable in the threads' local memory -> its first byte there.
    """

    function: Function
    caller: CallSite | None
    call: Instruction | None
    frame: Mapping[str, int]

    def has(self, instruction: Instruction) -> bool:
        """Is this an instruction of the function?"""
        body, index = self.function.body, instruction.index
        return index < len(body) and body[index] is instruction


@dataclass(frozen=True)
class PhaseUse:
    """The effect of an instruction on mbarriers, (n,) each.

    chosen: the active lanes that it worked for, numbered among them; parity: of the phase that each
    arrived at or asked for; passed: bool, has that phase completed? None for arrivals. place: of
    the mbarrier, (block of the chunk, address in it), where no access of the instruction is to it.
    """

    chosen: np.ndarray
    parity: np.ndarray
    passed: np.ndarray | None
    place: tuple[np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True, eq=False)
class AsyncOperation:
    """Work that an instruction hands to the asynchronous proxy, which does it in its own time.

    instruction, line: what issued it; lanes: (n,) int64 ids of the issuing thread, or of the 128 of
    a warpgroup; accesses: the bytes of memory that it reads and writes, one address for each
    contiguous run of `size` bytes; completion: "mbarrier", "bulk_group" or "wgmma_group", by which
    others learn of its end; mbarrier: (block of the chunk, address in it), or None. Of a box of a
    tensor map, box: (rows, bytes of a row), rows: (addresses,) int64, the row of each address in
    global memory; what they leave out is outside of the array.
    """

    instruction: Instruction
    line: int
    lanes: np.ndarray
    accesses: tuple[Access, ...]
    completion: str
    mbarrier: tuple[int, int] | None = None
    box: tuple[int, int] | None = None
    rows: np.ndarray | None = None


@dataclass(frozen=True)
class Fragment:
    """One matrix of a product, and which lane of a warp holds which element.

    name: "A", "B", "C" or "D"; kind: PTX type of an element; rows, columns: of the matrix; row,
    column: (32, elements) int64, the place of each element of a lane; register: (elements,) int64,
    the register of the operand that holds each; values: (warps, 32, elements).

    Of wgmma there are 128 lanes, those of a warp group. What comes from shared memory is given as
    it is multiplied: (groups, rows, columns) values, with row, column and register empty.
    """

    name: str
    kind: str
    rows: int
    columns: int
    row: np.ndarray
    column: np.ndarray
    register: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class MatrixProduct:
    """D = A B + C of an mma, wmma.mma or wgmma, by all warps that executed it together.

    shape: (m, n, k); warps: (warps,) number of each warp, counted through the chunk; of wgmma the
    first warp of each warp group.
    """

    shape: tuple[int, int, int]
    warps: np.ndarray
    fragments: tuple[Fragment, ...]


class MachineView(ABC):
    """What observers may ask about a chunk: consecutive blocks of a launch that run together.

    A lane id counts 32 for each warp of each block of the chunk. Arrays are the machine's own:
    observers read them and write nothing.
    """

    first_block: int  # linear number in the grid of the chunk's first block
    block_count: int
    warps_per_block: int
    alive: np.ndarray  # (lane ids,) bool: which threads exist and have not ended
    clustered: bool  # do clusters of the launch have more than one block?
    cluster_of_block: np.ndarray  # (blocks,) number of each block's cluster
    cluster_arrivals: np.ndarray  # (lane ids,) int64: arrivals at the barrier of its cluster
    reads_inactive: np.ndarray | None  # (lanes,) bool of the last shuffle: is the source inactive?
    shuffle_sources: np.ndarray | None  # (lanes,) int64 of it: the lane of its warp that each reads
    phase_use: PhaseUse | None  # the effect of the last instruction on mbarriers
    matrix_product: MatrixProduct | None = None  # the last one
    local_bytes: int  # of local memory of one thread; calls may raise it
    call_sites: tuple[
        CallSite, ...
    ]  # met so far, in program order; a new tuple when there are more

    @property
    def first_lane(self) -> int:
        """Number of lane ids in the blocks before the chunk: lane id + first_lane counts through
        the grid.
        """
        return 32 * self.warps_per_block * self.first_block

    def lane_of(self, block: int, warp: int = 0) -> int:
        """Return the first lane id of a warp of a block, the block by its number in the grid.

        Blocks outside of the chunk give lane ids that no lane of the chunk has.
        """
        return 32 * ((block - self.first_block) * self.warps_per_block + warp)

    # -- memory ---------------------------------------------------------------------------------
    @abstractmethod
    def memory(self, space: str) -> np.ndarray:
        """Return the bytes of "global", "shared" or "local" memory, uint8.

        Shared memory holds one equal part for each block, local memory `local_bytes` for each
        thread (threads are not padded to whole warps).
        """

    @abstractmethod
    def mbarrier(self, block: int, address: int) -> tuple[int, int, int, int]:
        """Return (pending arrivals, expected arrivals, pending bytes, parity of the phase).

        Of an initialised mbarrier: block of the chunk, byte address in its shared memory.
        """

    @abstractmethod
    def bytes_under_way(self, block: int, address: int) -> int:
        """Return the bytes of copies that have been started and are still to count there."""

    @abstractmethod
    def by_space(self, addresses: np.ndarray) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Yield (space, places in `addresses`, addresses in that space) of generic addresses."""

    # -- code and values ------------------------------------------------------------------------
    @abstractmethod
    def running(self, instruction: Instruction, lanes: int) -> list[CallSite]:
        """Return the call sites that may run this instruction now with `lanes` active lanes.

        There are several where the registers do not tell them apart.
        """

    @abstractmethod
    def callee(self, caller: CallSite | None, at: int, instruction: Instruction) -> CallSite | None:
        """Return the call site of `instruction` that `caller` enters at its instruction `at`.

        caller None: the kernel itself. None where it is unknown.
        """

    @abstractmethod
    def lines_of(self, instruction: Instruction, lanes: int | None = None) -> list[int]:
        """Return the source line that an instruction stands for at each of its call sites.

        Code of CUDA's headers stands for the line that asks for it, as the debug information has
        it; else for the one before it in the same function, else for the line of the call; 0 for
        none. lanes: only sites that may be running.
        """

    @abstractmethod
    def line_at(self, site: CallSite, instruction: Instruction) -> int:
        """Return the line of lines_of() for an instruction of one call site."""

    @abstractmethod
    def register(self, site: CallSite, name: str) -> np.ndarray | np.generic | None:
        """Return a register of the active lanes, (lanes,) or a scalar; None if it has no value."""

    @abstractmethod
    def operand(self, instruction: Instruction, operand, lanes: int):
        """Return the value of a Register or Immediate: (lanes,) or a scalar, None if unknown."""

    @abstractmethod
    def stored(self, instruction: Instruction, access: Access, lanes: int) -> np.ndarray | None:
        """Return what each lane stores, (lanes, access.size) uint8; None where it is unknown."""


@dataclass(slots=True)
class InstructionEvent:
    """One instruction executed once by `lanes` (sorted lane ids; lane = 32 * warp + place in warp,
    warps numbered through the chunk's blocks, `warps_per_block` each, from `first_block` on).

    taken: for branches, (lanes,) bool or one bool; None otherwise.
    members: for shuffles, votes and warp barriers the mask of the lanes that are to meet, (lanes,)
    uint32 or one; None for other instructions, and where lanes go on without all of those.
    """

    instruction: Instruction
    line: int
    lanes: np.ndarray
    accesses: tuple[Access, ...]
    machine: MachineView
    taken: object = None
    members: object = None

    @property
    def active_warps(self) -> np.ndarray:
        """(warps,) sorted numbers of the warps with an active lane, counted through the chunk."""
        warps = self.lanes >> 5
        is_first = np.ones(warps.size, bool)
        np.not_equal(warps[1:], warps[:-1], out=is_first[1:])
        return warps[is_first]


@dataclass(frozen=True)
class BarrierEvent:
    """Blocks passing a barrier.

    arrivals: (instruction, lanes) groups released together; sites: the call site of each.
    """

    blocks: np.ndarray  # block numbers in the grid, linear
    barrier: int  # its number; CLUSTER_BARRIER for the one of a cluster
    arrivals: tuple
    machine: MachineView
    sites: tuple[CallSite, ...] = ()
    complete: bool = True  # False: released although threads of the block never arrive


@dataclass(frozen=True)
class WarpBarrierEvent:
    """Lanes passing __syncwarp() together, be it at different places in the program.

    lanes: (lanes,) int64 lane ids as in InstructionEvent, sorted; members: their masks, (lanes,)
    uint32 or one. Lanes of one warp with the same mask have met; those with different masks not.
    """

    lanes: np.ndarray
    members: object
    machine: MachineView


@dataclass(frozen=True)
class FaultEvent:
    """An access that hardware would refuse, or an illegal launch."""

    kind: str  # "out-of-bounds", "misaligned", "divergent-barrier", "bad-launch", ...
    message: str
    instruction: Instruction | None
    line: int
    threads: tuple = ()
    array: str = ""
    index: object = None
    call_line: int = 0  # of the call of the function that `line` is in; 0 in the kernel itself


@dataclass
class Observer:
    """Base class: override what you want to hear. `build` says which build the kernel is run in.

    shows_variables: whether it needs the names of local variables, which is what a debug build of
    some compilers is for alone.
    """

    build: str = field(default="optimised", init=False)
    shows_variables: bool = field(default=False, init=False)
    keeps_going: bool = field(default=False, init=False)  # True: faults are reported, not raised

    def launch_started(self, launch: Launch) -> None: ...

    def chosen_blocks(self, launch: Launch) -> tuple[range, ...] | None:
        """Return the blocks of the grid to run, where the others are not needed; None: all.

        The arrays then lack what the other blocks would write. All observers must agree.
        """
        return None

    def has_enough(self) -> bool:
        """Return whether the chosen blocks that have run are enough, asked after each range."""
        return False

    def chunk_started(self, machine: MachineView) -> None: ...

    def chunk_resumed(self, machine: MachineView) -> None:
        """A chunk that waited for other blocks goes on, behind chunks that started after it."""

    def instruction(self, event: InstructionEvent) -> None: ...

    def concerns(self, instruction: Instruction) -> bool:
        """Return whether to tell of an instruction even where it accesses no memory.

        The last of each basic block is told of in any case, as is one before an instruction
        without a line of its own; and all, where another observer wants them.
        """
        return True

    def barrier(self, event: BarrierEvent) -> None: ...

    def warp_barrier(self, event: WarpBarrierEvent) -> None: ...

    def async_issued(self, operation: AsyncOperation, machine: MachineView) -> None: ...

    def async_read(self, operation: AsyncOperation, machine: MachineView) -> None:
        """Its source has been read, and may be overwritten: a wait for a bulk group says so."""

    def async_completed(self, operation: AsyncOperation, machine: MachineView) -> None:
        """Its bytes are in place, and its mbarrier or the wait for its group says so."""

    def fault(self, event: FaultEvent) -> None: ...

    def chunk_finished(self, machine: MachineView) -> None: ...

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
            raise InputTypeError(
                f"observe() takes observers such as Counters(), Sanitizer() or Tracer(), "
                f"not {type(observer).__name__!r}"
            )
    token = _active.set(_active.get() + observers)
    try:
        yield observers[0] if len(observers) == 1 else observers
    finally:
        _active.reset(token)


def place_in(number: int, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return (x, y, z) of the thread or block with a linear number in a block or grid."""
    return number % shape[0], number // shape[0] % shape[1], number // (shape[0] * shape[1])
