"""Kernels 12 and 19 with one idea taken away at a time: what each idea is worth.

An ablation is a kernel's own source, headers included, with a few exact replacements. It computes
the same attention, so whatever differs from the whole kernel, in counters or in time, is the
idea's. Counters come from the simulator; times come from a GPU, where all variants of a problem
take turns, or from its record. `ablation_edits` holds the replacements.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np

from attn_course.engine.backend import array_module, asnumpy, resolve_backend
from attn_course.engine.compile import with_headers
from attn_course.engine.module import RawModule
from attn_course.ladder.attention import problem_of
from attn_course.ladder.call import StepLaunch, numbers_of
from attn_course.ladder.choose import current_device
from attn_course.ladder.steps import Device, Geometry, Problem, step
from attn_course.reference.comparison import Comparison, compare
from attn_course.reference.inputs import seeded_qkv

from .ablation_edits import ABLATIONS, Ablation, whole
from .records import caption, is_current, new_record, records
from .suites import Shape, estimate_us, float64_attention, turns_for
from .timing import (
    ClockWatch,
    GpuClock,
    Replay,
    calls_for,
    capture,
    contest,
    require_gpu,
)

KIND = "ablations"
# (B, H, n, d) and causal: few short rows, Swin windows, long rows without and with the mask.
PROBLEMS: tuple[tuple[Shape, bool], ...] = (
    ((8, 1, 128, 64), False),
    ((2, 12, 196, 64), False),
    ((4, 16, 2048, 64), False),
    ((4, 16, 2048, 64), True),
    ((2, 16, 2048, 128), False),
    ((2, 16, 2048, 128), True),
)
ITERATIONS = 60


class AblationError(ValueError):
    """An edit whose text is not in the kernel exactly once; names the ablation and the text."""


# -- source ----------------------------------------------------------------------------------------
def ablation(kernel: str, name: str) -> Ablation:
    """An ablation by its kernel's entry point and its name. KeyError: lists those there are."""
    for one in ABLATIONS:
        if (one.kernel, one.name) == (kernel, name):
            return one
    raise KeyError(
        f"no ablation {name!r} of {kernel}; there are: " + ", ".join(one.label for one in ABLATIONS)
    )


def variants(kernel: str) -> tuple[Ablation, ...]:
    """A kernel whole, and each of its ablations."""
    return (whole(kernel), *(one for one in ABLATIONS if one.kernel == kernel))


def all_variants() -> tuple[Ablation, ...]:
    """Every kernel that has ablations, whole, followed by these."""
    kernels = dict.fromkeys(one.kernel for one in ABLATIONS)
    return tuple(one for kernel in kernels for one in variants(kernel))


def source(one: Ablation) -> str:
    """The kernel's text, its headers in their places, with the edits made.

    Raises:
        AblationError: a text to be replaced is not there exactly once.
    """
    path = step(one.kernel).path
    text = with_headers(path.read_text(encoding="utf-8"), path.parent)
    for old, new in one.edits:
        if text.count(old) != 1:
            raise AblationError(
                f"{one.label}: {text.count(old)} times in the kernel, not once: "
                f"{old.strip().splitlines()[0]!r}"
            )
        text = text.replace(old, new)
    return text


def difference(one: Ablation) -> str:
    """The edits as a unified diff without context; the options instead where there are no edits."""
    if not one.edits:
        return " ".join(one.options)
    before = source(whole(one.kernel)).splitlines()
    lines = list(difflib.unified_diff(before, source(one).splitlines(), lineterm="", n=0))[2:]
    return "\n".join("..." if line.startswith("@@") else line for line in lines)


def source_hash(one: Ablation) -> str:
    """SHA-256 of the source and the options: what a record says was timed."""
    text = "\n".join((source(one), *one.options))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


# -- running ---------------------------------------------------------------------------------------
class Variant:
    """An ablation made ready for one problem, on either backend; `call()` launches it.

    Args:
        one: which.
        q, k, v: (B, H, n, d) and (B, H_kv, m, d) float32 of the backend's array module.
        options: compiler options that win over the tuning and the ablation's.

    The attributes launch, options, kernel and out are the geometry, the compiler options, the
    compiled kernel and the output (B, H, n, d), NaN until a call.
    Raises AblationError; ValueError where the kernel does not take the problem.
    """

    def __init__(
        self,
        one: Ablation,
        q,
        k,
        v,
        *,
        causal: bool = False,
        backend: str | None = None,
        options: Sequence[str] = (),
    ):
        row, problem = step(one.kernel), problem_of(q, k, causal)
        self.ablation, self.relative = one, row.relative
        self.launch = tuned_launch(one, problem, current_device(backend), options)
        self.options = self.launch.options((*one.options, *options))
        self.kernel = compiled(one, self.options, backend)
        if self.launch.shared_bytes > self.kernel.max_dynamic_shared_size_bytes:
            self.kernel.max_dynamic_shared_size_bytes = self.launch.shared_bytes
        self.out = array_module(backend).full(q.shape, np.nan, np.float32)
        self._arrays = {"q": q, "k": k, "v": v, "out": self.out}
        numbers = numbers_of(problem, q.shape[3] ** -0.5)
        self._run = StepLaunch(row, self.launch, self.kernel, numbers).run

    def call(self) -> None:
        """Launch the kernel once; it writes `out`."""
        self._run(self._arrays)

    def capture(self, calls: int) -> Replay:
        """So many calls as one CUDA graph."""
        return capture(self.call, calls)

    def poison(self) -> None:
        """Fill `out` with NaN, so that a call that writes nothing shows."""
        self.out.fill(np.nan)

    def compare(self, expected: np.ndarray) -> Comparison:
        """The output against float64 (B, H, n, d)."""
        return compare(
            asnumpy(self.out), expected, name=self.ablation.label, relative=self.relative
        )


def tuned_launch(
    one: Ablation, problem: Problem, device: Device | None = None, options: Sequence[str] = ()
) -> Geometry:
    """Return the geometry; given options win over the ablation's, these over the tuning."""
    return step(one.kernel).launch(problem, (*one.options, *options), device)


def options_for(
    one: Ablation, shape: Shape, causal: bool = False, device: Device | None = None
) -> tuple[str, ...]:
    """Compiler options of an ablation on a problem (B, H, n, d) with as many keys as queries."""
    b, h, n, d = shape
    launch = tuned_launch(one, Problem(b * h, n, n, d, h, h, causal), device)
    return launch.options(one.options)


def compiled(one: Ablation, options: Sequence[str], backend: str | None = None):
    """The kernel of an ablation, compiled once for each set of options and backend."""
    return _compiled(source(one), step(one.kernel).entry, tuple(options), resolve_backend(backend))


@lru_cache(maxsize=128)
def _compiled(code: str, entry: str, options: tuple[str, ...], backend: str):
    return RawModule(code=code, options=options, backend=backend).get_function(entry)


# -- measuring -------------------------------------------------------------------------------------
def record() -> dict:
    """Every variant on every problem, as a results record. TimingError where there is no GPU."""
    require_gpu()
    with ClockWatch() as watch:
        rows = [measure(shape, causal, GpuClock()) for shape, causal in PROBLEMS]
    chosen = all_variants()
    return new_record(
        KIND,
        sorted({step(one.kernel).file for one in chosen}),
        device=asdict(current_device("gpu")),
        rows=rows,
        sources={one.label: source_hash(one) for one in chosen},
        clocks=watch.record(),
    )


def measure(shape: Shape, causal: bool, clock, backend: str | None = None) -> dict:
    """All variants on one problem: checked against float64, then timed as graphs in turns."""
    host = seeded_qkv(shape)
    inputs = [array_module(backend).asarray(array) for array in host]
    clock.synchronize()
    found = {
        one.label: Variant(one, *inputs, causal=causal, backend=backend) for one in all_variants()
    }
    calls = {name: calls_for(estimate_us(clock, one)) for name, one in found.items()}
    replays = {name: one.capture(calls[name]) for name, one in found.items()}
    verdicts = _verdicts(found, replays, float64_attention(*host, causal=causal), clock)
    wrong = {name: one.message for name, one in verdicts.items() if not one.agrees}
    replays = {name: one for name, one in replays.items() if name not in wrong}
    sample_us = {name: clock.time_us(replay.launch) for name, replay in replays.items()}
    turns = turns_for(sample_us, ITERATIONS)
    measured = contest(replays, iterations=turns, warmup=min(5, turns), clock=clock)
    return {
        "shape": list(shape),
        "causal": causal,
        "wrong": wrong,
        "variants": {name: _summary(found[name], measured, verdicts[name]) for name in replays},
    }


def _verdicts(found: dict[str, Variant], replays, expected, clock) -> dict[str, Comparison]:
    """Poison each output, replay its graph, compare."""
    verdicts = {}
    for name, one in found.items():
        one.poison()
        clock.synchronize()
        clock.time_us(replays[name].launch)  # waits for the replay
        verdicts[name] = one.compare(expected)
    return verdicts


def _summary(one: Variant, measured, verdict: Comparison) -> dict:
    """Times of a variant, its ratio to the whole kernel's, and what was launched."""
    name, kernel = one.ablation.label, one.ablation.kernel
    summary = measured.timings[name].record()
    if kernel in measured.timings:  # the whole kernel's label is its entry point
        summary["over_whole"] = measured.ratio(kernel, name).record()
    return summary | {
        "options": list(one.options),
        "blocks": int(np.prod(one.launch.grid)),
        "threads": int(np.prod(one.launch.block)),
        "shared_bytes": one.launch.shared_bytes,
        "registers": one.kernel.num_regs,
        "local_bytes": one.kernel.local_size_bytes,
        "relative_error": verdict.relative_error,
    }


# -- reading a record ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Worth:
    """An ablation's time on one problem beside the whole kernel's, microseconds, and their ratio.

    ratio: ablation over whole, above 1 where the idea saves time; low and high: its 95 % interval.
    """

    ablation: Ablation
    median_us: float
    whole_us: float
    ratio: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """The interval does not hold 1: the difference is more than the spread of the samples."""
        return not self.low <= 1 <= self.high


def newest_record() -> dict | None:
    """The newest record there is, or None."""
    found = records(KIND)
    return found[0] if found else None


def record_is_current(found: dict) -> bool:
    """Was the record made with the kernels and the edits as they are now?"""
    return is_current(found) and found["sources"] == {
        one.label: source_hash(one) for one in all_variants()
    }


def record_caption(found: dict) -> str:
    """Where and when the record was made, and whether kernels or edits have changed since."""
    text = caption(found)
    if is_current(found) and not record_is_current(found):
        text += "; STALE, edits changed since"
    return text


def row_of(found: dict, shape: Shape, causal: bool = False) -> dict:
    """A record's row of one problem. KeyError: it has none."""
    for row in found["rows"]:
        if (tuple(row["shape"]), row["causal"]) == (tuple(shape), causal):
            return row
    raise KeyError(f"no row of shape {shape}, causal {causal} in this record")


def worths(found: dict, kernel: str, shape: Shape, causal: bool = False) -> list[Worth]:
    """What each of a kernel's ideas is worth on a problem; those that the record has."""
    timed = row_of(found, shape, causal)["variants"]
    return [
        _worth(one, timed[one.label], timed[kernel])
        for one in variants(kernel)[1:]
        if one.label in timed and kernel in timed
    ]


def _worth(one: Ablation, row: dict, whole_row: dict) -> Worth:
    ratio = row["over_whole"]
    return Worth(
        one, row["median_us"], whole_row["median_us"], ratio["value"], ratio["low"], ratio["high"]
    )
