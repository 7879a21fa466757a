"""The driver of every timing contest: who takes part, who is right, and how long each takes.

A contest is one problem. All candidates get the same inputs; each output is checked against
float64 before anything is timed; then their CUDA graphs take turns on one stream
(:mod:`kernelscope.contest`).
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from kernelscope import BackendError, array_module
from kernelscope.contest import (
    Contest,
    GpuClock,
    Replay,
    TimingError,
    calls_for,
    contest,
    require_gpu,
)

from attn_course import reference
from attn_course.reference.comparison import Comparison, compare
from attn_course.reference.dtypes import DTYPES

from .candidates import BaselineRefuses, Kernels

Shape = tuple[int, ...]  # of attention: (B, H, L, D)
ROW_SECONDS = 3.0  # of samples; benchmarks of slow candidates take fewer turns
FEWEST_TURNS = 10
ESTIMATES = 3  # samples before the contest; the shortest counts


def shape_label(shape: Shape, causal: bool = False) -> str:
    """Return what tables call a problem: "4,16,2048,64 causal"."""
    return ",".join(map(str, shape)) + (" causal" if causal else "")


def float64_attention(q, k, v, **options) -> np.ndarray:
    """Return reference.attention, a thread a head: NumPy computes outside the interpreter's lock.

    q: (B, H, n, d).  k, v: (B, H_kv, m, d).  options: of reference.attention; a bias is that of all
    heads.  Returns (B, H, n, d) float64.
    """

    def head(at: tuple[int, int]) -> np.ndarray:
        kv = at[0], at[1] * k.shape[1] // q.shape[1]
        of_head = (one[None, None] for one in (q[at], k[kv], v[kv]))
        return reference.attention(*of_head, **options)[0, 0]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(head, np.ndindex(q.shape[:2])))
    return np.stack(found).reshape(*q.shape[:2], *found[0].shape)


@dataclass
class Entrants:
    """Candidates of a problem, and the ones that do not take part: name -> reason.

    call_us: estimated microseconds of a call.
    """

    candidates: dict[str, object] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    call_us: dict[str, float] = field(default_factory=dict)

    def drop(self, name: str, into: dict[str, str], reason: str) -> None:
        """Take a candidate out, with the reason."""
        into[name] = reason
        self.candidates.pop(name, None)
        self.call_us.pop(name, None)


@dataclass
class BenchmarkResult:
    """A contest after its end: entrants, their times, the comparisons with float64, the turns."""

    entrants: Entrants
    measured: Contest
    verdicts: dict[str, Comparison]
    turns: int

    def records(self) -> dict[str, dict]:
        """Return the times and the relative error of every candidate that was timed."""
        return {
            name: timing.record() | {"relative_error": self.verdicts[name].relative_error}
            for name, timing in self.measured.timings.items()
        }

    def facts(self) -> dict[str, dict]:
        """Return the same, and what its launch occupies, of every candidate that was timed."""
        return {
            name: one | self.entrants.candidates[name].facts()
            for name, one in self.records().items()
        }


def run_benchmark(
    inputs: Sequence[np.ndarray],
    makers: Mapping[str, Callable],
    *,
    iterations: int = 60,
    warmup: int = 5,
    row_seconds: float = ROW_SECONDS,
    expected: Callable[..., np.ndarray] = float64_attention,
    sample: Callable[[np.ndarray], np.ndarray] | None = None,
    leave_out: Callable[[Entrants], None] = lambda entrants: None,
    backend: str = "gpu",
    clock=None,
) -> BenchmarkResult:
    """Check and time all candidates on one problem.

    Args:
        inputs: on the host; of attention q (B, H, n, d), k and v (B, H, m, d).
        makers: name -> function of the inputs that returns a candidate: an object with try_call,
            capture, poison, output and relative, as Candidate and Baseline. What it refuses with
            ValueError, BackendError or BaselineRefuses does not take part.
        iterations: turns; fewer where they would take longer than row_seconds.
        warmup: turns before them.
        expected: function of the inputs that returns the result in float64.
        sample: function of an output that returns the part of it which `expected` gives; the rest
            must be finite. None: all is compared.
        leave_out: drops entrants after all have been estimated.
        clock: an object with time_us(launch) and synchronize(); a GpuClock where None.

    Raises:
        TimingError: no GPU, or no candidate left.
    """
    clock = clock or GpuClock()
    on_device = [to_device(array, array_module(backend)) for array in inputs]
    clock.synchronize()
    entrants = gather(makers, on_device)
    for name, one in entrants.candidates.items():
        entrants.call_us[name] = estimate_us(clock, one.capture)
    leave_out(entrants)
    replays = {
        name: one.capture(calls_for(entrants.call_us[name]))
        for name, one in entrants.candidates.items()
    }
    verdicts = check(entrants, replays, expected(*inputs), clock, sample)
    replays = {name: replays[name] for name in entrants.candidates}
    if not replays:
        out = entrants.refused | entrants.skipped | entrants.wrong
        reasons = "; ".join(f"{name}: {reason}" for name, reason in out.items())
        what = f"{shape_label(inputs[0].shape)}: " if inputs else ""
        raise TimingError(f"{what}no candidate is left: {reasons}")
    turns = turns_for(
        {name: entrants.call_us[name] * replay.calls for name, replay in replays.items()},
        iterations,
        row_seconds,
    )
    measured = contest(replays, iterations=turns, warmup=min(warmup, turns), clock=clock)
    return BenchmarkResult(entrants, measured, verdicts, turns)


def to_device(array: np.ndarray, xp):
    """Return an array in the backend's memory; bfloat16 goes by way of its bits."""
    if array.dtype == DTYPES["bfloat16"]:
        return xp.asarray(array.view(np.uint16)).view(array.dtype)
    return xp.asarray(array)


def gather(makers: Mapping[str, Callable], inputs: Sequence) -> Entrants:
    """Make every candidate that takes the inputs, and call each once."""
    found = Entrants()
    for name, make in makers.items():
        try:
            one = make(*inputs)
            one.try_call()
        except (BaselineRefuses, BackendError, ValueError) as error:
            found.refused[name] = str(error)
        else:
            found.candidates[name] = one
    return found


def estimate_us(clock, capture: Callable[[int], Replay]) -> float:
    """Return microseconds of a call, from a graph of one: Python's launch is left out of it."""
    replay = capture(1)
    return min(clock.time_us(replay.launch) for _ in range(ESTIMATES))


def turns_for(
    sample_us: Mapping[str, float], iterations: int, row_seconds: float = ROW_SECONDS
) -> int:
    """Return `iterations`, or the fewer turns that fit into row_seconds."""
    affordable = int(row_seconds * 1e6 / max(sum(sample_us.values()), 1.0))
    return max(min(iterations, affordable), min(FEWEST_TURNS, iterations))


def check(
    entrants: Entrants,
    replays: Mapping[str, Replay],
    expected: np.ndarray,
    clock,
    sample: Callable[[np.ndarray], np.ndarray] | None = None,
) -> dict[str, Comparison]:
    """Poison every output, replay every graph, compare; a wrong candidate is dropped."""
    outputs = {}
    for name, one in entrants.candidates.items():
        one.poison()
        clock.synchronize()
        clock.time_us(replays[name].launch)  # waits for the replay
        outputs[name] = one.output()

    def judge(name: str) -> Comparison:
        found, relative = outputs[name], entrants.candidates[name].relative
        if sample is None:
            return compare(found, expected, name=name, relative=relative)
        finite = np.isfinite(found)
        if not finite.all():
            return compare(finite, np.ones_like(finite), name=f"{name}, elements that are finite")
        return compare(sample(found), expected, name=name, relative=relative)

    with ThreadPoolExecutor(4) as pool:
        verdicts = dict(zip(outputs, pool.map(judge, outputs), strict=True))
    for name, verdict in verdicts.items():
        if not verdict.agrees:
            entrants.drop(name, entrants.wrong, verdict.message)
    return verdicts


def time_parts(one: Kernels, labels: Sequence[str], iterations: int, clock=None) -> dict[str, dict]:
    """Time each kernel of a candidate alone, in turns, on whatever the buffers hold.

    Returns label -> record of its times.

    Raises:
        TimingError: no GPU.
    """
    require_gpu()
    clock, replays, sample_us = clock or GpuClock(), {}, {}
    for number, label in enumerate(labels):
        capture = partial(one.capture_part, number=number)
        call_us = estimate_us(clock, capture)
        replays[label] = capture(calls_for(call_us))
        sample_us[label] = call_us * replays[label].calls
    turns = turns_for(sample_us, iterations)
    timings = contest(replays, iterations=turns, clock=clock).timings
    return {label: timing.record() for label, timing in timings.items()}
