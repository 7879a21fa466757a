"""Special registers: %tid, %ctaid, %laneid and others, as values over lanes."""

import numpy as np

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
    "%reserved_smem_offset_1": lambda thread, block, run: run.reserved[0],
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
_SHAPES = """
    %tid %ntid %ctaid %nctaid %clusterid %nclusterid %cluster_ctaid %cluster_nctaid
""".split()


CLOCKS = ("%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi")


def is_special(name: str) -> bool:
    """Is this a special register, or a component of one, that has a value here?"""
    base, _, axis = name.partition(".")
    return name in _VALUES or name in CLOCKS or base in _SHAPES and axis in (*_AXES, "w")


def special_registers(
    wanted: dict[int, str], thread: np.ndarray, block: np.ndarray, run
) -> dict[int, object]:
    """Return slot -> uint32 value (array over lanes, or scalar) for each wanted register name.

    thread, block: (lanes,) int64, the linear number of the thread in its block and of the block in
    the grid. run: the launch, with its geometry and sizes.
    """
    values = {}
    for slot, name in wanted.items():
        value = np.asarray(_register(name, thread, block, run)).astype(np.uint32)
        agree = value.ndim == 0 or (value == value[0]).all()
        values[slot] = np.uint32(value.flat[0]) if agree else value
    return values


def _register(name: str, thread: np.ndarray, block: np.ndarray, run):
    base, _, axis = name.partition(".")
    if name in CLOCKS or axis == "w":
        return 0  # a clock is read where it is used
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
