"""Single-kernel attention and the attempts beside it, timed in turns on large head dimensions.

The shapes are those of a report that called online softmax its main gain and gave up several other
attempts: here each of them is a contestant, with the blocks, registers and shared memory of its
launch. Blocks and shared memory are computed for any device; times come from a GPU or its record.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from math import prod

from kernelscope.errors import UnknownNameError

from attn_course.ladder.choose import current_device
from attn_course.ladder.methods import METHODS
from attn_course.ladder.steps import EXPERIMENTS, Device, Problem, ceil_div, step

from . import records
from .contestants import Kernels, Part
from .contests import Shape, hold_contest, shape_label
from .timing import ClockWatch, require_gpu

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
ROW_METHODS = """
    rows_atomic rows_warp rows_online flash_rows flash_fp32 flash_async flash_split rows_split
""".split()

Options = tuple[str, ...]
Variants = Mapping[str, tuple[str, Options]]  # contestant -> (file, compiler options)


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
    launch = step(file).launch(Problem(b * h, n, n, d, h, h), options, device)
    blocks, sms = prod(launch.grid), (device or Device()).sm_count
    return Placement(blocks, prod(launch.block), launch.shared_bytes, min(blocks, sms), sms)


def online_blocks(m: int, keys: int | None = None) -> int:
    """Blocks of keys that online softmax takes one after the other; keys: 09's own when None."""
    return ceil_div(m, keys or step("rows_online").constants()["KEYS"])


# -- measuring -------------------------------------------------------------------------------------
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
    result = hold_contest(shape, makers, keys=keys, iterations=iterations)
    return {
        "shape": shape,
        "refused": result.entrants.refused,
        "wrong": result.entrants.wrong,
        "contestants": result.facts(),
    }


def report(found: dict) -> str:
    """Return each shape's times, and where each contestant's blocks go."""
    lines = []
    for row in (*found["rows"], found["tiles"]):
        lines.append(shape_label(row["shape"]))
        for name, one in row["contestants"].items():
            lines.append(
                f"  {name:<30} {one['median_us']:10.2f} us  {one['registers']:3} registers, "
                f"{one['blocks']} blocks, {one['resident_blocks']} on an SM"
            )
        lines += [f"  {name:<30} refused: {reason}" for name, reason in row["refused"].items()]
    return "\n".join(lines)


# -- reading a record ------------------------------------------------------------------------------
@dataclass(frozen=True)
class RecordedTimes:
    """Medians in microseconds, contestants of one shape, and where they come from."""

    median_us: dict[str, float]
    caption: str


def row_of(found: dict, shape: Shape) -> dict:
    """Return a record's row of one shape. KeyError: it has none."""
    for row in (*found["rows"], found["tiles"]):
        if tuple(row["shape"]) == tuple(shape):
            return row
    raise UnknownNameError(f"no row of shape {shape} in this record")


def times(shape: Shape, found: dict | None, suite: dict | None) -> RecordedTimes | None:
    """Return medians by kernel name for a shape: of an experiments record, else of a suite's.

    Contestants of either were timed in turns, so their ratios compare; the two records were made in
    different runs and are never mixed. None where neither has the shape.
    """
    if found is not None:
        row = row_of(found, shape)["contestants"]
        return RecordedTimes(records.medians_us(row), records.caption(found))
    for row in records.rows_of(suite, shape) if suite else ():
        if not row["causal"]:
            return RecordedTimes(records.medians_us(row["timings"]), records.caption(suite))
    return None
