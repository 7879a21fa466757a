"""Suites of problems on which every method of the course meets PyTorch's attention."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from kernelscope.errors import InputError

from attn_course.ladder.methods import AUTO, METHODS, dtypes_of, pick, steps_of
from attn_course.ladder.steps import Problem

from . import contestants as peers
from . import records
from .contestants import Kernels, Part, ours
from .contests import (
    ROW_SECONDS,
    ContestResult,
    Entrants,
    Shape,
    float64_attention,
    float64_rows,
    hold_contest,
    shape_label,
    time_parts,
)
from .roofline import attention_work, tflops
from .timing import ClockWatch, require_gpu

TOO_SLOW = 20.0  # a method slower than this many times the best peer is checked and not timed
AUTO_MARGIN = 1.1  # auto may take this many times the best of our methods

# Contestants beyond the methods of attention(): the two pipelines of a well-known report whose
# tiled scores made the whole only a little faster, and the same with the slow half fixed too.
PIPELINES: dict[str, tuple[Part, ...]] = {
    "scores_naive+serial": (Part(1), Part(4)),
    "scores_tiled+serial": (Part(2, ("-DK_TILE=1", "-DPAD=0")), Part(4)),
    "scores_tiled+warp+tiled": (Part(2), Part(5), Part(6)),
}


@dataclass(frozen=True)
class SuiteRow:
    """One problem of a suite: shape (B, H, L, D), and what is special about it.

    pipelines: PIPELINES and their kernels one by one take part, besides the methods.  kept: methods
    that are timed however slow they are.
    """

    shape: Shape
    causal: bool = False
    note: str = ""
    pipelines: bool = False
    kept: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The name of the problem in tables; see :func:`shape_label`."""
        return shape_label(self.shape, self.causal)


@dataclass(frozen=True)
class Suite:
    """Rows under a name, and what they are for.

    all_methods: time methods that are far slower than the peers as well. dtype: of the inputs.
    names: the contestants, None: every method, auto and every peer. sampled: a sample of the
    queries is checked against float64, not all. row_seconds: of samples.
    """

    name: str
    about: str
    rows: tuple[SuiteRow, ...]
    all_methods: bool = False
    dtype: str = "float32"
    names: tuple[str, ...] | None = None
    sampled: bool = False
    row_seconds: float = ROW_SECONDS

    def contestants(self) -> tuple[str, ...]:
        """The names to run: those of the suite, or all; peers only where PyTorch is."""
        able = (name for name in METHODS if self.dtype in dtypes_of(name))
        names = self.names or (*able, AUTO, *peers.PEERS)
        return names if peers.available() else tuple(n for n in names if n not in peers.PEERS)


BLOCK_SHAPES = (
    (1, 1, 128, 64),
    (4, 1, 128, 64),
    (8, 1, 128, 64),
    (4, 1, 256, 64),
    (4, 1, 512, 64),
    (4, 1, 128, 128),
    (8, 1, 256, 64),
)
_LARGE_D = ((1, 4, 64, 512), (1, 4, 64, 2048), (1, 4, 64, 4096), (1, 1, 16, 8192))
SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "seeds_fp32",
            "small float32 problems: a block's seven, a Swin window, large head dims",
            (
                *(SuiteRow(shape, note="block", kept=("naive",)) for shape in BLOCK_SHAPES),
                SuiteRow((2, 12, 196, 64), note="Swin window"),
                *(SuiteRow(shape, note="large head dim") for shape in _LARGE_D),
                SuiteRow((1, 1, 2048, 64), note="pipeline", pipelines=True),
            ),
        ),
        Suite(
            "long_fp32",
            "long float32 sequences, where arithmetic counts",
            (
                *(SuiteRow((4, 16, 2048, d), c) for d in (64, 128) for c in (False, True)),
                *(SuiteRow((b, 16, n, d)) for b, n in ((8, 1024), (1, 4096)) for d in (64, 128)),
            ),
            sampled=True,
            row_seconds=1.5,
        ),
        Suite(
            "long_bf16",
            "long bfloat16 sequences, where the tensor cores' arithmetic counts",
            (
                *(
                    SuiteRow((b, h, n, d), c)
                    for b, h, n in ((4, 16, 1024), (1, 16, 4096), (1, 4, 16384))
                    for d in (64, 128, 256)
                    for c in (False, True)
                ),
                SuiteRow((4, 16, 2048, 128)),
                SuiteRow((4, 16, 4096, 128)),
            ),
            dtype="bfloat16",
            names=(
                "flash_wmma",
                "flash_mma",
                AUTO,
                "torch_flash",
                "torch_cudnn",
                "torch_efficient",
            ),
            sampled=True,
            row_seconds=1.0,
        ),
        Suite(
            "ladder",
            "every method at two shapes, however slow",
            (SuiteRow((2, 12, 196, 64)), SuiteRow((1, 16, 1024, 64))),
            all_methods=True,
        ),
    )
}


# -- one row ---------------------------------------------------------------------------------------
def makers(row: SuiteRow, names: Sequence[str]) -> dict[str, Callable]:
    """Return the contestants of a row: name -> function of q, k, v that makes it."""
    found: dict[str, Callable] = {}
    for name in names:
        if name in peers.PEERS:
            found[name] = partial(peers.Peer, name, causal=row.causal)
        else:
            found[name] = partial(ours, name, causal=row.causal)
    if row.pipelines:
        found |= {name: partial(Kernels, name, parts) for name, parts in PIPELINES.items()}
    return found


def run_row(
    row: SuiteRow,
    names: Sequence[str],
    suite: Suite,
    *,
    iterations: int = 60,
    warmup: int = 10,
) -> dict:
    """Check and time one row; return its record. TimingError: no GPU."""
    result = hold_contest(
        row.shape,
        makers(row, names),
        causal=row.causal,
        iterations=iterations,
        warmup=warmup,
        dtype=suite.dtype,
        row_seconds=suite.row_seconds,
        expected=float64_rows if suite.sampled else float64_attention,
        leave_out=partial(leave_out_slow, kept=METHODS if suite.all_methods else row.kept),
    )
    record = summary(row, result, suite.dtype)
    if row.pipelines:
        record["kernels"] = {
            name: list(
                time_parts(
                    one, [launched.row.file for launched in one.parts], result.turns
                ).values()
            )
            for name, one in result.entrants.contestants.items()
            if name in PIPELINES
        }
    return record


def leave_out_slow(found: Entrants, kept: Collection[str] = ()) -> None:
    """Move methods far slower than the best peer to `skipped`; without peers, than our best.

    kept: methods that stay.
    """
    rivals = [t for name, t in found.call_us.items() if name in peers.PEERS]
    best = min(rivals or found.call_us.values(), default=0.0)
    for name, call_us in list(found.call_us.items()):
        if name in METHODS and name not in kept and call_us > TOO_SLOW * best:
            reason = f"{call_us:.0f} us a call, more than {TOO_SLOW:g} times the best peer"
            found.drop(name, found.skipped, reason)


def summary(row: SuiteRow, result: ContestResult, dtype: str = "float32") -> dict:
    """Return a row's record: times, rates and errors of all, and auto against the best of both."""
    b, h, n, d = row.shape
    work = attention_work(Problem(b * h, n, n, d, causal=row.causal, dtype=dtype))
    timings = {
        name: one | {"tflops": round(tflops(work.operations, one["median_us"]), 3)}
        for name, one in result.records().items()
    }
    record = {
        "label": row.label,
        "shape": row.shape,
        "causal": row.causal,
        "dtype": dtype,
        "note": row.note,
        "operations": work.operations,
        "bytes": work.bytes,
        "timings": timings,
        "refused": result.entrants.refused,
        "skipped": result.entrants.skipped,
        "wrong": result.entrants.wrong,
        "clocks": result.measured.clocks,
    }
    return record | standing(
        result.measured,
        [name for name in timings if name in METHODS],
        [name for name in timings if name in peers.PEERS],
        row,
        dtype,
    )


def standing(
    measured, methods: Sequence[str], rivals: Sequence[str], row: SuiteRow, dtype: str
) -> dict:
    """auto against PyTorch (with intervals) and against the best of our own methods.

    best_peer is the fastest of all peers; best_backend that of scaled_dot_product_attention alone.
    """
    backends = [name for name in rivals if name in peers.BACKENDS]
    groups = {"best_peer": rivals, "best_backend": backends, "best_method": methods}
    found: dict = {key: measured.fastest(names) if names else None for key, names in groups.items()}
    if AUTO not in measured.timings:
        return found
    b, h, n, d = row.shape
    problem = Problem(b * h, n, n, d, h, h, row.causal, dtype=dtype)
    found["auto_picks"] = pick(AUTO, problem, "gpu")
    for key in ("peer", "backend"):
        if best := found[f"best_{key}"]:
            found[f"ratio_{key}"] = measured.ratio(AUTO, best).record()
    if methods:
        auto, best = (measured.timings[n].median_us for n in (AUTO, found["best_method"]))
        found["auto_over_best"] = round(auto / best, 4)
        found["auto_within_margin"] = auto <= AUTO_MARGIN * best
    return found


# -- a suite ---------------------------------------------------------------------------------------
def contestants(suite: Suite, chosen: Iterable[str] | None = None) -> tuple[str, ...]:
    """The names to run: those chosen, else the suite's.

    Raises:
        ValueError: an unknown name; lists those there are.
    """
    if chosen is None:
        return suite.contestants()
    known = (*METHODS, AUTO, *peers.PEERS)
    chosen = tuple(dict.fromkeys(chosen))
    for name in chosen:
        if name not in known:
            raise InputError(f"no method or peer {name!r}; there are: {', '.join(known)}")
    return chosen


def run_suite(
    name: str,
    *,
    methods: Iterable[str] | None = None,
    iterations: int = 60,
    warmup: int = 10,
    quick: bool = False,
    progress: Callable[[Iterable], Iterable] = iter,
) -> dict:
    """Run a suite and return its record (see :mod:`.records`).

    quick: the first row alone.  progress: wraps the rows, as tqdm does.

    Raises:
        KeyError: no such suite. ValueError: no such method. TimingError: no GPU.
    """
    suite = SUITES[name]
    require_gpu()
    names = contestants(suite, methods)
    start = time.perf_counter()
    with ClockWatch() as watch:
        rows = [
            run_row(row, names, suite, iterations=iterations, warmup=warmup)
            for row in progress(suite.rows[:1] if quick else suite.rows)
        ]
    rules = {"too_slow": TOO_SLOW, "row_seconds": suite.row_seconds, "auto_margin": AUTO_MARGIN}
    return records.new_record(
        f"bench_{name}",
        kernel_files(names, suite),
        suite=name,
        about=suite.about,
        dtype=suite.dtype,
        torch=peers.torch_version(),
        iterations=iterations,
        warmup=warmup,
        rules=rules,
        clocks=watch.record(),
        seconds=round(time.perf_counter() - start, 1),
        rows=rows,
    )


def kernel_files(names: Sequence[str], suite: Suite) -> list[str]:
    """The files that a suite's contestants are made of."""
    found = {row.file for name in names if name in METHODS for row in steps_of(name)}
    if any(row.pipelines for row in suite.rows):
        found |= {part.row.file for parts in PIPELINES.values() for part in parts}
    if AUTO in names:
        able = [name for name in METHODS if suite.dtype in dtypes_of(name)]
        found |= {row.file for name in able for row in steps_of(name)}
    return sorted(found)


def problems(record: dict) -> list[str]:
    """Return the faults of a suite's record: wrong outputs of ours, auto beyond its margin."""
    found = []
    for row in record["rows"]:
        for name, message in row["wrong"].items():
            if not name.startswith("torch"):
                found.append(f"{row['label']}: {message}")
        if row.get("auto_within_margin") is False:
            found.append(
                f"{row['label']}: auto takes {row['auto_over_best']:.2f} times the "
                f"{row['best_method']} method"
            )
    return found
