"""Times candidates on a GPU: replays of CUDA graphs in turns, medians with their spread.

A launch from Python costs some microseconds, more than a small kernel runs. So each candidate's
calls are captured into a CUDA graph, and the replays of all candidates take turns: a clock that
drifts, or a neighbour on the machine, then hits all of them alike.
The simulator's speed says nothing about a GPU's: everything here refuses to time it.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from ..backend import gpu_count, resolve_backend
from ..errors import InputError, UserError
from ..module import capture_graph

GRAPH_CALLS = 20  # calls in one graph: a replay then lasts well past an event's resolution
ENOUGH_US = 500.0  # a graph that lasts this long needs no more calls
FLUSH_BYTES = 256 << 20  # written to push everything else out of L2 (60 MB on an H200)
# The GPU is kept busy this long while the CPU queues a sample: about 50 us at 2 GHz. Without it the
# clock would run while Python is still on its way to the launch.
HOLD_CYCLES = 100_000
HOW = ("wall", "events", "benchmark", "graph", "single", "cold")
REPLAYS = ("graph", "single", "cold")  # those that replay a graph

_HOLD = r"""
extern "C" __global__ void hold(long long cycles)
{
    const long long start = clock64();
    while (clock64() - start < cycles) { }
}
"""


class TimingError(UserError, RuntimeError):
    """The request cannot be timed on this machine; the message gives an alternative."""


class Replay(NamedTuple):
    """A function that launches work on CuPy's current stream, and the calls that it stands for."""

    launch: Callable[[], object]
    calls: int = 1


@dataclass(frozen=True)
class Timing:
    """Times of one candidate, microseconds a call.

    samples_us: in the order taken, calls of a replay divided out. how: "graph" (of GRAPH_CALLS
    calls), "single" (a graph of one call), "cold" (the same, L2 cache flushed before it), "events"
    (two events round a call from Python), "benchmark" (cupyx.profiler.benchmark) or "wall" (the
    host's clock round a call, GPU idle before and after).
    """

    name: str
    how: str
    samples_us: tuple[float, ...]
    calls_a_sample: int = 1

    @property
    def median_us(self) -> float:
        return float(np.median(self.samples_us))

    @property
    def p20_us(self) -> float:
        return float(np.percentile(self.samples_us, 20))

    @property
    def p80_us(self) -> float:
        return float(np.percentile(self.samples_us, 80))

    def record(self) -> dict:
        """Return the fields for a results file: the summary without the samples."""
        return {
            "name": self.name,
            "how": self.how,
            "median_us": round(self.median_us, 3),
            "p20_us": round(self.p20_us, 3),
            "p80_us": round(self.p80_us, 3),
            "samples": len(self.samples_us),
            "calls_a_sample": self.calls_a_sample,
        }


@dataclass(frozen=True)
class Ratio:
    """How many times faster `name` is than `peer`, with a 95 % bootstrap interval."""

    name: str
    peer: str
    value: float
    low: float
    high: float

    def record(self) -> dict:
        rounded = {key: round(getattr(self, key), 4) for key in ("value", "low", "high")}
        return asdict(self) | rounded


def bootstrap_ratio(ours: Timing, theirs: Timing, *, draws: int = 2000, seed: int = 0) -> Ratio:
    """median(theirs) / median(ours), above 1 where ours is faster, with a 95 % interval.

    Samples taken in turns are drawn in pairs, a turn at a time, so that a drift which both have
    shared does not widen the interval; with unequal numbers each is drawn on its own.
    """
    a, b = np.array(ours.samples_us), np.array(theirs.samples_us)
    rng = np.random.default_rng(seed)
    picked_a = rng.integers(a.size, size=(draws, a.size))
    picked_b = picked_a if b.size == a.size else rng.integers(b.size, size=(draws, b.size))
    drawn = np.median(b[picked_b], axis=1) / np.median(a[picked_a], axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    value = theirs.median_us / ours.median_us
    return Ratio(ours.name, theirs.name, value, float(low), float(high))


@dataclass
class Contest:
    """Timings of candidates measured in turns, in one run, on one GPU."""

    timings: dict[str, Timing] = field(default_factory=dict)
    clocks: dict = field(default_factory=dict)

    def ratio(self, name: str, peer: str, **options) -> Ratio:
        """How many times faster `name` is than `peer`; options as of bootstrap_ratio."""
        return bootstrap_ratio(self.timings[name], self.timings[peer], **options)

    def record(self) -> dict:
        return {"clocks": self.clocks, "timings": [t.record() for t in self.timings.values()]}


def require_gpu() -> None:
    """Raises TimingError where the backend is the simulator."""
    if resolve_backend(None) != "gpu":
        raise TimingError(
            "there is no GPU here, and the simulator's seconds say nothing about a kernel's speed: "
            "count its work instead (Counters), or read times that were recorded on a GPU"
        )


# -- the GPU ---------------------------------------------------------------------------------------
class GpuClock:
    """Times work on a stream of its own. Raises TimingError where there is no GPU."""

    def __init__(self, flush_l2: bool = False):
        require_gpu()
        import cupy

        self._cupy = cupy
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._scratch = cupy.empty(FLUSH_BYTES // 4, cupy.float32) if flush_l2 else None
        self._hold = _hold_kernel()
        self.synchronize()  # inputs were made on another stream

    def synchronize(self) -> None:
        """Wait for all work of the device, on whatever stream."""
        self._cupy.cuda.Device().synchronize()

    def time_us(self, launch: Callable[[], object]) -> float:
        """Microseconds between two events round what `launch` puts on the stream."""
        events = self._cupy.cuda.Event
        start, end = events(), events()
        with self.stream:
            if self._scratch is not None:
                self._scratch.fill(1.0)
            self._hold((1,), (1,), (np.int64(HOLD_CYCLES),))
            start.record(self.stream)
            launch()
            end.record(self.stream)
            end.synchronize()
        return self._cupy.cuda.get_elapsed_time(start, end) * 1000


@lru_cache(maxsize=1)
def _hold_kernel():
    import cupy

    return cupy.RawKernel(_HOLD, "hold")


def capture(call: Callable[[], object], calls: int = GRAPH_CALLS) -> Replay:
    """Capture `calls` calls into a CUDA graph; see capture_graph().

    Raises:
        TimingError: no GPU.
    """
    require_gpu()
    return Replay(capture_graph(call, calls), calls)


def calls_for(call_us: float) -> int:
    """How many calls of this length to put into one graph: 1 to GRAPH_CALLS."""
    return int(min(GRAPH_CALLS, max(1, np.ceil(ENOUGH_US / max(call_us, 1e-3)))))


def contest(
    replays: Mapping[str, Replay | tuple[Callable[[], object], int]],
    *,
    iterations: int = 60,
    warmup: int = 10,
    flush_l2: bool = False,
    clock=None,
) -> Contest:
    """Time candidates in turns on one stream, in every turn in another order, the same each time.

    Args:
        replays: name -> what to launch, and how many calls it stands for.
        iterations, warmup: turns that count, and turns before them that do not.
        flush_l2: write 256 MB before every sample, so that inputs come from device memory; then
            every replay must stand for one call, or its others would find the cache warm.
        clock: an object with time_us(launch); a GpuClock where None.

    Raises:
        TimingError: no GPU, or nothing to time.
        ValueError: flush_l2 with a replay of several calls.
    """
    replays = {name: Replay(*replay) for name, replay in replays.items()}
    if not replays or iterations < 1:
        raise TimingError("a contest needs at least one candidate and one iteration")
    several = [name for name, replay in replays.items() if flush_l2 and replay.calls != 1]
    if several:
        raise InputError(f"flush_l2 needs graphs of one call: {several[0]} has more")
    clock = clock or GpuClock(flush_l2)
    samples: dict[str, list[float]] = {name: [] for name in replays}
    before = clocks()
    order = list(replays.items())
    for turn in range(warmup + iterations):
        # Who goes before heats the chip and fills caches: nobody always follows the same one.
        random.Random(turn).shuffle(order)
        for name, replay in order:
            elapsed = clock.time_us(replay.launch) / replay.calls
            if turn >= warmup:
                samples[name].append(elapsed)
    how = "cold" if flush_l2 else "graph"
    timings = {n: Timing(n, how, tuple(s), replays[n].calls) for n, s in samples.items()}
    return Contest(timings, {"before": before, "after": clocks()})


# -- one call, timed in several ways ---------------------------------------------------------------
def measure(
    name: str,
    call: Callable[[], object],
    how: str,
    *,
    iterations: int = 60,
    warmup: int = 10,
    captured: Callable[[int], Replay] | None = None,
) -> Timing:
    """Time one call from Python in one of the ways of HOW.

    call: launches on CuPy's current stream. captured: returns a graph of so many calls, for the
        ways of REPLAYS; where None, `call` must neither allocate nor synchronise.

    Raises:
        TimingError: no GPU.  ValueError: an unknown way.
    """
    if how not in HOW:
        raise InputError(f"how is {how!r}; it must be one of: {', '.join(HOW)}")
    require_gpu()
    if how in REPLAYS:
        replay = (captured or partial(capture, call))(GRAPH_CALLS if how == "graph" else 1)
        found = contest(
            {name: replay}, iterations=iterations, warmup=warmup, flush_l2=how == "cold"
        )
        return replace(found.timings[name], how=how)
    samples = _WAYS[how](call, warmup, iterations)
    return Timing(name, how, tuple(samples))


def first_calls(call: Callable[[], object], count: int, synchronize=None) -> list[float]:
    """Microseconds of the first `count` calls by the host's clock, GPU idle before and after each.

    Nothing is warmed up: the first is whatever a user waits for. synchronize: waits for the GPU;
    CuPy's where None.
    """
    if synchronize is None:
        require_gpu()
        import cupy

        synchronize = cupy.cuda.Device().synchronize
    found = []
    for _ in range(count):
        synchronize()
        start = time.perf_counter()
        call()
        synchronize()
        found.append((time.perf_counter() - start) * 1e6)
    return found


def _by_wall(call, warmup: int, iterations: int) -> list[float]:
    return first_calls(call, warmup + iterations)[warmup:]


def _by_events(call, warmup: int, iterations: int) -> list[float]:
    """As most programs do it: no graph, and nothing that keeps the GPU busy before the start."""
    import cupy

    found = []
    for _ in range(warmup + iterations):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        call()
        end.record()
        end.synchronize()
        found.append(cupy.cuda.get_elapsed_time(start, end) * 1000)
    return found[warmup:]


def _by_benchmark(call, warmup: int, iterations: int) -> list[float]:
    from cupyx.profiler import benchmark

    def named() -> None:  # benchmark asks for a __name__, which a partial lacks
        call()

    found = benchmark(named, n_repeat=iterations, n_warmup=warmup)
    return [float(seconds) * 1e6 for seconds in found.gpu_times[0]]


_WAYS = {"wall": _by_wall, "events": _by_events, "benchmark": _by_benchmark}


# -- clocks ----------------------------------------------------------------------------------------
_CLOCK_FIELDS = "pci.bus_id,clocks.sm,clocks.mem,power.draw,temperature.gpu"
_CLOCK_NAMES = ("sm_mhz", "memory_mhz", "power_w", "temperature_c")
_SMI = ["nvidia-smi", f"--query-gpu={_CLOCK_FIELDS}", "--format=csv,noheader,nounits"]


def _place(bus_id: str) -> str:
    """'00000000:3b:00.0' -> '0000:3B:00.0': CUDA and nvidia-smi differ in it."""
    return bus_id.strip().upper()[-12:]


def _parse_clocks(line: str) -> tuple[str, dict[str, float]]:
    """'00000000:3B:00.0, 1980, 3201, 250.5, 41' -> ('0000:3B:00.0', {"sm_mhz": 1980.0, ..}).

    ValueError where it is anything else.
    """
    bus_id, *values = line.split(",")
    return _place(bus_id), dict(zip(_CLOCK_NAMES, map(float, values), strict=True))


def _gpus() -> dict[str, str]:
    """The GPUs that this process sees: place -> "" of the current one, " of GPU 1" of another."""
    if not gpu_count():
        return {}
    from cupy.cuda import Device

    current = Device().id
    return {
        _place(Device(number).pci_bus_id): "" if number == current else f" of GPU {number}"
        for number in range(gpu_count())
    }


def _by_gpu(text: str, gpus: dict[str, str]) -> dict[str, list[dict[str, float]]]:
    """Readings of each of these GPUs; of the first one listed as of "" where it lists none."""
    found: dict[str, list[dict[str, float]]] = {}
    for line in text.splitlines():
        try:
            place, reading = _parse_clocks(line)
        except ValueError:
            continue  # cut off by the end, or a field that this GPU does not have
        found.setdefault(place, []).append(reading)
    if not found.keys() & gpus.keys():
        gpus = dict.fromkeys(list(found)[:1], "")
    return {gpus[place]: readings for place, readings in found.items() if place in gpus}


def clocks() -> dict[str, float]:
    """SM and memory clock (MHz), power (W) and temperature (C) by nvidia-smi; {} without it.

    They are the current GPU's.
    """
    try:
        text = subprocess.run(_SMI, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return next(iter(_by_gpu(text, _gpus()).get("", ())), {})


class ClockWatch:
    """Reads the clocks every so often while a `with` block runs; `readings` and `record` after it.

    One reading before or after a run catches an idle GPU; these show it at work.

    Attributes:
        readings: of the current GPU.
        others: those of the other GPUs that this process sees; name -> readings.
    """

    def __init__(self, every_ms: int = 100):
        self.every_ms = every_ms
        self.readings: list[dict[str, float]] = []
        self.others: dict[str, list[dict[str, float]]] = {}

    def __enter__(self) -> ClockWatch:
        self._process, self._gpus = None, _gpus()
        try:
            self._process = subprocess.Popen(
                [*_SMI, f"--loop-ms={self.every_ms}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError:
            pass  # no nvidia-smi: no readings
        return self

    def __exit__(self, *_) -> None:
        if self._process is None:
            return
        self._process.terminate()
        text, _ = self._process.communicate(timeout=20)
        self.others = _by_gpu(text, self._gpus)
        self.readings = self.others.pop("", [])

    def record(self) -> dict[str, list[float]]:
        """Name -> [lowest, median, highest] over the readings; {} without any.

        "sm_mhz" is of the current GPU, "sm_mhz of GPU 1" of another one that this process sees.
        """
        found = {}
        for gpu, readings in {"": self.readings, **self.others}.items():
            for name in _CLOCK_NAMES if readings else ():
                values = [one[name] for one in readings]
                found[name + gpu] = [min(values), float(np.median(values)), max(values)]
        return found
