"""Signalling NaN in memory that NumPy hands out: `PYTEST_ADDOPTS="-p attn_devtools.fresh_memory"`.

What `np.empty` holds differs from run to run. A test that computes with it passes for as long as
these bits are harmless; here they never are. Integers are large, and truth is true.
"""

from functools import wraps

import numpy as np

# Bytes of a signalling NaN of float32 and of float64; each two are a NaN of float16. Sums with them
# are NaN, and a conversion raises "invalid value", as it would not of a quiet NaN.
FLOATS = {4: "a17fa17f", 8: "a17fa17fa17ff47f"}
INTEGERS = "5a"


def filled(array: np.ndarray) -> np.ndarray:
    """Return an array that np.empty has made, with nothing harmless left in it."""
    if array.dtype.kind == "b":
        array[...] = True
    elif array.dtype.kind in "fciu" and array.flags.c_contiguous:
        size = array.itemsize // 2 if array.dtype.kind == "c" else array.itemsize
        word = FLOATS[8 if size == 8 else 4] if array.dtype.kind in "fc" else INTEGERS
        raw = array.reshape(-1).view(np.uint8)
        raw[:] = np.resize(np.frombuffer(bytes.fromhex(word), np.uint8), raw.size)
    return array


def _filling(make):
    @wraps(make)
    def made(*arguments, **how):
        return filled(make(*arguments, **how))

    return made


def pytest_configure():
    """Let np.empty and np.empty_like fill what they return."""
    np.empty, np.empty_like = _filling(np.empty), _filling(np.empty_like)
