"""How far an approximation may be from the exact result, and whether two machines' results are.

The bounds are those of the PTX ISA, "Floating Point Instructions" and "Half Precision Floating
Point Instructions", and of the CUDA C++ Programming Guide, "Mathematical Functions". Where neither
promises anything, nothing is compared: such lanes are counted as having no bound.
"""

from dataclasses import dataclass

import numpy as np
from kernelscope.differential.opcodes import FLOATS

LARGEST = {
    "f16": 65504.0,
    "bf16": 3.38e38,
    "f32": float(np.finfo(np.float32).max),
    "f64": float(np.finfo(np.float64).max),
}
LEAST = {"f64": 2.0**-1022}  # least normal numbers; those of the other formats are 2^-126 or more


@dataclass(frozen=True)
class Bound:
    """How far an approximation may be from the exact result, in the domain where that is promised.

    relative, absolute and ulps (units in the last place of the exact result): errors, or functions
    of the operands that give them; the larger of the first two and the third add up. domain: a
    function of the operands; None is everywhere. documented: what the documentation says.
    """

    exact: object
    relative: object = 0.0
    absolute: object = 0.0
    ulps: object = 0.0
    domain: object = None
    documented: str = ""

    def allowed(self, truth, kind: str, operands) -> tuple[np.ndarray, np.ndarray]:
        """(the largest error, whether it is an absolute one) for each lane."""
        relative, absolute, ulps = (
            part(*operands) if callable(part) else part
            for part in (self.relative, self.absolute, self.ulps)
        )
        scaled = relative * np.abs(truth)
        by_ulps = ulps * unit_in_last_place(truth, kind)
        return np.maximum(absolute, scaled) + by_ulps, absolute > scaled + by_ulps


@dataclass(frozen=True)
class BoundVerdict:
    """apart: lanes where a result is outside of the bound; special: lanes whose exact result is
    NaN, infinite or zero, which have to be equal; facts: what goes on record."""

    apart: np.ndarray
    special: np.ndarray
    facts: dict


def judge(bound: Bound, operands, x, y, kind: str) -> BoundVerdict:
    """Check two machines' results against a bound; all values are float64 arrays."""
    with np.errstate(all="ignore"):
        truth = bound.exact(*operands)
        inside = np.ones(truth.shape, bool)
        if bound.domain:
            inside = bound.domain(*operands)
        allowed, absolute = bound.allowed(truth, kind, operands)
        # a result below the least normal number may be flushed
        least = LEAST.get(kind, 2.0**-126)
        allowed = allowed + np.where(np.abs(truth) < 2 * least, least, 0)
        ordinary = np.isfinite(truth) & (truth != 0)
        regular = ordinary & inside & (np.abs(truth) < LARGEST[kind] * (1 - 2**-9))
        errors = [np.where(regular, np.abs(v - truth) / allowed, 0) for v in (x, y)]
        apart = ~((errors[0] <= 1) & (errors[1] <= 1))
        facts = {
            "documented": bound.documented,
            "error_over_bound": [round(float(np.nanmax(e, initial=0)), 4) for e in errors],
            "max_ulp": max_ulp(x[regular & ~absolute], y[regular & ~absolute], kind),
            **differences("absolute_bound", regular & absolute, x, y),
            **differences("no_bound", ordinary & ~inside, x, y),
        }
    return BoundVerdict(apart, inside & ~ordinary, facts)


def differences(name: str, lanes, x, y) -> dict:
    """{name: how many lanes, and how far apart the results are in them}; {} without such lanes."""
    if not lanes.any():
        return {}
    largest = float(np.nanmax(np.abs(x - y)[lanes], initial=0))
    return {name: {"lanes": int(lanes.sum()), "largest_difference": largest}}


def max_ulp(x: np.ndarray, y: np.ndarray, kind: str) -> float:
    """The largest difference of two arrays of doubles in units in the last place of `kind`."""
    return float(np.nanmax(ulps(x, y, kind), initial=0))


def ulps(x: np.ndarray, y: np.ndarray, kind: str) -> np.ndarray:
    """Differences in units in the last place of the larger; a flushed subnormal counts as one."""
    size = np.maximum(np.abs(x), np.abs(y))
    with np.errstate(all="ignore"):
        out = np.where(x == y, 0.0, np.abs(x - y) / unit_in_last_place(size, kind))
        least = 2.0 ** (2 - (1 << FLOATS[kind][0] - 1))
        return np.where(size <= least, np.minimum(out, 1.0), out)


def unit_in_last_place(x: np.ndarray, kind: str) -> np.ndarray:
    """The step between numbers of `kind` around the values x."""
    exponent_bits, fraction_bits = FLOATS[kind]
    least = 2.0 - (1 << exponent_bits - 1)  # exponent of the least normal number
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.floor(np.log2(np.abs(x))), least)
    return np.exp2(exponent - fraction_bits)


# --- instructions ---------------------------------------------------------------------------------


def _sine(function, name):
    return Bound(
        function,
        absolute=lambda x: np.where(np.abs(x) <= 2 * np.pi, 2**-20.5, 2**-14.7),
        domain=lambda x: (np.abs(x) <= 100 * np.pi) | ~np.isfinite(x),
        documented=f"{name}: absolute error 2^-20.5 in [-2 pi, 2 pi], 2^-14.7 in [-100 pi, 100 pi]",
    )


def _in_middle(x, inside, outside):
    return np.where((x >= 0.5) & (x <= 2), inside, outside)


def _moderate(a, b):
    """Divisors that a bound is promised for, or that make every quotient a special one."""
    size = np.abs(b)
    return (size >= 2.0**-126) & (size <= 2.0**126) | (b == 0) | ~np.isfinite(b)


def _reciprocal(x):
    return 1.0 / x


def _inverse_root(x):
    """In extended precision, for float64 itself would round twice."""
    return 1 / np.sqrt(x.astype(np.longdouble))


def _high_word(function):
    """rcp and rsqrt on the upper 32 bits of a double."""

    def exact(x):
        return function((x.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64))

    return exact


_20_BITS = "no error documented, only a result of 20 fraction bits; 2^-19 of it is allowed here"
BOUNDS = {
    "rcp.approx.f32": Bound(_reciprocal, ulps=1, documented="rcp: 1 ulp"),
    "sqrt.approx.f32": Bound(np.sqrt, relative=2**-23, documented="sqrt: relative error 2^-23"),
    "rsqrt.approx.f32": Bound(
        _inverse_root, relative=2**-22.9, documented="rsqrt: relative error 2^-22.9"
    ),
    "ex2.approx.f32": Bound(np.exp2, ulps=2, documented="ex2: 2 ulp"),
    "sin.approx.f32": _sine(np.sin, "sin"),
    "cos.approx.f32": _sine(np.cos, "cos"),
    "lg2.approx.f32": Bound(
        np.log2,
        relative=lambda x: _in_middle(x, 0, 2**-22),
        absolute=lambda x: _in_middle(x, 2**-22, 0),
        documented="lg2: absolute error 2^-22 in (0.5, 2), else relative error 2^-22",
    ),
    "tanh.approx.f32": Bound(np.tanh, relative=2**-11, documented="tanh: relative error 2^-11"),
    "div.approx.f32": Bound(
        np.divide, ulps=2, domain=_moderate, documented="div: 2 ulp for |b| in [2^-126, 2^126]"
    ),
    "div.full.f32": Bound(np.divide, ulps=2, documented="div: 2 ulp over the full range"),
    "rcp.approx.f64": Bound(
        _high_word(_reciprocal), relative=2**-19, documented=f"rcp.approx.ftz.f64: {_20_BITS}"
    ),
    "rsqrt.approx.ftz.f64": Bound(
        _high_word(_inverse_root), relative=2**-19, documented=f"rsqrt.approx.ftz.f64: {_20_BITS}"
    ),
    "rsqrt.approx.f64": Bound(
        _inverse_root,
        ulps=1.5,
        documented="rsqrt(double), which is this instruction: 1 ulp of the rounded result",
    ),
    "tanh.approx.f16": Bound(
        np.tanh, absolute=2**-10.987, documented="tanh: absolute error 2^-10.987"
    ),
    "tanh.approx.bf16": Bound(
        np.tanh,
        absolute=1.001 * 2**-8,
        documented="tanh: absolute error 2^-8, a rounded number: an H200 reaches 1.00007 of it at "
        "0.74609375, and 1.001 is allowed here",
    ),
    "ex2.approx.f16": Bound(
        np.exp2,
        relative=2**-9.9,
        absolute=2**-24,
        documented="ex2: relative error 2^-9.9, and a step of subnormal numbers here",
    ),
    "ex2.approx.bf16": Bound(np.exp2, relative=2**-7, documented="ex2: relative error 2^-7"),
}


def bound_of(text: str) -> Bound | None:
    """An approximation's bound, which its .ftz form shares unless the ISA has one of its own."""
    plain = text.removesuffix("x2")
    return BOUNDS.get(plain) or BOUNDS.get(plain.replace(".ftz", ""))


# --- single-precision intrinsics ------------------------------------------------------------------

_HALF = 0.5  # the guide counts ulp from the correctly rounded result
_LN2 = float(np.log(2))
_SINE, _COSINE = 2**-21.41, 2**-21.19


def _logarithm(function, absolute: float, ulps: int, text: str):
    return Bound(
        function,
        absolute=lambda x: _in_middle(x, absolute, 0),
        ulps=lambda x: _in_middle(x, 0, ulps + _HALF),
        documented=f"absolute error {text} in [0.5, 2], else {ulps} ulp",
    )


def _exponential(function, factor: float):
    return Bound(
        function,
        ulps=lambda x: 2 + np.floor(np.abs(factor * x)) + _HALF,
        documented=f"2 + floor(abs({factor} x)) ulp",
    )


def _near_zero(x):
    return (np.abs(x) <= np.pi) | ~np.isfinite(x)


def _tangent_error(x):
    """Of __sinf(x) * (1 / __cosf(x)); the quotient's own rounding comes on top."""
    cosine = np.maximum(np.abs(np.cos(x)) - _COSINE, 0)
    return (_SINE + np.abs(np.tan(x)) * _COSINE) / cosine


def _power(x, y):
    return np.exp2(y * np.log2(x))


def _power_error(x, y):
    """Relative, of exp2f(y * __log2f(x)): what the exponent's error makes of the result."""
    logarithm = np.log2(x)
    ulp = unit_in_last_place(logarithm, "f32")
    error = np.abs(y) * _in_middle(x, 2**-22, (2 + _HALF) * ulp)
    return np.expm1(_LN2 * (error + np.abs(y * logarithm) * 2**-24))


INTRINSICS = {
    "__expf": _exponential(np.exp, 1.173),
    "__exp10f": _exponential(lambda x: np.power(10.0, x), 2.97),
    "__logf": _logarithm(np.log, 2**-21.41, 3, "2^-21.41"),
    "__log2f": _logarithm(np.log2, 2**-22, 2, "2^-22"),
    "__log10f": _logarithm(np.log10, 2**-24, 3, "2^-24"),
    "__sinf": Bound(
        np.sin, absolute=_SINE, domain=_near_zero, documented="absolute error 2^-21.41 in [-pi, pi]"
    ),
    "__cosf": Bound(
        np.cos,
        absolute=_COSINE,
        domain=_near_zero,
        documented="absolute error 2^-21.19 in [-pi, pi]",
    ),
    "__tanf": Bound(
        np.tan,
        absolute=_tangent_error,
        ulps=2 + _HALF,
        domain=_near_zero,
        documented="that of __sinf(x) * (1 / __cosf(x)), in [-pi, pi]",
    ),
    "__powf": Bound(
        _power, relative=_power_error, ulps=2 + _HALF, documented="that of exp2f(y * __log2f(x))"
    ),
    "__fdividef": Bound(
        np.divide, ulps=2 + _HALF, domain=_moderate, documented="2 ulp for |y| in [2^-126, 2^126]"
    ),
}
