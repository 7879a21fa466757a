"""Suites of problems on which every method of the course meets PyTorch's attention.

A row is one problem. All contestants get the same inputs; each output is held against float64
before anything is timed; then their CUDA graphs take turns on one stream (:mod:`.timing`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from attn_course import reference
from attn_course.engine.backend import BackendError
from attn_course.ladder.attention import (
    AUTO,
    METHODS,
    check_options,
    pick,
    problem_of,
    steps_of,
)
from attn_course.ladder.call import run_steps
from attn_course.ladder.choose import current_device
from attn_course.ladder.steps import Problem, step
from attn_course.reference.comparison import Comparison, compare
from attn_course.reference.inputs import seeded_qkv

from . import contestants as peers
from . import records
from .roofline import attention_work, tflops
from .timing import (
    ClockWatch,
    GpuClock,
    Replay,
    calls_for,
    capture,
    contest,
    require_gpu,
)

Shape = tuple[int, int, int, int]
TOO_SLOW = 20.0  # a method slower than this many times the best peer is checked and not timed
ROW_SECONDS = 3.0  # of samples; rows of slow contestants take fewer turns
FEWEST_TURNS = 10
ESTIMATES = 3  # samples before the contest; the shortest counts
AUTO_MARGIN = 1.1  # auto may take this many times the best of our methods

# Methods beyond attention()'s own: the two pipelines of a well-known report whose tiled scores
# made the whole only a little faster, and what they become once the slow half is mended too.
# A part is a ladder step with its compiler options.
Part = tuple[int, tuple[str, ...]]
PIPELINES: dict[str, tuple[Part, ...]] = {
    "scores_naive+serial": ((1, ()), (4, ())),
    "scores_tiled+serial": ((2, ("-DK_TILE=1", "-DPAD=0")), (4, ())),
    "scores_tiled+warp+tiled": ((2, ()), (5, ()), (6, ())),
}


def shape_label(shape: Shape, causal: bool = False) -> str:
    """ "4,16,2048,64 causal": what tables call a problem."""
    return ",".join(map(str, shape)) + (" causal" if causal else "")


@dataclass(frozen=True)
class Row:
    """One problem: shape (B, H, L, D), and what is special about it."""

    shape: Shape
    causal: bool = False
    note: str = ""
    pipelines: bool = False  # PIPELINES and their kernels one by one, besides the methods

    @property
    def label(self) -> str:
        """What tables call it; see :func:`shape_label`."""
        return shape_label(self.shape, self.causal)


@dataclass(frozen=True)
class Suite:
    """Rows under a name, and what they are for."""

    name: str
    about: str
    rows: tuple[Row, ...]


def _suite(name: str, about: str, *rows: Row) -> tuple[str, Suite]:
    return name, Suite(name, about, rows)


SUITES = dict(
    (
        _suite(
            "seeds_fp32",
            "small float32 problems: a block's seven, a Swin window, large head dims",
            *(
                Row(shape, note="block")
                for shape in (
                    (1, 1, 128, 64),
                    (4, 1, 128, 64),
                    (8, 1, 128, 64),
                    (4, 1, 256, 64),
                    (4, 1, 512, 64),
                    (4, 1, 128, 128),
                    (8, 1, 256, 64),
                )
            ),
            Row((2, 12, 196, 64), note="Swin window"),
            *(
                Row(shape, note="large head dim")
                for shape in ((1, 4, 64, 512), (1, 4, 64, 2048), (1, 4, 64, 4096), (1, 1, 16, 8192))
            ),
            Row((1, 1, 2048, 64), note="pipeline", pipelines=True),
        ),
        _suite(
            "long_fp32",
            "long float32 sequences, where arithmetic counts",
            *(Row((4, 16, 2048, d), causal) for d in (64, 128) for causal in (False, True)),
        ),
    )
)


# -- contestants -----------------------------------------------------------------------------------
class Ours:
    """Ladder steps on given inputs, with every buffer made beforehand: graphs must not allocate.

    Args:
        name: as the results show it.
        parts: ladder steps with their compiler options.
        q, k, v: CuPy arrays (B, H, n, d) and (B, H, m, d).

    Raises:
        ValueError: an extent or an option that a step does not take.
    """

    def __init__(self, name: str, parts: Sequence[Part], q, k, v, *, causal: bool = False):
        import cupy

        self.name = name
        self.parts = [((step(number),), options) for number, options in parts]
        self.problem = problem_of(q, k, causal)
        self.scale = q.shape[3] ** -0.5
        device = current_device("gpu")
        for (row,), options in self.parts:
            row.launch(self.problem, options, device)  # refuses here what it does not take
        inputs = zip("qkv", (q, k, v), strict=True)
        self.buffers = {name: array.reshape(-1, *array.shape[2:]) for name, array in inputs}
        used = {name for (row,), _ in self.parts for name in row.arguments}
        for buffer in used & {"s", "out"}:
            self.buffers[buffer] = cupy.empty(self.problem.shape(buffer), cupy.float32)
        self.shape = q.shape

    def call(self) -> None:
        for number in range(len(self.parts)):
            self.call_part(number)

    def call_part(self, number: int) -> None:
        """Launch one of the kernels, on whatever the buffers hold."""
        chosen, options = self.parts[number]
        run_steps(
            chosen, self.buffers, self.scale, backend="gpu", options=options, problem=self.problem
        )

    def capture(self, calls: int) -> Replay:
        return capture(self.call, calls)

    def poison(self) -> None:
        self.buffers["out"].fill(np.nan)

    def output(self) -> np.ndarray:
        return self.buffers["out"].get().reshape(self.shape)


def ours(method: str, q, k, v, causal: bool) -> Ours:
    """A method of attention() as a contestant. ValueError where it does not take the problem."""
    problem = problem_of(q, k, causal)
    chosen = pick(method, problem, "gpu")
    check_options(chosen, problem)
    return Ours(method, [(row.number, ()) for row in steps_of(chosen)], q, k, v, causal=causal)


@dataclass
class Field:
    """Who takes part in a row, and who does not: name -> reason."""

    contestants: dict[str, object] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    call_us: dict[str, float] = field(default_factory=dict)

    def drop(self, name: str, into: dict[str, str], reason: str) -> None:
        into[name] = reason
        self.contestants.pop(name, None)
        self.call_us.pop(name, None)


def gather(row: Row, names: Sequence[str], q, k, v) -> Field:
    """Every contestant that takes the row's problem, each called once."""
    makers: dict[str, Callable[[], object]] = {}
    for name in names:
        if name in peers.PEERS:
            makers[name] = lambda name=name: peers.Peer(name, q, k, v, causal=row.causal)
        else:
            makers[name] = lambda name=name: ours(name, q, k, v, row.causal)
    if row.pipelines:
        for name, parts in PIPELINES.items():
            makers[name] = lambda name=name, parts=parts: Ours(name, parts, q, k, v)
    found = Field()
    for name, make in makers.items():
        try:
            contestant = make()
            contestant.try_call() if isinstance(contestant, peers.Peer) else contestant.call()
        except (peers.PeerRefuses, BackendError, ValueError) as error:
            found.refused[name] = str(error)
        else:
            found.contestants[name] = contestant
    return found


# -- one row ---------------------------------------------------------------------------------------
def run_row(row: Row, names: Sequence[str], *, iterations: int, warmup: int, seed: int = 0) -> dict:
    """Check and time one row; the record of it. Raises TimingError where there is no GPU."""
    import cupy

    host = seeded_qkv(row.shape, seed=seed)
    device = [cupy.asarray(array) for array in host]
    cupy.cuda.Device().synchronize()
    found = gather(row, names, *device)
    clock = GpuClock()
    for name, contestant in found.contestants.items():
        found.call_us[name] = estimate_us(clock, contestant)
    leave_out_slow(found)
    replays = {
        name: one.capture(calls_for(found.call_us[name])) for name, one in found.contestants.items()
    }
    errors = check(found, replays, float64_attention(*host, causal=row.causal), clock)
    replays = {name: replays[name] for name in found.contestants}
    turns = turns_for(
        {name: found.call_us[name] * replays[name].calls for name in replays}, iterations
    )
    measured = contest(replays, iterations=turns, warmup=min(warmup, turns), clock=clock)
    record = summary(row, found, measured, errors)
    if row.pipelines:
        record["kernels"] = time_kernels(found, turns, clock)
    return record


def estimate_us(clock, contestant) -> float:
    """Microseconds of a call, from a graph of one: Python's launch is left out of it."""
    replay = contestant.capture(1)
    return min(clock.time_us(replay.launch) for _ in range(ESTIMATES))


def leave_out_slow(found: Field) -> None:
    """Move methods far slower than the best peer to `skipped`; without peers, than our best."""
    rivals = [t for name, t in found.call_us.items() if name in peers.PEERS]
    best = min(rivals or found.call_us.values(), default=0.0)
    for name, call_us in list(found.call_us.items()):
        if name in METHODS and call_us > TOO_SLOW * best:
            reason = f"{call_us:.0f} us a call, more than {TOO_SLOW:g} times the best peer"
            found.drop(name, found.skipped, reason)


def turns_for(sample_us: Mapping[str, float], iterations: int) -> int:
    """As many turns as asked for, fewer where they would take longer than ROW_SECONDS."""
    affordable = int(ROW_SECONDS * 1e6 / max(sum(sample_us.values()), 1.0))
    return max(min(iterations, affordable), min(FEWEST_TURNS, iterations))


def float64_attention(q, k, v, *, causal: bool) -> np.ndarray:
    """reference.attention, a thread a head: NumPy computes outside the interpreter's lock."""
    out = np.empty(q.shape, np.float64)

    def head(at: tuple[int, int]) -> None:
        one = np.s_[at[0] : at[0] + 1, at[1] : at[1] + 1]
        out[one] = reference.attention(q[one], k[one], v[one], causal=causal)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(head, np.ndindex(q.shape[:2])))
    return out


def check(found: Field, replays: Mapping[str, Replay], expected, clock) -> dict[str, Comparison]:
    """Poison every output, replay every graph, compare; who is wrong leaves the field."""
    outputs = {}
    for name, contestant in found.contestants.items():
        contestant.poison()
        clock.synchronize()
        clock.time_us(replays[name].launch)  # waits for the replay
        outputs[name] = contestant.output()
    with ThreadPoolExecutor(4) as pool:
        judged = pool.map(lambda name: compare(outputs[name], expected, name=name), outputs)
        verdicts = dict(zip(outputs, judged, strict=True))
    for name, verdict in verdicts.items():
        if not verdict.agrees:
            found.drop(name, found.wrong, verdict.message)
    return verdicts


def time_kernels(found: Field, turns: int, clock) -> dict[str, list[dict]]:
    """Each kernel of each pipeline on its own: pipeline -> one record a kernel."""
    timed = {}
    for name in PIPELINES:
        if name not in found.contestants:
            continue
        one = found.contestants[name]
        replays = {}
        for number, ((row,), _) in enumerate(one.parts):
            call = partial(one.call_part, number)
            replays[row.file] = capture(call, calls_for(found.call_us[name]))
        timed[name] = contest(replays, iterations=turns, clock=clock).record()["timings"]
    return timed


def summary(row: Row, found: Field, measured, errors: Mapping[str, Comparison]) -> dict:
    """A row's record: times, rates and errors of all, and how auto stands to the best of both."""
    b, h, n, d = row.shape
    work = attention_work(Problem(b * h, n, n, d, causal=row.causal))
    timings = {}
    for name, timing in measured.timings.items():
        timings[name] = timing.record() | {
            "tflops": round(tflops(work.operations, timing.median_us), 3),
            "relative_error": errors[name].relative_error,
        }
    record = {
        "label": row.label,
        "shape": row.shape,
        "causal": row.causal,
        "note": row.note,
        "operations": work.operations,
        "bytes": work.bytes,
        "timings": timings,
        "refused": found.refused,
        "skipped": found.skipped,
        "wrong": found.wrong,
        "clocks": measured.clocks,
    }
    return record | standing(
        measured,
        [name for name in timings if name in METHODS],
        [name for name in timings if name in peers.PEERS],
        row,
    )


def standing(measured, methods: Sequence[str], rivals: Sequence[str], row: Row) -> dict:
    """auto against PyTorch (with intervals) and against the best of our own methods.

    best_peer is the fastest of all peers; best_backend that of scaled_dot_product_attention alone.
    """
    backends = [name for name in rivals if name in peers.BACKENDS]
    groups = {"best_peer": rivals, "best_backend": backends, "best_method": methods}
    found: dict = {key: measured.fastest(names) if names else None for key, names in groups.items()}
    if AUTO not in measured.timings:
        return found
    b, h, n, d = row.shape
    found["auto_picks"] = pick(AUTO, Problem(b * h, n, n, d, h, h, row.causal), "gpu")
    for key in ("peer", "backend"):
        if best := found[f"best_{key}"]:
            found[f"ratio_{key}"] = measured.ratio(AUTO, best).record()
    if methods:
        auto, best = (measured.timings[n].median_us for n in (AUTO, found["best_method"]))
        found["auto_over_best"] = round(auto / best, 4)
        found["auto_within_margin"] = auto <= AUTO_MARGIN * best
    return found


# -- a whole suite ---------------------------------------------------------------------------------
def contestants(chosen: Iterable[str] | None = None) -> tuple[str, ...]:
    """The names to run: those chosen, else every method, auto, and the peers where there are any.

    Raises:
        ValueError: an unknown name; lists those there are.
    """
    known = (*METHODS, AUTO, *peers.PEERS)
    if chosen is not None:
        chosen = tuple(dict.fromkeys(chosen))
        for name in chosen:
            if name not in known:
                raise ValueError(f"no method or peer {name!r}; there are: {', '.join(known)}")
        return chosen
    return known if peers.available() else (*METHODS, AUTO)


def run_suite(
    name: str,
    *,
    methods: Iterable[str] | None = None,
    iterations: int = 60,
    warmup: int = 10,
    progress: Callable[[Iterable], Iterable] = iter,
) -> dict:
    """Run a suite and return its record (see :mod:`.results`).

    progress: wraps the rows, as tqdm does.

    Raises:
        KeyError: no such suite. ValueError: no such method. TimingError: no GPU.
    """
    suite = SUITES[name]
    require_gpu()
    names = contestants(methods)
    start = time.perf_counter()
    with ClockWatch() as watch:
        rows = [
            run_row(row, names, iterations=iterations, warmup=warmup)
            for row in progress(suite.rows)
        ]
    rules = {"too_slow": TOO_SLOW, "row_seconds": ROW_SECONDS, "auto_margin": AUTO_MARGIN}
    return records.new_record(
        f"bench_{name}",
        kernel_files(names, suite),
        suite=name,
        about=suite.about,
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
        found |= {step(number).file for parts in PIPELINES.values() for number, _ in parts}
    if AUTO in names:
        found |= {row.file for name in METHODS for row in steps_of(name)}
    return sorted(found)


def problems(record: dict) -> list[str]:
    """What a suite's record should not hold: wrong outputs of ours, auto beyond its margin."""
    found = []
    for row in record["rows"]:
        for name, message in row["wrong"].items():
            if name not in peers.PEERS:
                found.append(f"{row['label']}: {message}")
        if row.get("auto_within_margin") is False:
            found.append(
                f"{row['label']}: auto takes {row['auto_over_best']:.2f} times the "
                f"{row['best_method']} method"
            )
    return found
