"""Element types of attention's inputs, and the error to float64 that their rounding allows.

The reference is computed from the rounded inputs, so what counts is the rounding inside a kernel:
of its output, and with 16 bits of the softmax weights before they meet V.
"""

import ml_dtypes
import numpy as np

DTYPES: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
HALVES = ("bfloat16", "float16")  # 16 bits: the types of tensor cores
# Relative error as a norm. A number of 11 or 8 significant bits is rounded by at most 2**-11 or
# 2**-8 of its size; in float32, whose roundings are 2**-24, thousands of them add up.
TOLERANCES = {"float32": 1e-5, "float16": 2**-11, "bfloat16": 2**-8}
