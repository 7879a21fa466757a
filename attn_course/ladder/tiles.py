"""Which constants suit a problem on a device: tiles and clusters of kernels 10, 11, 12, 19, 20, 29.

11, 12 and 19 have lists of tiles, from much reuse to many blocks, and a small one in each for
devices with less shared memory. 20 and 29 have a few sizes, each with each; of 20 the
head dim gives the rest. Among the tiles that fit the device and the grid, a model of
the clocks that a multiprocessor needs picks one. The model counts what a block does (multiply-adds,
passes over shared memory, bytes, waits for a tile); its prices were fitted to the times of every
tile (tools/attn_devtools/record/tile_model.py). It ranks tiles of one problem; as a forecast of a
time it is rough. It knows no causal mask, which takes about the same share of the work from every
tile.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil, log2, sqrt
from pathlib import Path

from kernelscope.errors import InputError

from .problem import LARGEST_D, MAX_GRID_X, MAX_GRID_YZ, Device, Problem, ceil_div

Constants = dict[str, int]

_TABLES = tomllib.loads(Path(__file__).with_name("tiles.toml").read_text(encoding="utf-8"))
# By the padded head dim; the names of a tile's numbers are there.
FLASH_TILES, CLUSTER_TILES = (
    {int(width): tuple(map(tuple, tiles)) for width, tiles in _TABLES[name].items()}
    for name in ("flash", "cluster")
)
LARGEST_UNSPILT, LARGE_SPILLS = 48, 22  # keys of a tile of 29; registers that larger ones may lack
JOINED_SIZES = {name: tuple(sizes) for name, sizes in _TABLES["joined"].items()}


@dataclass(frozen=True)
class Prices:
    """Costs of the model, in clocks.

    Attributes:
        block: starting a block.  tile: waiting for a tile of keys.
        cluster: each doubling of a cluster.  part: each part joined at the end.
        kilobyte: each KB copied.
        passes: each pass of a warp over shared memory; a 16-byte load has two.
        score: what the softmax costs a score, in multiply-adds.
        warps: with this number of warps at work an SM waits for results as long as it computes.
    """

    block: float = 5230
    tile: float = 427
    cluster: float = 209
    part: float = 71.7
    kilobyte: float = 15.6
    passes: float = 1.56
    score: float = 2.29
    warps: float = 1.72


PRICES = Prices()
LONG_ROW = 8192  # keys from which on 11, 12 and 19 sum a row in spans
REGISTERS = 65536  # of an SM; a thread has some besides those of its scores and outputs
OTHER_REGISTERS = 60


def flash_shared_bytes(c: Mapping[str, int]) -> int:
    """Dynamic shared memory of 11, 12 and 19 in bytes: tiles of Q, K and V, and P of every warp.

    The parts that KEY_WARPS warps have of the same rows take the place of K and V at the end; in
    19 they have a place of their own, as have those that other blocks of the CLUSTER send.
    """
    stride, rows = c["D"] + 4, 4 * c["ROWS"] * c["ROW_WARPS"]
    keys, warps = 8 * c["KEYS"], c["KEY_WARPS"]
    floats = (rows + 2 * keys * warps) * stride + rows * warps * (keys + 8)
    if "CLUSTER" in c:
        floats += _part_rows(c, rows) * stride + 2  # and an mbarrier
    return 4 * floats


def _part_rows(c: Mapping[str, int], rows: int) -> int:
    """Rows of the parts of 19 and 29: of the block's warps, and of other blocks' and its own."""
    sent = c["CLUSTER"] * ceil_div(rows, c["CLUSTER"]) if c["CLUSTER"] > 1 else 0
    return c["KEY_WARPS"] * rows + sent


def split_shared_bytes(c: Mapping[str, int]) -> int:
    """Dynamic shared memory of 20 in bytes: tiles of Q, K and V, scores of the rows it owns, P;
    rescale and l of every row, m and l of those it owns.
    """
    rows, keys = 4 * c["ROWS"], 8 * c["KEYS"]
    own = ceil_div(rows, c["CLUSTER"])
    stride = 32 * c["WARPS"] * c["COLS"] + 4
    scores = (c["CLUSTER"] * own + rows) * (keys + 8)
    return 4 * ((2 * keys + rows) * stride + scores + 2 * (rows + own))


def flash_clocks(
    c: Mapping[str, int], problem: Problem, device: Device, prices: Prices = PRICES
) -> float:
    """Clocks that an SM needs about for its share of the blocks of 11, 12 or 19.

    A score costs 2 D multiply-adds, at 128 a clock. A thread reads ROWS + KEYS float4 of Q and K
    for 4 ROWS * KEYS of them, ROWS + D / 8 of P and V for ROWS * D / 2; each takes a warp two
    passes over shared memory. Padded rows and keys cost as much as real ones.
    """
    cluster, width = c.get("CLUSTER", 1), c["D"]
    rows, keys = 4 * c["ROWS"] * c["ROW_WARPS"], 8 * c["KEYS"] * c["KEY_WARPS"]
    warps = c["ROW_WARPS"] * c["KEY_WARPS"]
    tiles = ceil_div(ceil_div(problem.m, keys), cluster)
    adds = rows * keys * (2 * width + prices.score) / 128
    reads = width / 4 * (c["ROWS"] + c["KEYS"]) + 2 * c["KEYS"] * (c["ROWS"] + width / 8)
    registers = c["ROWS"] * (c["KEYS"] + width // 8) + OTHER_REGISTERS
    held = max(
        1, min(device.shared_bytes // flash_shared_bytes(c), REGISTERS // (32 * warps * registers))
    )
    rounds = ceil_div(cluster * problem.bh * ceil_div(problem.n, rows), device.sm_count)
    stalls = 1 + prices.warps / (warps * min(held, rounds))
    work = (adds + prices.passes * 2 * warps * reads) * stalls
    waits = prices.block + prices.tile * tiles + prices.cluster * log2(cluster)
    waits += prices.kilobyte * (2 * keys * tiles + rows) * width * 4 / 1024
    waits += prices.part * cluster * c["KEY_WARPS"]
    return rounds * tiles * work + ceil_div(rounds, held) * waits


_TILE = ("ROWS", "KEYS", "ROW_WARPS", "KEY_WARPS")


def flash_candidates(problem: Problem, device: Device, clusters: bool = False) -> list[Constants]:
    """Constants of 11 and 12, or with clusters of 19, that fit a device; d is at most 256.

    Where the device has no clusters, those of 19 are of a block alone. None may fit: little shared
    memory, or more queries than a grid of the tiles that are left can take.
    """
    width = 32 * ceil_div(min(problem.d, LARGEST_D), 32)
    table, names = (CLUSTER_TILES, ("CLUSTER", *_TILE)) if clusters else (FLASH_TILES, _TILE)
    tiles = table[next(limit for limit in table if width <= limit)]
    found = [{"D": width, **dict(zip(names, tile, strict=True))} for tile in tiles]
    if clusters and not device.has_clusters:
        found = [c | {"CLUSTER": 1} for c in found]
    return [
        c
        for c in found
        if flash_shared_bytes(c) <= device.shared_bytes
        and _grid_holds(c, 4 * c["ROWS"] * c["ROW_WARPS"], problem)
    ]


def _grid_holds(c: Mapping[str, int], rows: int, problem: Problem) -> bool:
    """Whether a grid holds a cluster for every tile of `rows` rows."""
    return (
        ceil_div(problem.n, rows) <= MAX_GRID_YZ and c.get("CLUSTER", 1) * problem.bh <= MAX_GRID_X
    )


def row_config(problem: Problem, device: Device) -> Constants:
    """Return the constants of 10: the padded head dim, and as many warps as fit into 48 KB."""
    width = 32 * ceil_div(min(problem.d, LARGEST_D), 32)
    return {"D": width, "WARPS": 16 if (16 + 32) * (width + 4) * 4 <= 48 * 1024 else 8}


def _with_spans(c: Constants, keys: int) -> Constants:
    """Add SPAN, the tiles that a warp sums in one chain, where rows are long.

    The rounding error of a sum grows with the root of its number of terms. A span of the root of
    the keys of a warp makes both the sums of spans and the sum over spans short; a power of two
    keeps the number of compiled kernels small, and spans of 4 tiles or more their cost.
    """
    if keys < LONG_ROW:
        return c
    tiles = sqrt(keys / (c["KEY_WARPS"] * c.get("CLUSTER", 1))) / (8 * c["KEYS"])
    return c | {"SPAN": 2 ** max(2, ceil(log2(tiles)))}


def split_clocks(
    c: Mapping[str, int], problem: Problem, device: Device, prices: Prices = PRICES
) -> float:
    """Clocks that an SM needs about for its share of the blocks of 20; see flash_clocks()."""
    rows, keys, cols = 4 * c["ROWS"], 8 * c["KEYS"], 4 * c["COLS"]
    width = 32 * c["WARPS"] * c["COLS"]
    tiles = ceil_div(problem.m, keys)
    adds = rows * keys * 2 * width / 128
    reads = c["WARPS"] * (cols * 2 * (c["ROWS"] + c["KEYS"]) + 2 * c["KEYS"] * (c["ROWS"] + cols))
    work = (adds + prices.passes * 2 * reads) * (1 + prices.warps / c["WARPS"])
    # A tile waits four times: for K, the other blocks' sums, their weights, and V.
    waits = 4 * prices.tile + prices.kilobyte * 2 * keys * width * 4 / 1024
    blocks = c["CLUSTER"] * problem.bh * ceil_div(problem.n, rows)
    # Clusters leave SMs over: 15 of 8 blocks or 30 of 4 fit on an H200's 132, one block an SM.
    usable = device.sm_count if c["CLUSTER"] <= 2 else max(1, device.sm_count * 10 // 11)
    return ceil_div(blocks, usable) * (prices.block + tiles * (waits + work))


def split_candidates(problem: Problem, device: Device) -> list[Constants]:
    """Constants of 20 that fit a device: the head dim over the warps of a cluster, tiles by ROWS
    and KEYS, no more keys than there are.
    """
    cluster = 1 if not device.has_clusters else 4 if problem.d <= 512 else 8
    slices = ceil_div(problem.d, 32 * cluster)
    cols = 1 if slices <= 8 else 2 if slices <= 16 else 4
    shape = {"CLUSTER": cluster, "COLS": cols, "WARPS": ceil_div(slices, cols)}
    most_keys = 1 << (ceil_div(problem.m, 8) - 1).bit_length()
    found = [
        shape | {"ROWS": rows, "KEYS": keys}
        for rows in (6, 4, 3, 2, 1)
        for keys in (8, 4, 2, 1)
        if keys <= most_keys
    ]
    return [c for c in found if _split_fits(c, device) and _grid_holds(c, 4 * c["ROWS"], problem)]


def _split_fits(c: Mapping[str, int], device: Device) -> bool:
    """Whether constants of 20 fit the device, and the warps' scores the place of a tile of K."""
    rows, keys = 4 * c["ROWS"], 8 * c["KEYS"]
    parts = c["WARPS"] * rows * (keys + 8)
    return (
        c["WARPS"] <= 32
        and parts <= keys * (32 * c["WARPS"] * c["COLS"] + 4)
        and split_shared_bytes(c) <= device.shared_bytes
    )


# -- kernel 29 -------------------------------------------------------------------------------------
def joined_bytes(c: Mapping[str, int]) -> int:
    """Dynamic shared memory of 29 in bytes: tiles of Q, K and V, parts of rows, an mbarrier."""
    rows, warps = 16 * c["ROW_WARPS"], c["KEY_WARPS"]
    tiles = (rows + 2 * c["BC"] * warps) * ceil_div(c["D"], 32) * 128
    return tiles + 4 * _part_rows(c, rows) * (c["D"] + 4) + 8


def joined_candidates(problem: Problem, device: Device) -> list[Constants]:
    """Constants of 29 that fit a device, leave no warp without keys and spill little."""
    width = 16 * ceil_div(min(problem.d, LARGEST_D), 16)
    tiles = (dict(zip(JOINED_SIZES, c, strict=True)) for c in product(*JOINED_SIZES.values()))
    return [
        c
        for c in ({"D": width, **tile} for tile in tiles)
        if max(64, width // 4) <= 32 * c["ROW_WARPS"] * c["KEY_WARPS"]
        and _spilt(c) <= (LARGE_SPILLS if c["BC"] > LARGEST_UNSPILT else 0)
        and (c["BC"] <= LARGEST_UNSPILT or 48 + width + 2 * c["BC"] <= 255)
        and (c["CLUSTER"] == 1 or device.has_clusters)
        and c["BC"] * (c["CLUSTER"] * c["KEY_WARPS"] - 1) < problem.m + 7
        and joined_bytes(c) <= device.shared_bytes
        and _grid_holds(c, 16 * c["ROW_WARPS"], problem)
    ]


def _spilt(c: Mapping[str, int]) -> int:
    """Registers of 29 that a thread lacks, about."""
    found = min(255, REGISTERS // (32 * c["ROW_WARPS"] * c["KEY_WARPS"]))
    return max(0, 48 + c["D"] // 2 + 2 * c["BC"] - found)


def joined_clocks(c: Mapping[str, int], problem: Problem, device: Device) -> float:
    """Clocks that an SM needs about for its share of the blocks of 29, on the scale of 19's.

    Warps share the units of an SM's four parts; alone on one a warp waits for its own results.
    """
    cluster, keys, width = c["CLUSTER"], c["BC"], c["D"]
    rows, tile = 16 * c["ROW_WARPS"], keys * c["KEY_WARPS"]
    threads = 32 * c["ROW_WARPS"] * c["KEY_WARPS"]
    products = 6 * keys // 8 * width // 8  # mma.sync of a warp and tile
    others = (4 * (keys + 8) * width + 16 * (14 * keys + 3 * width)) / 32  # its other instructions
    tiles = ceil_div(problem.m, cluster * tile)
    registers = threads * min(255, REGISTERS // threads, 90 + 3 * width // 2)
    held = max(1, min(device.shared_bytes // joined_bytes(c), REGISTERS // registers))
    usable = device.sm_count if cluster <= 2 else max(1, device.sm_count * 10 // 11)
    rounds = ceil_div(cluster * problem.bh * ceil_div(problem.n, rows), usable)
    together = min(held, rounds)  # blocks at work on an SM
    work = max(ceil_div(threads * together, 128), 1.3 if keys > LARGEST_UNSPILT else 1.1)
    work *= (7.7 * products + 2.5 * others) * (1 + _spilt(c) / 180)
    waits = 4800 + 22 * width + 250 * tiles + 200 * log2(cluster)
    parts = 60 * c["KEY_WARPS"] * c["ROW_WARPS"] + 150 * cluster * (cluster > 1)
    waits += parts * width / 64  # those to join, of warps and of blocks
    waits += 2.8 * together * (2 * tile * tiles + rows) * width * 4 / 1024  # KB to copy
    return ceil_div(rounds, held) * (waits + tiles * work)


# -- by the kernel's entry point -------------------------------------------------------------------
def tile_candidates(entry: str, problem: Problem, device: Device) -> list[Constants]:
    """Constants of 11, 12, 19, 20 or 29 that fit a device; see flash_ and split_candidates()."""
    if entry == "split_tf32x3":
        return joined_candidates(problem, device)
    if entry == "rows_split":
        return split_candidates(problem, device)
    return flash_candidates(problem, device, clusters=entry == "flash_split")


def tile_clocks(
    entry: str, c: Mapping[str, int], problem: Problem, device: Device, prices: Prices = PRICES
) -> float:
    """Clocks that an SM needs about for its share of the blocks of 11, 12, 19, 20 or 29."""
    if entry == "split_tf32x3":
        return joined_clocks(c, problem, device)
    model = split_clocks if entry == "rows_split" else flash_clocks
    return model(c, problem, device, prices)


@lru_cache(maxsize=512)
def best_tile(entry: str, problem: Problem, device: Device) -> tuple[float, Constants] | None:
    """Clocks and constants of the fastest tile that fits; None: none does."""
    found = tile_candidates(entry, problem, device)
    timed = [(tile_clocks(entry, c, problem, device), c) for c in found]
    return min(timed, key=lambda one: one[0], default=None)


def tile_config(entry: str, problem: Problem, device: Device) -> Constants:
    """Return the constants of 11, 12, 19, 20 or 29 for a problem, a copy.

    Raises:
        ValueError: no tile fits the device: too many queries, little shared memory, no clusters.
    """
    if best := best_tile(entry, problem, device):
        c = dict(best[1])
        return _with_spans(c, problem.m) if entry.startswith("flash") else c
    clusters = "clusters" if device.has_clusters else "no clusters"
    raise InputError(
        f"{entry}: {problem.n} queries of head dim {problem.d} fit no tile on {device.name}, which "
        f"has {device.shared_bytes // 1024} KB of shared memory a block, {clusters}, and room for "
        f"{MAX_GRID_YZ} tiles of rows in a grid; use method rows_online, which has no tiles"
    )


def tile_label(method: str, constants: Mapping[str, int]) -> str:
    """ "flash_async D=64 ROWS=8": what a record calls a tile."""
    return " ".join([method, *(f"{name}={value}" for name, value in constants.items())])


def parsed_label(text: str) -> tuple[str, dict[str, int]]:
    """Method and constants of a label."""
    method, *pairs = text.split(" ")
    return method, {name: int(value) for name, _, value in (pair.partition("=") for pair in pairs)}
