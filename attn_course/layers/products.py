"""Products with weight matrices: cuBLASLt on a GPU, NumPy on the simulator, float32 in and out.

On a GPU a precision is chosen. "fp32" multiplies in float32. "tf32x3" multiplies on tensor cores,
which keep 11 bits of a factor: each factor x is cut into high + low, and low*high + high*low +
high*high is one product of three times the inner extent (Ootomo and Yokota, arXiv:2203.03341,
discuss such products, and that tensor cores cut their sums off). "tf32" is one product of factors
rounded to 11 bits. For tensor cores a matrix lies in memory as (n, k): wgmma reads TF32 numbers
along k only, and on an H200 products with such a matrix take less time. The simulator's products
are NumPy's, also over the three parts, summed in float64 and rounded once: BLAS adds in an order of
the processor's, which float32 would show.
"""

import numpy as np
from kernelscope import array_module
from kernelscope.errors import InputError

# Precision -> the parts into which the factors are cut.
PRECISIONS = {"fp32": 1, "tf32x3": 3, "tf32": 1}


class WeightMatrix:
    """A copy of a weight matrix (k, n) on a backend, ready for products in one precision.

    Attributes:
        shape: (k, n).
        parts: how many parts the rows of the left factor have; see kernels/include/quads.cuh.
        compute: of the product on a GPU, "fp32" or "tf32".
    """

    def __init__(self, weights, precision: str = "fp32", backend: str | None = None):
        if precision not in tuple(PRECISIONS):  # what has no hash is refused as well
            raise InputError(f"precision is {precision!r}; choose one of: {', '.join(PRECISIONS)}")
        xp = array_module(backend)
        self.parts, self.compute = PRECISIONS[precision], "fp32" if precision == "fp32" else "tf32"
        weights = xp.array(weights, dtype=np.float32, order="C")
        self.shape = weights.shape
        if self.parts == 3:
            high = tf32_high(weights)
            weights = xp.concatenate([high, weights - high, high])
        if self.compute == "tf32":
            weights = xp.ascontiguousarray(weights.T).T
        self.data = weights  # (parts*k, n)

    def sum_of_parts(self):
        """Return the weights as they were given, (k, n) float32."""
        if self.parts == 1:
            return self.data
        k = len(self.data) // 3
        return self.data[:k] + self.data[k : 2 * k]


def tf32_high(x):
    """Return the nearest numbers with 11 bits, as tensor cores read them; float32 in and out."""
    bits = x.view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def numpy_product(a, b, out, bias=None, residual=None) -> None:
    """out = a b + bias + residual, on the simulator's side.

    a: (m, k).  b: (k, n).  out, residual: (m, n).  bias: (n,).
    """
    found = np.matmul(a, b, dtype=np.float64).astype(np.float32)
    if bias is not None:
        found += bias
    if residual is not None:
        found += residual
    out[...] = found
