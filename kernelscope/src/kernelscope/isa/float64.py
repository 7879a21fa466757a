"""IEEE arithmetic of PTX on NumPy float64 values, in every rounding mode.

Values and rounding modes are as in numerics. What float64 itself cannot carry exactly (fma,
directed roundings) is computed in two numbers of float64, and in exact fractions for the rare
lanes whose exponents would overflow or underflow on the way.

NaN: unlike float32's, the payload of an operand's NaN stays, made quiet. Of two NaN operands H200
hardware keeps the second (add, sub, mul), the second, third, first (fma) or the first (div); an
invalid operation gives 0xfff8000000000000.
"""

from fractions import Fraction

import numpy as np

from .float32 import round_to_odd, step, two_sum, zero_sign

_BLOCK = 4096  # lanes whose intermediate values stay in the cache
_NAN = np.uint64(0xFFF8000000000000).view(np.float64)


def keep_nan(out, *operands):
    """`out` with each NaN replaced by the first NaN of `operands` on that lane, made quiet."""
    lowest = np.min(out, initial=np.inf)
    if lowest == lowest:
        return out
    nan = _NAN
    for operand in reversed(operands):
        nan = np.where(np.isnan(operand), operand * np.float64(1), nan)
    return np.where(np.isnan(out), nan, out)[()]


_SPLIT = np.float64(2**27 + 1)


def two_product(a, b):
    """(p, e): the float64 product and its exact error (Dekker); no over- or underflow allowed."""
    p = a * b
    t = _SPLIT * a
    a_high = t - (t - a)
    t = _SPLIT * b
    b_high = t - (t - b)
    a_low, b_low = a - a_high, b - b_high
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


def round_fraction(value, mode):
    """The Fraction `value` (not 0) as a float64 rounded by `mode`, as a Python float.

    Overflow follows IEEE 754: infinity where the mode rounds away from zero, else the largest
    float.
    """
    negative, value = value < 0, abs(value)
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent -= value < Fraction(2) ** exponent
    quantum = Fraction(2) ** (max(exponent, -1022) - 52)
    count, rest = divmod(value / quantum, 1)
    away = mode == ("rm" if negative else "rp")
    if mode == "rn":
        away = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and count % 2 == 1)
    scaled = (count + (away and rest != 0)) * quantum
    largest = float.fromhex("0x1.fffffffffffffp+1023")
    overflow = float("inf") if mode == "rn" or away else largest
    magnitude = float(scaled) if scaled <= Fraction(largest) else overflow
    return -magnitude if negative else magnitude


def exact_lanes(out, lanes, formula, mode, *operands):
    """`out` with the float64 results at mask `lanes` replaced by `formula` in exact fractions."""
    shape = np.broadcast_shapes(*(np.shape(x) for x in operands))
    out = np.array(np.broadcast_to(out, shape))
    columns = [np.broadcast_to(x, shape)[lanes].tolist() for x in operands]
    exact = [formula(*map(Fraction, row)) for row in zip(*columns, strict=True)]
    rounded = [round_fraction(value, mode) if value else None for value in exact]
    # an exact zero keeps the sign that ordinary arithmetic gave it
    fallback = out[lanes].tolist()
    out[lanes] = [b if a is None else a for a, b in zip(rounded, fallback, strict=True)]
    return out[()]


def _within(x, low, high):
    magnitude = np.abs(x)
    return (magnitude >= 2.0**low) & (magnitude <= 2.0**high)


def fma_f64(a, b, c, mode="rn"):
    """a * b + c in float64, rounded once by `mode`; values (lanes,) or scalars."""
    lanes = max(np.size(a), np.size(b), np.size(c))
    if lanes <= _BLOCK:
        return _fma_of_block(a, b, c, mode)
    out = np.empty(lanes)
    for start in range(0, lanes, _BLOCK):
        part = slice(start, start + _BLOCK)
        out[part] = _fma_of_block(*(x[part] if np.ndim(x) else x for x in (a, b, c)), mode)
    return out


def _fma_of_block(a, b, c, mode):
    if mode != "rn":
        return _fma_in_steps(a, b, c, mode)
    out, known = _fma_by_bounds(a, b, c)
    for x, low, high in ((a, -400, 400), (b, -400, 400), (c, -800, 900)):
        size = np.abs(x)
        if not (np.min(size, initial=1) >= 2.0**low and np.max(size, initial=1) <= 2.0**high):
            known = known & ((x == 0) | _within(x, low, high))
    if np.all(known):
        return out
    if not np.ndim(out):
        return _fma_in_steps(a, b, c, mode)
    rest = ~known
    out[rest] = _fma_in_steps(*(x[rest] if np.ndim(x) else x for x in (a, b, c)), mode)
    return out


def _fma_by_bounds(a, b, c):
    """(a * b + c rounded to nearest, is it known to be right) where no exponent is extreme.

    The exact result is total + rest, and `rest` is known up to a rounding: where a little more and
    a little less of it give one sum, that is the exact result rounded.
    """
    high, low = two_product(a, b)
    total, rest = two_sum(high, c)
    rest = rest + low
    out = total + rest * (1 - 2.0**-51)
    known = out == total + rest * (1 + 2.0**-51)
    if not np.all(out):
        out = np.where(out == 0, total, out)[()]  # nothing is left over: the sign is the sum's
    return out, known


def _fma_in_steps(a, b, c, mode):
    """a * b + c for any values and rounding (Boldo and Melquiond's algorithm).

    Lanes whose exponents could overflow or underflow on the way are computed in exact fractions.
    """
    product = a * b
    plain = zero_sign(product + c, product + c, product, c, mode)
    safe = _within(a, -400, 400) & _within(b, -400, 400) & (_within(c, -800, 900) | (c == 0))
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (a != 0) & (b != 0)
    high, low = two_product(a, b)
    addend, addend_low = two_sum(c, low)
    total, total_low = two_sum(high, addend)
    rest = round_to_odd(*two_sum(addend_low, total_low))
    nearest = total + rest
    out = step(nearest, (total - nearest) + rest, mode)
    # the sum of nothing left over is an exact zero, whose sign is plain arithmetic's
    out = np.where(safe & finite & (nearest != 0), out, plain)[()]
    # a product that overflows must not meet an infinite addend as an infinity
    out = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, out)[()]
    odd = finite & ~safe
    if np.any(odd):
        out = exact_lanes(out, odd, lambda x, y, z: x * y + z, mode, a, b, c)
    return out


def add_f64(a, b, mode):
    """a + b in float64, rounded by `mode`."""
    total, error = two_sum(a, b)
    overflow = np.isinf(total) & np.isfinite(a) & np.isfinite(b)
    out = step(total, np.where(overflow, -total, error), mode)
    return zero_sign(out, total, a, b, mode)


def multiply_f64(a, b, mode):
    """a * b in float64, rounded by `mode`."""
    product, error = two_product(a, b)
    out = step(product, error, mode)
    finite = np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)
    safe = _within(a, -400, 400) & _within(b, -400, 400)
    out = np.where(safe, out, product)[()]
    if np.any(finite & ~safe):
        out = exact_lanes(out, finite & ~safe, lambda x, y: x * y, mode, a, b)
    return out


def divide_f64(a, b, mode="rn"):
    """a / b in float64, rounded by `mode`."""
    q = np.divide(a, b)
    finite = np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)
    if mode == "rn" or not np.any(finite):
        return q
    return exact_lanes(q, finite, lambda x, y: x / y, mode, a, b)


def sqrt_f64(a, mode="rn"):
    """The square root in float64, rounded by `mode`."""
    root = np.sqrt(a)
    if mode == "rn":
        return root
    # scaled by an even power of two so that root^2 neither overflows nor underflows
    fraction, exponent = np.frexp(a)
    odd = exponent % 2
    scaled = np.ldexp(fraction, odd)
    nearest = np.sqrt(scaled)
    square, error = two_product(nearest, nearest)
    stepped = step(nearest, (scaled - square) - error, mode)
    directed = np.ldexp(stepped, (exponent - odd) // 2)
    return np.where(np.isfinite(a) & (a > 0), directed, root)[()]


_NEAREST = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
# which operand's NaN a result takes
_NAN_ORDER = {"add": (1, 0), "sub": (1, 0), "mul": (1, 0), "fma": (1, 2, 0), "div": (0, 1)}


def double(name, mode):
    """The float64 function of PTX's add, sub, mul, fma, div, rcp or sqrt with a rounding."""
    operation = {
        "add": lambda a, b: add_f64(a, b, mode),
        "sub": lambda a, b: add_f64(a, -b, mode),
        "mul": lambda a, b: multiply_f64(a, b, mode),
        "fma": lambda a, b, c: fma_f64(a, b, c, mode),
        "div": lambda a, b: divide_f64(a, b, mode),
        "rcp": lambda a: divide_f64(np.float64(1), a, mode),
        "sqrt": lambda a: sqrt_f64(a, mode),
    }[name]
    if mode == "rn":
        operation = _NEAREST.get(name, operation)
    order = _NAN_ORDER.get(name, (0,))

    def run(*values):
        return keep_nan(operation(*values), *(values[i] for i in order))

    return run
