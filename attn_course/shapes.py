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
    """What a choice depends on; the defaults are the simulator's, which takes after an A100.

    Attributes:
        name: as messages show it.
        capability: compute capability, (8, 0) for sm_80.
        sm_count: streaming multiprocessors.
        shared_bytes: the most shared memory a block may have.
    """

    name: str = "the simulator"
    capability: tuple[int, int] = (8, 0)
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


# (ROWS, KEYS, ROW_WARPS, KEY_WARPS) by the padded head dim up to which they hold, the preferred
# ones first: large tiles use each element of K and V more often, small ones give every SM a block
# and, the last one, fit into 48 KB.
FLASH_TILES = {
    64: ((8, 8, 8, 1), (8, 8, 4, 1), (8, 4, 2, 2), (4, 4, 2, 4), (4, 4, 1, 4), (2, 2, 1, 8),
         (4, 4, 2, 1)),
    128: ((8, 4, 8, 1), (8, 4, 4, 1), (4, 4, 4, 1), (4, 4, 1, 4), (2, 2, 1, 8), (2, 2, 4, 1)),
    256: ((4, 4, 4, 1), (4, 2, 4, 1), (2, 2, 2, 2), (1, 1, 1, 8), (1, 1, 4, 1)),
}  # fmt: skip


def flash_config(problem: Problem, device: Device) -> dict[str, int]:
    """Constants of 11 and 12: the first tile that fits and gives each SM a block.

    Where none gives that many it is the one that gives the most.
    """
    width = 32 * ceil_div(min(problem.d, LARGEST_D), 32)
    tiles = FLASH_TILES[next(limit for limit in FLASH_TILES if width <= limit)]
    names = ("ROWS", "KEYS", "ROW_WARPS", "KEY_WARPS")
    configs = [{"D": width, **dict(zip(names, tile, strict=True))} for tile in tiles]
    fitting = [c for c in configs if flash_shared_bytes(c) <= device.shared_bytes]

    def blocks(c: Mapping[str, int]) -> int:
        return problem.bh * ceil_div(problem.n, 4 * c["ROWS"] * c["ROW_WARPS"])

    enough = (config for config in fitting if blocks(config) >= device.sm_count)
    return next(enough, max(fitting, key=blocks))


def split_config(problem: Problem, device: Device) -> dict[str, int]:
    """Constants of 10: the head dim over a cluster's warps, then the largest tile that fits."""
    cluster = min(8, ceil_div(problem.d, 32)) if device.capability >= (9, 0) else 1
    cluster = 1 << (cluster - 1).bit_length()
    slices = ceil_div(problem.d, 32 * cluster)
    warps = min(8, 1 << (slices - 1).bit_length())
    chunks = ceil_div(slices, warps)
    tiles = [(rows, keys) for rows in (4, 2, 1) for keys in (8, 4, 2)
             if rows * chunks <= 16 or rows == 1]  # 4 * rows * chunks outputs a thread
    for rows, keys in tiles:
        config = {"CLUSTER": cluster, "CHUNKS": chunks, "WARPS": warps, "ROWS": rows, "KEYS": keys}
        if split_shared_bytes(config) <= device.shared_bytes:
            break
    return config
