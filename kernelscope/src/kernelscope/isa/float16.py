"""Arithmetic on .f16, .bf16 and their packed pairs, which registers hold as bits (uint16, uint32).

Values are widened to float64, where sums and products of these formats are exact or can be rounded
to odd, and rounded once. A NaN result is the canonical 0x7fff of both formats.
"""

import numpy as np

from . import float32 as numerics

CANONICAL = np.uint16(0x7FFF)
_U16 = np.uint16
_U32 = np.uint32


def widen(bits, kind):
    """uint16 bits of kind "f16" or "bf16" as float64, exactly."""
    if kind == "f16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(_U32) << _U32(16)).view(np.float32).astype(np.float64)


def widen_single(bits, kind):
    """uint16 bits of `kind` as float32, exactly; NaN of "f16" becomes the canonical one."""
    if kind == "f16":
        return numerics.canonical(bits.view(np.float16).astype(np.float32))
    return (bits.astype(_U32) << _U32(16)).view(np.float32)


def narrow(x, kind, mode="rn"):
    """float64 `x` (exact, or rounded to odd) rounded to uint16 bits of `kind`; NaN is canonical."""
    if mode != "rn":
        bits = _narrow_directed(x, kind, mode)
    elif kind == "f16":
        bits = x.astype(np.float16).view(_U16)
    else:
        bits = _round_top_half(odd_single(x).view(_U32))
    return np.where(np.isnan(x), CANONICAL, bits)[()]


def truncate_nan(x, kind):
    """The bits of `kind` for float64 NaN `x`: quiet, with its sign and the payload's top bits."""
    quiet = x * np.float64(1)
    if kind == "f16":
        return quiet.astype(np.float16).view(_U16)
    return (quiet.astype(np.float32).view(_U32) >> _U32(16)).astype(_U16)


def odd_single(x):
    """float64 `x` rounded to odd in float32, so that a further rounding is still correct."""
    near = np.asarray(x.astype(np.float32))
    back = near.astype(np.float64)
    # cut toward zero (one bit down in magnitude, from infinity to the largest number), then odd
    cut = near.view(_U32) - (np.abs(back) > np.abs(x))
    return (cut | (back != x)).view(np.float32)[()]


def _round_top_half(bits):
    """The upper 16 bits of float32 `bits`, rounded to nearest even."""
    odd = (bits >> _U32(16)) & _U32(1)
    return ((bits + _U32(0x7FFF) + odd) >> _U32(16)).astype(_U16)


def _narrow_directed(x, kind, mode):
    nearest = narrow(x, kind)
    back = widen(nearest, kind)
    # neighbours in value are neighbours in bits, once the sign is set apart
    toward_zero = np.abs(back) > np.abs(x)
    away = np.abs(back) < np.abs(x)
    down, up = (True, False) if mode == "rm" else (False, True)
    negative = np.signbit(x)
    if mode == "rz":
        change = -toward_zero.astype(np.int32)
    else:
        outward = np.where(negative, down, up)  # whether this mode rounds away from zero here
        change = np.where(outward, away.astype(np.int32), -toward_zero.astype(np.int32))
    return (nearest.astype(np.int32) + change).astype(_U16)


# --- operations -----------------------------------------------------------------------------------
def _sum(a, b):
    return numerics.round_to_odd(*numerics.two_sum(a, b))


_ARITHMETIC = {
    "add": _sum,
    "sub": lambda a, b: _sum(a, -b),
    "mul": np.multiply,
    "fma": lambda a, b, c: numerics.round_to_odd(*numerics.two_sum(a * b, c)),
}


def flush(bits, kind="f16"):
    """`bits` of `kind` with subnormals replaced by zero of the same sign."""
    subnormal = (bits & _U16(0x7C00 if kind == "f16" else 0x7F80)) == 0
    return np.where(subnormal, bits & _U16(0x8000), bits)[()]


# The float64 magnitude from which 11 digits and an unbounded exponent reach the least normal .f16.
_REACHES_NORMAL = 2.0**-14 * (1 - 2.0**-12)


def flush_result(bits, x):
    """.f16 `bits`, which are float64 `x` rounded to nearest, flushed as hardware does.

    What 11 digits round to less than 2^-14 is flushed, even where the coarser steps of subnormal
    numbers have lifted it there; `x` is exact or rounded to odd.
    """
    return np.where(np.abs(x) < _REACHES_NORMAL, bits & _U16(0x8000), bits)[()]


def arithmetic(name, kind, ftz=False, sat=False, relu=False):
    """add, sub, mul or fma on uint16 bits of `kind`; .ftz is for .f16 alone."""
    exact = _ARITHMETIC[name]

    def compute(*values):
        if ftz:
            values = tuple(map(flush, values))
        x = exact(*(widen(value, kind) for value in values))
        out = narrow(x, kind)
        return clamp(flush_result(out, x) if ftz else out, kind, sat, relu)

    return compute


def canonical(bits, kind):
    """`bits` with every NaN replaced by the canonical one."""
    return np.where(_is_nan(bits, kind), CANONICAL, bits)[()]


def clamp(bits, kind, sat, relu):
    """.sat (to [0, 1], NaN to 0) or .relu (negative to 0, NaN stays canonical) applied to bits."""
    if sat:
        one = _U16(0x3C00 if kind == "f16" else 0x3F80)
        positive = (bits < _U16(0x8000)) & ~_is_nan(bits, kind)
        return np.where(positive, np.minimum(bits, one), _U16(0))[()]
    if relu:
        return np.where((bits >= _U16(0x8000)) & ~_is_nan(bits, kind), _U16(0), bits)[()]
    return bits


def _is_nan(bits, kind):
    return (bits & _U16(0x7FFF)) > _U16(0x7C00 if kind == "f16" else 0x7F80)


def extremum(largest, kind, ftz=False, keep_nan=False, by_magnitude=False):
    """min or max on uint16 bits; see numerics.extremum. With `by_magnitude`, .xorsign.abs."""
    choose = numerics.extremum(largest, keep_nan)

    def compute(a, b):
        if ftz:
            a, b = flush(a), flush(b)
        if by_magnitude:
            sign = (a ^ b) & _U16(0x8000)
            a, b = a & _U16(0x7FFF), b & _U16(0x7FFF)
            out = narrow(choose(widen(a, kind), widen(b, kind)), kind)
            return np.where(out == CANONICAL, out, out | sign)[()]
        return narrow(choose(widen(a, kind), widen(b, kind)), kind)

    return compute


def sign_operation(name, kind, ftz=False):
    """abs or neg: the sign bit cleared or flipped; NaN becomes the canonical one."""

    def compute(a):
        a = flush(a) if ftz else a
        out = a & _U16(0x7FFF) if name == "abs" else a ^ _U16(0x8000)
        return np.where(_is_nan(a, kind), CANONICAL, out)[()]

    return compute


def through_double(function, kind, ftz=False):
    """A one-operand float64 function on uint16 bits of `kind` (ex2.approx, tanh.approx)."""

    def compute(a):
        if ftz:
            return flush(narrow(function(widen(flush(a, kind), kind)), kind), kind)
        return narrow(function(widen(a, kind)), kind)

    return compute


def paired(operation):
    """An operation on uint16 values applied to both halves of packed uint32 values."""

    def both(*values):
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        if arrays:  # low, high, low, high ...: one call for all
            count = arrays[0].size
            every = (v if isinstance(v, np.ndarray) else np.full(count, v) for v in values)
            halves = (np.ascontiguousarray(value).view(_U16) for value in every)
            return operation(*halves).view(_U32)
        low = operation(*(value.astype(_U16) for value in values))
        high = operation(*((value >> _U32(16)).astype(_U16) for value in values))
        return pack(high, low)

    return both


def pack(high, low):
    """Two uint16 values as one uint32."""
    return (high.astype(_U32) << _U32(16)) | low
