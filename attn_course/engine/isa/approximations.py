"""PTX's .approx functions: computed in float64 and rounded once, so well inside the ISA's bounds.

The hardware's own results differ in the last bits; a kernel that uses them is compared with a
tolerance, never bit by bit. Special values follow the ISA's tables.
"""

import numpy as np

from .float32 import canonical, flushing


def _rounded(function):
    def approximate(x):
        return canonical(function(x.astype(np.float64)).astype(np.float32))

    return approximate


_FUNCTIONS = {
    "ex2": _rounded(np.exp2),
    "lg2": _rounded(np.log2),
    "rcp": _rounded(lambda x: np.divide(1.0, x)),
    "sqrt": _rounded(np.sqrt),
    # 1 / sqrt(-0.0) is -inf
    "rsqrt": _rounded(lambda x: np.divide(1.0, np.sqrt(x))),
    # infinities give NaN, as the ISA wants
    "sin": _rounded(np.sin),
    "cos": _rounded(np.cos),
    "tanh": _rounded(np.tanh),
}


def approximation(name, ftz):
    """The float32 function of NAME.approx: ex2, lg2, rcp, sqrt, rsqrt, sin, cos or tanh."""
    function = _FUNCTIONS[name]
    return flushing(function) if ftz else function


def divide_approximately(ftz):
    """div.approx.f32, defined as a * (1 / b): for |b| above 2^126 the reciprocal is flushed to 0,
    so that finite a give a signed zero and infinite ones NaN."""

    def divide(a, b):
        quotient = np.divide(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
        huge = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
        return canonical(np.where(huge, a * (np.float32(0) * b), quotient)[()])

    return flushing(divide) if ftz else divide


def _truncated(x):
    """float64 `x` with the low 32 bits of its representation cleared (rcp/rsqrt.approx.ftz.f64)."""
    return (x.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)


def _flush_f64(x):
    return np.where((np.abs(x) < 2.0**-1022), np.copysign(0.0, x), x)[()]


def approximation_f64(name, ftz):
    """rcp.approx.ftz.f64 and rsqrt.approx(.ftz).f64; .ftz leaves only the upper 32 bits."""
    root = name == "rsqrt"

    def approximate(x):
        x = _truncated(_flush_f64(x)) if ftz else x
        out = np.divide(1.0, np.sqrt(x) if root else x)
        return _truncated(_flush_f64(out)) if ftz else out

    return approximate
