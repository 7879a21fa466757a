"""Device-side printf: the format string and the argument buffer that `vprintf` is given."""

from __future__ import annotations

import re
import struct

_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d+))?"
    r"(?P<length>hh|h|ll|l|z|t|j)?(?P<kind>[diouxXfFeEgGaAcsp%])"
)


def format_message(text: str, arguments: bytes, read_string) -> str:
    """Render one thread's message.

    text: the C format; arguments: the bytes from the thread's argument buffer onwards, laid out as
    C varargs (4-byte integers, 8-byte doubles and pointers, each at its natural alignment);
    read_string(address) returns the string a %s pointer names.
    """
    offset = 0

    def take(code: str):
        nonlocal offset
        size = struct.calcsize(code)
        offset = -(-offset // size) * size
        (value,) = struct.unpack_from("<" + code, arguments, offset)
        offset += size
        return value

    def replace(match: re.Match) -> str:
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            return "%"
        width = str(take("i")) if width == "*" else width or ""
        precision = str(take("i")) if precision == "*" else precision
        shape = f"%{flags}{width}" + (f".{precision}" if precision is not None else "")
        if kind in "di":
            return (shape + "d") % take("q" if length in ("l", "ll", "z", "t", "j") else "i")
        if kind in "ouxX":
            value = take("Q" if length in ("l", "ll", "z", "t", "j") else "I")
            return (shape + ("d" if kind == "u" else kind)) % value
        if kind in "fFeEgG":
            return (shape + kind) % take("d")
        if kind in "aA":
            text = re.sub(r"\.?0*p", "p", float(take("d")).hex())  # C writes no trailing zeros
            return (shape.split(".")[0] + "s") % (text.upper() if kind == "A" else text)
        if kind == "c":
            return (shape + "c") % chr(take("i") & 0xFF)
        if kind == "p":
            return (shape + "s") % hex(take("Q"))
        return (shape + "s") % read_string(take("Q"))

    return _CONVERSION.sub(replace, text)
