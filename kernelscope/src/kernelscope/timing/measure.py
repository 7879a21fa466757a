"""Measures the constants of gpus.py on the GPU of this machine, in about ten seconds."""

import statistics
from collections.abc import Callable
from datetime import date
from pathlib import Path

from ..errors import BackendError
from ..module import RawModule, capture_graph
from .gpus import NOT_PROBED, GpuConstants, gpu, to_record

PROBES = Path(__file__).with_name("probes.cu")
LARGE_BYTES = 1 << 29  # of each array that does not fit L2
WINDOW_BYTES = 16 << 20  # fits L2, and no L1
CHAIN_BYTES = {"l2_clocks": 8 << 20, "dram_clocks": 1 << 28}
NODE_WORDS = 16  # of 8 bytes: a cache line from one node of a chain to the next
THREADS, STEPS = 1024, 256
REPEATS = 7
CHECKS = (  # measured beside the constants, and read by no prediction
    "shared_per_clock", "fma_per_clock", "mufu_per_clock", "mma_bf16", "mma_tf32",
)  # fmt: skip


def measure_gpu() -> dict:
    """Return the record of this machine's GPU, see gpus.to_record.

    Beside the constants it has `checks`, which no prediction reads: rates of further types of
    mma.sync and of lanes, and the clock under load.

    Raises:
        BackendError: CuPy sees no GPU.
    """
    cupy = _cupy()
    module = RawModule(path=str(PROBES), backend="gpu")
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    found = _Probes(cupy, module, properties["multiProcessorCount"])
    clock = found.clock_mhz()
    rates = found.rates()
    values = found.bandwidths() | found.latencies() | rates
    values |= {"launch_us": found.launch_us()} | found.atomics()
    checks = {key: values.pop(key) for key in CHECKS}
    sources = dict.fromkeys(values, f"measured by kernelscope measure-gpu on {date.today()}")
    fitted = gpu("h200")
    values |= {key: getattr(fitted, key) for key in NOT_PROBED}
    sources |= dict.fromkeys(NOT_PROBED, "as on the H200: not measured here")
    name = properties["name"].decode()
    known = GpuConstants(spread=fitted.spread, **_sizes(cupy, properties, name, clock), **values)
    return to_record(known, sources, {"name": name, "checks": checks | {"clock_mhz": clock}})


def replay_times(call: Callable[[], None], calls: int, samples: int) -> list[float]:
    """Return microseconds of a call, `samples` times: a CUDA graph of `calls` is replayed.

    The call must only launch kernels on CuPy's current stream. Two replays come before, unmeasured.
    """
    import cupy

    graph, stream = capture_graph(call, calls), cupy.cuda.Stream(non_blocking=True)
    before, after = cupy.cuda.Event(), cupy.cuda.Event()
    taken = []
    with stream:
        for _ in range(samples + 2):
            before.record(stream)
            graph()
            after.record(stream)
            after.synchronize()
            taken.append(1e3 * cupy.cuda.get_elapsed_time(before, after) / calls)
    return taken[2:]


def _cupy():
    try:
        import cupy

        if cupy.cuda.runtime.getDeviceCount():
            return cupy
    except Exception as error:  # CuPy's own types, without a driver
        raise BackendError(f"measure-gpu needs a GPU: {error}") from error
    raise BackendError("measure-gpu needs a GPU, and CuPy sees none")


def _sizes(cupy, properties: dict, name: str, clock: float) -> dict:
    """What the driver says of a GPU."""
    attributes = cupy.cuda.Device().attributes
    sm_shared = attributes["MaxSharedMemoryPerMultiprocessor"]
    capability = f"{properties['major']}{properties['minor']}"
    return {
        "name": name,
        "arch": f"sm_{capability}" + ("a" if capability == "90" else ""),
        "sms": properties["multiProcessorCount"],
        "clock_mhz": clock,
        "l1_bytes": sm_shared + (28 << 10),  # what is left of it at the largest carve-out
        "shared_bytes": attributes["MaxSharedMemoryPerBlockOptin"],
        "l2_bytes": properties["l2CacheSize"],
        "registers": attributes["MaxRegistersPerMultiprocessor"],
        "warps": properties["maxThreadsPerMultiProcessor"] // 32,
        "blocks": attributes["MaxBlocksPerMultiprocessor"],
    }


class _Probes:
    """The kernels of probes.cu, launched and timed."""

    def __init__(self, cupy, module: RawModule, sms: int):
        self.cupy, self.module, self.sms = cupy, module, sms
        self.out = cupy.zeros(64, cupy.float32)
        self.clocks = cupy.zeros(max(sms, 1), cupy.int64)

    def launch(self, name: str, blocks: int, threads: int, *arguments) -> None:
        self.module.get_function(name)((blocks,), (threads,), arguments)

    def microseconds(self, call: Callable[[], None], calls: int = 1) -> float:
        """Median time of one call, replayed in a CUDA graph of `calls`."""
        return statistics.median(replay_times(call, calls, REPEATS))

    def median_clocks(self, name: str, blocks: int, threads: int, *arguments) -> float:
        """Median over repeats of the slowest block's clocks."""
        taken = []
        for _ in range(REPEATS):
            self.clocks.fill(0)
            self.launch(name, blocks, threads, *arguments)
            taken.append(int(self.clocks.max()))
        return statistics.median(taken)

    # -- one property each ----------------------------------------------------------------------
    def launch_us(self) -> float:
        return self.microseconds(lambda: self.launch("empty", 1, 32), calls=500)

    def bandwidths(self) -> dict[str, float]:
        count = LARGE_BYTES // 16
        first = self.cupy.zeros(4 * count, self.cupy.float32)
        second = self.cupy.zeros(4 * count, self.cupy.float32)
        threads = 256
        blocks = count // (4 * threads)
        copied = min(
            self.microseconds(lambda: self.launch("copy", blocks, threads, first, second)),
            self.microseconds(lambda: self.launch("copy_one", 4 * blocks, threads, first, second)),
        )
        steps = count // (8 * self.sms * 4 * threads)  # a large array once, or as often a window
        once = self._read_gbps(first, (8, threads), steps, 1 << 31, 4 * threads * steps)
        part = WINDOW_BYTES // 16 // self.sms  # of all windows, for an SM
        near = max(
            self._read_gbps(first, (2, 1024), steps, part // 2, part // 2),
            self._read_gbps(first, (8, 256), steps, part // 8, part // 8),
        )
        return {"dram_gbps": 2e-3 * LARGE_BYTES / copied, "l2_gbps": near, "read_gbps": once}

    def _read_gbps(
        self, data, of_sm: tuple[int, int], steps: int, window: int, apart: int
    ) -> float:
        """Bandwidth of reading past L1. of_sm: (blocks of each SM, threads); apart: see `read`."""
        (blocks, threads), cupy = of_sm, self.cupy
        blocks *= self.sms
        numbers = cupy.uint32(window), cupy.uint32(apart), cupy.int32(steps)
        taken = self.microseconds(
            lambda: self.launch("read", blocks, threads, data, self.out, *numbers)
        )
        return 1e-3 * blocks * threads * 4 * 16 * steps / taken

    def latencies(self) -> dict[str, float]:
        found = {name: self._chase(size) for name, size in CHAIN_BYTES.items()}
        steps = 4096
        last = self.cupy.zeros(1, self.cupy.uint32)
        arguments = self.clocks, last, self.cupy.int32(steps)
        taken = self.median_clocks("chase_shared", 1, 32, *arguments)
        return found | {"shared_clocks": taken / steps}

    def _chase(self, size: int) -> float:
        """Clocks of one step of a random chain through `size` bytes.

        A chain that L2 does not hold is begun at another node in each repeat.
        """
        cupy, nodes, steps = self.cupy, size // (8 * NODE_WORDS), 4096
        order = cupy.random.RandomState(1).permutation(nodes).astype(cupy.int64)
        chain = cupy.zeros(nodes * NODE_WORDS, cupy.uint64)
        start, node_bytes = chain.data.ptr, 8 * NODE_WORDS
        target = (start + node_bytes * cupy.roll(order, -1)).astype(cupy.uint64)
        chain[order * NODE_WORDS] = target
        cupy.zeros(LARGE_BYTES // 4, cupy.float32)  # written behind it: L2 holds that now
        last = cupy.zeros(1, cupy.uint64)
        fits = size <= WINDOW_BYTES
        numbers = cupy.int32(nodes if fits else 256), cupy.int32(steps)
        taken = []
        for repeat in range(REPEATS):
            node = int(order[0 if fits else repeat * nodes // REPEATS])
            first = cupy.uint64(start + node_bytes * node)
            self.launch("chase", 1, 1, first, self.clocks, last, *numbers)
            taken.append(int(self.clocks[0]) / steps)
        return statistics.median(taken)

    def rates(self) -> dict[str, float]:
        """Operations a clock and SM, with a block of 1,024 threads on each SM."""
        int32, warps = self.cupy.int32, THREADS // 32

        def rate(name: str, operations: int, *arguments) -> float:
            given = self.clocks, self.out, *arguments, int32(STEPS)
            return STEPS * operations / self.median_clocks(name, self.sms, THREADS, *given)

        product = 8 * warps * 16 * 8
        meeting = self.median_clocks("barrier_cost", self.sms, 256, self.clocks, int32(STEPS))
        return {
            "shared_per_clock": rate("shared_rate", 16 * warps),
            "fma_per_clock": rate("fma_rate", 16 * THREADS, self.cupy.float32(0.5)),
            "mufu_per_clock": rate("mufu_rate", 16 * THREADS),
            "mma_per_clock": rate("mma_f16", 16 * product),
            "mma_bf16": rate("mma_bf16", 16 * product),
            "mma_tf32": rate("mma_tf32", 8 * product),
            "barrier_clocks": meeting / (16 * STEPS),
        }

    def atomics(self) -> dict[str, float]:
        blocks, threads, steps = 8 * self.sms, 256, 16
        sums = self.cupy.zeros(32, self.cupy.float32)

        def nanoseconds(name: str) -> float:
            taken = self.microseconds(
                lambda: self.launch(name, blocks, threads, sums, self.cupy.int32(steps))
            )
            return 1e3 * taken / (blocks * threads * steps)

        return {
            "atomic_ns": nanoseconds("same_address"),
            "atomic_line_ns": 32 * nanoseconds("same_line"),
        }

    def clock_mhz(self) -> float:
        """Clock of an SM under multiply-adds: its clocks over the time of the launch."""
        steps = 1 << 16
        arguments = (self.clocks, self.out, self.cupy.float32(0.5), self.cupy.int32(steps))
        taken = self.microseconds(lambda: self.launch("fma_rate", self.sms, THREADS, *arguments))
        return int(self.clocks.max()) / taken
