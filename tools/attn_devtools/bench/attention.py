"""Attention against PyTorch's: every method of the course on the shapes of reports and beyond."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from kernelscope.contest import Contest
from kernelscope.errors import InputError, did_you_mean

from attn_course import reference
from attn_course.ladder.methods import AUTO, METHODS, dtypes_of, files_of, pick
from attn_course.ladder.steps import Problem
from attn_course.lessons.lesson05_timing import REPORT_SHAPES as BLOCK_SHAPES
from attn_course.measure import candidates
from attn_course.measure.benchmarks import (
    ROW_SECONDS,
    BenchmarkResult,
    Entrants,
    Shape,
    float64_attention,
    shape_label,
    time_parts,
)
from attn_course.measure.candidates import BACKENDS, Kernels, Part, ours
from attn_course.measure.roofline import attention_work, tflops
from attn_course.reference.dtypes import DTYPES
from attn_course.reference.inputs import seeded_qkv

from .peers import ATTENTION, attention_peer
from .suite import Suite, fastest

END_ROWS, BETWEEN_ROWS = 8, 48  # queries of a long problem that are checked
TOO_SLOW = 20.0  # a method slower than this many times the best peer is checked and not timed
AUTO_MARGIN = 1.1  # auto may take this many times the best of our methods

# Candidates beyond the methods of attention(): the two pipelines of a well-known report whose
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
    that are timed however slow they are.  kv_heads: of k and v, H
    where 0.  keys: L of k and v, that of q where 0.
    """

    shape: Shape
    causal: bool = False
    note: str = ""
    pipelines: bool = False
    kept: tuple[str, ...] = ()
    kv_heads: int = 0
    keys: int = 0

    @property
    def label(self) -> str:
        """The name of the problem in tables; see :func:`shape_label`."""
        grouped = f" kv_heads {self.kv_heads}" if self.kv_heads else ""
        keys = f" keys {self.keys}" if self.keys else ""
        return shape_label(self.shape, self.causal) + grouped + keys


@dataclass(frozen=True)
class AttentionSuite(Suite):
    """Problems of attention().

    all_methods: time methods that are far slower than the peers as well. dtype: of the inputs.
    names: the methods, None: every one and auto. Every peer takes part. sampled: a sample of the
    queries is checked against float64, not all. row_seconds: of samples.
    """

    rows: tuple[SuiteRow, ...]
    all_methods: bool = False
    dtype: str = "float32"
    names: tuple[str, ...] | None = None
    sampled: bool = False
    row_seconds: float = ROW_SECONDS

    def candidates(self, chosen: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return the names to run: those chosen, else all; peers only where PyTorch is.

        Raises:
            ValueError: an unknown name; lists those there are.
        """
        if chosen is None:
            names = self.names or (*self._able(), AUTO)
            return (*names, *ATTENTION) if candidates.available() else tuple(names)
        known = (*METHODS, AUTO, *ATTENTION)
        for name in (chosen := tuple(dict.fromkeys(chosen))):
            if name not in known:
                near = did_you_mean(name, known)
                raise InputError(f"no method or peer {name!r}{near}; there are: {', '.join(known)}")
        return chosen

    def _able(self) -> list[str]:
        """The methods that take inputs of the dtype."""
        return [name for name in METHODS if self.dtype in dtypes_of(name)]

    def peers(self, row: SuiteRow, names: Sequence[str]) -> list[str]:
        """Return the peers of a row that are among the names to run."""
        return [name for name in names if name in ATTENTION]

    def files(self, names: Sequence[str], rows: Sequence[dict] = ()) -> list[str]:
        """Return the files that these candidates, and the pipelines of the rows, are made of.

        Of auto's methods those that it took in `rows`; without rows all.
        """
        taken = {row.get("auto_picks") for row in rows} or {*self._able()}
        methods = {*names, *(taken if AUTO in names else ())} & set(METHODS)
        found = set(files_of(*methods))
        if any(row.pipelines for row in self.rows):
            found |= {part.row.file for parts in PIPELINES.values() for part in parts}
        return sorted(found)

    def benchmark(self, row: SuiteRow, names: Sequence[str]) -> dict:
        """Return the arguments of run_benchmark() for a row."""
        makers: dict[str, Callable] = {
            name: partial(attention_peer if name in ATTENTION else ours, name, causal=row.causal)
            for name in names
        }
        if row.pipelines:
            makers |= {name: partial(Kernels, name, parts) for name, parts in PIPELINES.items()}
        inputs = seeded_qkv(row.shape, row.keys or None, kv_heads=row.kv_heads or None)
        expected = float64_queries if self.sampled else float64_attention
        return {
            "makers": makers,
            "inputs": [array.astype(DTYPES[self.dtype]) for array in inputs],
            "row_seconds": self.row_seconds,
            "expected": partial(expected, causal=row.causal),
            "sample": sampled_queries if self.sampled else None,
            "leave_out": partial(leave_out_slow, kept=METHODS if self.all_methods else row.kept),
        }

    def standing(self, row: SuiteRow, result: BenchmarkResult) -> dict:
        """Return the rates of all, and auto against the best of ours and of the peers."""
        b, h, n, d = row.shape
        extents = (b * h, n, row.keys or n, d, h, row.kv_heads or h, row.causal)
        problem = Problem(*extents, dtype=self.dtype)
        work = attention_work(problem)
        timings = {
            name: one | {"tflops": round(tflops(work.operations, one["median_us"]), 3)}
            for name, one in result.records().items()
        }
        record = {
            "causal": row.causal,
            "dtype": self.dtype,
            "note": row.note,
            "operations": work.operations,
            "bytes": work.bytes,
            "timings": timings,
        }
        if row.pipelines:
            record["kernels"] = {
                name: _kernel_times(one, result.turns)
                for name, one in result.entrants.candidates.items()
                if name in PIPELINES
            }
        return record | auto_standing(result.measured, problem)

    def rules(self) -> dict:
        """Return the dtype, and the limits that the suite has kept to."""
        rules = {
            "too_slow": TOO_SLOW,
            "row_seconds": self.row_seconds,
            "auto_margin": AUTO_MARGIN,
        }
        return {"dtype": self.dtype, "rules": rules}


_LARGE_D = ((1, 4, 64, 512), (1, 4, 64, 2048), (1, 4, 64, 4096), (1, 1, 16, 8192))
_FAST_BF16 = ("flash_mma", "flash_wgmma", AUTO)
ATTENTION_SUITES = {
    suite.name: suite
    for suite in (
        AttentionSuite(
            "seeds_fp32",
            "small float32 problems: a block's seven, a Swin window, large head dims",
            (
                *(SuiteRow(shape, note="block", kept=("naive",)) for shape in BLOCK_SHAPES),
                SuiteRow((2, 12, 196, 64), note="Swin window"),
                *(SuiteRow(shape, note="large head dim") for shape in _LARGE_D),
                SuiteRow((1, 1, 2048, 64), note="pipeline", pipelines=True),
            ),
        ),
        AttentionSuite(
            "ragged_fp32",
            "float32 windows of Swin, cross attention's 77 tokens, extents that no tile divides",
            (
                SuiteRow((64, 3, 49, 32), note="Swin window"),
                SuiteRow((16, 4, 77, 80)),
                SuiteRow((3, 5, 333, 96)),
            ),
        ),
        AttentionSuite(
            "long_fp32",
            "long float32 sequences, where arithmetic counts",
            (
                *(SuiteRow((4, 16, 2048, d), c) for d in (64, 128) for c in (False, True)),
                *(SuiteRow((b, 16, n, d)) for b, n in ((8, 1024), (1, 4096)) for d in (64, 128)),
            ),
            sampled=True,
            row_seconds=1.5,
        ),
        AttentionSuite(
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
            names=("flash_wmma", *_FAST_BF16),
            sampled=True,
            row_seconds=1.0,
        ),
        AttentionSuite(
            "hopper_bf16",
            "bfloat16 problems that fill a Hopper GPU: many heads, ragged and grouped ones",
            (
                *(SuiteRow((4, 16, 4096, d), c) for d in (64, 128, 256) for c in (False, True)),
                *(SuiteRow((4, 16, 1000, 128), c) for c in (False, True)),
                *(SuiteRow((1, 64, 4096, 128), c, kv_heads=8) for c in (False, True)),
            ),
            dtype="bfloat16",
            names=_FAST_BF16,
            sampled=True,
            row_seconds=1.0,
        ),
        AttentionSuite(
            "decode",
            "bfloat16, one query or a few on a long cache, where the bytes of K and V count",
            (
                SuiteRow((8, 32, 1, 128), keys=8192),
                SuiteRow((8, 32, 1, 128), kv_heads=8, keys=8192),
                SuiteRow((8, 64, 1, 128), kv_heads=8, keys=8192),
                SuiteRow((1, 32, 1, 128), kv_heads=8, keys=131072),
                SuiteRow((32, 32, 1, 128), kv_heads=8, keys=4096),
                SuiteRow((64, 32, 1, 64), kv_heads=8, keys=2048),
                SuiteRow((1, 32, 1, 128), kv_heads=8, keys=1024),
                SuiteRow((1, 32, 1, 128), kv_heads=8, keys=2048),
                SuiteRow((4, 32, 1, 128), kv_heads=8, keys=1024),
                SuiteRow((8, 32, 4, 128), kv_heads=8, keys=8192),
            ),
            dtype="bfloat16",
            names=("decode", "decode_cluster", *_FAST_BF16),
            row_seconds=1.0,
        ),
        AttentionSuite(
            "ladder",
            "every method at two shapes, however slow",
            (SuiteRow((2, 12, 196, 64)), SuiteRow((1, 16, 1024, 64))),
            all_methods=True,
        ),
    )
}


def float64_queries(q, k, v, *, causal: bool = False):
    """Return float64_attention() of compared_queries() alone: long rows take minutes on a CPU."""
    chosen = compared_queries(q.shape[2])
    seen = reference.causal_mask(q.shape[2], k.shape[2])[chosen] if causal else True
    return float64_attention(q[:, :, chosen], k, v, bias=np.where(seen, 0.0, -np.inf))


def sampled_queries(out):
    """Return compared_queries() of an output (B, H, n, d)."""
    return out[:, :, compared_queries(out.shape[2])]


def leave_out_slow(found: Entrants, kept: Collection[str] = ()) -> None:
    """Move methods far slower than the best peer to `skipped`.

    Without peers, the best of ours is the measure. kept: methods that stay.
    """
    rivals = [t for name, t in found.call_us.items() if name in ATTENTION]
    best = min(rivals or found.call_us.values(), default=0.0)
    for name, call_us in list(found.call_us.items()):
        if name in METHODS and name not in kept and call_us > TOO_SLOW * best:
            reason = f"{call_us:.0f} us a call, more than {TOO_SLOW:g} times the best peer"
            found.drop(name, found.skipped, reason)


def _kernel_times(one: Kernels, turns: int) -> list[dict]:
    """The times of a pipeline's kernels, each alone."""
    return list(time_parts(one, [part.row.file for part in one.parts], turns).values())


def auto_standing(measured: Contest, problem: Problem) -> dict:
    """auto against PyTorch (with intervals) and against the best of our own methods.

    best_peer is the fastest of all peers, best_backend that of scaled_dot_product_attention.
    """
    groups = {"best_peer": ATTENTION, "best_backend": BACKENDS, "best_method": METHODS}
    found: dict = {key: fastest(measured, names) for key, names in groups.items()}
    if AUTO not in measured.timings:
        return found
    found["auto_picks"] = pick(AUTO, problem, "gpu")
    for key in ("peer", "backend"):
        if best := found[f"best_{key}"]:
            found[f"ratio_{key}"] = measured.ratio(AUTO, best).record()
    if found["best_method"]:
        auto, best = (measured.timings[n].median_us for n in (AUTO, found["best_method"]))
        found["auto_over_best"] = round(auto / best, 4)
        found["auto_within_margin"] = auto <= AUTO_MARGIN * best
    return found


def compared_queries(n: int) -> np.ndarray:
    """The queries of a long problem whose output is checked: the ends and some between them."""
    ends = np.r_[: min(n, END_ROWS), max(0, n - END_ROWS) : n]
    between = np.random.default_rng(n).integers(n, size=BETWEEN_ROWS)
    return np.unique(np.r_[ends, between])
