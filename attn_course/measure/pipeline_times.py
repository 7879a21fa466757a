"""Kernels of the pipelines, alone and together: graph replays in turns, and records of them.

Measured on a GPU now, or read from the newest record; the same class holds either.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from kernelscope import resolve_backend

from attn_course.ladder.methods import AUTO, METHODS
from attn_course.ladder.steps import Problem
from attn_course.reference.inputs import seeded_qkv

from . import contestants, first_calls, records
from .contestants import Kernels, Part, ours
from .contests import Shape, hold_contest, shape_label, time_parts
from .records import RESULTS_FOLDER, RecordError, caption, newest_record
from .suites import SUITES
from .suites.attention import PIPELINES
from .timing import ClockWatch, require_gpu

KIND = "pipeline"
# A report's pipeline; the course's MRI windows; the smallest problem of another report, and the
# same with eight times the heads.
SHAPES: tuple[Shape, ...] = ((1, 1, 2048, 64), (2, 12, 196, 64), (1, 1, 128, 64), (8, 1, 128, 64))
SMALL_BLOCKS = ("-DTHREADS=32",)  # kernel 04 with a warp a block: as many rows, on more SMs
REPORTED_TILES = ("-DK_TILE=1", "-DPAD=0")  # kernel 02 as the report stores its K tile

# Every kernel that is timed alone, by the name that tables give it.
KERNELS: dict[str, tuple[int, tuple[str, ...]]] = {
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
NO_RECORD = records.no_record("pipeline")
METHOD_NAMES = ("rows_atomic", "rows_warp", "rows_online", "flash_fp32", AUTO)
# Kernel 04 with small blocks has no chain of its own: it is checked, and timed alone.
_SMALL = "01 + 04, 32 threads a block"


# -- measuring -------------------------------------------------------------------------------------
def record(quick: bool = False, iterations: int = 40) -> dict:
    """Return a record of every shape's pipelines and kernels; quick: of the first, in few turns.

    Raises:
        TimingError: no GPU.
    """
    require_gpu()
    shapes, iterations = (SHAPES[:1], 5) if quick else (SHAPES, iterations)
    with ClockWatch() as watch:
        rows = [measure_shape(shape, iterations) for shape in shapes]
    return records.new_record(
        KIND,
        SUITES["seeds_fp32"].files((*METHODS, AUTO)),
        torch=contestants.torch_version(),
        iterations=iterations,
        clocks=watch.record(),
        empty_launch=first_calls.empty_launch(repeats=15),
        rows=rows,
    )


def makers() -> dict:
    """Return all contestants of a shape: name -> function of q, k, v that makes it."""
    found: dict = {name: partial(ours, name) for name in METHOD_NAMES}
    if contestants.available():
        found |= {name: partial(contestants.Peer, name) for name in contestants.PEERS}
    chains = CHAINS | {_SMALL: ("01 scores", "04 softmax and output, 32 threads a block")}
    for name, kernels in chains.items():
        found[name] = partial(Kernels, name, [Part(*KERNELS[one]) for one in kernels])
    return found


def measure_shape(shape: Shape, iterations: int) -> dict:
    """Check and time one shape: its pipelines, methods and peers in turns, then each kernel alone.

    Raises:
        TimingError: no GPU.  AssertionError: an output of ours does not agree with float64.
    """
    import cupy

    result = hold_contest(shape, makers(), iterations=iterations, warmup=10)
    entrants, measured = result.entrants, result.measured
    if wrong := [text for name, text in entrants.wrong.items() if name not in contestants.PEERS]:
        raise AssertionError("; ".join(wrong))
    timings = {name: one.record() for name, one in measured.timings.items() if name != _SMALL}
    inputs = [cupy.asarray(array) for array in seeded_qkv(shape)]
    # Each kernel alone works on scores and weights that another one left.
    alone = Kernels("kernels", [Part(*part) for part in KERNELS.values()], *inputs)
    alone.call()
    return {
        "shape": shape,
        "pipelines": timings,
        "tiled_over_naive": measured.ratio("02 [tx][ty] + 04", "01 + 04").record(),
        "kernels": time_parts(alone, list(KERNELS), iterations),
        "refused": entrants.refused,
        "wrong": entrants.wrong,
        "clocks": measured.clocks,
    }


def report(found: dict) -> str:
    """Return every time of a record, shape by shape."""
    lines = []
    for row in found["rows"]:
        lines.append(shape_label(row["shape"]))
        for name, timing in (row["kernels"] | row["pipelines"]).items():
            spread = f"{timing['p20_us']:.2f} to {timing['p80_us']:.2f}"
            lines.append(f"  {name:<42} {timing['median_us']:10.2f} us  {spread}")
    return "\n".join(lines)


# -- what was measured -----------------------------------------------------------------------------
@dataclass(frozen=True)
class PipelineTimes:
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


def times(shape: Shape, root=RESULTS_FOLDER) -> PipelineTimes:
    """Return the times of a shape: measured on a GPU (SHAPES only), else the newest record's.

    A record of the benchmark suites serves where this lesson's own has not been taken.

    Raises:
        RecordError: no GPU and no record of the shape.
    """
    own = records.records(KIND, root)
    if resolve_backend() == "gpu" and tuple(shape) in SHAPES:
        own = [records.measured_or_recorded(KIND, partial(record, iterations=20))]
    for found in own:
        if (one := _from_own(found, shape)) is not None:
            return one
    for found in records.records("bench_seeds_fp32", root):
        if (one := _from_bench(found, shape, root)) is not None:
            return one
    raise RecordError(f"no times of {shape} in {root}: {NO_RECORD}")


def _from_own(found: dict, shape: Shape) -> PipelineTimes | None:
    for row in records.rows_of(found, shape):
        ratio = row["tiled_over_naive"]
        us = [records.medians_us(row[part]) for part in ("pipelines", "kernels")]
        rest = _nothing(found["empty_launch"]), (ratio["low"], ratio["high"])
        return PipelineTimes(tuple(shape), *us, *_stamp(found), *rest)
    return None


def _from_bench(found: dict, shape: Shape, root) -> PipelineTimes | None:
    for row in records.rows_of(found, shape):
        timings = records.medians_us(row["timings"])
        pipelines = {_BENCH_CHAINS.get(name, name): us for name, us in timings.items()}
        kernels = {}
        for name, parts in row.get("kernels", {}).items():
            alone = {one["name"]: one["median_us"] for one in parts}
            for part in PIPELINES[name]:
                label = next(label for label, one in KERNELS.items() if Part(*one) == part)
                kernels[label] = alone[part.row.file]
        nothing = _recorded_nothing(found["gpu"], root)
        return PipelineTimes(tuple(shape), pipelines, kernels, *_stamp(found), nothing)
    return None


def _stamp(found: dict) -> tuple[str, str, str, float | None]:
    """The GPU, the date and the caption of a record, and the median of its clock in MHz."""
    readings = found.get("clocks", {}).get("sm_mhz")
    return found["gpu"], found["date"], caption(found), readings[1] if readings else None


def _nothing(launch: dict) -> float:
    return launch["timings"]["graph"]["median_us"]


def _recorded_nothing(gpu: str, root) -> float | None:
    """An empty kernel in a graph, on the same GPU, from the lesson on timing."""
    for found in records.records(first_calls.KIND, root):
        if found["gpu"] == gpu and "empty_launch" in found["experiments"]:
            return _nothing(found["experiments"]["empty_launch"])
    return None


def by_size(root=RESULTS_FOLDER) -> tuple[list[dict], str]:
    """Rows without a mask of the float32 suites' newest records, and the records' captions.

    A row is as the suite wrote it, with the record's gpu and date, and nothing_us as of
    PipelineTimes.

    Raises:
        RecordError: there is no such record.
    """
    found, sources = [], []
    for kind in ("bench_seeds_fp32", "bench_long_fp32"):
        if one := newest_record(kind, root):
            about = {
                "gpu": one["gpu"],
                "date": one["date"],
                "nothing_us": _recorded_nothing(one["gpu"], root),
            }
            found += [row | about for row in one["rows"] if not row["causal"]]
            sources.append(caption(one))
    if not found:
        raise RecordError(f"no benchmark in {root}: {records.no_record('seeds_fp32')}")
    return found, "\n".join(dict.fromkeys(sources))
