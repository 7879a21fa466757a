"""Kernel 25: the backward pass on warpgroups, its tiles and its launches."""

from collections.abc import Mapping
from dataclasses import replace

from kernelscope.errors import InputError

from attn_course.ladder.problem import Device, Geometry, Problem, ceil_div
from attn_course.ladder.steps import Step
from attn_course.ladder.warpgroup_tiles import CAPABILITY, Constants
from attn_course.reference.dtypes import HALVES

from .mma import MMA_STEPS

KEYS = 128  # of a tile
GROUPS = 2  # warpgroups that compute
QUERIES = {64: 128, 128: 64}  # of a tile, by its columns


def backward_wgmma_bytes(c: Mapping[str, int]) -> int:
    """Dynamic shared memory in bytes: K and V; Q, dout, ds twice; dq; ends of rows; mbarriers.

    In a fixed order dq is there twice.
    """
    sums = 1 + c.get("DETERMINISTIC", 0)
    return 512 * c["D"] + 4 * c["BR"] * ((2 + sums) * c["D"] + 132) + 1024


def backward_wgmma_config(problem: Problem, device: Device) -> Constants:
    """Return the constants of 25 for a problem.

    Raises:
        ValueError: a device without wgmma, or rows that the copy engine or the tiles do not take.
    """
    if device.capability != CAPABILITY:
        major, minor = device.capability
        raise InputError(
            f"backward_wgmma needs the wgmma instructions of compute capability 9.0, {device.name} "
            f"has {major}.{minor}; use method backward_mma"
        )
    if problem.d % 8 or problem.d > max(QUERIES):
        raise InputError(
            f"backward_wgmma: rows of {problem.d} elements, but it takes multiples of 8 up to "
            f"{max(QUERIES)}; use method backward_mma"
        )
    width = next(width for width in QUERIES if problem.d <= width)
    shape = {"BFLOAT16": int(problem.dtype == "bfloat16"), "D": width, "BR": QUERIES[width]}
    return shape | {"BLOCKS": device.sm_count}


def suits_backward_wgmma(problem: Problem, device: Device) -> str:
    """Why "auto" takes kernel 25; "": it does not."""
    if device.capability != CAPABILITY or problem.dtype not in HALVES:
        return ""
    if problem.d % 8 or problem.d > max(QUERIES):
        return ""
    c = backward_wgmma_config(problem, device)
    fits = backward_wgmma_bytes(c) <= device.shared_bytes
    return f"{problem.dtype} on warpgroups" if fits else ""


def _products(entry, problem, c):
    tiles = problem.kv_matrices * ceil_div(problem.m, KEYS)
    grid = (min(tiles, c["BLOCKS"]), 1, 1)
    return Geometry(entry, grid, (128 * (GROUPS + 1), 1, 1), backward_wgmma_bytes(c))


def _scratch(geometry, problem):
    c = geometry.constants
    tiles = ceil_div(problem.n, c["BR"])
    return {
        "row_ends": (problem.bh, tiles, 2, c["BR"]),
        "dq_sum": (problem.bh, tiles * c["BR"], c["D"]),
        "turns": (problem.bh, tiles, GROUPS),
    }


def _of_25(step: Step) -> Step:
    how = {"tune": backward_wgmma_config, "flags": ("-arch=sm_90a",)}
    return replace(step, number=25, file="25_backward_wgmma", **how)


_BEGIN, _MMA, _END = MMA_STEPS
_ARGUMENTS = "q dout k v dk dv dq_sum row_ends turns bh heads kv_heads n m scale causal"
WGMMA_STEPS = (
    _of_25(_BEGIN),
    replace(
        _of_25(_MMA),
        entry="backward_wgmma",
        arguments=tuple(_ARGUMENTS.split()),
        geometry=_products,
        scratch=_scratch,
        maps={"q": "BR", "dout": "BR", "k": 64, "v": 64, "dk": 64, "dv": 64, "dq_sum": 64},
    ),
    _of_25(_END),
)
