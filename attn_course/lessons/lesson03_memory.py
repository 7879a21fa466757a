"""Lesson 03: the cost of a load at each level of memory, and of score kernels' traffic in time.

Latency comes from chains of dependent loads, bandwidth from streams of independent ones
(kernels/probes/memory_levels.cu); the score kernels are timed in turns, as graph replays. The
probes also run on the simulator, which checks what they read; their timings are meaningful only on
a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from kernelscope import array_module, asnumpy, resolve_backend
from kernelscope.contest import capture, contest, require_gpu

from attn_course import reference
from attn_course.ladder.call import compiled
from attn_course.ladder.headers import kernel_path
from attn_course.ladder.steps import step
from attn_course.measure.benchmarks import run_benchmark
from attn_course.measure.candidates import Kernels, Part
from attn_course.measure.records import new_record
from attn_course.reference.inputs import seeded_qkv

KIND = "memory_lesson"
PROBES = "probes/memory_levels"
NODE_BYTES = 128  # from one node of a chain to the next
STEPS = 4096  # counted loads of a chain
SHARED_NODES = 1024
THREADS, SHARED_FLOATS4 = 1024, 2048  # of the blocks that read
SHAPE = (2, 12, 196, 64)  # (B, H, L, D) of the timed kernels
# Sizes of a chain's memory, in bytes: from well inside L1 to well beyond any L2.
SIZES = tuple(1 << power for power in range(12, 30))


def score_variants() -> dict[str, tuple[int, tuple[str, ...]]]:
    """Name -> (step, compiler options) of the kernels that the lesson times."""
    found = {f"01 TILE={tile}": (1, (f"-DTILE={tile}",)) for tile in (16, 32)}
    for tile in (16, 32):
        for layout in (0, 1, 2):
            for pad in (0, 1):
                name = variant_name(layout, pad, tile)
                found[name] = (2, (f"-DTILE={tile}", f"-DK_TILE={layout}", f"-DPAD={pad}"))
    return found | {"03": (3, ())}


def variant_name(k_tile: int, pad: int, tile: int = 32) -> str:
    """The name of one build of kernel 02 among `score_variants`."""
    return f"02 TILE={tile} K_TILE={k_tile} PAD={pad}"


# -- one chain, one stream -------------------------------------------------------------------------
@dataclass(frozen=True)
class Chase:
    """One walk along a chain. last: the node where it ended; clocks, nanoseconds: of the walk."""

    last: int
    clocks: int
    nanoseconds: int
    steps: int


def _probe(entry: str, backend: str):
    return compiled(kernel_path(PROBES), entry=entry, backend=backend)


def random_order(count: int, seed: int = 0) -> np.ndarray:
    """(count,) uint32: the order in which a chain visits its nodes."""
    return np.random.default_rng(seed).permutation(count).astype(np.uint32)


def chase_global(order, warm: int, steps: int, backend: str | None = None) -> Chase:
    """Walk a chain of len(order) nodes in global memory, after `warm` loads that do not count."""
    nodes = array_module(backend).zeros(len(order) * NODE_BYTES // 8, dtype=np.uint64)
    return _chase("chase_global", order, warm, steps, backend, nodes)


def chase_shared(order, warm: int, steps: int, backend: str | None = None) -> Chase:
    """Walk a chain of len(order) <= SHARED_NODES nodes in shared memory."""
    return _chase("chase_shared", order, warm, steps, backend)


def _chase(entry: str, order, warm: int, steps: int, backend: str | None, *nodes) -> Chase:
    xp = array_module(backend)
    last, taken = xp.zeros(1, dtype=np.uint64), xp.zeros(2, dtype=np.int64)
    numbers = (np.int32(value) for value in (len(order), warm, steps))
    arguments = (xp.asarray(order), *nodes, last, taken, *numbers)
    _probe(entry, resolve_backend(backend))((1, 1, 1), (THREADS, 1, 1), arguments)
    return Chase(int(last[0]), int(taken[0]), int(taken[1]), steps)


@dataclass(frozen=True)
class Reading:
    """A stream of loads: which kernel, how many blocks, float4 a window, passes over it."""

    entry: str
    blocks: int
    window: int
    passes: int

    @property
    def bytes_read(self) -> int:
        return self.blocks * self.window * self.passes * 16

    def launcher(self, data, out, backend: str):
        """A function that launches it: data (count, 4) float32, out (blocks * THREADS,)."""
        kernel = _probe(self.entry, backend)
        arguments = (data, out, np.int32(self.passes))
        if self.entry != "read_shared":
            count = np.int64(len(data))
            arguments = (data, out, count, np.int32(self.window), np.int32(self.passes))
        return lambda: kernel((self.blocks, 1, 1), (THREADS, 1, 1), arguments)

    def expected(self, data: np.ndarray) -> float:
        """Return the sum over all threads, in float64."""
        if self.entry == "read_shared":
            starts = [0] * self.blocks
        else:
            starts = [b * self.window % (len(data) - self.window + 1) for b in range(self.blocks)]
        sums = np.concatenate([[0.0], np.cumsum(data.sum(axis=1, dtype=np.float64))])
        return self.passes * float(sum(sums[s + self.window] - sums[s] for s in starts))


def small_numbers(count: int, xp=np):
    """(count, 4) float32 whole numbers from 0 to 6: their sums are exact."""
    return (xp.arange(4 * count, dtype=np.int64) % 7).astype(np.float32).reshape(count, 4)


# -- a GPU's figures -------------------------------------------------------------------------------
def latencies(sizes: Sequence[int] = SIZES) -> list[dict]:
    """Clocks a dependent load takes: shared memory, then global memory by the chain's size."""
    require_gpu()
    shared = chase_shared(random_order(SHARED_NODES), STEPS, STEPS)
    walks = [("shared", 4 * SHARED_NODES, shared)]
    for size in sizes:
        order = random_order(size // NODE_BYTES)
        walks.append(("global", size, chase_global(order, min(len(order), 2 * STEPS), STEPS)))
    return [
        {
            "space": space,
            "bytes": size,
            "clocks": round(walk.clocks / walk.steps, 2),
            "nanoseconds": round(walk.nanoseconds / walk.steps, 2),
        }
        for space, size, walk in walks
    ]


def device_sizes() -> dict[str, int]:
    """multiprocessors, and l2_bytes of the current device."""
    import cupy

    found = cupy.cuda.Device().attributes
    return {"multiprocessors": found["MultiProcessorCount"], "l2_bytes": found["L2CacheSize"]}


def bandwidths(iterations: int = 15) -> list[dict]:
    """Bytes a second that all multiprocessors together read from each level."""
    require_gpu()
    import cupy

    sizes = device_sizes()
    sms, in_l2 = sizes["multiprocessors"], max(sizes["l2_bytes"] // 4, 1 << 20) // 16
    whole = (1 << 30) // 16
    readings = {
        "shared": (Reading("read_shared", sms, SHARED_FLOATS4, 1024), SHARED_FLOATS4),
        "L1": (Reading("read_l1", sms, 2 * THREADS, 1024), sms * 2 * THREADS),
        "L2": (Reading("read_l2", 2 * sms, in_l2 // (2 * sms), 64), in_l2),
        "device": (Reading("read_l2", 2 * sms, whole // (2 * sms), 1), whole),
    }
    replays, checks = {}, []
    for name, (reading, count) in readings.items():
        data = small_numbers(count, cupy)
        out = cupy.zeros(reading.blocks * THREADS, dtype=np.float32)
        replays[name] = capture(reading.launcher(data, out, "gpu"), 2)
        checks.append((name, reading, data, out))
    timings = contest(replays, iterations=iterations, warmup=3).timings
    for name, reading, data, out in checks:
        got, expected = float(out.sum(dtype=np.float64)), reading.expected(asnumpy(data))
        if got != expected:
            raise RuntimeError(f"{name}: the threads read {got}, not {expected}")
    return [
        {
            "level": name,
            "median_us": round(timings[name].median_us, 3),
            "gb_per_s": round(reading.bytes_read / timings[name].median_us / 1000, 1),
        }
        for name, reading, _, _ in checks
    ]


def score_times(iterations: int = 60) -> dict:
    """Times of every score variant at SHAPE, in turns, each result checked against float64."""
    require_gpu()
    makers = {name: partial(Kernels, name, [Part(*p)]) for name, p in score_variants().items()}
    result = run_benchmark(
        seeded_qkv(SHAPE),
        makers,
        iterations=iterations,
        warmup=10,
        expected=_expected_scores,
    )
    if result.entrants.wrong or result.entrants.refused:
        raise RuntimeError("; ".join((result.entrants.wrong | result.entrants.refused).values()))
    return result.measured.record() | {"shape": SHAPE}


def _expected_scores(q, k, v) -> np.ndarray:
    return reference.attention_scores(q, k, scale=1)


def record(quick: bool = False) -> dict:
    """Return all of the above as a record of kind KIND, in under a minute; quick: in few turns.

    Needs a GPU with a few GB of memory.
    """
    turns = 5 if quick else 60
    parts = {
        "scores": score_times(turns),
        "latencies": latencies(SIZES[::6] if quick else SIZES),
        "bandwidths": bandwidths(min(turns, 15)),
    }
    files = {step(number).file for number, _ in score_variants().values()}
    return new_record(KIND, {PROBES, *files}, **device_sizes(), **parts)


# -- for the lesson --------------------------------------------------------------------------------
def medians_us(record: dict) -> dict[str, float]:
    """Variant -> median time in microseconds."""
    return {one["name"]: one["median_us"] for one in record["scores"]["timings"]}


def clock_mhz(record: dict) -> float:
    """The multiprocessors' clock while the chains ran, from their clocks and nanoseconds."""
    longest = max(record["latencies"], key=lambda one: one["nanoseconds"])
    return 1000 * longest["clocks"] / longest["nanoseconds"]


def levels(record: dict) -> dict[str, dict]:
    """Level -> clocks a load took there and the bandwidth, from the chains' sizes.

    shared: its chain; L1: the smallest global chain; L2: the largest that fills at most a quarter
    of it; device: the largest of all.
    """
    chains = [one for one in record["latencies"] if one["space"] == "global"]
    in_l2 = [one for one in chains if one["bytes"] <= record["l2_bytes"] // 4]
    picked = {
        "shared": record["latencies"][0],
        "L1": chains[0],
        "L2": in_l2[-1],
        "device": chains[-1],
    }
    speed = {one["level"]: one["gb_per_s"] for one in record["bandwidths"]}
    return {
        name: {"clocks": one["clocks"], "bytes": one["bytes"], "gb_per_s": speed[name]}
        for name, one in picked.items()
    }
