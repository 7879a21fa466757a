"""The ladder: one row a step, from a thread a score upwards.

A row says which file and entry point a step is, how it is launched and which buffers it reads
and writes. What a step is about stands in its file's header and is read from there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import MappingProxyType

from kernelscope.compile import file_stamp
from kernelscope.errors import InputError, UnknownNameError

from attn_course.reference.dtypes import HALVES, TOLERANCES

from .headers import Header, chosen_constants, kernel_path, read_constants, read_header
from .matrix_tiles import (
    MATRIX_TILES,
    decode_bytes,
    decode_cluster_bytes,
    decode_cluster_config,
    decode_config,
    matrix_config,
    matrix_rows,
)
from .problem import LARGEST_D, MAX_GRID_YZ, ROW_KEYS, Device, Geometry, Problem, ceil_div, refuse
from .tiles import flash_shared_bytes, joined_bytes, row_config, split_shared_bytes, tile_config
from .warpgroup_tiles import (
    HALVES_COLUMNS,
    HALVES_ELEMENTS,
    HALVES_ROWS,
    fp16x3_bytes,
    fp16x3_config,
    halves_config,
    wgmma_bytes,
    wgmma_config,
    wgmma_rows,
)

__all__ = [
    "EXPERIMENTS",
    "LADDER",
    "LARGEST_D",
    "ROW_KEYS",
    "Device",
    "Geometry",
    "Problem",
    "Step",
    "step",
]

LONG_ROW = 1024  # from this many keys on, a block shares a row of the softmax, not a warp

GeometryRule = Callable[[str, Problem, Mapping[str, int]], Geometry]
ScratchRule = Callable[[Geometry, Problem], Mapping[str, tuple[int, ...]]]
Tuning = Callable[[Problem, Device], Mapping[str, int]]


@dataclass(frozen=True)
class Step:
    """One step of the ladder.

    Attributes:
        number: place in the course; an experiment has that of the step it starts from.
        file: kernel file without folder and ending, ``"02_scores_tiled"``.
        entry: name of the kernel inside the file.
        computes: the formula, for tables.
        arguments: buffers and scalars in the kernel's order; see :class:`Problem`.
        writes: the buffers among them that the kernel writes.
        geometry: (entry, problem, constants) -> Geometry.
        tune: (problem, device) -> values for the file's constants; None: its defaults.
        relative: the relative error to float64 that its precision allows, where that is more than
            the dtype's.
        dtypes: of q, k, v and out, names in DTYPES; the usual one first.
        maps: buffers that the kernel takes as tensor maps, in boxes of 64 columns: name -> rows of
            a box, or the constant that says how many.
        flags: compiler options that the file needs.
        scratch: (geometry, problem) -> shapes of buffers that only the step uses, by name.
        before: a step that is launched first, and writes what this one reads besides; or None.
        place: another file that is launched as this step's is: a broken kernel, a clean twin.
        text: what is compiled in place of the file; headers are those beside the file.
    """

    number: int
    file: str
    entry: str
    computes: str
    arguments: tuple[str, ...]
    writes: tuple[str, ...]
    geometry: GeometryRule = field(repr=False)
    tune: Tuning | None = field(default=None, repr=False)
    relative: float = 0.0
    dtypes: tuple[str, ...] = ("float32",)
    maps: Mapping[str, int | str] = field(default_factory=dict, repr=False, hash=False)
    flags: tuple[str, ...] = ()
    scratch: ScratchRule | None = field(default=None, repr=False)
    before: "Step | None" = field(default=None, repr=False)
    place: Path | None = None
    text: str | None = field(default=None, repr=False)

    @cached_property
    def path(self) -> Path:
        return self.place or kernel_path(self.file)

    @cached_property
    def header(self) -> Header:
        return read_header(self.path)

    @property
    def idea(self) -> str:
        return self.header.idea

    @property
    def needs(self) -> str:
        return self.header.needs

    @property
    def edited(self) -> tuple:
        """When the file and its headers last changed: an edited kernel is another kernel."""
        return file_stamp(self.path)

    def taken(self, problem: Problem) -> Problem:
        """Return the problem in a dtype that the step takes: its own, else the step's usual one."""
        if problem.dtype in self.dtypes:
            return problem
        return replace(problem, dtype=self.dtypes[0])

    def tolerance(self, dtype: str) -> float:
        """Return the relative error to float64 that the step is allowed with inputs of a dtype."""
        return max(self.relative, TOLERANCES[dtype])

    def constants(self, options: Sequence[str] = ()) -> dict[str, int]:
        """Return the file's ``#ifndef`` constants, as options ``-DNAME=value`` set them."""
        defaults = read_constants(self.path if self.text is None else self.text)
        return defaults | chosen_constants(defaults, options)

    def launch(
        self, problem: Problem, options: Sequence[str] = (), device: Device | None = None
    ) -> Geometry:
        """Return the geometry for a problem, with the constants tuned for it.

        problem: taken() is applied to it.
        options: compiler options; a constant that they set wins over the tuning.
        device: where the kernel runs; the simulator when None.

        Raises:
            ValueError: an extent that the step or a grid can not hold, and which step can.
        """
        return _launch(self, self.taken(problem), tuple(options), device or Device(), self.edited)


def launched(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return steps and what is launched before each."""
    return tuple(one for step in steps for one in (step.before, step) if one)


@lru_cache(maxsize=512)
def _launch(
    row: Step, problem: Problem, options: tuple[str, ...], device: Device, edited: tuple
) -> Geometry:
    """Step.launch(), worked out once for equal arguments."""
    defaults = row.constants()
    tuned = row.tune(problem, device) if row.tune else {}
    chosen = {**tuned, **chosen_constants(defaults, options)}
    if (blocks := chosen.get("CLUSTER", 1)) not in (1, 2, 4, 8):
        raise InputError(f"{row.entry}: CLUSTER is {blocks}; a cluster has 1, 2, 4 or 8 blocks")
    try:
        geometry = row.geometry(row.entry, problem, defaults | chosen)
    except ZeroDivisionError:
        zeros = " and ".join(name for name, value in chosen.items() if value == 0)
        if not zeros:
            raise
        raise InputError(f"{row.entry} cannot be launched with {zeros} = 0") from None
    return replace(geometry, constants=MappingProxyType(chosen))


def _tiles(columns: str, elements: int = 1) -> GeometryRule:
    """TILE x TILE threads, each with elements x elements of (BH, n, columns)."""

    def geometry(entry, problem, constants):
        tile, extent = constants["TILE"], getattr(problem, columns)
        side = elements * tile
        grid = (ceil_div(extent, side), ceil_div(problem.n, side), problem.bh)
        return Geometry(entry, grid, (tile, tile, 1))

    return geometry


def _thread_a_row(entry, problem, constants):
    threads = constants["THREADS"]
    return Geometry(entry, (ceil_div(problem.bh * problem.n, threads), 1, 1), (threads, 1, 1))


def _warp_or_block_a_row(entry, problem, constants):
    rows, warps = problem.bh * problem.n, constants["WARPS"]
    if problem.m >= LONG_ROW:
        return Geometry("softmax_block", (rows, 1, 1), (32, warps, 1))
    return Geometry(entry, (ceil_div(rows, warps), 1, 1), (32, warps, 1))


def _block_a_row(floats: Callable[[Problem, Mapping[str, int]], int]) -> GeometryRule:
    """A block for each QUERIES rows, or for each; `floats` says how many it keeps in shared memory.

    The bytes are rounded up to four floats: ptxas may read four at once.
    """

    def geometry(entry, problem, constants):
        tiles = ceil_div(problem.n, constants.get("QUERIES", 1))
        threads = constants.get("THREADS") or 32 * constants["WARPS"]
        shared_bytes = 16 * ceil_div(floats(problem, constants), 4)
        return Geometry(entry, (problem.bh * tiles, 1, 1), (threads, 1, 1), shared_bytes)

    return geometry


def _scores_of_a_row(entry, problem, constants):
    if problem.m > ROW_KEYS:
        refuse(
            entry,
            f"{problem.m} keys",
            f"{ROW_KEYS}: a row's scores are in 48 KB of shared memory",
            "rows_online, which keeps no scores",
        )
    return _block_a_row(lambda p, c: p.m)(entry, problem, constants)


def _grid_of_row_tiles(entry, problem, constants, rows):
    if problem.n > MAX_GRID_YZ * rows:
        refuse(
            entry,
            f"{problem.n} queries",
            f"{MAX_GRID_YZ * rows} in tiles of {rows}",
            "rows_online, which puts them on grid x"
            + (", with float32 arrays" if problem.dtype != "float32" else ""),
        )
    return (constants.get("CLUSTER", 1) * problem.bh, ceil_div(problem.n, rows), 1)


def _split(entry, problem, constants):
    width = constants["CLUSTER"] * constants["COLS"] * 32 * constants["WARPS"]
    if problem.d > width:
        refuse(
            entry,
            f"head dim {problem.d}",
            f"{width} with {dict(constants)}",
            "rows_online, which has no such limit",
        )
    grid = _grid_of_row_tiles(entry, problem, constants, 4 * constants["ROWS"])
    shared_bytes = split_shared_bytes(constants)
    return Geometry(entry, grid, (32 * constants["WARPS"], 1, 1), shared_bytes)


def _warp_a_row(entry, problem, constants):
    _refuse_wide_heads(entry, problem, constants)
    grid = _grid_of_row_tiles(entry, problem, constants, constants["WARPS"])
    return Geometry(entry, grid, (32 * constants["WARPS"], 1, 1))


def _refuse_wide_heads(entry, problem, constants):
    if problem.d > min(constants["D"], LARGEST_D):
        refuse(
            entry,
            f"head dim {problem.d}",
            f"{min(constants['D'], LARGEST_D)}",
            "flash_tf32x3, which takes more"
            if problem.d <= LARGEST_D
            else "rows_split or rows_online, which take more"
            + (", with float32 arrays" if problem.dtype != "float32" else ""),
        )


def _flash(entry, problem, constants):
    _refuse_wide_heads(entry, problem, constants)
    joined = entry == "split_tf32x3"
    rows = (16 if joined else 4 * constants["ROWS"]) * constants["ROW_WARPS"]
    grid = _grid_of_row_tiles(entry, problem, constants, rows)
    threads = 32 * constants["ROW_WARPS"] * constants["KEY_WARPS"]
    shared_bytes = (joined_bytes if joined else flash_shared_bytes)(constants)
    return Geometry(entry, grid, (threads, 1, 1), shared_bytes)


def _matrices(entry, problem, constants):
    _refuse_wide_heads(entry, problem, constants)
    grid = _grid_of_row_tiles(entry, problem, constants, matrix_rows(constants))
    threads = 32 * constants["WARPS"]
    shared_bytes = MATRIX_TILES[entry].shared_bytes(constants)
    return Geometry(entry, grid, (threads, 1, 1), shared_bytes)


def _warpgroups(shared_bytes: Callable[[Mapping[str, int]], int]) -> GeometryRule:
    """At most a block a multiprocessor: each takes tile after tile."""

    def geometry(entry, problem, constants):
        _refuse_wide_heads(entry, problem, constants)
        tiles = problem.bh * ceil_div(problem.n, wgmma_rows(constants))
        grid = (min(tiles, constants["BLOCKS"]), 1, 1)
        threads = 128 * (constants["GROUPS"] + 1)
        return Geometry(entry, grid, (threads, 1, 1), shared_bytes(constants))

    return geometry


def _split_keys(entry, problem, constants):
    """A block a tile of K, and one a tile of V."""
    _refuse_wide_heads("flash_fp16x3", problem, constants)
    tiles = ceil_div(problem.m * constants["D"], HALVES_ELEMENTS)
    grid = (problem.kv_matrices * tiles, 2, 1)
    return Geometry(entry, grid, (constants["THREADS"], 1, 1))


def _halves_scratch(geometry, problem):
    """Tiles of K and V as halves."""
    rows = geometry.grid[0] // problem.kv_matrices * HALVES_ROWS
    return {"halves": (2, problem.kv_matrices, rows, HALVES_COLUMNS)}


def _decode(entry, problem, constants):
    """No more blocks than there are tiles, of 16 keys a warp."""
    _refuse_wide_heads(entry, problem, constants)
    tiles = problem.kv_matrices * ceil_div(problem.m, 16 * constants["WARPS"])
    of_rows = ceil_div(problem.rows_a_head, 16)
    most = max(1, constants["BLOCKS"] // of_rows)
    grid = (min(most, ceil_div(tiles, constants["FEWEST"])), of_rows, 1)
    return Geometry(entry, grid, (32 * constants["WARPS"], 1, 1), decode_bytes(constants))


def _decode_cluster(entry, problem, constants):
    """A cluster a head of K and V, and for each 16 rows of it."""
    _refuse_wide_heads(entry, problem, constants)
    blocks = problem.kv_matrices * constants["CLUSTER"]
    grid = (blocks, ceil_div(problem.rows_a_head, 16), 1)
    return Geometry(entry, grid, (32 * constants["WARPS"], 1, 1), decode_cluster_bytes(constants))


def _decode_scratch(geometry, _):
    blocks = geometry.grid[0] * geometry.grid[1]
    parts = (blocks, 2, 16, geometry.constants["D"] + 8)
    return {"parts": parts, "arrivals": (blocks,)}


_SCORES = "q k s n m d"
_ATTENTION = "q k v bias out lse heads kv_heads n m d bias_batch bias_head scale causal"
FUSED = "out = softmax(scale q k^T + bias) v"


def _step(number, file, computes, arguments, writes, geometry, **more) -> Step:
    """A step whose kernel bears the file's name; arguments and writes separated by blanks."""
    entry = file.rpartition("/")[2].lstrip("0123456789_")
    names = tuple(arguments.split()), tuple(writes.split())
    return Step(number, file, entry, computes, *names, geometry, **more)


def _fused(number, file, geometry, tune=None, **how) -> Step:
    """A step that does all of attention in one kernel."""
    how["tune"] = tune
    return _step(number, file, FUSED, _ATTENTION, "out", geometry, **how)


def _tiled(number, file, geometry) -> Step:
    """A step that is launched with the tile of a list that suits the problem."""
    return _fused(number, file, geometry, partial(tile_config, file.lstrip("0123456789_")))


def _of_matrices(number, file, dtypes) -> Step:
    """A step whose products run on tensor cores."""
    tune = partial(matrix_config, file.lstrip("0123456789_"))
    return _fused(number, file, _matrices, tune, dtypes=dtypes)


SPLIT_HALVES = _step(
    32,
    "32_split_halves",
    "halves = k, v",
    "k v halves batch kv_heads m d",
    "halves",
    _split_keys,
    tune=halves_config,
    scratch=_halves_scratch,
)

LADDER = (
    _step(1, "01_scores_naive", "s = q k^T", _SCORES, "s", _tiles("m")),
    _step(2, "02_scores_tiled", "s = q k^T", _SCORES, "s", _tiles("m")),
    _step(3, "03_scores_register_blocked", "s = q k^T", _SCORES, "s", _tiles("m", 4)),
    _step(
        4,
        "04_softmax_output_serial",
        "s = softmax(scale s), out = s v",
        "s v out rows n m d scale",
        "s out",
        _thread_a_row,
    ),
    _step(
        5, "05_softmax_warp", "p = softmax(scale s)", "s p rows m scale", "p", _warp_or_block_a_row
    ),
    _step(6, "06_output_tiled", "out = p v", "p v out n m d", "out", _tiles("d")),
    _fused(7, "07_rows_atomic", _scores_of_a_row),
    _fused(8, "08_rows_warp", _scores_of_a_row),
    _fused(9, "09_rows_online", _block_a_row(lambda p, c: p.d)),
    _fused(10, "10_flash_rows", _warp_a_row, row_config),
    _tiled(11, "11_flash_fp32", _flash),
    _tiled(12, "12_flash_async", _flash),
    _of_matrices(13, "13_flash_wmma", HALVES),
    _of_matrices(14, "14_flash_mma", HALVES),
    _of_matrices(15, "15_flash_tf32x3", ("float32",)),
    _step(
        18,
        "18_flash_wgmma",
        FUSED,
        "q k v out lse bh heads kv_heads n m scale causal",
        "out",
        _warpgroups(wgmma_bytes),
        tune=wgmma_config,
        dtypes=HALVES,
        maps={"q": 64, "k": "BC", "v": "BC", "out": 64},
        flags=("-arch=sm_90a",),
    ),
    _tiled(19, "19_flash_split", _flash),
    _tiled(20, "20_rows_split", _split),
    _step(
        23,
        "23_decode",
        FUSED,
        "q k v lengths page_table out lse parts arrivals batch heads kv_heads n m d page"
        " head_stride key_stride scale causal",
        "out",
        _decode,
        tune=decode_config,
        dtypes=HALVES,
        scratch=_decode_scratch,
    ),
    _tiled(29, "29_split_tf32x3", _flash),
    _step(
        33,
        "33_flash_fp16x3",
        FUSED,
        "q halves out lse bh heads kv_heads n m d scale causal",
        "out",
        _warpgroups(fp16x3_bytes),
        tune=fp16x3_config,
        maps={"halves": HALVES_ROWS},
        flags=("-arch=sm_90a",),
        before=SPLIT_HALVES,
    ),
    _step(
        34,
        "34_decode_cluster",
        FUSED,
        "q k v lengths page_table out lse heads kv_heads n m d page head_stride key_stride scale"
        " causal",
        "out",
        _decode_cluster,
        tune=decode_cluster_config,
        dtypes=HALVES,
    ),
)

# Attempts that did not pay or did not launch, done right: they run, so they can be measured.
EXPERIMENTS = (
    _fused(8, "experiments/wide_vectors", _scores_of_a_row),
    _fused(8, "experiments/register_tile", _scores_of_a_row),
    _fused(9, "experiments/multi_query", _block_a_row(lambda p, c: c["QUERIES"] * p.d)),
    _fused(
        9,
        "experiments/half2_tiles",
        _block_a_row(lambda p, c: c["QUERIES"] * p.m),
        relative=2e-3,
    ),
    _fused(
        9,
        "experiments/replicated_queries",
        _block_a_row(lambda p, c: (c["COPIES"] + c["KEYS"]) * (p.d + c["PAD"]) + p.d),
    ),
    _fused(
        9,
        "experiments/double_buffer_rows",
        _block_a_row(lambda p, c: 4 * c["KEYS"] * (p.d + c["PAD"]) + p.d),
    ),
    _fused(9, "experiments/double_buffer_slices", _block_a_row(lambda p, c: p.d)),
)


def step(which: int | str) -> Step:
    """A step by number, file name or entry point; an experiment by file name or entry point.

    Raises:
        KeyError: lists the ladder.
    """
    for row in (*LADDER, SPLIT_HALVES):
        if which in (row.number, row.file, row.entry):
            return row
    for row in EXPERIMENTS:
        if which in (row.file, row.entry):
            return row
    raise UnknownNameError(
        f"no step {which!r}; the ladder has {', '.join(row.file for row in LADDER)}"
    )
