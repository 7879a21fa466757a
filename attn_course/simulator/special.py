"""Special registers: %tid, %ctaid, %laneid and the like, as values over a chunk's lanes."""

from __future__ import annotations

import numpy as np

from .blocks import LANE
from .errors import SimulatorError

_AXES = {"x": 0, "y": 1, "z": 2}


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
        value = _register(name, thread, block, run)
        if isinstance(value, np.ndarray):
            value = value.astype(np.uint32)
            if value.size and (value == value[0]).all():
                value = value[0]
        else:
            value = np.uint32(value)
        values[slot] = value
    return values


def _register(name: str, thread: np.ndarray, block: np.ndarray, run):
    base, _, axis = name.partition(".")
    if axis == "w":
        return 0
    if base.startswith(("%clock", "%globaltimer")):
        return 0  # never read: a mov from them asks the machine for its ticks
    if base == "%ntid":
        return run.block[_AXES[axis]]
    if base == "%nctaid":
        return run.grid[_AXES[axis]]
    if base == "%tid":
        return _component(thread, run.block, _AXES[axis])
    if base == "%ctaid":
        return _component(block, run.grid, _AXES[axis])
    simple = {
        "%laneid": lambda: thread % 32,
        "%warpid": lambda: thread // 32,
        "%nwarpid": lambda: -(-run.threads // 32),
        "%smid": lambda: block % 1,
        "%nsmid": lambda: 1,
        "%gridid": lambda: 1,
        "%dynamic_smem_size": lambda: run.dynamic_bytes,
        "%total_smem_size": lambda: run.shared_size,
        "%lanemask_eq": lambda: 1 << (thread % 32),
        "%lanemask_lt": lambda: (1 << (thread % 32)) - 1,
        "%lanemask_le": lambda: (2 << (thread % 32)) - 1,
        "%lanemask_gt": lambda: 0xFFFFFFFF & ~((2 << (thread % 32)) - 1),
        "%lanemask_ge": lambda: 0xFFFFFFFF & ~((1 << (thread % 32)) - 1),
    }
    if base not in simple:
        raise SimulatorError(f"the simulator does not know the special register {name}")
    return simple[base]()


def _component(linear: np.ndarray, shape: tuple[int, int, int], axis: int) -> np.ndarray:
    if axis == 0:
        return linear % shape[0]
    if axis == 1:
        return linear // shape[0] % shape[1]
    return linear // (shape[0] * shape[1])
