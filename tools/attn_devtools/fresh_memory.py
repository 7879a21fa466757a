"""Signalling NaN in memory that NumPy hands out: `PYTEST_ADDOPTS="-p attn_devtools.fresh_memory"`.

What `np.empty` holds differs from run to run. A test that computes with it passes for as long as
these bits are harmless; here they never are. Integers are large, and truth is true.
"""

from functools import wraps

import numpy as np

# Bits of a signalling NaN of float32 and of float64; each two bytes are a NaN of float16. Sums with
# them are NaN, and a conversion raises "invalid value", as it would not of a quiet NaN.
FLOATS = {2: 0x7FA1, 4: 0x7FA17FA1, 8: 0x7FF47FA17FA17FA1}
BYTE = 0x5A  # of integers


def filled(array: np.ndarray) -> np.ndarray:
    """Return an array that np.empty has made, with no number left in it that is harmless.

    One that is not C-contiguous, and what holds no numbers, stays as it is.
    """
    kind, size = array.dtype.kind, array.itemsize
    if kind == "b":
        array[...] = True
    elif kind in "fciu" and array.flags.c_contiguous:
        half = size // 2 if kind == "c" else size
        unit = 1 if kind in "iu" else half if half in FLOATS else 4
        array.reshape(-1).view(f"u{unit}")[:] = FLOATS.get(unit, BYTE)
    return array


def _filling(make):
    @wraps(make)
    def made(*arguments, **how):
        return filled(make(*arguments, **how))

    return made


def pytest_configure():
    """Let np.empty and np.empty_like fill what they return."""
    np.empty, np.empty_like = _filling(np.empty), _filling(np.empty_like)
