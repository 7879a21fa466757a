"""IEEE arithmetic of PTX on NumPy values: exact sums and roundings, and float32 in every mode.

Every function takes NumPy arrays (one element a lane) and NumPy scalars mixed, never writes to
them, and returns an array, or a scalar when all inputs are scalars. Callers run under
``np.errstate(all="ignore")``. Rounding modes are PTX's: "rn" nearest even, "rz" to zero, "rm" down,
"rp" up.

Rules from the PTX ISA ("Floating Point Instructions"): float32 results that are NaN are the
canonical NaN 0x7fffffff; `.ftz` replaces subnormal inputs, and results that are subnormal
once rounded to 24 digits, by zero of the same sign;
`.sat` clamps to [0.0, 1.0] and turns NaN into +0.0; `min` and `max` prefer the operand that is not
NaN and order -0.0 below +0.0.
"""

import threading

import numpy as np

SMALLEST_NORMAL = np.float32(2.0**-126)
NAN = np.uint32(0x7FFFFFFF).view(np.float32)
_ONE = np.float32(1)
_INFINITY = np.float32(np.inf)
_BELOW_ONE = np.float32(1 - 2.0**-24)
_minimum = np.minimum.reduce
_ONE_BIT = np.int64(1)
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
    """Whether a float32 array or scalar among `values` holds a subnormal or +-2^-126 (but not
    zero).

    The processor's own underflow flag finds them: times the number just below 1 they become
    subnormal and inexact, which underflows, while zeros, infinities and NaN raise nothing. That is
    one multiplication per array, half of what comparing magnitudes costs.
    """
    try:
        with np.errstate(under="raise"):
            for value in values:
                if isinstance(value, np.ndarray):
                    np.multiply(value, _BELOW_ONE, out=_spare(len(value)))
                elif value and abs(value) <= SMALLEST_NORMAL:
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


def flushing(operation, exact=None, mode="rn"):
    """`operation` on float32 values made `.ftz`: inputs and result flushed, NaN made canonical.

    `exact` gives the same result in float64, exact or rounded to odd, where it can be inexact.
    """

    def flushed(*values):
        out = operation(*values)
        if has_subnormal(*values, out):
            values = tuple(map(flush, values))
            out = flush_result(operation(*values), exact, mode, values)
        return canonical(out)

    return flushed


# A result is flushed if it would be subnormal with 24 digits and an unbounded exponent. These are
# the float64 magnitudes from which such a rounding reaches the smallest normal number, 2^-126: the
# middle between it and the number below; all above that number (rounding away from zero); or
# itself.
_REACHES_NEAREST = 2.0**-126 * (1 - 2.0**-25)
_REACHES_AWAY = float(np.nextafter(2.0**-126 * (1 - 2.0**-24), 1))
_REACHES_CUT = 2.0**-126


def flush_result(out, exact, mode, values):
    """`out`, the float32 result of `exact` (see flushing) rounded by `mode`, flushed as hardware
    does.

    Rounding in the coarser steps of subnormal numbers can have lifted a result to 2^-126 that H200
    hardware, which rounds to 24 digits first, still flushes.
    """
    out = flush(out)
    if exact and np.any(np.abs(out) == SMALLEST_NORMAL):
        total = exact(*values)
        if mode == "rn":
            reaches = _REACHES_NEAREST
        elif mode == "rz":
            reaches = _REACHES_CUT
        else:
            away = np.signbit(total) == (mode == "rm")
            reaches = np.where(away, _REACHES_AWAY, _REACHES_CUT)
        out = out * (np.abs(total) >= reaches)
    return out


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
    if not (e.any() if isinstance(e, np.ndarray) else e):
        return s
    s, e = np.asarray(s), np.asarray(e)
    bits = s.view(np.int64)
    moved = (bits & _ONE_BIT == 0) & (e != 0) & np.isfinite(e)
    # the neighbour of an even number is one bit away, outward where the error has its sign
    outward = np.signbit(s) == np.signbit(e)
    return (bits + moved * np.where(outward, _ONE_BIT, -_ONE_BIT)).view(np.float64)[()]


def step(nearest, residual, mode):
    """The value rounded by `mode`, from the nearest one and residual = exact - nearest."""
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
    """`out` with rm's sign where the exact sum `total` = a + b is 0: -0.0 unless both are +0.0."""
    if mode != "rm":
        return out
    positive = (a == 0) & (b == 0) & ~np.signbit(a) & ~np.signbit(b)
    return np.where((total == 0) & ~positive, out.dtype.type(-0.0), out)[()]


# --- float32 --------------------------------------------------------------------------------------
def _wide(x):
    return x.astype(np.float64)


def _fma_total(a, b, c):
    """a * b + c of float32 values, rounded to odd in float64, where the product is exact."""
    return round_to_odd(*two_sum(_wide(a) * _wide(b), _wide(c)))


def _fma_exact(a, b, c, mode):
    """fma for any float32 values and rounding, slowly."""
    total = _fma_total(a, b, c)
    out = round_f32(total, mode)
    if mode == "rm":
        out = zero_sign(out, total, _wide(a) * _wide(b), c, mode)
    return canonical(out)


_TIE_SHIFT = np.int64(35)
_TIE = np.int64(-(2**63))


def _fma_twice(a, b, c):
    """(sum rounded to float64, then to float32; its dropped bits). At least one operand is an
    array.

    The second rounding is wrong only where the first one was inexact and landed on the middle
    between two float32 numbers: the 29 bits that the cast drops, returned in the top of an int64,
    are 100...0.
    """
    if not isinstance(a, np.ndarray):
        a, b = b, a
    total = _wide(a)
    if isinstance(a, np.ndarray):
        total *= _wide(b)
        total += _wide(c)
    else:
        total = total * _wide(b) + _wide(c)
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
    inexact = np.flatnonzero(error)  # the cast rounds an exact sum rightly, and most ties are exact
    if len(inexact):
        out[lanes[inexact]] = round_f32(round_to_odd(total[inexact], error[inexact]), "rn")
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
        values = flush(a), flush(b), flush(c)
        return canonical(flush_result(_fma_exact(*values, "rn"), _fma_total, "rn", values))
    out, dropped = _fma_twice(a, b, c)
    if not has_subnormal(a, b, c, out):
        return canonical(_settle(out, dropped, False, a, b, c))
    values = flush(a), flush(b), flush(c)
    out, dropped = _fma_twice(*values)
    out = _settle(out, dropped, True, *values)
    return canonical(flush_result(out, _fma_total, "rn", values))


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


# --- minimum and maximum --------------------------------------------------------------------------
def extremum(largest, keep_nan=False, ftz=False):
    """PTX min or max on floats: NaN loses (or, with .NaN, wins), and -0.0 is below +0.0."""
    ufunc = np.maximum if largest else np.minimum

    def choose(a, b):
        if ftz and has_subnormal(a, b):
            a, b = flush(a), flush(b)
        out = ufunc(a, b)  # NaN wherever an operand is
        opposite = np.count_nonzero(out == 0) and (a == b) & (np.signbit(a) != np.signbit(b))
        if np.any(opposite):
            # adding zeros of opposite signs gives +0.0, the larger one
            zero = a + b if largest else -(-a - b)
            out = np.where((out == 0) & (a == b), zero, out)[()]
        lowest = _minimum(out, initial=_INFINITY)
        if lowest == lowest:
            return out
        if not keep_nan:
            out = np.where(np.isnan(a), b, np.where(np.isnan(b), a, out))[()]
        # times one, a signaling NaN of float64 becomes quiet
        return canonical(out) if out.dtype == np.float32 else out * out.dtype.type(1)

    return choose


def copy_sign(a, b):
    """`b` with the sign of `a` (PTX copysign: the first operand gives the sign)."""
    return np.copysign(b, a)


def single(name, mode, ftz):
    """The float32 function of PTX's add, sub, mul, fma, div, rcp or sqrt, rounding and .ftz."""
    if name == "fma" and mode == "rn":
        return fma_rn_ftz if ftz else fma_rn
    ufuncs = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
    if mode == "rn" and name in ufuncs:
        nearest = ufuncs[name]
        # flushing() makes NaN canonical too
        operation = nearest if ftz else (lambda a, b: canonical(nearest(a, b)))
    else:
        operation = {
            "add": lambda a, b: add_exact(a, b, mode),
            "sub": lambda a, b: add_exact(a, -b, mode),
            "mul": lambda a, b: canonical(round_f32(_wide(a) * _wide(b), mode)),
            "fma": lambda a, b, c: _fma_exact(a, b, c, mode),
            "div": lambda a, b: divide_f32(a, b, mode),
            "rcp": lambda a: divide_f32(_ONE, a, mode),
            "sqrt": lambda a: sqrt_f32(a, mode),
        }[name]
    return flushing(operation, _EXACT.get(name), mode) if ftz else operation


# The results that can be inexact near 2^-126, in float64: sums of floats are exact there, roots far
# above, and a quotient of floats is never closer to a threshold than float64 tells.
_EXACT = {
    "mul": lambda a, b: _wide(a) * _wide(b),
    "fma": _fma_total,
    "div": lambda a, b: np.divide(_wide(a), _wide(b)),
    "rcp": lambda a: np.divide(1.0, _wide(a)),
}


# -- .approx functions --------------------------------------------------------------------------
# Computed in float64 and rounded once, so well inside the bounds of the ISA manual. The results of
# hardware differ in the last bits: compare a kernel that uses them with a tolerance.
# They have the same bits on every processor, though NumPy's float64 functions differ there in the
# last place: hardly any result is within a unit of the middle between two float32 numbers, and a
# test checks those that are.


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
