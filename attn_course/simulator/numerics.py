"""IEEE arithmetic of PTX on NumPy values: float32 and float64, every rounding mode, `.ftz`, `.sat`.

Every function takes NumPy arrays (one element a lane) and NumPy scalars mixed, never writes to them,
and returns an array, or a scalar when all inputs are scalars. Callers run under
``np.errstate(all="ignore")``. Rounding modes are PTX's: "rn" nearest even, "rz" to zero, "rm" down,
"rp" up.

Rules from the PTX ISA ("Floating Point Instructions"): float32 results that are NaN are the
canonical NaN 0x7fffffff; `.ftz` replaces subnormal inputs and results by zero of the same sign;
`.sat` clamps to [0.0, 1.0] and turns NaN into +0.0; `min` and `max` prefer the operand that is not
NaN and order -0.0 below +0.0.
"""

import threading
from fractions import Fraction

import numpy as np

SMALLEST_NORMAL = np.float32(2.0**-126)
NAN = np.uint32(0x7FFFFFFF).view(np.float32)
NAN_F64 = np.uint64(0xFFF8000000000000).view(np.float64)
_ZERO = np.float32(0)
_ONE = np.float32(1)
_INFINITY = np.float32(np.inf)
_BELOW_ONE = np.float32(1 - 2.0**-24)
_minimum = np.minimum.reduce
_scratch = threading.local()


# --- subnormals and NaN ---------------------------------------------------------------------------


def flush(x):
    """`x` (float32) with subnormals replaced by zero of the same sign; NaN stays NaN."""
    return x * (np.abs(x) >= SMALLEST_NORMAL)


def canonical(x):
    """`x` (float32) with every NaN replaced by the canonical one."""
    if isinstance(x, np.ndarray):
        # min() is NaN exactly if one element is, and far cheaper than isnan() over all lanes
        lowest = _minimum(x, initial=_INFINITY)
        return x if lowest == lowest else np.where(np.isnan(x), NAN, x)
    return x if x == x else NAN


def saturate(x):
    """`x` (float32 or float64) clamped to [0, 1]; NaN and -0.0 become +0.0."""
    zero, one = x.dtype.type(0), x.dtype.type(1)
    return np.where(x > zero, np.minimum(x, one), zero)[()]


def has_subnormal(*values):
    """Whether a float32 array or scalar among `values` holds a subnormal (zeros do not count).

    The processor's own underflow flag finds them: a subnormal times the number just below 1 is
    subnormal and inexact, which underflows, while zeros, infinities and NaN raise nothing. That is one
    multiplication per array, half of what comparing magnitudes costs.
    """
    try:
        with np.errstate(under="raise"):
            for value in values:
                if isinstance(value, np.ndarray):
                    np.multiply(value, _BELOW_ONE, out=_spare(len(value)))
                elif value and abs(value) < SMALLEST_NORMAL:
                    return True
    except FloatingPointError:
        return True
    return False


def _spare(size):
    """Float32 memory of this thread for results that nobody reads."""
    buffer = getattr(_scratch, "float32", None)
    if buffer is None or len(buffer) < size:
        buffer = _scratch.float32 = np.empty(size, np.float32)
    return buffer if len(buffer) == size else buffer[:size]


def flushing(operation, *, inputs=True, result=True):
    """`operation` on float32 values made `.ftz`: inputs and result flushed, NaN made canonical."""

    def flushed(*values):
        out = operation(*values)
        if has_subnormal(*values, out):
            out = operation(*map(flush, values)) if inputs else out
            out = flush(out) if result else out
        return canonical(out)

    return flushed


# --- exact sums, and rounding float64 to float32 --------------------------------------------------


def two_sum(a, b):
    """(s, e): the float64 sum and its exact rounding error, s + e = a + b (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def round_to_odd(s, e):
    """The sum s + e (s = RN(s + e), float64) rounded to odd; an infinite s, whose e is NaN, stays.

    A number rounded to odd can be rounded again to fewer digits without a double rounding: the odd
    last bit remembers that something nonzero was cut off (Boldo and Melquiond, 2008).
    """
    s, e = np.asarray(s), np.asarray(e)
    even = (s.view(np.uint64) & np.uint64(1)) == 0
    inexact = (e != 0) & np.isfinite(e) & np.isfinite(s)
    return np.where(inexact & even, np.nextafter(s, np.where(e > 0, np.inf, -np.inf)), s)[()]


def step(nearest, residual, mode):
    """The correctly rounded value in `mode`, from the nearest one and residual = exact - nearest."""
    if mode == "rn":
        return nearest
    toward = nearest.dtype.type
    if mode == "rz":
        move = (residual != 0) & (np.signbit(residual) != np.signbit(nearest)) & (nearest != 0)
        target = toward(0)
    else:
        move = residual < 0 if mode == "rm" else residual > 0
        target = toward(-np.inf if mode == "rm" else np.inf)
    move = move & ~np.isnan(residual)
    return np.where(move, np.nextafter(nearest, target), nearest)[()]


def round_f32(x, mode):
    """float64 `x`, exact or rounded to odd, as the float32 that `mode` asks for."""
    nearest = x.astype(np.float32)
    return nearest if mode == "rn" else step(nearest, x - nearest.astype(np.float64), mode)


def zero_sign(out, total, a, b, mode):
    """`out` with rm's sign where the exact sum `total` = a + b is zero: -0.0 unless both are +0.0."""
    if mode != "rm":
        return out
    positive = (a == 0) & (b == 0) & ~np.signbit(a) & ~np.signbit(b)
    return np.where((total == 0) & ~positive, out.dtype.type(-0.0), out)[()]


# --- float32 --------------------------------------------------------------------------------------


def _wide(x):
    return x.astype(np.float64)


def _fma_exact(a, b, c, mode):
    """fma for any float32 values: the product is exact in float64, the sum is rounded to odd."""
    product, addend = _wide(a) * _wide(b), _wide(c)
    total = round_to_odd(*two_sum(product, addend))
    return canonical(zero_sign(round_f32(total, mode), total, product, addend, mode))


_TIE_SHIFT = np.int64(35)
_TIE = np.int64(-(2**63))


def _fma_twice(a, b, c):
    """(sum rounded to float64, then to float32; its dropped bits). At least one operand is an array.

    The second rounding is wrong only where the first one was inexact and landed on the middle between
    two float32 numbers: the 29 bits that the cast drops, returned in the top of an int64, are 100...0.
    """
    total = a.astype(np.float64) * b.astype(np.float64)
    if isinstance(total, np.ndarray) and isinstance(c, np.ndarray):
        total += c.astype(np.float64)
    else:
        total = total + c.astype(np.float64)
    out = total.astype(np.float32)
    dropped = total.view(np.int64)
    np.left_shift(dropped, _TIE_SHIFT, out=dropped)
    return out, dropped


def _settle(out, dropped, small, a, b, c):
    """`out` with the lanes made right that were rounded twice, to the middle first.

    With `small`, lanes of subnormal results too: they drop more bits than `dropped` holds.
    """
    if _minimum(dropped, initial=0) != _TIE and not small:
        return out
    doubtful = dropped == _TIE
    if small:
        doubtful |= np.abs(out) <= SMALLEST_NORMAL
    lanes = np.flatnonzero(doubtful)
    a, b, c = (_wide(x[lanes] if isinstance(x, np.ndarray) else x) for x in (a, b, c))
    total, error = two_sum(a * b, c)
    if np.any(error):  # most ties are exact sums, which the cast rounds rightly
        out[lanes] = round_f32(round_to_odd(total, error), "rn")
    return out


def _are_scalars(*values):
    return not any(isinstance(value, np.ndarray) for value in values)


def fma_rn(a, b, c):
    """a * b + c in float32, rounded once to nearest even."""
    if _are_scalars(a, b, c):
        return _fma_exact(a, b, c, "rn")
    out, dropped = _fma_twice(a, b, c)
    return canonical(_settle(out, dropped, has_subnormal(out), a, b, c))


def fma_rn_ftz(a, b, c):
    """a * b + c in float32, rounded once to nearest even, subnormal inputs and result flushed."""
    if _are_scalars(a, b, c):
        return canonical(flush(_fma_exact(flush(a), flush(b), flush(c), "rn")))
    out, dropped = _fma_twice(a, b, c)
    if not has_subnormal(a, b, c, out):
        return canonical(_settle(out, dropped, False, a, b, c))
    a, b, c = flush(a), flush(b), flush(c)
    out, dropped = _fma_twice(a, b, c)
    return canonical(flush(_settle(out, dropped, True, a, b, c)))


def _nearest(ufunc):
    def rounded(a, b):
        return canonical(ufunc(a, b))

    return rounded


def add_exact(a, b, mode):
    """a + b in float32, rounded by `mode`."""
    a, b = _wide(a), _wide(b)
    total = round_to_odd(*two_sum(a, b))
    return canonical(zero_sign(round_f32(total, mode), total, a, b, mode))


def divide_f32(a, b, mode="rn"):
    """a / b in float32, rounded by `mode`: the remainder a - q*b is exact in float64."""
    q = np.divide(a, b)
    if mode != "rn":
        remainder = _wide(a) - _wide(q) * _wide(b)
        # where b is infinite the quotient is an exact zero
        remainder = np.where(np.isinf(b), 0.0, remainder * np.where(np.signbit(b), -1.0, 1.0))
        q = step(q, remainder[()], mode)
    return canonical(q)


def sqrt_f32(a, mode="rn"):
    """The square root in float32, rounded by `mode`; NaN below zero, sqrt(-0.0) = -0.0."""
    root = np.sqrt(a)
    if mode != "rn":
        root = step(root, _wide(a) - _wide(root) * _wide(root), mode)
    return canonical(root)


# --- float64 --------------------------------------------------------------------------------------

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

    Overflow follows IEEE 754: infinity where the mode rounds away from zero, else the largest float.
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
    """a * b + c in float64, rounded once by `mode` (Boldo and Melquiond's algorithm).

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


# --- minimum and maximum --------------------------------------------------------------------------


def extremum(largest, keep_nan=False):
    """PTX min or max on floats: NaN loses (or, with .NaN, wins), and -0.0 is below +0.0."""
    ufunc, both = (np.maximum, np.logical_and) if largest else (np.minimum, np.logical_or)

    def choose(a, b):
        out = ufunc(a, b)  # NaN wherever an operand is
        zeros = out == 0
        if np.any(zeros):
            negative = both(np.signbit(a), np.signbit(b))
            signed = np.where(negative, out.dtype.type(-0.0), out.dtype.type(0))
            out = np.where(zeros & (a == b), signed, out)[()]
        if not keep_nan and np.any(np.isnan(out)):
            out = np.where(np.isnan(a), b, np.where(np.isnan(b), a, out))[()]
        return canonical(out) if out.dtype == np.float32 else out

    return choose


def copy_sign(a, b):
    """`b` with the sign of `a` (PTX copysign: the first operand gives the sign)."""
    return np.copysign(b, a)


def arithmetic(name, kind, mode, ftz, sat):
    """The function of one PTX float instruction.

    name: "add", "sub", "mul", "fma", "div", "sqrt" or "rcp"; kind: "f32" or "f64"; mode: a rounding.
    """
    function = (_single if kind == "f32" else _double)(name, mode, ftz)
    if not sat:
        return function
    return lambda *values: saturate(function(*values))


def _single(name, mode, ftz):
    if name == "fma" and mode == "rn":
        return fma_rn_ftz if ftz else fma_rn
    ufuncs = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
    if name in ufuncs and mode == "rn":
        # flushing() makes NaN canonical too
        return flushing(ufuncs[name]) if ftz else _nearest(ufuncs[name])
    directed = {
        "add": lambda a, b: add_exact(a, b, mode),
        "sub": lambda a, b: add_exact(a, -b, mode),
        "mul": lambda a, b: canonical(round_f32(_wide(a) * _wide(b), mode)),
        "fma": lambda a, b, c: _fma_exact(a, b, c, mode),
        "div": lambda a, b: divide_f32(a, b, mode),
        "rcp": lambda a: divide_f32(_ONE, a, mode),
        "sqrt": lambda a: sqrt_f32(a, mode),
    }[name]
    return flushing(directed) if ftz else directed


def _double(name, mode, ftz):
    del ftz  # float64 instructions have no .ftz
    ufuncs = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
    if name in ufuncs and mode == "rn":
        return ufuncs[name]
    return {
        "add": lambda a, b: add_f64(a, b, mode),
        # a NaN keeps its sign: it is not negated
        "sub": lambda a, b: add_f64(a, np.where(np.isnan(b), b, -b)[()], mode),
        "mul": lambda a, b: multiply_f64(a, b, mode),
        "fma": lambda a, b, c: fma_f64(a, b, c, mode),
        "div": lambda a, b: divide_f64(a, b, mode),
        "rcp": lambda a: divide_f64(np.float64(1), a, mode),
        "sqrt": lambda a: sqrt_f64(a, mode),
    }[name]
