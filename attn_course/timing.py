"""GPU timing that can be believed: CUDA graph replays, interleaved with a peer, medians with spread.

A launch from Python costs some microseconds, more than a small kernel runs. So each contestant's
calls are captured into a CUDA graph, and the replays of all contestants take turns: a clock that
drifts, or a neighbour on the machine, then hits all of them alike.
The simulator's speed says nothing about a GPU's: everything here refuses to time it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np

from .backend import resolve_backend

GRAPH_CALLS = 20  # calls captured into one graph: a replay then lasts well past an event's resolution


class TimingError(RuntimeError):
    """What was asked for can not be timed here; says what to do instead."""


@dataclass(frozen=True)
class Timing:
    """Times of one contestant, microseconds a call.

    samples_us: one a replay (calls of a replay divided out), in the order taken. how: "graph",
    "events" or "cold" (L2 cache flushed before every call).
    """

    name: str
    how: str
    samples_us: tuple[float, ...]
    calls_a_sample: int

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
        """What a results file keeps: the summary, not every sample."""
        return {
            "name": self.name, "how": self.how, "median_us": round(self.median_us, 3),
            "p20_us": round(self.p20_us, 3), "p80_us": round(self.p80_us, 3),
            "samples": len(self.samples_us), "calls_a_sample": self.calls_a_sample,
        }  # fmt: skip


@dataclass(frozen=True)
class Ratio:
    """How many times faster `name` is than `peer`, with a 95 % bootstrap interval of the medians."""

    name: str
    peer: str
    value: float
    low: float
    high: float

    record = asdict


@dataclass
class Contest:
    """Timings of contestants measured in turns, in one run, on one GPU."""

    timings: dict[str, Timing] = field(default_factory=dict)
    clocks: dict = field(default_factory=dict)

    def ratio(self, name: str, peer: str, *, draws: int = 2000, seed: int = 0) -> Ratio:
        """median(peer) / median(name): above 1 where `name` is faster."""
        ours, theirs = (np.array(self.timings[n].samples_us) for n in (name, peer))
        rng = np.random.default_rng(seed)
        a = np.median(rng.choice(ours, (draws, ours.size)), axis=1)
        b = np.median(rng.choice(theirs, (draws, theirs.size)), axis=1)
        low, high = np.percentile(b / a, [2.5, 97.5])
        return Ratio(name, peer, float(np.median(theirs) / np.median(ours)), float(low), float(high))

    def record(self) -> dict:
        return {"clocks": self.clocks, "timings": [t.record() for t in self.timings.values()]}


def require_gpu() -> None:
    """Raises TimingError where the backend is the simulator."""
    if resolve_backend(None) != "gpu":
        raise TimingError(
            "there is no GPU here, and the simulator's seconds say nothing about a kernel's speed: "
            "count its work instead (attn-course count), or read the recorded times in results/"
        )


def capture(call: Callable[[], object], calls: int = GRAPH_CALLS):
    """Capture `calls` calls into a CUDA graph; returns a function that replays it.

    call must only launch work on CuPy's current stream: no allocation, no synchronisation.
    """
    require_gpu()
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        call()  # compile and load outside the capture
        stream.synchronize()
        stream.begin_capture()
        for _ in range(calls):
            call()
        graph = stream.end_capture()
    return lambda: graph.launch(cupy.cuda.get_current_stream())


def contest(
    replays: dict[str, tuple[Callable[[], object], int]],
    *,
    iterations: int = 60,
    warmup: int = 10,
    flush_l2: bool = False,
    progress: Callable[[], object] = lambda: None,
) -> Contest:
    """Time contestants in turns on one stream.

    replays: name -> (function that launches on the current stream, calls it stands for).
    flush_l2: write 256 MB before every sample, so that inputs come from device memory.
    """
    require_gpu()
    import cupy

    scratch = cupy.empty(1 << 26, cupy.float32) if flush_l2 else None
    stream = cupy.cuda.Stream(non_blocking=True)
    samples: dict[str, list[float]] = {name: [] for name in replays}
    before = clocks()
    with stream:
        for i in range(warmup + iterations):
            for name, (replay, calls) in replays.items():
                if scratch is not None:
                    scratch.fill(i)
                start, end = cupy.cuda.Event(), cupy.cuda.Event()
                start.record(stream)
                replay()
                end.record(stream)
                end.synchronize()
                if i >= warmup:
                    elapsed = cupy.cuda.get_elapsed_time(start, end) * 1000
                    samples[name].append(elapsed / calls)
            progress()
    how = "cold" if flush_l2 else "graph"
    timings = {n: Timing(n, how, tuple(s), replays[n][1]) for n, s in samples.items()}
    return Contest(timings, {"before": before, "after": clocks()})


_CLOCK_FIELDS = "clocks.sm,clocks.mem,power.draw,temperature.gpu"


def clocks() -> dict:
    """SM and memory clock (MHz), power (W) and temperature (C) as nvidia-smi reads them; {} without it."""
    try:
        text = subprocess.run(
            ["nvidia-smi", f"--query-gpu={_CLOCK_FIELDS}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=20, check=True,
        ).stdout  # fmt: skip
        values = text.strip().splitlines()[0].split(",")
        names = ("sm_mhz", "memory_mhz", "power_w", "temperature_c")
        return {name: float(value) for name, value in zip(names, values, strict=True)}
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return {}
