"""Simulated addresses: where each space starts, and what an address of a cluster holds.

Addresses are byte offsets within one space. A generic address names its space by its window.
"""

CLUSTER_SHIFT = 24  # in a shared address of a cluster, the bits from here on name the block
SHARED_WINDOW = 1 << 56  # generic addresses of shared memory start here
LOCAL_WINDOW = 1 << 57  # generic addresses of local memory start here
FUNCTION_WINDOW = 1 << 58  # the address of a function is its number from here on
WINDOWS = {"global": 0, "shared": SHARED_WINDOW, "local": LOCAL_WINDOW}
_BELOW = 1 << 40  # an index below 0 stays in the space of its array, so that messages can name it
RANGES = {
    "shared": (SHARED_WINDOW - _BELOW, LOCAL_WINDOW - _BELOW),
    "local": (LOCAL_WINDOW - _BELOW, FUNCTION_WINDOW - _BELOW),
}


def aligned(size: int, to: int = 16) -> int:
    """Return the next multiple of `to`."""
    return -(-size // to) * to
