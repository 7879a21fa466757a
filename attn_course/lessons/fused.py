"""Lessons 08 to 11, 15 and 16: kernels of one launch, and records of their times.

The record's shapes are those of a report that called online softmax its main gain and gave up
several other attempts: each of them takes its turns beside the ladder's kernels.
"""

import difflib
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np
from kernelscope import (
    Counters,
    InstructionEvent,
    Observer,
    RawModule,
    TensorMap,
    Tracer,
    array_module,
    asnumpy,
    observe,
    resolve_backend,
)
from kernelscope.contest import ClockWatch, require_gpu
from kernelscope.errors import InputError

from attn_course.figures import table
from attn_course.ladder.call import compiled, run_steps
from attn_course.ladder.choose import current_device
from attn_course.ladder.headers import KERNEL_FOLDER
from attn_course.ladder.methods import METHODS
from attn_course.ladder.problem import Device, ceil_div
from attn_course.ladder.steps import EXPERIMENTS, Problem, step
from attn_course.ladder.tiles import parsed_label
from attn_course.ladder.warpgroup_tiles import CAPABILITY
from attn_course.measure import records
from attn_course.measure.benchmarks import Shape, run_benchmark, shape_label
from attn_course.measure.candidates import Kernels, Part
from attn_course.reference.inputs import seeded_qkv

from .lesson06_reductions import Tally

KIND = "experiments"
# (B, H, L, D): the report's four, and one at which whole rows twice still fit into a block.
REPORT_SHAPES: tuple[Shape, ...] = (
    (1, 4, 64, 512),
    (1, 4, 64, 2048),
    (1, 4, 64, 4096),
    (1, 1, 16, 8192),
)
SHAPES: tuple[Shape, ...] = (*REPORT_SHAPES, (1, 4, 64, 64))
TILE_SHAPE: Shape = (4, 16, 2048, 64)
# (ROWS, KEYS, ROW_WARPS, KEY_WARPS) of kernel 11, by query rows a block; the last has the rows of
# the one before and half its keys.
TILES = (
    (1, 4, 1, 1),
    (2, 4, 1, 1),
    (4, 4, 1, 1),
    (8, 4, 1, 1),
    (8, 4, 2, 1),
    (8, 4, 4, 1),
    (8, 4, 8, 1),
    (8, 2, 8, 1),
)
ROW_METHODS = """
    rows_atomic rows_warp rows_online flash_rows flash_fp32 flash_async flash_split rows_split
""".split()


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


@dataclass(frozen=True)
class ClusterUse:
    """Counts of a launch: blocks, sectors loaded from global memory, bytes stored into other
    blocks, and waits of each block at a barrier of the cluster.
    """

    blocks: int
    sectors: int
    sent: int
    waits: int


class Sent(Observer):
    """Adds up the bytes that threads store into other blocks of their cluster."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def instruction(self, event: InstructionEvent) -> None:
        for access in event.accesses:
            if access.kind == "store" and access.block is not None:
                away = access.block != access.lanes // (32 * event.machine.warps_per_block)
                valid = True if access.valid is None else access.valid
                self.bytes += access.size * int(np.count_nonzero(away & valid))


def cluster_use(
    which: int | str, q, k, v, options: Sequence[str] = (), device: Device | None = None
) -> ClusterUse:
    """Run one fused kernel and count; shapes as in :func:`run`.

    device: its tiles are used, the simulator's when None; `options` override them.
    """
    (bh, n, d), m = q.shape, k.shape[1]
    launch = step(which).launch(Problem(bh, n, m, d), options, device)
    seen, tally, sent = Counters(), Tally(), Sent()
    run(which, q, k, v, seen, tally, sent, options=launch.options(options))
    warps = prod(launch.grid) * ceil_div(prod(launch.block), 32)
    return ClusterUse(
        prod(launch.grid),
        seen.totals["global_load_sectors"],
        sent.bytes,
        tally.warps["cluster waits"] // warps,
    )


# -- one block of a lesson's own kernel, for Hopper ------------------------------------------------
class Boxes(NamedTuple):
    """An array that a kernel takes as a tensor map: its boxes, and the bytes of their swizzle."""

    array: np.ndarray
    box: tuple[int, ...]
    swizzle: int = 0


def hopper_backend() -> str:
    """Return and print where kernels for sm_90a run: a GPU that takes them, else the simulator."""
    device = current_device()
    here = resolve_backend() == "gpu" and device.capability == CAPABILITY
    reason = "" if device.capability == CAPABILITY else f": {device.name} has no wgmma"
    print("kernels run on", device.name if here else "the simulator" + reason)
    return "gpu" if here else "simulator"


def run_block(
    text: str,
    *arguments,
    block: int = 128,
    options: Sequence[str] = (),
    watch: Sequence[Observer] = (),
    backend: str = "simulator",
) -> None:
    """Compile `text`, which has one kernel, for sm_90a and run one block of it.

    arguments: NumPy arrays, which the kernel may change; Boxes; numbers of NumPy. watch: observers,
    on the simulator.
    """
    options = (f"-I{KERNEL_FOLDER}", "-arch=sm_90a", *options)
    entry = re.search(r"__global__ void\s+(?:__launch_bounds__\(.*?\)\s*)?(\w+)\(", text)[1]
    kernel = RawModule(code=text, options=options, backend=backend).get_function(entry)
    xp, given, arrays = array_module(backend), list(arguments), {}
    for at, one in enumerate(arguments):
        if isinstance(one, Boxes):
            given[at] = TensorMap(xp.asarray(one.array), one.box, swizzle=one.swizzle)
        elif isinstance(one, np.ndarray):
            arrays[at] = given[at] = xp.asarray(one)
    with observe(*watch):
        kernel((1,), (block,), tuple(given))
    for at, array in arrays.items():
        arguments[at][...] = asnumpy(array)


# -- traces ----------------------------------------------------------------------------------------
def key_blocks(trace: Tracer) -> list[dict]:
    """Return the state after each block of keys in a trace of kernel 09.

    One dict a block: key0, scores (keys,), old_m and row_m, rescale, old_l and row_l, all under
    the kernel's names, and o (d,), the undivided output.
    """
    recording = trace.recording
    starts = recording.history("key0")
    found, old_m, old_l = [], -np.inf, 0.0
    for (_, key0), (end, _) in zip(starts, starts[1:], strict=False):
        names = ("row_m", "rescale", "row_l", "count")
        here = {name: _last(recording, name, end) for name in names}
        shared = recording.shared_at(end)
        scores = np.asarray(shared["score"])[: int(here.pop("count"))]
        before = {"key0": int(key0), "scores": scores, "old_m": old_m, "old_l": old_l}
        found.append(before | here | {"o": np.asarray(shared["o"])})
        old_m, old_l = here["row_m"], here["row_l"]
    return found


def _last(recording, name: str, end: int) -> float:
    """Return the value that a variable of thread 0 has before a step."""
    values = [value for at, value in recording.history(name) if at < end]
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


def groups_tracer(groups: int, limit: int = 5000) -> Tracer:
    """Return a Tracer of kernel 18 with `groups` computing warpgroups, d = 64 and 64 keys a tile.

    It keeps the variables of one thread of each warpgroup, and names tiles and mbarriers.
    limit: steps.
    """
    rings = {"K": 2, "V": 2, "Q": 2 * groups}  # stages
    parts = [(ring, rings[ring], 8192) for ring in ("Q", "K", "V")]
    parts += [(f"{ring}: {what}", rings[ring], 8) for ring in rings for what in ("full", "free")]
    names, start = {}, 0
    for name, count, size in parts:  # as they follow each other in shared memory
        names[name], start = (start, size), start + count * size
    return Tracer(threads=range(0, 128 * groups + 128, 128), names=names, limit=limit)


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


def shared_need(which: str, d: int, options: Sequence[str] = ()) -> int:
    """Return the shared memory in bytes, static and dynamic, of a kernel's block at a head dim."""
    row = step(which)
    kernel = compiled(row.path, tuple(options), entry=row.entry, backend="simulator")
    return row.launch(Problem(1, 64, 64, d), options).shared_bytes + kernel.shared_size_bytes


def largest_dim(which: str, budget: int, options: Sequence[str] = ()) -> int:
    """Return the largest head dim, a multiple of 4, whose block fits a budget in bytes."""
    dims = range(4, 1 << 16, 4)
    return 4 * bisect_right(dims, budget, key=lambda d: shared_need(which, d, options))


# -- attempts beside the ladder --------------------------------------------------------------------
Options = tuple[str, ...]
Variants = Mapping[str, tuple[str, Options]]  # candidate -> (file, compiler options)


def _variants() -> dict[str, tuple[str, Options]]:
    rows = [*(step(METHODS[name][0]) for name in ROW_METHODS), *EXPERIMENTS]
    found: dict[str, tuple[str, Options]] = {row.entry: (row.file, ()) for row in rows}
    wide = found.pop("wide_vectors")[0]
    for vectors in (4, 2):
        found[f"wide_vectors {4 * vectors} floats"] = (wide, (f"-DVECTORS={vectors}",))
    buffered = found.pop("double_buffer_rows")[0]
    for keys in (64, 2):
        found[f"double_buffer_rows {keys} keys"] = (buffered, (f"-DKEYS={keys}",))
    return found


VARIANTS = _variants()


def tile_options(tile: tuple[int, int, int, int], d: int = 64) -> Options:
    """Compiler options of kernels 11 and 12 for a tile and a padded head dim."""
    names = ("ROWS", "KEYS", "ROW_WARPS", "KEY_WARPS")
    given = (f"-D{name}={value}" for name, value in zip(names, tile, strict=True))
    return (f"-DD={d}", *given)


def online_blocks(m: int) -> int:
    """Blocks of keys that kernel 09 takes one after the other."""
    return ceil_div(m, step("rows_online").constants()["KEYS"])


def record(quick: bool = False) -> dict:
    """Return a record of every shape and every tile; quick: of the first shape, in few turns.

    Raises:
        TimingError: no GPU.
    """
    require_gpu()
    shapes, iterations = (SHAPES[:1], 5) if quick else (SHAPES, 40)
    tiles = {str(tile): (step("flash_fp32").file, tile_options(tile)) for tile in TILES}
    with ClockWatch() as watch:
        rows = [measure_shape(shape, VARIANTS, iterations=iterations) for shape in shapes]
        tile_row = measure_shape(TILE_SHAPE, tiles, iterations=min(iterations, 20))
    return records.new_record(
        KIND,
        {file for file, _ in VARIANTS.values()},
        device=asdict(current_device("gpu")),
        rows=rows,
        tiles=tile_row,
        clocks=watch.record(),
    )


def measure_shape(
    shape: Shape, variants: Variants, *, iterations: int = 40, keys: int | None = None
) -> dict:
    """Return the row of one shape: all variants, checked, then timed in turns. keys: n if None."""
    makers = {name: partial(Kernels, name, [Part(*part)]) for name, part in variants.items()}
    result = run_benchmark(seeded_qkv(shape, keys), makers, iterations=iterations)
    return {
        "shape": shape,
        "refused": result.entrants.refused,
        "wrong": result.entrants.wrong,
        "candidates": result.facts(),
    }


# -- recorded times --------------------------------------------------------------------------------
def times(record: dict, shape: Shape, **fields) -> dict[str, float]:
    """Return candidate -> median microseconds at a shape; fields and KeyError: as of row_of.

    Candidates of one record were timed in turns, so their ratios compare.
    """
    row = records.row_of(record, shape, **fields)
    return records.medians_us(row["timings" if "timings" in row else "candidates"])


def time_table(record: dict, names: Sequence[str]) -> str:
    """Return the medians at REPORT_SHAPES, a row a candidate, a column a shape, with a caption."""
    columns = [times(record, shape) for shape in REPORT_SHAPES]
    rows = [(name, *(f"{us[name]:.1f}" if name in us else "-" for us in columns)) for name in names]
    heads = ("recorded medians, us", *map(shape_label, REPORT_SHAPES))
    return f"{table(heads, rows, range(1, len(heads)))}\n{records.caption(record)}"


def tile_times(record: dict, shape: Shape, keys: int) -> list[tuple[str, dict, int, float]]:
    """Return (method, constants, blocks, microseconds) of every tile timed on a problem.

    Raises:
        KeyError: the record does not have the problem.
    """
    found = records.row_of(record, shape, keys=keys)["candidates"]
    return [(*parsed_label(name), one["blocks"], one["median_us"]) for name, one in found.items()]


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
    found = [
        one for one in tile_times(record, shape, keys) if one[0] in ("flash_async", "flash_split")
    ]
    best = {}
    for _, c, blocks, time in sorted(found, key=lambda one: -one[3]):  # the fastest comes last
        tile = f"{c['ROWS']}x{c['KEYS']}, {c['ROW_WARPS']}x{c['KEY_WARPS']}"
        best[c.get("CLUSTER", 1)] = (blocks, time, tile)
    return dict(sorted(best.items()))
