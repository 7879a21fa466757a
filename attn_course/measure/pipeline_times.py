"""Kernels of the pipelines, alone and together: graph replays in turns, and records of them.

Measured on a GPU now, or read from the newest record; the same class holds either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

from attn_course.engine.backend import resolve_backend
from attn_course.ladder.attention import AUTO, METHODS
from attn_course.ladder.steps import Problem, step
from attn_course.reference.comparison import compare
from attn_course.reference.inputs import seeded_qkv

from . import contestants, first_calls
from .records import (
    RESULTS_FOLDER,
    RecordError,
    caption,
    gpu_identity,
    new_record,
    records,
)
from .suites import (
    PIPELINES,
    SUITES,
    Field,
    Ours,
    Part,
    Row,
    Shape,
    check,
    estimate_us,
    float64_attention,
    gather,
    kernel_files,
    turns_for,
)
from .timing import ClockWatch, GpuClock, calls_for, capture, contest, require_gpu

KIND = "pipeline"
# A report's pipeline; the course's MRI windows; the smallest problem of another report, and the
# same with eight times the heads.
SHAPES: tuple[Shape, ...] = ((1, 1, 2048, 64), (2, 12, 196, 64), (1, 1, 128, 64), (8, 1, 128, 64))
SMALL_BLOCKS = ("-DTHREADS=32",)  # kernel 04 with a warp a block: as many rows, on more SMs
REPORTED_TILES = ("-DK_TILE=1", "-DPAD=0")  # kernel 02 as the report stores its K tile

# Every kernel that is timed alone, by the name that tables give it.
KERNELS: dict[str, Part] = {
    "01 scores": (1, ()),
    "02 scores, K tile [tx][ty]": (2, REPORTED_TILES),
    "02 scores": (2, ()),
    "04 softmax and output": (4, ()),
    "04 softmax and output, 32 threads a block": (4, SMALL_BLOCKS),
    "05 softmax": (5, ()),
    "06 output": (6, ()),
}
# Name -> the kernels that it launches, one after the other.
CHAINS: dict[str, tuple[str, ...]] = {
    "01 + 04": ("01 scores", "04 softmax and output"),
    "02 [tx][ty] + 04": ("02 scores, K tile [tx][ty]", "04 softmax and output"),
    "01 + 05 + 06": ("01 scores", "05 softmax", "06 output"),
    "02 + 05 + 06": ("02 scores", "05 softmax", "06 output"),
}
# The names of the same in the benchmark suites' records.
_BENCH_CHAINS = {
    "scores_naive+serial": "01 + 04",
    "scores_tiled+serial": "02 [tx][ty] + 04",
    "three_kernels": "01 + 05 + 06",
    "scores_tiled+warp+tiled": "02 + 05 + 06",
}
NO_RECORD = (
    "no record of these times yet: on a machine with a GPU, tools/record_pipeline.py makes one"
)


# -- measuring -------------------------------------------------------------------------------------
def record(iterations: int = 40) -> dict:
    """Every shape's pipelines and kernels, as a results record. TimingError without a GPU."""
    require_gpu()
    with ClockWatch() as watch:
        rows = [measure_shape(shape, iterations) for shape in SHAPES]
    files = kernel_files((*METHODS, AUTO), SUITES["seeds_fp32"])
    return new_record(
        KIND,
        files,
        torch=contestants.torch_version(),
        iterations=iterations,
        clocks=watch.record(),
        empty_launch=first_calls.empty_launch(repeats=15),
        rows=rows,
    )


def measure_shape(shape: Shape, iterations: int, seed: int = 0) -> dict:
    """Check and time one shape: its pipelines, methods and peers in turns, then each kernel alone.

    Raises:
        TimingError: no GPU.  AssertionError: an output that is not that of float64.
    """
    import cupy

    require_gpu()
    host = seeded_qkv(shape, seed=seed)
    device = [cupy.asarray(array) for array in host]
    cupy.cuda.Device().synchronize()
    found, clock = _field(shape, device), GpuClock()
    found.call_us = {name: estimate_us(clock, one) for name, one in found.contestants.items()}
    replays = {
        name: one.capture(calls_for(found.call_us[name])) for name, one in found.contestants.items()
    }
    check(found, replays, float64_attention(*host, causal=False), clock)
    if ours := [text for name, text in found.wrong.items() if name not in contestants.PEERS]:
        raise AssertionError("; ".join(ours))
    replays = {name: replays[name] for name in found.contestants}
    sample_us = {name: found.call_us[name] * replays[name].calls for name in replays}
    measured = contest(replays, iterations=turns_for(sample_us, iterations), clock=clock)
    timings = {name: timing.record() for name, timing in measured.timings.items()}
    first, second = (measured.timings[name] for name in ("01 + 04", "02 [tx][ty] + 04"))
    ratio = measured.ratio(second.name, first.name).record()
    return {
        "shape": shape,
        "pipelines": timings,
        "tiled_over_naive": ratio,
        "kernels": _time_kernels(device, clock, iterations),
        "refused": found.refused,
        "wrong": found.wrong,
        "clocks": measured.clocks,
    }


def _field(shape: Shape, device) -> Field:
    names = ("rows_atomic", "rows_warp", "rows_online", "flash_fp32", AUTO)
    rivals = tuple(contestants.PEERS) if contestants.available() else ()
    found = gather(Row(shape), (*names, *rivals), *device)
    for name, kernels in CHAINS.items():
        found.contestants[name] = Ours(name, [KERNELS[one] for one in kernels], *device)
        found.contestants[name].call()
    return found


def _time_kernels(device, clock, iterations: int) -> dict[str, dict]:
    """Each kernel on its own, on scores and weights that another one left."""
    one = Ours("kernels", list(KERNELS.values()), *device)
    _check_small_blocks(one)
    replays = {}
    for number, name in enumerate(KERNELS):
        call = partial(one.call_part, number)
        call_us = min(clock.time_us(capture(call, 1).launch) for _ in range(3))
        replays[name] = capture(call, calls_for(call_us)), call_us
    sample_us = {name: call_us * replay.calls for name, (replay, call_us) in replays.items()}
    measured = contest(
        {name: replay for name, (replay, _) in replays.items()},
        iterations=turns_for(sample_us, iterations),
        clock=clock,
    )
    return {name: timing.record() for name, timing in measured.timings.items()}


def _check_small_blocks(one: Ours) -> None:
    """Kernel 04 writes the same whatever its block: the rest is checked as pipelines."""
    outputs = []
    for name in ("04 softmax and output", "04 softmax and output, 32 threads a block"):
        one.call_part(list(KERNELS).index("01 scores"))
        one.poison()
        one.call_part(list(KERNELS).index(name))
        outputs.append(one.output())
    verdict = compare(outputs[1], outputs[0], name="04 with 32 threads a block")
    if not verdict.agrees:
        raise AssertionError(verdict.message)


# -- what was measured -----------------------------------------------------------------------------
@dataclass(frozen=True)
class Times:
    """Medians at one shape, microseconds by graph replay.

    pipelines: CHAINS, methods and peers; kernels: names of KERNELS. A name is missing where it was
    not measured. sm_mhz: the median clock; nothing_us: an empty kernel; None: not recorded.
    source: where and when they were taken; short: the same in a few words, for figures.
    """

    shape: Shape
    pipelines: Mapping[str, float]
    kernels: Mapping[str, float]
    gpu: str
    date: str
    source: str
    sm_mhz: float | None = None
    nothing_us: float | None = None
    interval: tuple[float, float] | None = None  # of the gain from 01 + 04 to 02 [tx][ty] + 04

    @property
    def problem(self) -> Problem:
        b, h, length, d = self.shape
        return Problem(b * h, length, length, d)

    @property
    def short(self) -> str:
        return f"{self.gpu}, {self.date}"

    def parts(self, chain: str) -> dict[str, float]:
        """Kernel -> microseconds alone, of a chain's kernels. KeyError: one was not measured."""
        return {name: self.kernels[name] for name in CHAINS[chain]}

    def best_peer(self) -> str | None:
        """The fastest of PyTorch's ways, where any was measured."""
        there = [name for name in contestants.PEERS if name in self.pipelines]
        return min(there, key=self.pipelines.get, default=None)


def times(shape: Shape, root=RESULTS_FOLDER) -> Times:
    """What there is of a shape: measured now on a GPU (SHAPES only), else from the newest record.

    A record of the benchmark suites serves where this lesson's own has not been taken.

    Raises:
        RecordError: no GPU and no record of the shape.
    """
    if resolve_backend() == "gpu" and tuple(shape) in SHAPES:
        return _from_own(_live(), shape, f"measured now on {gpu_identity()['gpu']}")
    for found in records(KIND, root):
        if (one := _from_own(found, shape, caption(found))) is not None:
            return one
    for found in records("bench_seeds_fp32", root):
        if (one := _from_bench(found, shape, caption(found), root)) is not None:
            return one
    raise RecordError(f"no times of {shape} in {root}: {NO_RECORD}")


@lru_cache(maxsize=1)
def _live() -> dict:
    return record(iterations=20)


def _from_own(found: dict, shape: Shape, source: str) -> Times | None:
    for row in found["rows"]:
        if tuple(row["shape"]) == tuple(shape):
            ratio = row["tiled_over_naive"]
            return Times(
                tuple(shape),
                _medians(row["pipelines"]),
                _medians(row["kernels"]),
                found["gpu"],
                found["date"],
                source,
                _clock(found),
                _nothing(found["empty_launch"]),
                (ratio["low"], ratio["high"]),
            )
    return None


def _from_bench(found: dict, shape: Shape, source: str, root) -> Times | None:
    for row in found["rows"]:
        if tuple(row["shape"]) == tuple(shape):
            timings = _medians(row["timings"])
            pipelines = {_BENCH_CHAINS.get(name, name): t for name, t in timings.items()}
            kernels = {}
            for name, parts in row.get("kernels", {}).items():
                alone = {one["name"]: one["median_us"] for one in parts}
                for number, options in PIPELINES[name]:
                    kernels[_label(number, options)] = alone[step(number).file]
            return Times(
                tuple(shape),
                pipelines,
                kernels,
                found["gpu"],
                found["date"],
                source,
                _clock(found),
                _recorded_nothing(found["gpu"], root),
            )
    return None


def _label(number: int, options: tuple[str, ...]) -> str:
    return next(name for name, part in KERNELS.items() if part == (number, options))


def _medians(timings: Mapping[str, dict]) -> dict[str, float]:
    return {name: timing["median_us"] for name, timing in timings.items()}


def _clock(found: dict) -> float | None:
    """MHz: the median of the readings while the record was taken."""
    readings = found.get("clocks", {}).get("sm_mhz")
    return readings[1] if readings else None


def _nothing(launch: dict) -> float:
    return launch["timings"]["graph"]["median_us"]


def _recorded_nothing(gpu: str, root) -> float | None:
    """An empty kernel in a graph, on the same GPU, from the lesson on timing."""
    for found in records(first_calls.KIND, root):
        if found["gpu"] == gpu and "empty_launch" in found["experiments"]:
            return _nothing(found["experiments"]["empty_launch"])
    return None


def by_size(root=RESULTS_FOLDER) -> tuple[list[dict], str]:
    """Rows without a mask of the float32 suites' newest records, and the records' captions.

    A row is as the suite wrote it, with the record's gpu and date, and nothing_us as in Times.

    Raises:
        RecordError: there is no such record.
    """
    found, sources = [], []
    for kind in ("bench_seeds_fp32", "bench_long_fp32"):
        for one in records(kind, root)[:1]:
            about = {
                "gpu": one["gpu"],
                "date": one["date"],
                "nothing_us": _recorded_nothing(one["gpu"], root),
            }
            found += [row | about for row in one["rows"] if not row["causal"]]
            sources.append(caption(one))
    if not found:
        raise RecordError(f"no benchmark in {root}: attn-course bench seeds_fp32 makes one")
    return found, "\n".join(dict.fromkeys(sources))
