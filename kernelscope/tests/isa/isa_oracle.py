"""Slow exact PTX arithmetic in Python integers and fractions, independent of the simulator.

Floats are decoded from bits to `Number` and encoded back with any rounding, for every format;
integer helpers work on Python ints. The operation table is checked against these.
"""

from fractions import Fraction
from math import isqrt
from typing import NamedTuple

# format -> (exponent bits, fraction bits, bits of the canonical NaN)
FORMATS = {
    "f16": (5, 10, 0x7FFF),
    "bf16": (8, 7, 0x7FFF),
    "tf32": (8, 10, 0x7FFFFFFF),
    "f32": (8, 23, 0x7FFFFFFF),
    "f64": (11, 52, None),
}


class Number(NamedTuple):
    """A float's value: `kind` is "zero", "finite", "inf" or "nan"."""

    sign: int
    kind: str
    size: Fraction = Fraction(0)

    @property
    def value(self):
        return -self.size if self.sign else self.size


NAN = Number(0, "nan")


def bits_of(kind):
    """The width in bits of a PTX type name."""
    if kind.endswith("x2"):
        return 16 if kind.startswith("e") else 2 * bits_of(kind[:-2])
    return {"tf32": 32, "pred": 1, "bf16": 16}.get(kind) or int(kind.lstrip("bsuf"))


def decode(bits, fmt, ftz=False):
    exponent_bits, fraction_bits, _ = FORMATS[fmt]
    sign = bits >> (exponent_bits + fraction_bits) & 1
    exponent = bits >> fraction_bits & (1 << exponent_bits) - 1
    fraction = bits & (1 << fraction_bits) - 1
    if exponent == (1 << exponent_bits) - 1:
        return Number(sign, "nan" if fraction else "inf")
    if exponent == 0 and (fraction == 0 or ftz):
        return Number(sign, "zero")
    bias = (1 << exponent_bits - 1) - 1
    whole = fraction | (1 << fraction_bits if exponent else 0)
    scale = max(exponent, 1) - bias - fraction_bits
    return Number(sign, "finite", Fraction(whole) * Fraction(2) ** scale)


def encode(number, fmt, mode="rn", ftz=False, sat=False, relu=False):
    """Bits of `number` rounded to `fmt`; None stands for any NaN of .f64."""
    exponent_bits, fraction_bits, nan = FORMATS[fmt]
    top = 1 << exponent_bits + fraction_bits
    if sat:
        number = _saturated(number)
    if relu and number.sign and number.kind != "nan":
        number = Number(0, "zero")
    if number.kind == "nan":
        return nan
    sign = top if number.sign else 0
    infinity = (1 << exponent_bits) - 1 << fraction_bits
    if number.kind in ("zero", "inf"):
        return sign | (infinity if number.kind == "inf" else 0)
    magnitude = _round(number.size, number.sign, exponent_bits, fraction_bits, mode)
    if magnitude >= infinity:
        away = mode in ("rn", "rna") or mode == ("rm" if number.sign else "rp")
        magnitude = infinity if away else infinity - 1
    if ftz and _is_tiny(number, exponent_bits, fraction_bits, mode):
        magnitude = 0
    return sign | magnitude


def _is_tiny(number, exponent_bits, fraction_bits, mode):
    """Whether the number is below the normal ones once rounded with an unbounded exponent."""
    scale = Fraction(2) ** 200  # lifts it into the normal range, where steps have full precision
    smallest = Fraction(2) ** (2 - (1 << exponent_bits - 1))
    if number.size >= smallest:
        return False
    rounded = _round(number.size * scale, number.sign, 15, fraction_bits, mode)
    return rounded < _round(smallest * scale, 0, 15, fraction_bits, "rn")


def _saturated(number):
    if number.kind == "nan" or number.sign or number.kind == "zero":
        return Number(0, "zero")
    return (
        number if number.kind == "finite" and number.size < 1 else Number(0, "finite", Fraction(1))
    )


def _round(size, negative, exponent_bits, fraction_bits, mode):
    """The encoding of magnitude `size`, exponent field and fraction, unlimited upward."""
    bias = (1 << exponent_bits - 1) - 1
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    exponent = max(exponent, 1 - bias)
    count = round_integer(size / Fraction(2) ** (exponent - fraction_bits), negative, mode)
    # the implicit bit, where it is set, adds itself to the exponent field
    return ((exponent + bias - 1) << fraction_bits) + count


def round_integer(size, negative, mode):
    """Fraction `size` >= 0 to an int; rn/rni ties to even, rna ties away, rz, rm, rp (and ..i)."""
    mode = mode if mode == "rna" else mode.removesuffix("i")
    down, rest = divmod(size, 1)
    if mode in ("rn", "rna"):
        half = Fraction(1, 2)
        return down + (rest > half or (rest == half and (mode == "rna" or down % 2 == 1)))
    return down + (rest > 0 and mode == ("rm" if negative else "rp"))


def exact(value, sign=0):
    """A rational as a Number; `sign` is that of a zero."""
    if value == 0:
        return Number(sign, "zero")
    return Number(int(value < 0), "finite", abs(Fraction(value)))


def negate(x):
    return x if x.kind == "nan" else x._replace(sign=1 - x.sign)


def add(x, y, mode="rn"):
    if "nan" in (x.kind, y.kind) or (x.kind == y.kind == "inf" and x.sign != y.sign):
        return NAN
    if "inf" in (x.kind, y.kind):
        return x if x.kind == "inf" else y
    if x.kind == y.kind == "zero" and x.sign == y.sign:
        return x
    return exact(x.value + y.value, int(mode == "rm"))


def multiply(x, y):
    kinds, sign = {x.kind, y.kind}, x.sign ^ y.sign
    if "nan" in kinds or kinds == {"zero", "inf"}:
        return NAN
    if "inf" in kinds:
        return Number(sign, "inf")
    return Number(sign, "zero" if "zero" in kinds else "finite", x.size * y.size)


def divide(x, y):
    sign = x.sign ^ y.sign
    if "nan" in (x.kind, y.kind) or (x.kind == y.kind and x.kind in ("zero", "inf")):
        return NAN
    if x.kind == "inf" or y.kind == "zero":
        return Number(sign, "inf")
    if y.kind == "inf" or x.kind == "zero":
        return Number(sign, "zero")
    return Number(sign, "finite", x.size / y.size)


def square_root(x):
    """The root to 200 bits, with a sticky digit where it is not exact: enough for any rounding."""
    if x.kind in ("nan", "zero"):
        return x
    if x.sign:
        return NAN
    if x.kind == "inf":
        return x
    scale = 1300  # even halves: size * 4^scale is an integer for every format
    whole = x.size * 4**scale
    root = isqrt(int(whole))
    sticky = Fraction(0) if root * root == whole else Fraction(1, 2)
    return Number(0, "finite", (root + sticky) / 2**scale)


def extreme(x, y, largest, keep_nan):
    if x.kind == "nan" or y.kind == "nan":
        if keep_nan or x.kind == y.kind:
            return NAN
        return y if x.kind == "nan" else x
    order = sorted([x, y], key=lambda n: (_rank(n), -n.sign))
    return order[1] if largest else order[0]


def _rank(n):
    if n.kind == "inf":
        return -(Fraction(2) ** 3000) if n.sign else Fraction(2) ** 3000
    return n.value


def signed(bits, width):
    """`bits` read as two's complement."""
    return bits - (1 << width) if bits >> (width - 1) else bits


def read(bits, kind):
    """Operand bits as the int that a signed or unsigned PTX type means."""
    return signed(bits, bits_of(kind)) if kind.startswith("s") else bits
