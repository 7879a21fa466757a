"""What follows from the results of instructions: slow paths of divisions, values of a match."""

from functools import lru_cache

import numpy as np

from ..events import InstructionEvent

# The least results of fast paths, of 32 and of 64 bits: of a root one of 2 ** -101, or so, by
# ptxas's code. Of a double's quotient it is the numerator that counts, and zeros are what occurs.
LEAST_FAST = {
    "f32": {"div": 2.0**-126, "rcp": 2.0**-126, "sqrt": 2.0**-50.5},
    "f64": {"div": 2.0**-968, "rcp": 2.0**-1021, "sqrt": 2.0**-480},
}


def slow_paths(event: InstructionEvent) -> int:
    """Return how many warps call the slow path of a division, a root or a reciprocal.

    It is there for results without an ordinary exponent, such as zeros.
    """
    result = event.machine.operand(
        event.instruction, event.instruction.operands[0], event.lanes.size
    )
    if result is None:
        return 0
    dtype, least = _fast(event.instruction.opcode)
    result = np.abs(np.asarray(result).view(dtype))
    fast = (result >= least) & (result < np.inf)
    if fast.all():
        return 0
    return np.unique(event.lanes[~np.broadcast_to(fast, event.lanes.shape)] >> 5).size


@lru_cache(maxsize=64)
def _fast(opcode: str) -> tuple[np.dtype, float]:
    """(The type of an operation's results, the least one of its fast path)."""
    root, *_, kind = opcode.split(".")
    return np.dtype(f"f{int(kind[1:]) // 8}"), LEAST_FAST[kind][root]


def match_values(event: InstructionEvent) -> int:
    """Return how many different values the lanes of a warp have, summed over the warps of a match:
    each has a result of its own, the lanes that have it.
    """
    result = event.machine.operand(
        event.instruction, event.instruction.operands[0], event.lanes.size
    )
    if result is None:
        return 0
    lanes = np.broadcast_to(np.asarray(result), event.lanes.shape).astype(np.uint64)
    return np.unique((event.lanes >> 5).astype(np.uint64) << np.uint64(32) | lanes).size
