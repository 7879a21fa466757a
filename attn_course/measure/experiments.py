"""Single-kernel attention and the attempts beside it, timed in turns on large head dimensions.

The shapes are those of a report that called online softmax its main gain and gave several other
attempts up: here each of them is a contestant, with what a launch of it occupies. What needs no
GPU (blocks, shared memory) is computed for any device; times come from one, or from its record.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from math import prod

import numpy as np

from attn_course.engine.backend import BackendError, resolve_backend
from attn_course.ladder.attention import METHODS, problem_of
from attn_course.ladder.call import kernel_for
from attn_course.ladder.choose import current_device
from attn_course.ladder.steps import EXPERIMENTS, Device, Problem, ceil_div, step
from attn_course.reference.comparison import compare
from attn_course.reference.inputs import seeded_qkv

from .records import caption, new_record, records
from .suites import Ours, Shape, estimate_us, float64_attention, turns_for
from .timing import ClockWatch, GpuClock, calls_for, capture, contest, require_gpu

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
ROW_METHODS = (
    "rows_atomic",
    "rows_warp",
    "rows_online",
    "flash_rows",
    "flash_fp32",
    "flash_async",
    "flash_split",
    "rows_split",
)

Options = tuple[str, ...]


def _variants() -> dict[str, tuple[str, Options]]:
    """Contestant -> (file, compiler options)."""
    found: dict[str, tuple[str, Options]] = {
        step(METHODS[name][0]).entry: (step(METHODS[name][0]).file, ()) for name in ROW_METHODS
    }
    for row in EXPERIMENTS:
        found[row.entry] = (row.file, ())
    wide = found.pop("wide_vectors")[0]
    for vectors in (4, 2):
        found[f"wide_vectors {4 * vectors} floats"] = (wide, (f"-DVECTORS={vectors}",))
    whole = found.pop("double_buffer_rows")[0]
    for keys in (64, 2):
        found[f"double_buffer_rows {keys} keys"] = (whole, (f"-DKEYS={keys}",))
    return found


VARIANTS = _variants()
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


def tile_options(tile: tuple[int, int, int, int], d: int = 64) -> Options:
    """Compiler options of kernels 11 and 12 for a tile and a padded head dim."""
    names = ("ROWS", "KEYS", "ROW_WARPS", "KEY_WARPS")
    given = (f"-D{name}={value}" for name, value in zip(names, tile, strict=True))
    return (f"-DD={d}", *given)


# -- what a launch occupies ------------------------------------------------------------------------
@dataclass(frozen=True)
class Placement:
    """Blocks of a launch, threads of a block, its shared memory in bytes, and the SMs it can use.

    busy_sms: at most; with fewer blocks than SMs the others have nothing to do.
    """

    blocks: int
    threads: int
    shared_bytes: int
    busy_sms: int
    sms: int


def placement(name: str, shape: Shape, device: Device | None = None) -> Placement:
    """Where a contestant's launch goes on a device, from the shapes alone; needs no GPU.

    Raises:
        KeyError: no such contestant.  ValueError: it does not take the shape.
    """
    file, options = VARIANTS[name]
    b, h, n, d = shape
    device = device or Device()
    launch = step(file).launch(Problem(b * h, n, n, d, h, h), options, device)
    blocks, threads = prod(launch.grid), prod(launch.block)
    return Placement(
        blocks, threads, launch.shared_bytes, min(blocks, device.sm_count), device.sm_count
    )


def online_blocks(m: int, keys: int | None = None) -> int:
    """Blocks of keys that online softmax takes one after the other; keys: 09's own when None."""
    return ceil_div(m, keys or step("rows_online").constants()["KEYS"])


# -- measuring -------------------------------------------------------------------------------------
def record() -> dict:
    """Every shape and every tile, as a results record. Raises TimingError where there is no GPU."""
    require_gpu()
    device = current_device("gpu")
    with ClockWatch() as watch:
        rows = [measure_shape(shape, VARIANTS) for shape in SHAPES]
        tiles = {str(tile): (step("flash_fp32").file, tile_options(tile)) for tile in TILES}
        tile_row = measure_shape(TILE_SHAPE, tiles, iterations=20)
    files = sorted({file for file, _ in VARIANTS.values()})
    return new_record(
        KIND, files, device=asdict(device), rows=rows, tiles=tile_row, clocks=watch.record()
    )


def measure_shape(
    shape: Shape,
    variants: dict[str, tuple[str, Options]],
    *,
    iterations: int = 40,
    keys: int | None = None,
) -> dict:
    """All variants on one shape: checked, then timed as graphs in turns. keys: n where None."""
    import cupy

    host = seeded_qkv(shape, kv_length=keys)
    inputs = [cupy.asarray(array) for array in host]
    cupy.cuda.Device().synchronize()
    clock, found, refused = GpuClock(), {}, {}
    for name, (file, options) in variants.items():
        try:
            one = Ours(name, [(step(file).number if "/" not in file else file, options)], *inputs)
            one.call()
        except (BackendError, ValueError) as error:
            refused[name] = str(error)
        else:
            found[name] = one
    calls = {name: calls_for(estimate_us(clock, one)) for name, one in found.items()}
    replays = {name: capture(one.call, calls[name]) for name, one in found.items()}
    errors, wrong = _checked(found, replays, float64_attention(*host, causal=False), clock)
    replays = {name: replay for name, replay in replays.items() if name not in wrong}
    sample_us = {name: clock.time_us(replay.launch) for name, replay in replays.items()}
    turns = turns_for(sample_us, iterations)
    timings = contest(replays, iterations=turns, warmup=min(5, turns), clock=clock).timings
    launches = {name: _launch_facts(found[name], inputs) for name in replays}
    return {
        "shape": shape,
        "refused": refused,
        "wrong": wrong,
        "contestants": {
            name: timings[name].record() | launches[name] | {"relative_error": errors[name]}
            for name in replays
        },
    }


def _checked(
    found: dict, replays: dict, expected: np.ndarray, clock
) -> tuple[dict[str, float], dict[str, str]]:
    """Relative error of every contestant, and what is wrong with those that disagree."""
    errors, wrong = {}, {}
    for name, one in found.items():
        one.poison()
        clock.synchronize()
        clock.time_us(replays[name].launch)  # waits for the replay
        (row,), _ = one.parts[0]
        verdict = compare(one.output(), expected, name=name, relative=row.relative)
        errors[name] = verdict.relative_error
        if not verdict.agrees:
            wrong[name] = verdict.message
    return errors, wrong


def _launch_facts(one: Ours, inputs) -> dict:
    """Grid, registers and resident blocks of a contestant's kernel, as the driver reports them."""
    import cupy

    (row,), options = one.parts[0]
    problem, device = problem_of(*inputs[:2]), current_device("gpu")
    launch = row.launch(problem, options, device)
    kernel = kernel_for(row, launch, options, "gpu")
    blocks, threads = prod(launch.grid), prod(launch.block)
    resident = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
        kernel.raw.kernel.ptr, threads, launch.shared_bytes
    )
    attributes = kernel.attributes
    return {
        "blocks": blocks,
        "threads": threads,
        "resident_blocks": resident,
        "waves": round(blocks / (max(resident, 1) * device.sm_count), 3),
        "registers": attributes["num_regs"],
        "local_bytes": attributes["local_size_bytes"],
        "shared_bytes": launch.shared_bytes + attributes["shared_size_bytes"],
    }


# -- reading a record ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Times:
    """Medians in microseconds, contestants of one shape, and where they come from."""

    median_us: dict[str, float]
    caption: str


@lru_cache(maxsize=1)
def newest_record() -> dict | None:
    """The record: made now where there is a GPU, else the newest one there is, or None."""
    if resolve_backend() == "gpu":
        return record()
    found = records(KIND)
    return found[0] if found else None


def row_of(found: dict, shape: Shape) -> dict:
    """A record's row of one shape. KeyError: it has none."""
    for row in (*found["rows"], found["tiles"]):
        if tuple(row["shape"]) == tuple(shape):
            return row
    raise KeyError(f"no row of shape {shape} in this record")


def suite_record(name: str = "seeds_fp32") -> dict | None:
    """The newest record of a benchmark suite, None where there is none."""
    found = records(f"bench_{name}")
    return found[0] if found else None


def times(shape: Shape, found: dict | None, suite: dict | None) -> Times | None:
    """Medians by kernel name for a shape: of an experiments record, else of a suite's; else None.

    Both hold contestants that were timed in turns, so their ratios compare; the two records were
    made in different runs and are never mixed.
    """
    if found is not None:
        row = row_of(found, shape)
        return Times(
            {name: one["median_us"] for name, one in row["contestants"].items()}, caption(found)
        )
    for row in suite["rows"] if suite else ():
        if tuple(row["shape"]) == tuple(shape) and not row["causal"]:
            return Times(
                {name: one["median_us"] for name, one in row["timings"].items()}, caption(suite)
            )
    return None
