"""Device-side printf: the format string and the argument buffer that `vprintf` is given."""

from __future__ import annotations

import re
import struct

_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d+))?"
    r"(?P<length>hh|h|ll|l|z|t|j)?(?P<kind>[diouxXfFeEgGaAcsp%])"
)


_LONG = ("l", "ll", "z", "t", "j")  # lengths of 64-bit integers


def format_message(text: str, arguments: bytes, read_string) -> str:
    """Render one thread's message.

    text: the C format; arguments: the bytes from the thread's argument buffer onwards, laid out as
    C varargs (4-byte integers, 8-byte doubles and pointers, each at its natural alignment);
    read_string(address) returns the string a %s pointer names.
    """
    varargs = _Varargs(arguments)
    return _CONVERSION.sub(lambda match: _rendered(match, varargs, read_string), text)


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


def _rendered(match: re.Match, varargs: _Varargs, read_string) -> str:
    """The text of one conversion; a width or precision of * is an argument of its own."""
    flags, width, precision, length, kind = match.groups()
    if kind == "%":
        return "%"
    width = str(varargs.take("i")) if width == "*" else width or ""
    precision = str(varargs.take("i")) if precision == "*" else precision
    shape = f"%{flags}{width}" + (f".{precision}" if precision is not None else "")
    if kind in "di":
        return (shape + "d") % varargs.take("q" if length in _LONG else "i")
    if kind in "ouxX":
        value = varargs.take("Q" if length in _LONG else "I")
        return (shape + ("d" if kind == "u" else kind)) % value
    if kind in "fFeEgG":
        return (shape + kind) % varargs.take("d")
    if kind in "aA":
        text = re.sub(r"\.?0*p", "p", varargs.take("d").hex())  # C writes no trailing zeros
        return (shape.split(".")[0] + "s") % (text.upper() if kind == "A" else text)
    if kind == "c":
        return (shape + "c") % chr(varargs.take("i") & 0xFF)
    if kind == "p":
        return (shape + "s") % hex(varargs.take("Q"))
    return (shape + "s") % read_string(varargs.take("Q"))
