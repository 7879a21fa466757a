"""printf of a kernel: the C format and a thread's arguments become its message."""

import math
import re
import struct
from collections.abc import Callable

ARGUMENT_BYTES = 256  # of a thread's arguments: 32 of 8 bytes each, as CUDA allows
_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?P<precision>\.(?:\*|\d*))?"
    r"(?P<length>hh|h|ll|l|z|t|j)?(?P<kind>[diouxXfFeEgGaAcsp%])"
)
_LONG = ("l", "ll", "z", "t", "j")  # lengths of 64-bit integers
_SHORT_BITS = {"h": 16, "hh": 8}


def format_message(
    text: str,
    arguments: bytes,
    read_string: Callable[[int], str],
    spend: Callable[[int], None] = lambda size: None,
) -> str:
    """Render one thread's message.

    text: the C format; arguments: the bytes from the thread's argument buffer onwards, laid out as
    C varargs (4-byte integers, 8-byte doubles and pointers, each at its natural alignment);
    read_string(address) returns the string a %s pointer names. spend(size) is told of characters
    before they are made, and may raise. Conversions beyond the arguments stay as they are written.
    """
    varargs = _Varargs(arguments)

    def replacement(match: re.Match) -> str:
        try:
            rendered = _Conversion(match, varargs).text(varargs, read_string, spend)
        except struct.error:
            return match[0]
        spend(len(rendered))
        return rendered

    spend(len(text))
    return _CONVERSION.sub(replacement, text)


class _Varargs:
    """Arguments one after another, each at a multiple of its size."""

    def __init__(self, data: bytes):
        self.data, self.offset = data, 0

    def take(self, code: str):
        """The next argument, of a type that `struct` knows by this letter."""
        size = struct.calcsize(code)
        self.offset = -(-self.offset // size) * size
        (value,) = struct.unpack_from("<" + code, self.data, self.offset)
        self.offset += size
        return value


class _Conversion:
    """One `%...` of a format; a width or precision of * is an argument of its own.

    width: a number >= 0; precision: a number, or None where the format has none.
    """

    def __init__(self, match: re.Match, varargs: _Varargs):
        self.flags, width, precision, self.length, self.kind = match.groups()
        self.width = varargs.take("i") if width == "*" else _number(width or "0")
        if self.width < 0:
            self.flags, self.width = self.flags + "-", -self.width
        self.precision = None
        if precision is not None:
            given = varargs.take("i") if precision == ".*" else _number(precision[1:] or "0")
            self.precision = given if given >= 0 else None  # C: as if it were not there

    def text(self, varargs: _Varargs, read_string, spend) -> str:
        kind, precision = self.kind, self.precision
        if kind == "%":
            return "%"
        spend(self.width)
        if kind == "c":
            return self.padded(chr(varargs.take("i") & 0xFF))
        if kind == "s":
            return self.padded(read_string(varargs.take("Q"))[:precision])
        if kind == "p":
            return self.padded(hex(address) if (address := varargs.take("Q")) else "(nil)")
        spend(precision or 0)
        if kind in "diouxX":
            return self.integer(varargs)
        return self.floating(varargs.take("d"))

    def padded(self, text: str) -> str:
        return text.ljust(self.width) if "-" in self.flags else text.rjust(self.width)

    def integer(self, varargs: _Varargs) -> str:
        signed = self.kind in "di"
        value = varargs.take(("q" if signed else "Q") if self.length in _LONG else "iI"[not signed])
        if bits := _SHORT_BITS.get(self.length):
            value &= (1 << bits) - 1
            value -= (value >> bits - 1) << bits if signed else 0
        digits = format(abs(value), {"o": "o", "x": "x", "X": "X"}.get(self.kind, "d"))
        if self.precision is not None:
            digits = digits.rjust(self.precision, "0") if value or self.precision else ""
        prefix = self.sign(value < 0) if signed else ""
        if "#" in self.flags and self.kind == "o" and not digits.startswith("0"):
            digits = "0" + digits
        elif "#" in self.flags and self.kind in "xX" and value:
            prefix = "0" + self.kind
        return self.signed(prefix, digits, self.precision is None)

    def floating(self, value: float) -> str:
        """f, e, g as Python has them, a as C writes it."""
        negative, size = math.copysign(1.0, value) < 0 and value == value, abs(value)
        if not math.isfinite(value):
            digits = format(size, "F" if self.kind.isupper() else "f")
            return self.signed(self.sign(negative), digits, False)
        if self.kind in "aA":
            digits = _hexadecimal(size, self.precision, "#" in self.flags)
            digits = digits.upper() if self.kind == "A" else digits
            return self.signed(self.sign(negative) + digits[:2], digits[2:], True)
        alternative = "#" if "#" in self.flags else ""
        precision = 6 if self.precision is None else self.precision
        digits = f"%{alternative}.{precision}{self.kind}" % size
        return self.signed(self.sign(negative), digits, True)

    def sign(self, negative: bool) -> str:
        return "-" if negative else "+" if "+" in self.flags else " " * (" " in self.flags)

    def signed(self, prefix: str, digits: str, zeros: bool) -> str:
        """Sign or 0x, and digits; zeros: whether the flag 0 counts."""
        if zeros and "0" in self.flags and "-" not in self.flags:
            digits = digits.rjust(self.width - len(prefix), "0")
        return self.padded(prefix + digits)


def _number(digits: str) -> int:
    """A width or precision; more digits than any limit allows count as ten of them."""
    return int(digits[:10])


def _hexadecimal(value: float, precision: int | None, point: bool) -> str:
    """A finite number >= 0 as %a writes it: 0x1.8p+1."""
    mantissa, exponent = math.frexp(value)
    if not value:
        lead, fraction, power = 0, 0, 0
    elif exponent < -1021:  # subnormal: the exponent stays at its least
        lead, fraction, power = 0, int(math.ldexp(value, 1074)), -1022
    else:
        lead, fraction, power = 1, int(math.ldexp(mantissa, 53)) - (1 << 52), exponent - 1
    if precision is None:
        digits = f"{fraction:013x}".rstrip("0")
    else:
        kept = min(precision, 13)
        shift = 4 * (13 - kept)
        whole = lead << 52 | fraction
        rounded = whole >> shift
        rest, half = whole & ((1 << shift) - 1), (1 << shift) >> 1
        rounded += bool(half) and (rest > half or rest == half and rounded & 1)
        lead, fraction = rounded >> 4 * kept, rounded & ((1 << 4 * kept) - 1)
        digits = f"{fraction:0{kept}x}".ljust(precision, "0") if precision else ""
    return f"0x{lead}{'.' if digits or point else ''}{digits}p{power:+d}"
