"""Pairs of 8-bit floats: .e4m3x2 and .e5m2x2, from and to .f16x2 and from .f32.

e4m3 has no infinity; 0x7f is its only NaN of either sign. Conversions to 8 bits round to nearest
even and, with the .satfinite that they demand, clamp to the largest finite number. NaN becomes
0x7f, and 0x7fff in .f16.
"""

import functools

import numpy as np

from .. import float16
from ..row import Row

_U16 = np.uint16
_FORMATS = {"e4m3": (7, 3, 0x7E), "e5m2": (15, 2, 0x7B)}  # bias, fraction bits, largest finite
_NAN = _U16(0x7F)


@functools.cache
def magnitudes(kind: str) -> np.ndarray:
    """The finite numbers that are not negative, by their code, as float64."""
    bias, digits, largest = _FORMATS[kind]
    code = np.arange(largest + 1)
    exponent, fraction = code >> digits, (code & (1 << digits) - 1) / 2.0**digits
    return np.ldexp(fraction + (exponent > 0), np.maximum(exponent, 1) - bias)


def narrow(x, kind: str, relu: bool):
    """float64 `x` (every .f32 is one) rounded to a code of `kind`, as uint16."""
    bias, digits, largest = _FORMATS[kind]
    finite = magnitudes(kind)
    size = np.minimum(np.abs(np.nan_to_num(x, nan=0.0)), finite[-1] * 2)
    step = np.ldexp(1.0, np.maximum(np.frexp(size)[1] - 1, 1 - bias) - digits)
    code = np.searchsorted(finite, np.minimum(np.rint(size / step) * step, finite[-1]))
    negative = np.signbit(x)
    code = np.where(negative & relu, 0, code | negative << 7).astype(_U16)
    return np.where(np.isnan(x), _NAN, code)[()]


def widen(code, kind: str, relu: bool):
    """uint16 codes of `kind` as bits of .f16, exactly."""
    bias, digits, largest = _FORMATS[kind]
    size = code & _NAN
    finite = magnitudes(kind)[np.minimum(size, _U16(largest))]
    infinite = size == 0x7C if kind == "e5m2" else np.zeros_like(size, bool)
    bits = np.where(infinite, np.inf, finite).astype(np.float16).view(_U16)
    negative = code >> _U16(7) == 1
    bits = np.where(negative, _U16(0) if relu else bits | _U16(0x8000), bits)
    nan = (size > largest) & ~infinite
    return np.where(nan, float16.CANONICAL, bits).astype(_U16)[()]


def _pair(high, low):
    return high << _U16(8) | low


def _narrow_two(types, modifiers):
    """cvt of two .f32: `a` goes to the upper byte."""
    kind, relu = types[0][:-2], "relu" in modifiers
    one = functools.partial(narrow, kind=kind, relu=relu)
    return lambda a, b: _pair(one(a.astype(np.float64)), one(b.astype(np.float64)))


def _narrow_halves(types, modifiers):
    kind, relu = types[0][:-2], "relu" in modifiers

    def convert(word):
        low, high = (
            float16.widen(half.astype(_U16), "f16") for half in (word, word >> np.uint32(16))
        )
        return _pair(narrow(high, kind, relu), narrow(low, kind, relu))

    return convert


def _widen_both(types, modifiers):
    kind, relu = types[1][:-2], "relu" in modifiers

    def convert(pair):
        low, high = pair & _U16(0xFF), pair >> _U16(8)
        return float16.pack(widen(high, kind, relu), widen(low, kind, relu))

    return convert


_PAIRS = "e4m3x2,e5m2x2"
FLOAT8_ROWS: tuple[Row, ...] = (Row(f"f16x2/{_PAIRS}", "T -> D", _widen_both, "rn relu"),)
TO_FLOAT8_ROWS: tuple[Row, ...] = (
    Row(f"{_PAIRS}/f32", "T T -> D", _narrow_two, "relu"),
    Row(f"{_PAIRS}/f16x2", "T -> D", _narrow_halves, "relu"),
)
