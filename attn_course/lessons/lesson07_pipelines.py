"""Lessons 06 and 07: kernels of the pipelines, alone and together, as graph replays in turns."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from kernelscope.contest import ClockWatch, require_gpu

from attn_course.ladder.methods import AUTO, METHODS, files_of
from attn_course.ladder.steps import Problem
from attn_course.measure import candidates, records
from attn_course.measure.benchmarks import Shape, run_benchmark, time_parts
from attn_course.measure.candidates import Kernels, Part, ours
from attn_course.reference.inputs import seeded_qkv

from . import lesson05_timing

KIND = "pipeline"
# A report's pipeline; the course's MRI windows; the smallest problem of another report, and the
# same with eight times the heads.
SHAPES: tuple[Shape, ...] = ((1, 1, 2048, 64), (2, 12, 196, 64), (1, 1, 128, 64), (8, 1, 128, 64))

# Every kernel that is timed alone, by the name that tables give it.
KERNELS: dict[str, tuple[int, tuple[str, ...]]] = {
    "01 scores": (1, ()),
    "02 scores, K tile [tx][ty]": (2, ("-DK_TILE=1", "-DPAD=0")),  # as the report stores its K tile
    "02 scores": (2, ()),
    "04 softmax and output": (4, ()),
    "04 softmax and output, 32 threads a block": (4, ("-DTHREADS=32",)),  # the rows on more SMs
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
        set(files_of(*METHODS)),
        torch=candidates.torch_version(),
        iterations=iterations,
        clocks=watch.record(),
        empty_launch=lesson05_timing.empty_launch(repeats=15),
        rows=rows,
    )


def makers() -> dict:
    """Return all candidates of a shape: name -> function of q, k, v that makes it."""
    found: dict = {name: partial(ours, name) for name in METHOD_NAMES}
    if candidates.available():
        found |= {name: partial(candidates.Baseline, name) for name in candidates.BASELINES}
    chains = CHAINS | {_SMALL: ("01 scores", "04 softmax and output, 32 threads a block")}
    for name, kernels in chains.items():
        found[name] = partial(Kernels, name, [Part(*KERNELS[one]) for one in kernels])
    return found


def measure_shape(shape: Shape, iterations: int) -> dict:
    """Check and time one shape: pipelines, methods and baselines in turns, then each kernel alone.

    Raises:
        TimingError: no GPU.  AssertionError: an output of ours does not agree with float64.
    """
    import cupy

    inputs = seeded_qkv(shape)
    result = run_benchmark(inputs, makers(), iterations=iterations, warmup=10)
    entrants, measured = result.entrants, result.measured
    if wrong := [text for name, text in entrants.wrong.items() if name not in candidates.BASELINES]:
        raise AssertionError("; ".join(wrong))
    timings = {name: one.record() for name, one in measured.timings.items() if name != _SMALL}
    # Each kernel alone works on scores and weights that another one left.
    parts = [Part(*part) for part in KERNELS.values()]
    alone = Kernels("kernels", parts, *map(cupy.asarray, inputs))
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


# -- what was measured -----------------------------------------------------------------------------
@dataclass(frozen=True)
class PipelineTimes:
    """Medians at one shape, microseconds by graph replay.

    pipelines: CHAINS, methods and baselines; kernels: names of KERNELS. interval: of the gain from
    01 + 04 to 02 [tx][ty] + 04. nothing_us: an empty kernel. source: where and when they were
    taken; short: the same in a few words, for figures. sm_mhz: the median clock; None: not read.
    """

    shape: Shape
    pipelines: Mapping[str, float]
    kernels: Mapping[str, float]
    interval: tuple[float, float]
    nothing_us: float
    gpu: str
    source: str
    short: str
    sm_mhz: float | None

    @property
    def problem(self) -> Problem:
        b, h, length, d = self.shape
        return Problem(b * h, length, length, d)

    def parts(self, chain: str) -> dict[str, float]:
        """Return kernel -> microseconds alone, of a chain's kernels."""
        return {name: self.kernels[name] for name in CHAINS[chain]}

    def best_peer(self) -> str | None:
        """The fastest of PyTorch's ways, where any was measured."""
        there = [name for name in candidates.BASELINES if name in self.pipelines]
        return min(there, key=self.pipelines.get, default=None)


def times(shape: Shape, root=records.RESULTS_FOLDER) -> PipelineTimes:
    """Return the times of a shape of SHAPES: measured on a GPU, else the newest record's.

    Raises:
        RecordError: no GPU and no record. KeyError: the record does not have the shape.
    """
    found = records.recorded(KIND, partial(record, iterations=20), root)
    row, clocks = records.row_of(found, shape), found["clocks"]
    ratio = row["tiled_over_naive"]
    return PipelineTimes(
        tuple(shape),
        records.medians_us(row["pipelines"]),
        records.medians_us(row["kernels"]),
        (ratio["low"], ratio["high"]),
        _nothing(found["empty_launch"]),
        found["gpu"],
        records.caption(found),
        f"{found['gpu']}, {found['date']}",
        clocks["sm_mhz"][1] if clocks else None,
    )


def _nothing(launch: dict) -> float:
    """An empty kernel in a graph, microseconds."""
    return launch["timings"]["graph"]["median_us"]


def nothing_us(gpu: str, root=records.RESULTS_FOLDER) -> float:
    """Return the recorded time of an empty kernel in a graph on a GPU, microseconds.

    Raises:
        RecordError: no such record of this GPU.
    """
    found = records.recorded(lesson05_timing.KIND, None, root, lambda one: one["gpu"] == gpu)
    return _nothing(found["experiments"]["empty_launch"])


def by_size(root=records.RESULTS_FOLDER) -> tuple[list[dict], str]:
    """Rows without a mask of the float32 suites' newest records, and the records' captions.

    A row is as the suite wrote it, with the record's gpu and date.

    Raises:
        RecordError: one of the records is missing.
    """
    suites = [records.recorded(f"bench_{name}_fp32", None, root) for name in ("seeds", "long")]
    rows = [
        row | {"gpu": suite["gpu"], "date": suite["date"]}
        for suite in suites
        for row in suite["rows"]
        if not row["causal"]
    ]
    return rows, "\n".join(dict.fromkeys(map(records.caption, suites)))
