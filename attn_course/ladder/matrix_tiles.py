"""Which constants suit a problem on a device: tiles of 13, 14, 15, 23 and 29, of tensor cores.

Each list goes from tiles that use each element of K and V often to tiles for few blocks. Of those
that fit the device the first one that gives every multiprocessor a block is taken, else the last.
The first of a list has to give it more blocks, where that was faster: docs/mma_log.md. 29 has a
few sizes of each kind, each with each, and a model of the clocks that a multiprocessor needs picks
one, as for the tiles of 12 and 19.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import log2

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
    """Dynamic shared memory of 23 in bytes: K and V of 16 keys, for each warp and stage."""
    row = 2 * c["D"] + 16 if c["BULK"] else 128 * ceil_div(c["D"], 64)
    return c["WARPS"] * c["STAGES"] * 32 * row


# Of 23: 128 KB or more on their way on a multiprocessor, where RESIDENT blocks fit.
DECODE_TILES = MatrixTiles(
    ("WARPS", "STAGES", "RESIDENT"),
    {64: ((4, 3, 4),), 128: ((8, 3, 1), (4, 3, 2)), 256: ((2, 3, 2),)},
    16,
    decode_bytes,
)
DECODE_ROWS = 16  # queries a head of k and v up to which "auto" takes 23: rows of one product
DECODE_KEYS = 256  # and keys from which on
BULK_KEYS = 128  # columns past which copies of whole keys pay


def decode_tiles(d: int, device: Device) -> list[Constants]:
    """Constants of 23 for a head dim that fit a device, those that are fastest on an H200 first."""
    bulk = {"BULK": int(device.capability >= (9, 0) and d > BULK_KEYS)}
    tiles = [c | bulk for c in DECODE_TILES.of(d)]
    return [c for c in tiles if decode_bytes(c) <= device.shared_bytes]


def decode_config(problem: Problem, device: Device) -> Constants:
    """Constants of 23: as many blocks as run at once; one fits each GPU that has its products."""
    c = decode_tiles(problem.d, device)[0]
    fitting = (device.shared_bytes + 1024) // (decode_bytes(c) + 1024)
    resident = max(1, min(c["RESIDENT"], fitting))
    how = {"BFLOAT16": int(problem.dtype == "bfloat16"), "RESIDENT": resident}
    return c | how | {"BLOCKS": resident * device.sm_count}


def decode_pays(problem: Problem, device: Device) -> bool:
    """Whether "auto" takes 23: few queries a head of k and v, many keys; or only it can."""
    if problem.page or problem.ragged or problem.heads_last:
        return True
    few = problem.rows_a_head <= DECODE_ROWS and problem.m >= DECODE_KEYS and not problem.biased
    return few and bool(decode_tiles(problem.d, device))


# Of 29: blocks of a cluster, warps along the rows and along the keys, keys a warp and tile.
JOINED_NAMES = ("CLUSTER", "ROW_WARPS", "KEY_WARPS", "BC")
JOINED_SIZES = ((1, 2, 4, 8), (1, 2, 3, 4), (1, 2, 4, 5, 8), (8, 16, 24, 32, 40))
REGISTERS = 65536  # of a multiprocessor
MMA_CLOCKS = 6.2  # of a TF32 mma.sync, on one of the four parts of a multiprocessor


def joined_bytes(c: Mapping[str, int]) -> int:
    """Dynamic shared memory of 29 in bytes: tiles of Q, K and V, the parts of rows it joins."""
    rows, warps = 16 * c["ROW_WARPS"], c["KEY_WARPS"]
    tiles = (rows + 2 * c["BC"] * warps) * ceil_div(c["D"], 32) * 128
    return tiles + 4 * c["CLUSTER"] * warps * ceil_div(rows, c["CLUSTER"]) * (c["D"] + 4)


def _joined_threads(c: Mapping[str, int]) -> int:
    return 32 * c["ROW_WARPS"] * c["KEY_WARPS"]


def _joined_registers(c: Mapping[str, int]) -> int:
    """Registers with which a thread of 29 spills next to nothing, by the compiler's reports."""
    return 64 + c["D"] // 2 + 2 * c["BC"]


def joined_clocks(c: Mapping[str, int], problem: Problem, device: Device) -> float:
    """Clocks that a multiprocessor needs about for its share of the blocks of 29."""
    cluster, threads, width, keys = c["CLUSTER"], _joined_threads(c), c["D"], c["BC"]
    rows, tile = 16 * c["ROW_WARPS"], c["BC"] * c["KEY_WARPS"]
    products = 6 * keys // 8 * width // 8  # of a warp and tile: mma.sync
    others = (4 * (keys + 8) * width + 16 * (14 * keys + 3 * width)) / 32  # instructions
    tiles = ceil_div(problem.m, cluster * tile)
    registers = REGISTERS // (threads * _joined_registers(c))
    held = max(1, min(device.shared_bytes // joined_bytes(c), registers))
    # Clusters leave multiprocessors over.
    usable = device.sm_count if cluster <= 2 else device.sm_count * 10 // 11
    rounds = ceil_div(cluster * problem.bh * ceil_div(problem.n, rows), max(1, usable))
    together = min(held, rounds)  # blocks at work on a multiprocessor
    warps = ceil_div(threads * together, 128)  # that share the units of one part
    work = max(warps * (MMA_CLOCKS * products + 0.4 * others), 800 + 8 * products + others)
    waits = 3000 + 400 * tiles + 300 * log2(cluster) + 25 * cluster * c["KEY_WARPS"]
    waits += 16 * together * (2 * tile * tiles + rows) * width * 4 / 1024
    return ceil_div(rounds, held) * (waits + tiles * work)


@lru_cache(maxsize=512)
def best_joined(problem: Problem, device: Device) -> tuple[float, Constants] | None:
    """Clocks and constants of the tile of 29 that the model takes for the fastest; None: none fits.

    Where the device has no clusters, tiles are of a block alone.
    """
    width = 16 * ceil_div(min(problem.d, LARGEST_D), 16)
    tiles = [
        {"D": width, **dict(zip(JOINED_NAMES, c, strict=True))} for c in product(*JOINED_SIZES)
    ]
    timed = [
        (joined_clocks(c, problem, device), c)
        for c in tiles
        if joined_bytes(c) <= device.shared_bytes
        and max(64, width // 4) <= _joined_threads(c)
        and _joined_registers(c) <= min(255, REGISTERS // _joined_threads(c))
        and (c["CLUSTER"] == 1 or device.capability >= (9, 0))
        and c["BC"] * (c["CLUSTER"] * c["KEY_WARPS"] - 1) < problem.m + 7
        and ceil_div(problem.n, 16 * c["ROW_WARPS"]) <= MAX_GRID_YZ
    ]
    return min(timed, key=lambda one: one[0], default=None)


def joined_config(problem: Problem, device: Device) -> Constants:
    """Constants of 29 for a problem, a copy. Raises ValueError where no tile fits the device."""
    if best := best_joined(problem, device):
        return dict(best[1])
    raise InputError(
        f"split_tf32x3: {problem.n} queries of head dim {problem.d} fit no tile on {device.name}, "
        f"which has {device.shared_bytes // 1024} KB of shared memory a block and room for "
        f"{MAX_GRID_YZ} tiles of rows in a grid; use method rows_online, which has no tiles"
    )


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
        if matrix_blocks(c, problem) >= least * device.sm_count:
            return c
    return found[-1]


def matrix_blocks(c: Mapping[str, int], problem: Problem) -> int:
    """Blocks that a kernel with these constants starts."""
    return problem.bh * ceil_div(problem.n, matrix_rows(c))
