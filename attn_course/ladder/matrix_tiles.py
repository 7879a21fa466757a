"""Which constants suit a problem on a device: tiles of the kernels that use tensor cores.

Each list goes from tiles that use each element of K and V often to tiles for few blocks. Of those
that fit the device the first one that gives every multiprocessor a block is taken, else the last.
The first of a list has to give it more blocks, where that was faster: docs/mma_log.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernelscope.errors import InputError

from .problem import LARGEST_D, MAX_GRID_YZ, Device, Problem, ceil_div

Constants = dict[str, int]


@dataclass(frozen=True)
class MatrixTiles:
    """Tiles of one kernel.

    Attributes:
        names: of the constants that a tile sets.
        by_width: the tiles by the padded head dim up to which they hold.
        columns: of what the head dim is padded to a multiple.
        shared_bytes: constants -> dynamic shared memory of a block.
        first_from: blocks a multiprocessor from which the first tile is taken, without and with a
            causal mask, under which blocks differ in length.
    """

    names: tuple[str, ...]
    by_width: Mapping[int, tuple[tuple[int, ...], ...]]
    columns: int
    shared_bytes: Callable[[Mapping[str, int]], int]
    first_from: tuple[float, float] = (1.0, 1.0)

    def of(self, d: int) -> list[Constants]:
        """Return the constants of each tile for a head dim."""
        width = self.columns * ceil_div(min(d, LARGEST_D), self.columns)
        tiles = self.by_width[next(limit for limit in self.by_width if width <= limit)]
        return [{"D": width, **dict(zip(self.names, tile, strict=True))} for tile in tiles]


def matrix_rows(c: Mapping[str, int]) -> int:
    """Query rows a block: 16 for each matrix of a warp."""
    return 16 * c["ROW_TILES"] * c["WARPS"]


def _wmma_bytes(c: Mapping[str, int]) -> int:
    """Tiles of Q, K and V, their rows padded; float32 scores, and a factor for each row."""
    rows = matrix_rows(c)
    return 2 * (rows + 2 * c["KEYS"]) * (c["D"] + 8) + 4 * rows * (c["KEYS"] + 9)


def _mma_bytes(c: Mapping[str, int]) -> int:
    """A tile of Q, of K and of V; rows are whole groups of 64 elements."""
    return (matrix_rows(c) + 2 * c["BC"]) * ceil_div(c["D"], 64) * 128


def _tf32_bytes(c: Mapping[str, int]) -> int:
    """A tile of Q, of K and of V; float32."""
    return (matrix_rows(c) + 2 * c["BC"]) * c["D"] * 4


MATRIX_TILES = {
    "flash_wmma": MatrixTiles(
        ("ROW_TILES", "KEYS", "WARPS"),
        {
            64: ((2, 64, 4), (1, 64, 4), (1, 32, 2)),
            128: ((2, 64, 4), (2, 32, 4), (1, 64, 4), (1, 32, 2)),
            256: ((1, 32, 4), (1, 16, 2)),
        },
        16,
        _wmma_bytes,
    ),
    "flash_mma": MatrixTiles(
        ("ROW_TILES", "WARPS", "BC"),
        {64: ((2, 4, 128), (1, 4, 128)), 128: ((2, 4, 64), (1, 4, 128)), 256: ((1, 4, 64),)},
        16,
        _mma_bytes,
        (1.0, 3.0),
    ),
    "flash_tf32x3": MatrixTiles(
        ("ROW_TILES", "WARPS", "BC"),
        {
            64: ((2, 4, 32), (1, 4, 64)),
            128: ((1, 8, 64), (1, 4, 64), (1, 4, 32)),
            256: ((1, 4, 16),),
        },
        32,
        _tf32_bytes,
        (1.5, 8.0),
    ),
}


def decode_bytes(c: Mapping[str, int]) -> int:
    """Dynamic shared memory of 23 in bytes, of 34 that of the parts besides.

    For each warp and stage K and V of 16 keys and an mbarrier, and a word of the block.
    """
    row = 2 * c["D"] + 16 if c["BULK"] else 128 * ceil_div(c["D"], 64)
    return c["WARPS"] * c["STAGES"] * (32 * row + 8) + 8


def decode_cluster_bytes(c: Mapping[str, int]) -> int:
    """Dynamic shared memory of 34 in bytes: that of 23, and a row of each of 16 parts' rows."""
    return decode_bytes(c) + 64 * (c["D"] + 8)


# Of 23: 128 KB or more on their way on a multiprocessor, where RESIDENT blocks fit.
DECODE_TILES = MatrixTiles(
    ("WARPS", "STAGES", "RESIDENT"),
    {64: ((4, 3, 4),), 128: ((8, 3, 1), (4, 3, 2)), 256: ((2, 3, 2),)},
    16,
    decode_bytes,
)
# Of 34, with clusters of 8 blocks: few and large ones, and those for short caches or many heads.
DECODE_CLUSTER_TILES = MatrixTiles(
    ("WARPS", "STAGES"), {128: ((8, 2), (4, 2)), 256: ((4, 2),)}, 16, decode_cluster_bytes
)
DECODE_CLUSTER = 8
SHORT_KEYS = 512  # up to which 4 warps of 8 blocks have one tile
CLUSTER_TURNS = {64: 4, 128: 2, 256: 8}  # tiles of its blocks up to which 34 pays, by head dim
FAIR_TILES = 32  # of a block of 23, from which on fewer bytes on their way end together sooner
DECODE_ROWS = 16  # queries a head of k and v up to which "auto" takes 23: rows of one product
DECODE_KEYS = 256  # and keys from which on
BULK_KEYS = 128  # columns past which copies of whole keys pay


def decode_tiles(d: int, device: Device) -> list[Constants]:
    """Constants of 23 for a head dim that fit a device, those that are fastest on an H200 first."""
    copies = (1, 0) if device.has_clusters and d > BULK_KEYS else (0,)
    tiles = [c | {"BULK": bulk} for bulk in copies for c in DECODE_TILES.of(d)]
    return [c for c in tiles if decode_bytes(c) <= device.shared_bytes]


def decode_config(problem: Problem, device: Device) -> Constants:
    """Constants of 23: as many blocks as run at once; one fits each GPU that has its products."""
    c = decode_tiles(problem.d, device)[0]
    fitting = (device.shared_bytes + 1024) // (decode_bytes(c) + 1024)
    resident = max(1, min(c["RESIDENT"], fitting))
    how = {"BFLOAT16": int(problem.dtype == "bfloat16"), "RESIDENT": resident}
    blocks, tiles = resident * device.sm_count, ceil_div(problem.m, 16 * c["WARPS"])
    heads = decode_clusters(problem)
    if c["WARPS"] == 8 and 4 * heads <= blocks and heads * tiles >= FAIR_TILES * blocks:
        how["STAGES"] = 2
    return c | how | {"BLOCKS": blocks}


def decode_pays(problem: Problem, device: Device) -> bool:
    """Whether "auto" takes 23: few queries a head of k and v, many keys; or only it can."""
    if problem.page or problem.ragged or problem.heads_last:
        return True
    few = problem.rows_a_head <= DECODE_ROWS and problem.m >= DECODE_KEYS and not problem.biased
    return few and bool(decode_tiles(problem.d, device))


def decode_cluster_tiles(problem: Problem, device: Device) -> list[Constants]:
    """Constants of 34 that fit a device, with the larger tile first."""
    bulk, cluster = problem.d > BULK_KEYS, DECODE_CLUSTER
    if not device.has_clusters:
        bulk, cluster = False, 1
    how = {"BFLOAT16": int(problem.dtype == "bfloat16"), "BULK": int(bulk), "CLUSTER": cluster}
    tiles = [c | how for c in DECODE_CLUSTER_TILES.of(problem.d)]
    return [c for c in tiles if decode_cluster_bytes(c) <= device.shared_bytes]


def decode_cluster_config(problem: Problem, device: Device) -> Constants:
    """Constants of 34: the larger tile where all clusters with it run at once, of few blocks."""
    if not (found := decode_cluster_tiles(problem, device)):
        raise InputError(
            f"decode_cluster: head dim {problem.d} fits no tile on {device.name}, which has "
            f"{device.shared_bytes // 1024} KB of shared memory a block; use method decode"
        )
    first, *others = found
    blocks = first["CLUSTER"] * decode_clusters(problem)
    few = blocks <= _clustered(device) * max(1, _resident(first, device) - 1)
    return others[0] if others and (problem.m <= SHORT_KEYS or not few) else first


def decode_cluster_pays(problem: Problem, device: Device) -> bool:
    """Whether "auto" takes 34: as 23, where clusters of all heads run at once and read little."""
    able = device.has_clusters and problem.d <= LARGEST_D and decode_pays(problem, device)
    if not (able and decode_cluster_tiles(problem, device)):
        return False
    c = decode_cluster_config(problem, device)
    blocks = c["CLUSTER"] * decode_clusters(problem)
    turns = ceil_div(problem.m, 16 * c["WARPS"] * c["CLUSTER"])
    most = next(turns for width, turns in CLUSTER_TURNS.items() if problem.d <= width)
    most += 2 * (blocks >= device.sm_count)  # 23 would have no more multiprocessors
    return turns <= most and blocks <= _clustered(device) * _resident(c, device)


def decode_clusters(problem: Problem) -> int:
    """Heads of k and v, times the tiles of 16 rows of queries that share one."""
    return problem.kv_matrices * ceil_div(problem.rows_a_head, 16)


def _clustered(device: Device) -> int:
    """Multiprocessors for clusters of 8 blocks: 15 of them fit on an H200's 132."""
    return max(1, device.sm_count * 10 // 11)


def _resident(c: Mapping[str, int], device: Device) -> int:
    """Blocks of 34 on a multiprocessor, each with a KB of its own."""
    return (device.shared_bytes + 1024) // (decode_cluster_bytes(c) + 1024)


def matrix_candidates(entry: str, problem: Problem, device: Device) -> list[Constants]:
    """Constants of a kernel that fit a device and a grid, from much reuse to many blocks."""
    tiles = MATRIX_TILES[entry]
    element = {"BFLOAT16": int(problem.dtype == "bfloat16")} if problem.dtype != "float32" else {}
    return [
        element | c
        for c in tiles.of(problem.d)
        if tiles.shared_bytes(c) <= device.shared_bytes
        and ceil_div(problem.n, matrix_rows(c)) <= MAX_GRID_YZ
    ]


def matrix_config(entry: str, problem: Problem, device: Device) -> Constants:
    """Constants of a kernel. Raises ValueError where no tile fits the device."""
    found = matrix_candidates(entry, problem, device)
    if not found:
        raise InputError(
            f"{entry}: {problem.n} queries of head dim {problem.d} fit no tile on {device.name}, "
            f"which has {device.shared_bytes // 1024} KB of shared memory a block and room for "
            f"{MAX_GRID_YZ} tiles of rows in a grid; use "
            f"{'' if problem.dtype == 'float32' else 'float32 arrays and '}method rows_online, "
            "which has no tiles"
        )
    tiles = MATRIX_TILES[entry]
    first = tiles.of(problem.d)[0].items()
    for c in found:
        least = tiles.first_from[problem.causal] if first <= c.items() else 1.0
        if problem.bh * ceil_div(problem.n, matrix_rows(c)) >= least * device.sm_count:
            return c
    return found[-1]
