"""Which constants suit a problem: the tiles of 18 and 33, and the order in which blocks take them.

A block stays on its multiprocessor and takes a tile of rows in each round. With equal tiles a
third warpgroup pays; it makes tiles of 192 rows, of which fewer fit a number of blocks evenly.
Causal tiles differ in length: taken from the longest to the shortest, blocks end nearly together.
They are taken so in groups of heads whose K and V stay in L2. The block with the most work says how
long a launch takes.
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from kernelscope.errors import InputError

from .problem import LARGEST_D, Device, Problem, ceil_div

Constants = Mapping[str, int]

CAPABILITY = (9, 0)  # the one that has wgmma
WIDTHS = (64, 128, 192, LARGEST_D)  # of tiles, by the head dim
THIRD = 1.28  # times as long takes a tile of keys with three warpgroups as with two
START = 1.0  # tiles of keys that beginning and ending a tile of rows takes
GROUPS_OF_HEADS = (1, 2, 3, 4, 6, 8, 11, 16, 22, 28, 1024)  # each that is used is compiled
HELD_BYTES = 32 << 20  # of K and V of a group in L2: about half of it
FROM_DRAM = 1.1  # times as long takes a launch whose groups are larger
MOST_ROWS = 1 << 22  # of the heads that say how even an order is; one head at least
# Keys from which 18 was faster than 14, whose tiles are smaller, by the width; up to 128 columns
# also from so many queries a multiprocessor on.
FEWEST_KEYS = {64: float("inf"), 128: 192, 192: 64, LARGEST_D: 64}
MANY_QUERIES = 240
HALVES_ROWS, HALVES_COLUMNS = 136, 128  # of halves, which hold a tile of K or V of 32 and 33
HALVES_ELEMENTS = 64 * 128  # keys times columns of such a tile
HALVES_D = (32, 128)  # above and up to which head dims 33 was the fastest
# From how many tiles' worth of rows a multiprocessor on, and from how many keys that a row sees, on
# the mean under a mask; or, where rows are fewer and the longest tile counts, from how many keys.
HALVES_MANY, HALVES_SEEN = 0.9, 192
HALVES_FEW, HALVES_KEYS = 0.45, 384
HALVES_FULL = 0.7  # of the rows of its tiles are a head's, at least


def wgmma_rows(c: Constants) -> int:
    """Query rows a block."""
    return 64 * c["GROUPS"]


def wgmma_bytes(c: Constants) -> int:
    """Dynamic shared memory of a block in bytes: tiles of Q, two of K and of V; mbarriers."""
    q_tiles = c["GROUPS"] + 1 if c["D"] > 192 else 2 * c["GROUPS"]
    return 2 * c["D"] * (64 * q_tiles + 4 * c["BC"]) + 16 * q_tiles + 64


def fp16x3_bytes(c: Constants) -> int:
    """The same of 33: tiles of K and of V and their mbarriers; big and small parts of Q."""
    tiles = 2 * c["STAGES"] * (2 * HALVES_ROWS * HALVES_COLUMNS + 16)
    return tiles + 4 * wgmma_rows(c) * c["D"]


def longest_block(c: Constants, problem: Problem) -> float:
    """Work of the block that has most of it, in tiles of keys of two warpgroups."""
    rows, blocks = wgmma_rows(c), c["BLOCKS"]
    tiles = ceil_div(problem.n, rows)  # of a head
    heads = min(problem.bh, max(1, MOST_ROWS // problem.n))
    numbers = np.arange(heads * tiles)
    rounds, block = np.divmod(numbers, blocks)
    first = numbers // tiles // c["HEADS"] * c["HEADS"]  # head of the group
    at = (numbers - first * tiles) // np.minimum(c["HEADS"], heads - first)
    if c["HEADS"] > 1:
        block = np.where(rounds % 2, blocks - 1 - block, block)
    at = np.where((c["HEADS"] > 1) | (first % 2 == 0), tiles - 1 - at, at)
    seen = (at + 1) * rows + problem.m - problem.n if problem.causal else problem.m
    keys = np.maximum(1, -(-np.minimum(problem.m, seen) // c["BC"]))
    work = np.bincount(block, keys + np.full(at.shape, START), blocks).max()
    return float(work) * (THIRD if c["GROUPS"] == 3 else 1.0)


def group_bytes(c: Constants, problem: Problem) -> int:
    """K and V in bytes that the heads of a group read."""
    queries = min(c["HEADS"], problem.bh)
    return ceil_div(queries * problem.kv_heads, problem.heads) * 4 * problem.m * problem.d


def _check_wgmma(method: str, device: Device, other: str) -> None:
    """Refuse a device without wgmma. Raises ValueError: names the other method."""
    if device.capability != CAPABILITY:
        major, minor = device.capability
        raise InputError(
            f"{method} needs the wgmma instructions of compute capability 9.0, {device.name} "
            f"has {major}.{minor}; use method {other}"
        )


@lru_cache(maxsize=512)
def wgmma_config(problem: Problem, device: Device) -> Constants:
    """Return the constants of 18 for a problem.

    Raises:
        ValueError: a device without wgmma, or rows that the copy engine does not take.
    """
    _check_wgmma("flash_wgmma", device, "flash_mma")
    if problem.d % 8:
        raise InputError(
            f"flash_wgmma: rows of {problem.d} elements of 16 bits are {2 * problem.d} bytes, and "
            "the copy engine takes multiples of 16; use method flash_mma"
        )
    width = next(width for width in WIDTHS if min(problem.d, LARGEST_D) <= width)
    bc = 128 if width <= 128 else 64
    shape = {"BFLOAT16": int(problem.dtype == "bfloat16"), "D": width, "BC": bc}
    shape["BLOCKS"] = device.sm_count
    choices = [
        shape | {"GROUPS": groups, "HEADS": heads}
        for groups in ((2, 3) if width == 64 else (2,))
        for heads in (GROUPS_OF_HEADS if problem.causal else (1,))
    ]

    def work(c: Constants) -> float:
        held = group_bytes(c, problem) <= HELD_BYTES
        return longest_block(c, problem) * (1.0 if held else FROM_DRAM)

    return min(choices, key=work)


def halves_config(problem: Problem, device: Device) -> Constants:
    """Return the constants of 32 for a problem."""
    return {"D": 64 if problem.d <= 64 else HALVES_COLUMNS}


@lru_cache(maxsize=512)
def fp16x3_config(problem: Problem, device: Device) -> Constants:
    """Return the constants of 33 for a problem. Raises ValueError: a device without wgmma."""
    _check_wgmma("flash_fp16x3", device, "flash_tf32x3")
    shape = halves_config(problem, device) | {"GROUPS": 2, "STAGES": 2, "BLOCKS": device.sm_count}
    keys = {"BC": HALVES_ELEMENTS // shape["D"]}
    orders = [shape | {"HEADS": heads} for heads in (GROUPS_OF_HEADS if problem.causal else (1,))]
    return min(orders, key=lambda c: longest_block(c | keys, problem))


def fp16x3_pays(problem: Problem, device: Device) -> bool:
    """Whether 33 takes a problem on a device, and was the fastest there."""
    above, up_to = HALVES_D
    if device.capability != CAPABILITY or problem.biased or not above < problem.d <= up_to:
        return False
    c = fp16x3_config(problem, device)
    if fp16x3_bytes(c) > device.shared_bytes:
        return False
    rows = wgmma_rows(c)
    full = problem.bh * problem.n / rows / device.sm_count
    if problem.n < HALVES_FULL * rows * ceil_div(problem.n, rows):
        return False
    seen = problem.m // 2 if problem.causal else problem.m
    many = full >= HALVES_MANY and seen >= HALVES_SEEN
    return many or (full >= HALVES_FEW and problem.m >= HALVES_KEYS)


def wgmma_pays(problem: Problem, device: Device) -> bool:
    """Whether 18 takes a problem on a device, and was faster there than 14."""
    if device.capability != CAPABILITY or problem.biased or problem.d % 8:
        return False
    c = wgmma_config(problem, device)
    many = c["D"] <= 128 and problem.bh * problem.n >= MANY_QUERIES * device.sm_count
    return (many or problem.m >= FEWEST_KEYS[c["D"]]) and wgmma_bytes(c) <= device.shared_bytes
