"""Lesson 05: experiments about timing, one a function, plain data as its result.

Times are microseconds.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
from kernelscope import gpu_count
from kernelscope.contest import (
    HOW,
    ClockWatch,
    GpuClock,
    Replay,
    Timing,
    TimingError,
    bootstrap_ratio,
    capture,
    contest,
    first_calls,
    measure,
    require_gpu,
)

from attn_course.folders import child_environment
from attn_course.ladder.methods import attention, pick, problem_of
from attn_course.measure import candidates, records
from attn_course.measure.candidates import ours
from attn_course.reference.inputs import seeded_qkv

KIND = "timing_lesson"
# The shapes of the report that the lesson examines, in the order in which it timed them.
REPORT_SHAPES = (
    (1, 1, 128, 64),
    (4, 1, 128, 64),
    (8, 1, 128, 64),
    (4, 1, 256, 64),
    (4, 1, 512, 64),
    (4, 1, 128, 128),
    (8, 1, 256, 64),
)
SHAPE = REPORT_SHAPES[2]  # (B, H, L, D) that the report's largest speed-up is about
LONG_SHAPE = (4, 16, 2048, 64)
OUR_METHOD = "tiled"  # three kernels, as the report's own version is
FILES = ("02_scores_tiled", "05_softmax_warp", "06_output_tiled", "11_flash_fp32", "12_flash_async")


@dataclass(frozen=True)
class Measurement:
    """An experiment's result and where it comes from, for every output that shows it."""

    data: dict
    caption: str


def measured(name: str, root=records.RESULTS_FOLDER) -> Measurement:
    """Return an experiment, run now on a GPU, or read from the newest record that has it.

    Raises:
        RecordError: no GPU and no record of it.
    """
    found = records.recorded(
        KIND, partial(record, names=(name,)), root, lambda one: name in one["experiments"]
    )
    return Measurement(found["experiments"][name], records.caption(found))


def record(quick: bool = False, names: Iterable[str] | None = None) -> dict:
    """Return a record of experiments, all where `names` is None; quick: of the empty launch alone.

    Raises:
        TimingError: no GPU.
    """
    require_gpu()
    names = ["empty_launch"] if quick else names or EXPERIMENTS
    found = {name: EXPERIMENTS[name]() for name in names}
    return records.new_record(KIND, FILES, torch=candidates.torch_version(), experiments=found)


def _inputs(shape) -> list:
    import cupy

    arrays = [cupy.asarray(array) for array in seeded_qkv(shape)]
    cupy.cuda.Device().synchronize()
    return arrays


def _rounded(values, digits: int = 2) -> list[float]:
    return [round(float(value), digits) for value in values]


# -- first calls -----------------------------------------------------------------------------------
def first_calls_in_a_process(count: int = 20) -> dict:
    """The first calls of a fresh process, shape after shape in the report's order, nothing warm.

    A process of its own, with an empty kernel cache: in this one others may have called before.
    """
    require_gpu()
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name, str(count)],
            capture_output=True,
            text=True,
            timeout=300,
            env=child_environment(CUPY_CACHE_DIR=cache, KERNELSCOPE_BACKEND="gpu"),
        )
    if done.returncode:
        raise TimingError(f"the fresh process failed: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _first_calls(count: int) -> dict:
    """Runs in the fresh process."""
    names = [OUR_METHOD, *([candidates.EAGER] if candidates.available() else [])]
    found: dict = {"shapes": REPORT_SHAPES, "calls": {name: [] for name in names}}
    for shape in REPORT_SHAPES:
        q, k, v = _inputs(shape)
        calls = {OUR_METHOD: partial(attention, q, k, v, OUR_METHOD)}
        if candidates.EAGER in names:
            calls[candidates.EAGER] = candidates.caller(candidates.EAGER, q, k, v)
        for name in names:
            found["calls"][name].append(_rounded(first_calls(calls[name], count)))
    return found


# -- one thing, timed in several ways --------------------------------------------------------------
def ways(iterations: int = 200) -> dict:
    """The same work on the same inputs, timed in each of timing.HOW: name -> how -> record."""
    q, k, v = _inputs(SHAPE)
    found = {
        name: _in_every_way(
            name, ours(name, q, k, v), partial(attention, q, k, v, name), iterations
        )
        for name in (OUR_METHOD, "auto")
    }
    for name in (candidates.EAGER, "torch_efficient") if candidates.available() else ():
        baseline, from_python = candidates.Baseline(name, q, k, v), candidates.caller(name, q, k, v)
        found[name] = _in_every_way(name, baseline, from_python, iterations)
    picked = pick("auto", problem_of(q, k), "gpu")
    return {"shape": SHAPE, "auto_picks": picked, "timings": found}


def _in_every_way(
    name: str, one, from_python: Callable[[], object], iterations: int
) -> dict[str, dict]:
    """one: a candidate, for graphs; from_python: the same as a program calls it."""
    given = {"iterations": iterations, "captured": one.capture}
    return {how: measure(name, from_python, how, **given).record() for how in HOW}


# -- a launch of nothing ---------------------------------------------------------------------------
_EMPTY = 'extern "C" __global__ void empty() { }'


def empty_launch(calls: int = 500, repeats: int = 30) -> dict:
    """Return the cost of launching a kernel that does nothing, by the way of launching.

    python: the host's time for a launch through CuPy; stream: the GPU's from launch to launch;
    graph: the same from a CUDA graph.
    """
    require_gpu()
    import cupy

    kernel = cupy.RawKernel(_EMPTY, "empty")

    def launch() -> None:
        kernel((1,), (1,), ())

    def many() -> None:
        for _ in range(calls):
            launch()

    host = []
    for _ in range(repeats):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        many()
        host.append((time.perf_counter() - start) * 1e6 / calls)
    stream = np.array(measure("stream", many, "events", iterations=repeats).samples_us) / calls
    graph = contest({"graph": capture(launch, calls)}, iterations=repeats).timings["graph"]
    samples = {"python": host, "stream": stream, "graph": graph.samples_us}
    return {
        "calls": calls,
        "timings": {
            name: Timing(name, how, tuple(samples[name]), calls).record()
            for name, how in (("python", "wall"), ("stream", "events"), ("graph", "graph"))
        },
    }


# -- noise -----------------------------------------------------------------------------------------
def noise(samples: int = 400) -> dict:
    """Every sample of one small kernel, by events round Python's call and by graph replays."""
    q, k, v = _inputs(SHAPE)
    one = ours("auto", q, k, v)
    events = measure("events", partial(attention, q, k, v, "auto"), "events", iterations=samples)
    graph = measure("graph", one.call, "graph", iterations=samples)
    return {
        "shape": SHAPE,
        "samples_us": {timing.name: _rounded(timing.samples_us, 4) for timing in (events, graph)},
    }


# -- clocks ----------------------------------------------------------------------------------------
def clocks_under_load(seconds: float = 3.0, rest: float = 2.0, block: int = 20) -> dict:
    """A long kernel again and again after a rest: medians of blocks of samples, and the clocks."""
    one, clock = _long_kernel()
    time.sleep(rest)
    medians, at, readings = [], [], ClockWatch(every_ms=50)
    with readings:
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            medians.append(np.median([clock.time_us(one.launch) for _ in range(block)]))
            at.append(round(time.perf_counter() - start, 3))
    return {
        "shape": LONG_SHAPE,
        "block": block,
        "at_s": at,
        "medians_us": _rounded(medians),
        "sm_mhz": [one["sm_mhz"] for one in readings.readings],
        "power_w": [one["power_w"] for one in readings.readings],
    }


def same_against_itself(iterations: int = 150, rest: float = 2.0) -> dict:
    """One graph as two candidates: first one after the other, then in turns. The truth is 1."""
    replay, clock = _long_kernel()
    time.sleep(rest)
    separate = []
    for name in ("first", "second"):
        samples = tuple(clock.time_us(replay.launch) for _ in range(iterations))
        separate.append(Timing(name, "graph", samples))
    time.sleep(rest)
    turns = contest(
        {"first": replay, "second": replay}, iterations=iterations, warmup=0, clock=clock
    )
    return {
        "shape": LONG_SHAPE,
        "iterations": iterations,
        "ratios": {
            "one after the other": bootstrap_ratio(separate[1], separate[0]).record(),
            "in turns": turns.ratio("second", "first").record(),
        },
    }


def _long_kernel() -> tuple[Replay, GpuClock]:
    q, k, v = _inputs(LONG_SHAPE)
    one = ours("auto", q, k, v)
    return capture(one.call, 1), GpuClock()


EXPERIMENTS: dict[str, Callable[[], dict]] = {
    "first_calls": first_calls_in_a_process,
    "ways": ways,
    "empty_launch": empty_launch,
    "noise": noise,
    "clocks": clocks_under_load,
    "same": same_against_itself,
}


if __name__ == "__main__":
    if not gpu_count():
        sys.exit("no GPU here")
    print(json.dumps(_first_calls(int(sys.argv[1]))))
