"""Pure PTX operations as Python expressions on plain numbers, for loops of a lane or a few.

NumPy takes as long for one lane as for a thousand, some 2 us an instruction; Python computes with
its own numbers in a twentieth of that. An integer is kept as its bits, unsigned; a float as a
Python float, of which a .f32 register holds zeros, normal numbers and infinities only. Where a
value would be anything else, the line raises `Aside`, and NumPy runs the instruction.

So a text of FORMS need not care for NaN and subnormals, with or without .ftz. Sums, products,
quotients and roots of .f32 values in float64 may be rounded a second time without harm, as 53 is
at least 2 * 24 + 2 digits; the line for fma looks for the one case where it does harm.
"""

import math
from collections.abc import Callable

from kernelscope.isa.table import find_row, lookup
from kernelscope.ptx.syntax import TYPE_BYTES

LEAST = 2.0**-126  # the smallest normal number of .f32
_HALVES = ("f16", "bf16", "f16x2", "bf16x2", "u16x2", "s16x2", "f32x2")


class Aside(Exception):
    """A value or an instruction for NumPy."""


# -- texts ----------------------------------------------------------------------------------------
def bits_of(kind: str) -> int:
    return 8 * TYPE_BYTES[kind]


def cut(text: str, bits: int) -> str:
    """The low bits of a number."""
    return f"({text}) & {(1 << bits) - 1}"


def signed(text: str, bits: int) -> str:
    """Unsigned bits as the number that they mean in two's complement."""
    top = 1 << bits - 1
    if text.isdigit():
        return f"({(int(text) ^ top) - top})"
    return f"(({text} ^ {top}) - {top})"


def _number(text: str, kind: str) -> str:
    return signed(text, bits_of(kind)) if kind[0] == "s" else text


def _ordered(text: str, kind: str) -> str:
    """A text that orders values as their type does: the sign's bit flipped."""
    top = 1 << bits_of(kind) - 1
    if kind[0] != "s":
        return text
    return str(int(text) ^ top) if text.isdigit() else f"({text} ^ {top})"


# -- integers -------------------------------------------------------------------------------------
def _wrapping(text: str) -> Callable:
    return lambda kind, *values: cut(text.format(*values), bits_of(kind))


def _product(half: str, added: bool) -> Callable:
    """mul and mad: the low or high half of a product, or all of it."""

    def form(kind, a, b, *c):
        bits = bits_of(kind)
        text = f"{a} * {b}" if half == "lo" else f"{_number(a, kind)} * {_number(b, kind)}"
        if half == "hi":
            text = f"({text} >> {bits})"
        text += f" + {c[0]}" if added else ""
        return cut(text, 2 * bits if half == "wide" else bits)

    return form


def _extremum(sign: str) -> Callable:
    def form(kind, a, b):
        return f"{a} if {_ordered(a, kind)} {sign} {_ordered(b, kind)} else {b}"

    return form


def _divided(kind, a, b):
    return cut(f"quotient({_number(a, kind)}, {_number(b, kind)})", bits_of(kind))


def _rest(kind, a, b):
    return cut(f"remainder({_number(a, kind)}, {_number(b, kind)})", bits_of(kind))


def _left(kind, a, amount):
    bits = bits_of(kind)
    if amount.isdigit():
        return cut(f"{a} << {amount}", bits) if int(amount) < bits else "0"
    return f"({cut(f'{a} << {amount}', bits)}) if {amount} < {bits} else 0"


def _right(kind, a, amount):
    if kind[0] != "s":
        return f"{a} >> {amount}"
    return cut(f"{_number(a, kind)} >> {amount}", bits_of(kind))


def quotient(a: int, b: int) -> int:
    """a / b, cut towards zero. Raises ZeroDivisionError."""
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def remainder(a: int, b: int) -> int:
    """What a leaves, with its sign. Raises ZeroDivisionError."""
    return a - b * quotient(a, b)


_INTEGERS = {
    "add": _wrapping("{} + {}"),
    "sub": _wrapping("{} - {}"),
    **{f"mul.{half}": _product(half, False) for half in ("lo", "hi", "wide")},
    **{f"mad.{half}": _product(half, True) for half in ("lo", "hi", "wide")},
    "neg": _wrapping("-{}"),
    "abs": lambda kind, a: cut(f"abs({_number(a, kind)})", bits_of(kind)),
    "min": _extremum("<"),
    "max": _extremum(">"),
    "div": _divided,
    "rem": _rest,
    "and": lambda kind, a, b: f"{a} & {b}",
    "or": lambda kind, a, b: f"{a} | {b}",
    "xor": lambda kind, a, b: f"{a} ^ {b}",
    "not": lambda kind, a: f"not {a}" if kind == "pred" else f"{a} ^ {(1 << bits_of(kind)) - 1}",
    "shl": _left,
    "shr": _right,
    "popc": lambda kind, a: f"({a}).bit_count()",
    "clz": lambda kind, a: f"{bits_of(kind)} - ({a}).bit_length()",
}


# -- floats ---------------------------------------------------------------------------------------
# Where a and b are equal they differ at most in the sign of zero, and adding zeros of both signs
# gives +0.0, the larger one.
_FLOATS = {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "div": "{} / {}",
    "rcp": "1.0 / {}",
    "sqrt": "sqrt({})",
    "rsqrt": "1.0 / sqrt({})",
    "min": "{0} if {0} < {1} else {1} if {1} < {0} else -(-{0} - {1}) if {0} == 0.0 else {0}",
    "max": "{0} if {0} > {1} else {1} if {1} > {0} else {0} + {1} if {0} == 0.0 else {0}",
    "abs": "abs({})",
    "neg": "-{}",
}
EXACT = {"min", "max", "abs", "neg", "selp", "mov"}  # the result is a value of the type already
_NEAREST = {"f32": {"rn", "ftz", "approx", "full"}, "f64": {"rn"}}
_APPROXIMATE = {"rcp", "sqrt", "rsqrt"}  # whose .approx is computed in float64, and rounded


def _float(name: str, kind: str, modifiers: frozenset[str], values: tuple) -> str | None:
    if name not in _FLOATS or not modifiers <= _NEAREST[kind]:
        return None
    if "approx" in modifiers and name not in _APPROXIMATE:
        return None
    return _FLOATS[name].format(*values)


def fma(a: float, b: float, c: float) -> float:
    """a * b + c of float64 values, rounded once. Raises Aside where it cannot tell.

    The product and its error (Dekker), the sum of three with its error rounded to odd (Boldo and
    Melquiond, 2008).
    """
    product = a * b
    if a == 0.0 or b == 0.0 or c == 0.0 != product:
        return product + c
    if not 1e-140 < abs(product) < 1e280 or not 1e-140 < abs(c) < 1e280:
        raise Aside
    if not (1e-140 < abs(a) < 1e140 and 1e-140 < abs(b) < 1e140):
        raise Aside
    high_a, high_b = a * 134217729.0, b * 134217729.0
    high_a, high_b = high_a - (high_a - a), high_b - (high_b - b)
    low_a, low_b = a - high_a, b - high_b
    error = low_a * low_b - (((product - high_a * high_b) - low_a * high_b) - high_a * low_b)
    low, low_rest = _two_sum(c, error)
    high, high_rest = _two_sum(product, low)
    rest, lost = _two_sum(low_rest, high_rest)
    if lost != 0.0 and not int(math.ldexp(math.frexp(rest)[0], 53)) & 1:
        rest = math.nextafter(rest, math.inf if lost > 0.0 else -math.inf)
    return high + rest


def _two_sum(a: float, b: float) -> tuple[float, float]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


# -- comparisons and conversions ------------------------------------------------------------------
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_SIGNS |= {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_SIGNS |= {"equ": "==", "neu": "!=", "ltu": "<", "leu": "<=", "gtu": ">", "geu": ">="}
_COMBINED = {"": "{}", "and": "({}) and {}", "or": "({}) or {}", "xor": "({}) != {}"}


def _comparison(name: str, kind: str, values: tuple) -> str | None:
    _, operator, *combine = name.split(".")
    if operator not in _SIGNS:
        return None
    a, b, *other = values
    if operator not in ("eq", "ne"):
        a, b = _ordered(a, kind), _ordered(b, kind)
    return _COMBINED[combine[0] if combine else ""].format(f"{a} {_SIGNS[operator]} {b}", *other)


_ROUNDED = {"rzi": "int({})", "rni": "round({})", "rmi": "floor({})", "rpi": "ceil({})"}


def _conversion(target: str, source: str, modifiers: frozenset[str], a: str) -> str | None:
    whole = [kind[0] in "us" and kind[1:].isdigit() for kind in (target, source)]
    if "sat" in modifiers:
        return None
    if all(whole):
        return cut(_number(a, source), bits_of(target))
    if whole[1] and modifiers <= {"rn"}:
        exact = target == "f64" or TYPE_BYTES[source] < 8
        return f"float({_number(a, source)})" if target in ("f32", "f64") and exact else None
    if whole[0] and source in ("f32", "f64"):
        integral = next((_ROUNDED[name] for name in modifiers & _ROUNDED.keys()), "int({})")
        low = -(1 << bits_of(target) - 1) if target[0] == "s" else 0
        high = low + (1 << bits_of(target)) - 1
        return cut(f"min(max({integral.format(a)}, {low}), {high})", bits_of(target))
    if (target, source) in (("f64", "f32"), ("f32", "f64")) and modifiers <= {"rn", "ftz"}:
        return a
    return None


def form_of(opcode: str, values: tuple[str, ...]) -> str | None:
    """The expression of an operation of the table on texts of its operands; None: NumPy's turn.

    Its value is that of the result before it is rounded to .f32.
    """
    name, _, types, modifiers = find_row(opcode)
    kind = types[-1]
    if name in ("min", "max") and len(values) > 2:
        return None
    if lookup(opcode).uses_carry or any(one in _HALVES for one in types):
        return None
    if name == "mov":
        return values[0]
    if name == "selp":
        return f"{values[0]} if {values[2]} else {values[1]}"
    if name.startswith("setp."):
        return _comparison(name, kind, values)
    if name == "cvt":
        return _conversion(*types, modifiers, values[0]) if len(types) == 2 else None
    if kind in ("f32", "f64"):
        if (name, kind) == ("fma", "f64") and modifiers == {"rn"}:
            return f"fma({', '.join(values)})"
        return _float(name, kind, modifiers, values)
    if name in _INTEGERS and not modifiers:
        return _INTEGERS[name](kind, *values)
    return None
