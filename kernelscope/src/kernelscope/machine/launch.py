"""One launch: its geometry, its memory, and the chunks of blocks that run one after another."""

import threading
import time

import numpy as np
from kernelscope.events import Buffer, Launch
from kernelscope.ptx.demangle import demangle
from kernelscope.translate.executable import SHARED_RED_ZONE, Executable

from ..address_space import SPACE, DeviceHeap
from ..addresses import aligned
from ..budget import Budget, call_budget
from ..errors import Hang, InputError, Interrupted, SimulatorError
from ..progress import Progress
from ..settings import setting
from ..tensor_map.encoding import arrays_of_maps
from .chunk import Chunk
from .memory import GlobalMemory
from .speed import shared_out

LANES_PER_CHUNK = 32768  # some ten thousand lanes: NumPy's overhead is small, the cache still holds
CHUNK_BYTES = 128 << 20  # and no more shared or local memory than this
STACK_BYTES = 1024  # local memory a thread has at first for the functions it calls
GRID_WORKSPACE_BYTES = 16
RESERVED_BYTES = 1024  # of a block's shared memory, for CUDA itself (from sm_80 on)
_one_at_a_time = threading.RLock()  # translation and atomics are not for several threads
WARP_ORDER = "KERNELSCOPE_WARP_ORDER"  # environment: a seed for launch()'s warp_order


class Run:
    """One launch: geometry, memory, and the chunks."""

    def __init__(
        self, program, kernel: Executable, grid, block, shared_bytes, observers, order, budget
    ):
        self.program, self.kernel, self.grid, self.block = program, kernel, grid, block
        self.budget: Budget = budget
        self.observers, self.warp_order = tuple(observers), order
        self.threads = block[0] * block[1] * block[2]
        self.blocks = grid[0] * grid[1] * grid[2]
        gap = SHARED_RED_ZONE if program.build == "debug" and kernel.shared_bytes else 0
        self.dynamic_offset = aligned(kernel.shared_bytes + gap, kernel.dynamic_alignment)
        self.dynamic_bytes = shared_bytes
        self.shared_size = kernel.shared_bytes
        if shared_bytes:
            self.shared_size = self.dynamic_offset + shared_bytes
        self.shared_stride = aligned(self.shared_size)
        self.reserved = (self.shared_stride + SHARED_RED_ZONE, RESERVED_BYTES * kernel.reserves)
        if kernel.reserves:
            self.shared_stride = sum(self.reserved)
        calls = any(i.opcode.startswith("call") for i in kernel.function.body)
        self.local_stride = aligned(kernel.instance.local_bytes + STACK_BYTES * calls)
        limits = kernel.function.limits
        self.cluster = (*limits.get("reqnctapercluster", ()), 1, 1, 1)[:3]
        if any(g % c for g, c in zip(grid, self.cluster, strict=True)):
            raise SimulatorError(
                f"{kernel.name}: grid {grid} does not hold whole clusters of "
                f"{self.cluster} blocks; make each size of the grid a multiple"
            )
        self.memory = GlobalMemory()
        self.refused_bytes = 0  # of the first malloc() that found no room
        self.chosen: tuple[range, ...] | None = None  # blocks to run; None: all
        self.warned = False  # of a shuffle that reads a lane which is not there

    # -- memory ---------------------------------------------------------------------------------
    def place_arguments(self, arguments, names) -> None:
        """Make arguments, variables and parameters known in global memory."""
        kernel, memory, values = self.kernel, self.memory, list(arguments)
        size = sum(a.nbytes for a in arguments if isinstance(a, np.ndarray))
        size += kernel.parameter_bytes
        self.budget.charge(size, kernel.name, "its arguments")
        for i, value in enumerate(arguments):
            if isinstance(value, np.ndarray):
                name = names[i] if i < len(names) else f"argument {i}"
                values[i] = memory.give(value, name).to_bytes(8, "little")
        for name in kernel.variables:
            memory.use(self.program.addresses[name])
        if kernel.allocates:
            self.heap.put_together()
            memory.use(self.heap.span.start)
        # After the parameters comes what grid.sync() counts the arrived blocks in.
        offset = aligned(kernel.parameter_bytes)
        size = offset + GRID_WORKSPACE_BYTES
        self.parameter_address = SPACE.take_parameters(size)
        self.grid_workspace = self.parameter_address + offset
        self.fill_parameters(size, values)
        memory.use_parameters(self.parameter_address, size)
        memory.ready()
        for value, name in zip(values, names, strict=False):
            mapped = arrays_of_maps(bytes(value))
            if mapped.size:
                memory.follow(mapped, name)
        if self.observers:
            memory.follow_pointers()

    @property
    def heap(self) -> DeviceHeap:
        """The heap of the process."""
        return SPACE.heap

    def fill_parameters(self, size: int, values: list[bytes]) -> None:
        kernel, image = self.kernel, np.zeros(size, np.uint8)
        for parameter, offset, value in zip(
            kernel.parameters, kernel.parameter_offsets, values, strict=True
        ):
            data = bytes(value)[: parameter.size].ljust(parameter.size, b"\0")
            image[offset : offset + parameter.size] = np.frombuffer(data, np.uint8)
        self.parameters = image.tobytes()
        start = self.parameter_address
        self.memory.bytes[start : start + size] = image

    def end(self) -> None:
        """Copy arrays back and let the addresses of the parameters go."""
        self.memory.copy_back()
        SPACE.return_parameters(self.parameter_address)

    def description(self) -> Launch:
        """What observers are told of the launch."""
        program, kernel = self.program, self.kernel
        buffers = list(self.memory.buffers)
        places = {name: offset for name, (offset, _) in kernel.shared_places.items()}
        places |= dict.fromkeys(kernel.dynamic_names, self.dynamic_offset)
        for name, (offset, variable) in kernel.shared_places.items():
            buffers.append(Buffer(demangle(name), "shared", offset, variable.size))
        if self.dynamic_bytes:
            names = [demangle(name) for name in kernel.dynamic_names]
            name = names[0] if names else "dynamic shared memory"
            buffers.append(Buffer(name, "shared", self.dynamic_offset, self.dynamic_bytes))
        return Launch(
            kernel.function.name,
            self.grid,
            self.block,
            self.shared_size,
            program.build,
            program.source_name,
            program.source_lines,
            tuple(buffers),
            program,
            places,
        )

    # -- chunks ---------------------------------------------------------------------------------
    @property
    def most_blocks(self) -> int:
        """How many blocks a chunk may have."""
        lanes = aligned(self.threads, 32)
        chunk_bytes = min(CHUNK_BYTES, self.budget.memory_bytes // 4)
        size = min(LANES_PER_CHUNK // lanes, chunk_bytes // max(self.bytes_a_block, 1))
        return aligned(max(1, size), self.blocks_that_stay_together())

    @property
    def bytes_a_block(self) -> int:
        """The bytes of shared and local memory."""
        return self.shared_stride + self.threads * self.local_stride

    def chunks(self):
        """The chunks in block order; with a warp order, in an order that its seed chooses.

        Ends sooner where the blocks that are left have been shared out among processes.
        """
        name, size = self.kernel.name, self.most_blocks
        together = min(size, self.blocks)
        what = f"the shared and local memory of {together} block{'s'[: together > 1]}"
        self.budget.charge(together * self.bytes_a_block, name, what)
        if self.chosen is not None:
            for part in self.chosen:
                for first in part[::size]:
                    yield self.chunk(first, min(size, part.stop - first))
                if all(observer.has_enough() for observer in self.observers):
                    return
            return
        starts = range(0, self.blocks, size)
        if self.warp_order is not None:
            self.budget.charge(8 * len(starts), name, "the order of its blocks")
            starts = np.array(starts)
            np.random.default_rng(self.warp_order).shuffle(starts)
        for first in map(int, starts):
            if shared_out(self, first):
                return
            yield self.chunk(first, min(size, self.blocks - first))

    def chunk(self, first: int, count: int) -> Chunk:
        """The chunk of some blocks."""
        self.budget.check(self.kernel.name, lambda: f"block {first} of {self.blocks}")
        return Chunk(self, first, count)

    def blocks_that_stay_together(self) -> int:
        """Consecutive blocks that hold whole clusters."""
        x, y, z = self.cluster
        if z > 1:
            return self.grid[0] * self.grid[1] * z
        return self.grid[0] * y if y > 1 else x

    def cluster_ranks(self, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(cluster number, rank in the cluster) of blocks by their linear number in the grid."""
        place = np.unravel_index(blocks, self.grid[::-1])[::-1]
        cluster = [p // c for p, c in zip(place, self.cluster, strict=True)]
        rank = [p % c for p, c in zip(place, self.cluster, strict=True)]
        across = [g // c for g, c in zip(self.grid, self.cluster, strict=True)]
        return (
            cluster[0] + across[0] * (cluster[1] + across[1] * cluster[2]),
            rank[0] + self.cluster[0] * (rank[1] + self.cluster[1] * rank[2]),
        )

    def execute(self) -> None:
        """Run all chunks, and tell how far they are when they take long."""
        self.progress = Progress(self.kernel.name, self.blocks)
        self.budget.progress = self.progress.update
        try:
            self.run_chunks()
        finally:
            self.budget.progress = None
            self.progress.close()

    def run_chunks(self) -> None:
        """Run all chunks; chunks that only wait for other blocks go on after these have run."""
        stalled = []
        for chunk in self.chunks():
            if not self.run_chunk(chunk, start=True):
                stalled.append(chunk)
        while stalled:
            before, count = self.memory.version, len(stalled)
            stalled = [chunk for chunk in stalled if not self.run_chunk(chunk, start=False)]
            if len(stalled) == count and self.memory.version == before:
                if any([chunk.clock.leap() for chunk in stalled]):
                    continue
                if not (stalled[0].missed_in_grid() or stalled[0].missed_at_mbarrier()):
                    raise self.of_some_blocks(stalled[0].hang())
                for chunk in stalled:
                    self.end_chunk(chunk)
                return

    def of_some_blocks(self, found: Hang) -> Hang:
        """The same, with a word of the blocks that were left out, if any were."""
        if self.chosen is None:
            return found
        return Hang(
            f"{found}. Not all {self.blocks:,} blocks were run, and those left out may be what it "
            "waits for: run all of them (--blocks of `predict`, blocks=None of Time)",
            found.line,
        )

    def interrupted(self, where: str) -> Interrupted:
        """The error of a launch that Ctrl-C has ended at some place."""
        progress, seconds = self.progress, time.monotonic() - self.progress.start
        return Interrupted(
            f"{progress.name} was interrupted at {where}, with {progress.done:,} "
            f"of {self.blocks:,} thread blocks done after {seconds:.1f} s. Arrays hold what "
            "it had written until then"
        )

    def run_chunk(self, chunk: Chunk, start: bool) -> bool:
        """Run a chunk as far as it gets; True when all of its threads have ended."""
        for observer in self.observers:
            tell = observer.chunk_started if start else observer.chunk_resumed
            tell(chunk.reports.machine)
        began = time.process_time()
        try:
            ended = chunk.run()
        except KeyboardInterrupt as stop:
            raise self.interrupted(chunk.where(stop)) from None
        if not ended:
            return False
        seconds = time.process_time() - began
        self.kernel.learn(seconds / chunk.lanes.count, self.memory.read_and_written())
        self.end_chunk(chunk)
        return True

    def end_chunk(self, chunk: Chunk) -> None:
        """Tell observers of the end of a chunk, and free it."""
        self.progress.done += chunk.block_count
        for observer in self.observers:
            observer.chunk_finished(chunk.reports.machine)
        chunk.close()


def chosen_by(observers: tuple, launch: Launch | None) -> tuple[range, ...] | None:
    """Return the blocks that all observers of a launch choose; None: all of the grid."""
    choices = {observer.chosen_blocks(launch) for observer in observers}
    return choices.pop() if len(choices) == 1 else None


def seed_from_environment() -> int | None:
    text = setting(WARP_ORDER)
    if text and not text.isdigit():
        raise InputError(f"{WARP_ORDER} is {text!r}; it must be a seed such as 1, or empty")
    return int(text) if text else None


def launch(
    program,
    name: str,
    grid,
    block,
    arguments,
    *,
    shared_bytes=0,
    observers=(),
    names=(),
    warp_order=None,
) -> None:
    """Run kernel `name` of a Program over its whole grid, in place on the array arguments.

    grid, block: 3 ints each. arguments: for each parameter an array (the address of its first
    element is passed) or the bytes of a by-value parameter. shared_bytes: dynamic shared memory.
    names: the arguments' names for messages. warp_order: a seed; warps of a block then run one
    after another in a random order between barriers, instead of in lockstep, and chunks of blocks
    in a random order. None: the environment variable KERNELSCOPE_WARP_ORDER, else lockstep.
    The call's budget (see budget.py) bounds time, memory and output.
    Launches of several threads take turns, until the observers of one have heard of its end.
    Raises MemoryFault, Hang, TooLarge, Trap, KernelAssertion, UnsupportedKernel: SimulatorErrors.
    """
    if warp_order is None:
        warp_order = seed_from_environment()
    with _one_at_a_time, call_budget() as budget:
        kernel = program.executable(name)
        grid, block = tuple(grid), tuple(block)
        run = Run(program, kernel, grid, block, shared_bytes, observers, warp_order, budget)
        run.place_arguments(arguments, names)
        try:
            description = run.description() if observers else None
            for observer in run.observers:
                observer.launch_started(description)
            run.chosen = chosen_by(run.observers, description)
            with np.errstate(all="ignore"):
                run.execute()
        finally:
            run.end()
        for observer in run.observers:
            observer.launch_finished(description)
