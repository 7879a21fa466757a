"""Kernel 30: the backward pass of float32 in TF32 products, its tiles and its launches."""

from collections.abc import Mapping
from dataclasses import replace

from kernelscope.errors import InputError

from attn_course.ladder.matrix_tiles import Constants, MatrixTiles
from attn_course.ladder.problem import Device, Geometry, Problem, ceil_div
from attn_course.ladder.steps import Step

from .mma import MMA_STEPS

LARGEST_D = 128  # 16 keys a warp: gradients of K and V in registers
FEWEST_BLOCKS = 0.25  # a multiprocessor, with which "auto" takes it


def tf32_bytes(c: Mapping[str, int]) -> int:
    """Dynamic shared memory in bytes: K and V; Q, dout and ds; lse and delta."""
    keys = 16 * c["WARPS"]
    return 8 * c["D"] * keys + c["BR"] * (8 * c["D"] + 4 * keys + 8)


# From much reuse of Q to many blocks and little shared memory.
TILES = MatrixTiles(
    ("WARPS", "BR", "RESIDENT"),
    {64: ((4, 64, 2), (4, 32, 2)), 128: ((4, 32, 2), (2, 32, 3))},
    32,
    tf32_bytes,
)


def _fitting(problem: Problem, device: Device) -> list[Constants]:
    if problem.d > LARGEST_D:
        return []
    return [c for c in TILES.of(problem.d) if tf32_bytes(c) <= device.shared_bytes]


def _key_blocks(c: Mapping[str, int], problem: Problem) -> int:
    return problem.kv_matrices * ceil_div(problem.m, 16 * c["WARPS"])


def tf32_config(problem: Problem, device: Device) -> Constants:
    """The first tile that fits and gives every multiprocessor a block, else the last that fits."""
    found = _fitting(problem, device)
    if not found:
        raise InputError(
            f"backward_tf32x3: no tile for head dim {problem.d} on {device.name}, it takes at most "
            f"{LARGEST_D}; use method backward_rows"
        )
    return next((c for c in found if _key_blocks(c, problem) >= device.sm_count), found[-1])


def suits_tf32(problem: Problem, device: Device) -> str:
    """Why "auto" takes kernel 30; "": it does not."""
    found = _fitting(problem, device)
    if problem.dtype != "float32" or device.capability < (8, 0) or not found:
        return ""
    few = FEWEST_BLOCKS * device.sm_count
    return "float32 in TF32 products" if _key_blocks(found[-1], problem) >= few else ""


def _products(entry, problem, c):
    grid = (_key_blocks(c, problem), 1, 1)
    return Geometry(entry, grid, (32 * c["WARPS"], 1, 1), tf32_bytes(c))


def _scratch(geometry, problem):
    c = geometry.constants
    tiles = problem.bh * ceil_div(problem.n, c["BR"])
    turns = c["BR"] // 16 * c["D"] // 32 * c.get("DETERMINISTIC", 0)
    return {
        "row_ends": (tiles, 2, c["BR"]),
        "dq_sum": (tiles, c["BR"], c["D"]),
        "turns": (1 + tiles * turns,),
    }


def _of_30(step: Step) -> Step:
    how = {"tune": tf32_config, "dtypes": ("float32",), "relative": 0.0}
    return replace(step, number=30, file="30_backward_tf32x3", **how)


_BEGIN, _MMA, _END = MMA_STEPS
TF32_STEPS = (
    _of_30(_BEGIN),
    replace(_of_30(_MMA), entry="backward_tf32x3", geometry=_products, scratch=_scratch),
    _of_30(_END),
)
