"""Kernel 24: the backward pass on the tensor cores, its tiles and its launches."""

from collections.abc import Mapping

from kernelscope.errors import InputError

from attn_course.ladder.matrix_tiles import Constants, MatrixTiles
from attn_course.ladder.problem import LARGEST_D, Device, Geometry, Problem, ceil_div
from attn_course.ladder.steps import Step
from attn_course.reference.dtypes import HALVES


def tile_keys(c: Mapping[str, int]) -> int:
    """Keys a block."""
    return 16 * c["KEY_TILES"] * c["PAIRS"]


def mma_bytes(c: Mapping[str, int]) -> int:
    """Dynamic shared memory in bytes: K and V; Q, dout and ds twice; weights; lse and delta."""
    keys, row_bytes = tile_keys(c), ceil_div(c["D"], 64) * 128
    return 2 * keys * row_bytes + c["BR"] * (4 * row_bytes + 8 * keys + 16)


# From much reuse of Q to many blocks and little shared memory.
TILES = MatrixTiles(
    ("KEY_TILES", "PAIRS", "BR"),
    {
        64: ((2, 4, 128), (2, 4, 64), (2, 2, 64), (1, 2, 64)),
        128: ((2, 4, 64), (2, 2, 64), (1, 2, 64)),
        256: ((1, 4, 64), (1, 1, 64)),
    },
    16,
    mma_bytes,
)


def _fitting(problem: Problem, device: Device) -> list[Constants]:
    return [
        c
        for c in TILES.of(problem.d)
        if mma_bytes(c) <= device.shared_bytes and c["BR"] < problem.n + 64  # else 64 hold all
    ]


def _key_blocks(c: Mapping[str, int], problem: Problem) -> int:
    return problem.kv_matrices * ceil_div(problem.m, tile_keys(c))


def mma_config(problem: Problem, device: Device) -> Constants:
    """The first tile that fits and gives every multiprocessor a block, else the last that fits."""
    found = _fitting(problem, device)
    if problem.d > LARGEST_D or not found:
        raise InputError(
            f"backward_mma: no tile for head dim {problem.d} on {device.name}, which has "
            f"{device.shared_bytes // 1024} KB of shared memory a block; use float32 arrays, which "
            f"backward_rows takes up to head dim {LARGEST_D}"
        )
    best = next((c for c in found if _key_blocks(c, problem) >= device.sm_count), found[-1])
    return {"BFLOAT16": int(problem.dtype == "bfloat16"), **best}


def suits_mma(problem: Problem, device: Device) -> str:
    """Why "auto" takes kernel 24; "": it does not."""
    if problem.dtype not in HALVES or problem.d > LARGEST_D or device.capability < (8, 0):
        return ""
    return f"{problem.dtype} on tensor cores" if _fitting(problem, device) else ""


def _tiles(problem: Problem, c: Mapping[str, int]) -> int:
    """Tiles of queries, of all heads."""
    return problem.bh * ceil_div(problem.n, c["BR"])


def _row_by_row(entry, rows, c):
    """Before and after the products: a warp a row, or half of one where that has all columns."""
    return Geometry(entry, (ceil_div(rows, 8 if c["D"] > 64 else 16), 1, 1), (256, 1, 1))


def _begin(entry, problem, c):
    return _row_by_row(entry, _tiles(problem, c) * c["BR"], c)


def _products(entry, problem, c):
    if c["PAIRS"] % (c["BR"] // 64):
        raise InputError(
            f"backward_mma: {c['PAIRS']} pairs of warps cannot share {c['BR']} queries of dq in "
            f"whole parts: make PAIRS a multiple of {c['BR'] // 64}, or pass -DBR=64 too"
        )
    grid = (_key_blocks(c, problem), 1, 1)
    return Geometry(entry, grid, (64 * c["PAIRS"], 1, 1), mma_bytes(c))


def _end(entry, problem, c):
    return _row_by_row(entry, problem.bh * problem.n, c)


def _scratch(geometry, problem):
    c = geometry.constants
    tiles, turns = _tiles(problem, c), c["PAIRS"] * c.get("DETERMINISTIC", 0)
    return {
        "row_ends": (tiles, 2, c["BR"]),
        "dq_sum": (tiles * c["BR"] // 16, c["D"] // 8, 32, 4),
        "turns": (1 + tiles * turns,),
    }


def _step(entry, computes, arguments, writes, geometry, **more) -> Step:
    names = tuple(arguments.split()), tuple(writes.split())
    how = {"tune": mma_config, "dtypes": ("bfloat16", "float16")}
    return Step(24, "24_backward_mma", entry, computes, *names, geometry, **how | more)


MMA_STEPS = (
    _step(
        "begin_backward",
        "delta = sum of dout out",
        "out dout lse row_ends dq_sum rows n d",
        "row_ends dq_sum",
        _begin,
    ),
    _step(
        "backward_mma",
        "dv = p^T dout, ds = p (dout v^T - delta), dk = scale ds^T q, ds k",
        "q dout k v row_ends dq_sum dk dv turns heads kv_heads n m d scale causal",
        "dk dv",
        _products,
        scratch=_scratch,
    ),
    _step("end_backward", "dq = scale ds k", "dq_sum dq rows n d scale", "dq", _end),
)
