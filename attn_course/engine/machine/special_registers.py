"""Special registers: %tid, %ctaid, %laneid and the like, as values over a chunk's lanes."""

from __future__ import annotations

import numpy as np

from attn_course.engine.translate.control_flow import LANE

from .errors import UnsupportedInstruction
from .memory import aligned

_AXES = {"x": 0, "y": 1, "z": 2}
# name -> value from (thread in block, block in grid, run): an array over lanes, or a number
_VALUES = {
    "%laneid": lambda thread, block, run: thread % 32,
    "%warpid": lambda thread, block, run: thread // 32,
    "%nwarpid": lambda thread, block, run: -(-run.threads // 32),
    "%smid": lambda thread, block, run: 0,
    "%nsmid": lambda thread, block, run: 1,
    "%gridid": lambda thread, block, run: 1,
    "%dynamic_smem_size": lambda thread, block, run: run.dynamic_bytes,
    "%total_smem_size": lambda thread, block, run: run.shared_size,
    "%reserved_smem_offset_1": lambda thread, block, run: aligned(run.shared_size),
    "%envreg1": lambda thread, block, run: run.grid_workspace >> 32,
    "%envreg2": lambda thread, block, run: run.grid_workspace & 0xFFFFFFFF,
    "%is_explicit_cluster": lambda thread, block, run: run.cluster != (1, 1, 1),
    "%cluster_ctarank": lambda thread, block, run: run.cluster_ranks(block)[1],
    "%cluster_nctarank": lambda thread, block, run: np.prod(run.cluster),
    "%lanemask_eq": lambda thread, block, run: 1 << (thread % 32),
    "%lanemask_lt": lambda thread, block, run: (1 << (thread % 32)) - 1,
    "%lanemask_le": lambda thread, block, run: (2 << (thread % 32)) - 1,
    "%lanemask_gt": lambda thread, block, run: 0xFFFFFFFF & ~((2 << (thread % 32)) - 1),
    "%lanemask_ge": lambda thread, block, run: 0xFFFFFFFF & ~((1 << (thread % 32)) - 1),
}
_SHAPES = (
    "%tid",
    "%ntid",
    "%ctaid",
    "%nctaid",
    "%clusterid",
    "%nclusterid",
    "%cluster_ctaid",
    "%cluster_nctaid",
)
CLOCKS = ("%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi")


def check_name(name: str) -> None:
    """Raises UnsupportedInstruction for a register that has no value here."""
    base = name.partition(".")[0]
    if base not in _VALUES and base not in _SHAPES and name not in CLOCKS:
        raise UnsupportedInstruction(f"there is no special register {name} here")


def special_registers(wanted: dict[int, str], chunk, run) -> dict[int, object]:
    """slot -> uint32 value (array over lanes, or scalar) for each wanted PTX register name."""
    if not wanted:
        return {}
    lane = chunk.home[LANE]
    per_block = chunk.warps_per_block * 32
    thread = lane % per_block
    block = chunk.first_block + lane // per_block
    values = {}
    for slot, name in wanted.items():
        value = np.asarray(_register(name, thread, block, run)).astype(np.uint32)
        agree = value.ndim == 0 or (value == value[0]).all()
        values[slot] = np.uint32(value.flat[0]) if agree else value
    return values


def _register(name: str, thread: np.ndarray, block: np.ndarray, run):
    base, _, axis = name.partition(".")
    if name in CLOCKS or axis == "w":
        return 0  # clocks are read anew each time, not here
    if base not in _SHAPES:
        return _VALUES[base](thread, block, run)
    axis = _AXES[axis]
    if base == "%tid":
        return _component(thread, run.block, axis)
    here = _component(block, run.grid, axis)
    return {
        "%ntid": run.block[axis],
        "%ctaid": here,
        "%nctaid": run.grid[axis],
        "%clusterid": here // run.cluster[axis],
        "%nclusterid": run.grid[axis] // run.cluster[axis],
        "%cluster_ctaid": here % run.cluster[axis],
        "%cluster_nctaid": run.cluster[axis],
    }[base]


def _component(linear: np.ndarray, shape: tuple[int, int, int], axis: int) -> np.ndarray:
    if axis == 0:
        return linear % shape[0]
    if axis == 1:
        return linear // shape[0] % shape[1]
    return linear // (shape[0] * shape[1])
