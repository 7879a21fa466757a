"""What a launch depends on: the problem, the device, and the tile sizes chosen for the two."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

MAX_GRID_X = 2**31 - 1
MAX_GRID_YZ = 65535
ROW_KEYS = 12000  # keys whose scores fit into 48 KB of shared memory beside a few floats
LARGEST_D = 256  # head dim of the flash kernels: a thread holds ROWS * D / 8 outputs in registers


@dataclass(frozen=True)
class Problem:
    """Extents of one attention call: bh heads over the batch, n queries, m keys, head dim d.

    heads and kv_heads: of q and of k and v in one element of the batch; bh is a multiple of heads,
    heads of kv_heads. bias_strides: floats from one element of the batch, and from one head, to
    the next in the bias; 0 where they share it.
    """

    bh: int
    n: int
    m: int
    d: int
    heads: int = 1
    kv_heads: int = 1
    causal: bool = False
    bias_strides: tuple[int, int] = (0, 0)

    def shape(self, buffer: str) -> tuple[int, ...]:
        """Shape of a buffer by its name in the kernels: q, k, v, s, p, out or lse."""
        if buffer == "lse":
            return (self.bh, self.n)
        if buffer in "kv":
            return (self.bh // self.heads * self.kv_heads, self.m, self.d)
        columns = {"q": self.d, "out": self.d, "s": self.m, "p": self.m}
        return (self.bh, self.n, columns[buffer])

    def scalars(self) -> dict[str, int]:
        """The kernels' integer parameters by name."""
        names = ("heads", "kv_heads", "n", "m", "d")
        return {name: getattr(self, name) for name in names} | {
            "rows": self.bh * self.n, "causal": int(self.causal),
            "bias_batch": self.bias_strides[0], "bias_head": self.bias_strides[1],
        }


@dataclass(frozen=True)
class Device:
    """What a choice depends on; the defaults are the simulator's: an A100's limits,
    and clusters besides.

    Attributes:
        name: as messages show it.
        capability: compute capability, (8, 0) for sm_80.
        sm_count: streaming multiprocessors.
        shared_bytes: the most shared memory a block may have.
    """

    name: str = "the simulator"
    capability: tuple[int, int] = (9, 0)
    sm_count: int = 108
    shared_bytes: int = 163 * 1024


@dataclass(frozen=True)
class Launch:
    """Geometry of one launch; dynamic shared memory in bytes; compiler options it needs."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    options: tuple[str, ...] = ()

    def __post_init__(self):
        limits = (MAX_GRID_X, MAX_GRID_YZ, MAX_GRID_YZ)
        for axis, extent, limit in zip("xyz", self.grid, limits, strict=True):
            if not 1 <= extent <= limit:
                raise ValueError(
                    f"{self.entry}: grid {axis} would be {extent}, a GPU takes 1 to {limit}; "
                    "use a larger TILE or split the batch"
                )

    def with_options(self, options: Iterable[str]) -> "Launch":
        return replace(self, options=tuple(options))


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def refuse(entry: str, found: str, limit: str, remedy: str) -> NoReturn:
    """Raises the ValueError of an extent that a step can not hold."""
    raise ValueError(f"{entry}: {found}, but it takes at most {limit}; use method {remedy}")


def flash_shared_bytes(c: Mapping[str, int]) -> int:
    """Dynamic shared memory of 11 and 12: tiles of Q, K and V, and P of every warp.

    The outputs that KEY_WARPS warps have of the same rows take the place of K, V and P at the end.
    """
    stride, rows = c["D"] + 4, 4 * c["ROWS"] * c["ROW_WARPS"]
    keys = 8 * c["KEYS"]
    weights = rows * c["KEY_WARPS"] * (keys + 8)
    outputs = rows * c["KEY_WARPS"] * stride if c["KEY_WARPS"] > 1 else 0
    return 4 * (rows * stride + max(2 * keys * c["KEY_WARPS"] * stride + weights, outputs))


def split_shared_bytes(c: Mapping[str, int]) -> int:
    """Dynamic shared memory of 10: two tiles of K or V and of Q, partial scores, P, m and l."""
    rows, keys, stride = 4 * c["ROWS"], 8 * c["KEYS"], 32 * c["WARPS"] + 4
    scores = (c["WARPS"] + 3) * rows * (keys + 8)
    return 4 * (2 * (keys + rows) * stride + scores + 3 * rows)


# (ROWS, KEYS, ROW_WARPS, KEY_WARPS) by the padded head dim up to which they hold: the fastest of
# those timed on an H200, from tiles that use each element of K and V often to tiles that give every
# SM a block; the last one of each fits into 48 KB.
FLASH_TILES = {
    64: ((8, 8, 8, 1), (8, 8, 4, 1), (8, 4, 2, 2), (5, 7, 2, 4), (4, 4, 1, 8), (2, 4, 1, 8),
         (2, 4, 1, 4), (2, 2, 1, 8), (1, 2, 1, 8), (4, 4, 2, 1)),
    128: ((4, 8, 8, 1), (4, 4, 4, 1), (4, 4, 1, 4), (2, 4, 1, 4), (1, 4, 1, 4), (2, 2, 4, 1)),
    256: ((4, 4, 4, 1), (4, 2, 4, 1), (2, 2, 2, 2), (1, 1, 1, 8), (1, 1, 4, 1)),
}  # fmt: skip
BLOCK_CLOCKS = 4000  # about what starting a block costs, whatever its tile,
TILE_CLOCKS = 600  # waiting for each tile of keys,
JOIN_CLOCKS = 60  # and joining what one of KEY_WARPS warps has of the rows


def flash_clocks(c: Mapping[str, int], problem: Problem, device: Device) -> float:
    """Clocks that an SM needs about for its share of the blocks of 11 or 12.

    A score costs 2 D multiply-adds, at 128 a clock; and a thread reads ROWS + KEYS floats of Q, K
    for ROWS * KEYS of them, ROWS + D / 8 floats of P and V for ROWS * D / 8, at 32 a clock from
    shared memory. Padded rows and keys cost as much as real ones.
    """
    rows, keys, width = c["ROWS"], c["KEYS"], c["D"]
    reads = width * (rows + keys) / (rows * keys) + 8 * (rows + width / 8) / rows
    a_score = max(2 * width / 128, reads / 32)
    block_rows, tile = 4 * rows * c["ROW_WARPS"], 8 * keys * c["KEY_WARPS"]
    tiles = ceil_div(problem.m, tile)
    work = block_rows * tiles * tile * a_score
    rounds = ceil_div(problem.bh * ceil_div(problem.n, block_rows), device.sm_count)
    waits = BLOCK_CLOCKS + TILE_CLOCKS * tiles + JOIN_CLOCKS * c["KEY_WARPS"]
    return rounds * (work + waits)


def flash_config(problem: Problem, device: Device) -> dict[str, int]:
    """Constants of 11 and 12: of the tiles that fit, the one that needs the fewest clocks."""
    width = 32 * ceil_div(min(problem.d, LARGEST_D), 32)
    tiles = FLASH_TILES[next(limit for limit in FLASH_TILES if width <= limit)]
    names = ("ROWS", "KEYS", "ROW_WARPS", "KEY_WARPS")
    configs = [{"D": width, **dict(zip(names, tile, strict=True))} for tile in tiles]
    fitting = [c for c in configs if flash_shared_bytes(c) <= device.shared_bytes]
    return min(fitting, key=lambda c: flash_clocks(c, problem, device))


def split_config(problem: Problem, device: Device) -> dict[str, int]:
    """Constants of 10: the head dim over a cluster's warps, then the fewest rows a block that do
    not ask for more blocks than there are SMs (half of them where K and V come in chunks).
    """
    cluster = 1
    if device.capability >= (9, 0):
        cluster = 2 if problem.d <= 512 else 4 if problem.d <= 4096 else 8
    slices = ceil_div(problem.d, 32 * cluster)
    warps = min(8, 1 << (slices - 1).bit_length())
    keys = min(8, 1 << (ceil_div(problem.m, 8) - 1).bit_length())
    chunks = ceil_div(slices, warps)
    limit = device.sm_count if chunks == 1 else device.sm_count // 2
    rows = next((r for r in (1, 2) if split_blocks(problem, cluster, r) <= limit), 4)
    small = cluster > 1 and chunks > 2 and rows == 1 and keys <= 2
    if small:  # few scores: twice the warps share the head dim
        warps, chunks = 2 * warps, ceil_div(slices, 2 * warps)
    tiles = [(r, k) for r in (4, 2, 1) for k in (8, 4, 2, 1)
             if r <= rows and k <= keys and (r * chunks <= 16 or r == 1)]
    for r, k in tiles:  # 4 * rows * chunks outputs a thread
        config = {"CLUSTER": cluster, "CHUNKS": chunks, "WARPS": warps, "ROWS": r, "KEYS": k}
        if split_shared_bytes(config) <= device.shared_bytes:
            break
    return config


def split_blocks(problem: Problem, cluster: int, rows: int) -> int:
    return cluster * problem.bh * ceil_div(problem.n, 4 * rows)
