"""printf of kernels against the C library's own."""

import ctypes
import random
import struct

import pytest
from kernelscope.printf import ARGUMENT_BYTES, format_message

FLOATS = [0.0, -0.0, 1.5, -2.25, 0.1, 255.99999999, 1e-300, 5e-324, 1e300]
FLOATS += [float("inf"), float("-inf"), float("nan")]
INTEGERS = [0, 1, -5, 300, 70000, 2**31 - 1, -(2**31)]
WORDS = {"f": "fFeEgGaA", "i": "diouxX"}
C = ctypes.CDLL(None)


def in_c(text: str, values: list) -> str:
    buffer = ctypes.create_string_buffer(4096)
    C.snprintf(buffer, ctypes.c_size_t(4096), text.encode(), *values)
    return buffer.value.decode()


class Call:
    """A random format with its arguments, as C takes them and as a kernel's buffer holds them."""

    def __init__(self, seed: int):
        self.random, self.values, self.data = random.Random(seed), [], b""
        pick = self.random.choice
        flags = "".join(self.random.sample("-+ #0", self.random.randrange(4)))
        width, precision = pick(["", "5", "12", "*"]), pick(["", ".", ".0", ".3", ".10", ".*"])
        if width == "*":
            # Not a negative width with the flag 0: glibc then fills with zeros on the right.
            self.add("i", pick([3, -7, 12] if "0" not in flags else [3, 12]))
        if precision == ".*":
            self.add("i", pick([0, -3, 4]))
        length = ""
        if pick("fi") == "f":
            kind = pick(WORDS["f"])
            self.add("d", pick([*FLOATS, self.random.gauss(0, 1)]))
        else:
            kind, length = pick(WORDS["i"]), pick(["", "h", "hh", "l", "ll"])
            self.add("q" if "l" in length and length != "hh" else "i", pick(INTEGERS))
        self.format = f"<%{flags}{width}{precision}{length}{kind}>"

    def add(self, code: str, value) -> None:
        types = {"i": ctypes.c_int, "q": ctypes.c_longlong, "d": ctypes.c_double}
        self.values.append(types[code](value))
        self.data += b"\0" * (-len(self.data) % struct.calcsize(code)) + struct.pack(code, value)


def message(text: str, data: bytes, strings=None) -> str:
    return format_message(text, data.ljust(ARGUMENT_BYTES, b"\0"), (strings or {}).get)


def test_numbers_are_written_as_c_writes_them():
    for seed in range(4000):
        call = Call(seed)
        assert message(call.format, call.data) == in_c(call.format, call.values), call.format


@pytest.mark.parametrize("text", ["%s|", "%9s|", "%-9s|", "%.2s|", "%9.2s|", "%-9.0s|", "%.s|"])
def test_strings_are_written_as_c_writes_them(text):
    found = message(text, struct.pack("Q", 1), {1: "hello"})
    assert found == in_c(text, [ctypes.c_char_p(b"hello")])


@pytest.mark.parametrize("text", ["%c|%5c|%-5c", "%p", "%%|%d", "%", "100 %", "%q%d"])
def test_other_conversions(text):
    values = [65, 66, 67]
    expected = {"%p": "0x4200000041", "%q%d": "%q65", "%": "%", "100 %": "100 %"}
    found = message(text, struct.pack("iii", *values))
    assert found == expected.get(text) or found == in_c(text, list(map(ctypes.c_int, values)))
    assert message("%p", b"") == "(nil)"


def test_conversions_beyond_the_arguments_stay_as_they_are():
    data = struct.pack("33d", *range(33))
    assert message("%.0f" * 33, data[:ARGUMENT_BYTES]) == "".join(map(str, range(32))) + "%.0f"


def test_characters_are_counted_before_they_are_made():
    spent = []

    def spend(size: int) -> None:
        spent.append(size)
        if size > 1000:
            raise OverflowError

    for text in ("%999999999999d", "%.999999999f", "%*d", "%.*e"):
        with pytest.raises(OverflowError):
            format_message(text, struct.pack("ii", 2**31 - 1, 1).ljust(256), None, spend)
    assert max(spent) == 9999999999
    assert format_message("%7d", bytes(256), None, spend) == "      0"
