"""Which constants suit a problem on a device: tiles of 13, the kernels of tensor cores.

Each list goes from tiles that use each element of K and V often to tiles that make many blocks.
The first that fits the device and gives every multiprocessor a block is taken, else the one that
makes the most blocks.
"""

from collections.abc import Mapping

from .problem import LARGEST_D, MAX_GRID_YZ, Device, Problem, ceil_div

Constants = dict[str, int]

_WMMA = ("ROW_TILES", "KEYS", "WARPS", "BLOCKS")
# By the padded head dim up to which they hold.
WMMA_TILES = {
    64: ((2, 64, 4, 1), (1, 64, 4, 1), (1, 32, 2, 1)),
    128: ((2, 64, 4, 1), (2, 32, 4, 1), (1, 32, 4, 1), (1, 32, 2, 1)),
    256: ((1, 64, 8, 1), (1, 32, 8, 1), (1, 32, 4, 1), (1, 16, 2, 1)),
}


def matrix_rows(c: Mapping[str, int]) -> int:
    """Query rows a block of 13."""
    return 16 * c["ROW_TILES"] * c["WARPS"]


def wmma_shared_bytes(c: Mapping[str, int]) -> int:
    """Dynamic shared memory of 13: tiles of Q, K and V, scores, a factor for each row."""
    rows, stride = matrix_rows(c), c["D"] + 8
    return 2 * (rows + 2 * c["KEYS"]) * stride + 4 * rows * (c["KEYS"] + 9)


SHARED_BYTES = {"flash_wmma": wmma_shared_bytes}


def matrix_shared_bytes(entry: str, c: Mapping[str, int]) -> int:
    """Dynamic shared memory of a kernel of this module, by its entry point."""
    return SHARED_BYTES[entry](c)


def matrix_candidates(entry: str, problem: Problem, device: Device) -> list[Constants]:
    """Constants of a kernel that fit a device and a grid, from much reuse to many blocks."""
    width = 16 * ceil_div(min(problem.d, LARGEST_D), 16)
    found = [
        {"BFLOAT16": int(problem.dtype == "bfloat16"), "D": width}
        | dict(zip(_WMMA, tile, strict=True))
        for tile in WMMA_TILES[next(limit for limit in WMMA_TILES if width <= limit)]
    ]
    return [
        c
        for c in found
        if matrix_shared_bytes(entry, c) <= device.shared_bytes
        and ceil_div(problem.n, matrix_rows(c)) <= MAX_GRID_YZ
    ]


def matrix_config(entry: str, problem: Problem, device: Device) -> Constants:
    """Constants of a kernel. Raises ValueError where no tile fits the device."""
    found = matrix_candidates(entry, problem, device)
    if not found:
        raise ValueError(
            f"{entry}: {problem.n} queries of head dim {problem.d} fit no tile on {device.name}, "
            f"which has {device.shared_bytes // 1024} KB of shared memory a block; use float32 "
            "arrays and method rows_online, which has no tiles"
        )
    full = (c for c in found if problem.bh * ceil_div(problem.n, matrix_rows(c)) >= device.sm_count)
    return next(full, found[-1])


def wmma_config(problem: Problem, device: Device) -> Constants:
    """Constants of 13. Raises ValueError where no tile fits the device."""
    return matrix_config("flash_wmma", problem, device)
