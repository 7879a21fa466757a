"""Fused kernels in lessons 08 to 10 and 15: runs, traces, shared memory and records."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from kernelscope import Counters, InstructionEvent, Observer, RawModule, Tracer, observe
from kernelscope.errors import InputError

from attn_course.figures import table
from attn_course.ladder.call import compiled, run_steps
from attn_course.ladder.problem import Device, ceil_div
from attn_course.ladder.steps import Problem, step
from attn_course.ladder.tiles import parsed_label
from attn_course.measure.contests import Shape, shape_label
from attn_course.measure.experiments import RecordedTimes


# -- runs ------------------------------------------------------------------------------------------
def run(
    which: int | str,
    q,
    k,
    v,
    *observers: Observer,
    options: Sequence[str] = (),
    scale: float | None = None,
    causal: bool = False,
    heads: int = 1,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    """Run one fused kernel on the simulator and return its output (BH, n, d).

    q: (BH, n, d), k and v: (BH_kv, m, d), float32. heads: query heads of a batch element, needed
    where k has fewer heads. bias: (heads, n, m).
    """
    (bh, n, d), m = q.shape, k.shape[1]
    strides = (0, n * m) if bias is not None else (0, 0)
    problem = Problem(bh, n, m, d, heads, k.shape[0] * heads // bh, causal, strides)
    buffers = {"q": q, "k": k, "v": v} | ({} if bias is None else {"bias": bias})
    scale = d**-0.5 if scale is None else scale
    with observe(*observers):
        found = run_steps(
            [step(which)], buffers, scale, backend="simulator", options=options, problem=problem
        )
    return found["out"]


def counts(which: int | str, q, k, v, **options) -> dict[str, int]:
    """Return the totals of Counters for one :func:`run`."""
    seen = Counters()
    run(which, q, k, v, seen, **options)
    return seen.totals


def ptx_counts(which: int | str, opcodes: Iterable[str], options: Sequence[str] = ()) -> dict:
    """Return the number of instructions in a kernel's PTX that begin with each name."""
    text = RawModule(path=str(step(which).path), options=options, backend="simulator").ptx()
    words = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    first = [part[1] if part[0].startswith("@") and len(part) > 1 else part[0] for part in words]
    return {name: sum(word.startswith(name) for word in first) for name in opcodes}


@dataclass(frozen=True)
class ClusterUse:
    """Counts of a launch: blocks, sectors loaded from global memory, warp-level accesses through
    the cluster, and waits of each block at a barrier of the cluster.
    """

    blocks: int
    sectors: int
    requests: int
    waits: int


def cluster_use(
    which: int | str, q, k, v, options: Sequence[str] = (), device: Device | None = None
) -> ClusterUse:
    """Run one fused kernel and count; shapes as in :func:`run`.

    device: its tiles are used, the simulator's when None; `options` override them.
    """
    (bh, n, d), m = q.shape, k.shape[1]
    launch = step(which).launch(Problem(bh, n, m, d), options, device)
    seen, waits = Counters(), _ClusterWaits()
    run(which, q, k, v, seen, waits, options=launch.options(options))
    warps = prod(launch.grid) * ceil_div(prod(launch.block), 32)
    totals = seen.totals
    return ClusterUse(
        prod(launch.grid),
        totals["global_load_sectors"],
        totals["cluster_shared_requests"],
        waits.count // warps,
    )


class _ClusterWaits(Observer):
    """Count the waits of warps at a barrier of their cluster."""

    count = 0

    def instruction(self, event: InstructionEvent) -> None:
        if event.instruction.opcode.startswith("barrier.cluster.wait"):
            self.count += np.unique(event.lanes >> 5).size


# -- traces ----------------------------------------------------------------------------------------
def key_blocks(trace: Tracer) -> list[dict]:
    """Return the state after each block of keys in a trace of kernel 09.

    One dict a block: key0, scores (keys,), old_m and new_m, rescale, old_l and row_l, all under
    the kernel's names, and o (d,), the undivided output.
    """
    recording = trace.recording
    starts = recording.history("key0")
    found, old_m, old_l = [], -np.inf, 0.0
    for (_, key0), (end, _) in zip(starts, starts[1:], strict=False):
        names = ("new_m", "rescale", "row_l", "count")
        here = {name: _last(recording, name, end) for name in names}
        shared = recording.shared_at(end)
        scores = np.asarray(shared["score"])[: int(here.pop("count"))]
        before = {"key0": int(key0), "scores": scores, "old_m": old_m, "old_l": old_l}
        found.append(before | here | {"o": np.asarray(shared["o"])})
        old_m, old_l = here["new_m"], here["row_l"]
    return found


def _last(recording, name: str, end: int, thread: int = 0) -> float:
    """Return the value that a variable of a thread has before a step."""
    values = [value for at, value in recording.history(name, thread) if at < end]
    return float(np.ravel(values[-1])[0])


def key_parts(q, k, v, cluster: int, options: Sequence[str] = ()) -> list[dict]:
    """Return the part of row 0 that each block of kernel 19's first cluster finds, from traces.

    options: with one warp a block. One dict a block: tiles (first keys), row_m and row_l, before
    the blocks join them.
    """
    traces = [Tracer(block=(rank, 0, 0)) for rank in range(cluster)]
    run(19, q, k, v, *traces, options=(*options, f"-DCLUSTER={cluster}"))
    found = []
    for trace in traces:
        history = trace.recording.history
        starts = [int(key0) for _, key0 in history("key0")]
        last = {name: float(np.ravel(history(name)[-1][1])[0]) for name in ("row_m", "row_l")}
        found.append({"tiles": starts[:-1], **last})  # the last key0 ends the loop
    return found


# -- source and shared memory ----------------------------------------------------------------------
def loop_changes(before: str, after: str) -> tuple[int, list[str]]:
    """Return the number of places where two kernels' code differs, and the diff of the places
    inside the key loop of `after`. Comments at the top of a file do not count.

    Raises:
        ValueError: `after` has no loop `for (int key0 ..` at the function's own level.
    """
    old, new = (
        step(name).path.read_text(encoding="utf-8").splitlines() for name in (before, after)
    )
    start = next((at for at, line in enumerate(new) if line.startswith("    for (int key0")), None)
    if start is None:
        raise InputError(f"{after} has no loop over key0")
    stop = new.index("    }", start)
    code = next(at for at, line in enumerate(new) if line and not line.startswith("//"))
    changes = difflib.SequenceMatcher(None, old, new).get_opcodes()
    places = [place for place in changes if place[0] != "equal" and place[3] >= code]
    inside = [
        "\n".join([*("-" + line for line in old[a:b]), *("+" + line for line in new[c:d])])
        for _, a, b, c, d in places
        if start < c < stop
    ]
    return len(places), inside


def shared_need(which: str, d: int, options: Sequence[str] = (), n: int = 64) -> int:
    """Return the shared memory in bytes, static and dynamic, of a kernel's block at a head dim."""
    row = step(which)
    kernel = compiled(row.path, tuple(options), entry=row.entry, backend="simulator")
    return row.launch(Problem(1, n, n, d), options).shared_bytes + kernel.shared_size_bytes


def largest_dim(which: str, budget: int, options: Sequence[str] = (), step_of: int = 4) -> int:
    """Return the largest head dim, a multiple of step_of, whose block fits a budget in bytes."""
    low, high = 0, 1 << 16
    while high - low > step_of:
        middle = (low + high) // 2 // step_of * step_of
        fits = shared_need(which, middle, options) <= budget
        low, high = (middle, high) if fits else (low, middle)
    return low


# -- records ---------------------------------------------------------------------------------------
def time_table(found: Mapping[Shape, RecordedTimes | None], names: Sequence[str]) -> str:
    """Return the medians in microseconds, a row a contestant, a column a shape, with a caption."""
    present = {shape: one for shape, one in found.items() if one is not None}
    if not present:
        return "no record of these times yet"
    columns = [one.median_us for one in present.values()]
    rows = [(name, *(f"{us[name]:.1f}" if name in us else "-" for us in columns)) for name in names]
    heads = ("recorded medians, us", *map(shape_label, present))
    caption = next(iter(present.values())).caption
    return f"{table(heads, rows, range(1, len(heads)))}\n{caption}"


def tile_times(record: dict, shape: Shape, keys: int) -> list[tuple[str, dict, int, float]]:
    """Return (method, constants, blocks, microseconds) of every tile timed on a problem.

    Raises:
        KeyError: the record does not have the problem.
    """
    rows = {(tuple(row["shape"]), row["keys"]): row for row in record["rows"]}
    return [
        (*parsed_label(name), one["blocks"], one["median_us"])
        for name, one in rows[tuple(shape), keys]["contestants"].items()
    ]


def split_rows(record: dict, shape: Shape) -> dict[int, tuple[int, int, float]]:
    """Return rows a cluster -> (clusters, blocks, microseconds) of rows_split, most rows first.

    Only tiles with as many keys as the fastest tile: they differ in the rows alone.
    """
    found = [one for one in tile_times(record, shape, shape[2]) if one[0] == "rows_split"]
    keys = min(found, key=lambda one: one[3])[1]["KEYS"]
    rows = {
        4 * c["ROWS"]: (blocks // c["CLUSTER"], blocks, time)
        for _, c, blocks, time in found
        if c["KEYS"] == keys
    }
    return dict(sorted(rows.items(), reverse=True))


def sharing(record: dict, shape: Shape, keys: int) -> dict[int, tuple[int, float, str]]:
    """Return cluster size -> (blocks, microseconds, tile) of the fastest tile of that size.

    Size 1 is kernel 12, larger ones are kernel 19. tile: ROWS x KEYS scores a thread, warps along
    the rows x warps along the keys. Different tiles differ in more than the sharing.
    """
    best: dict[int, tuple[int, float, str]] = {}
    for method, c, blocks, time in tile_times(record, shape, keys):
        if method not in ("flash_async", "flash_split"):
            continue
        cluster = c.get("CLUSTER", 1)
        if cluster not in best or time < best[cluster][1]:
            tile = f"{c['ROWS']}x{c['KEYS']}, {c['ROW_WARPS']}x{c['KEY_WARPS']}"
            best[cluster] = (blocks, time, tile)
    return dict(sorted(best.items()))
