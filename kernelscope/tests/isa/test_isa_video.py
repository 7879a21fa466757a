"""Video instructions, cvt.pack and pairs of 8-bit floats, written out from the PTX ISA 8.7's text.

Sections "Video Instructions", "cvt", "cvt.pack". The oracle works on Python's integers. Where an
H200 does not do what the text says of the scalar video instructions, the oracle does what it does,
and h200_video.txt holds its own results.
"""

import itertools
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from kernelscope.isa.table import lookup

from .isa_harness import check
from .isa_oracle import decode, encode, read

COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
OPERATIONS = {
    "vadd": lambda a, b: a + b,
    "vsub": lambda a, b: a - b,
    "vabsdiff": lambda a, b: abs(a - b),
    "vmin": min,
    "vmax": max,
    "vavrg": lambda a, b: a + b + 1 >> 1 if a + b >= 0 else a + b >> 1,
    "eq": lambda a, b: int(a == b),
    "ne": lambda a, b: int(a != b),
    "lt": lambda a, b: int(a < b),
    "le": lambda a, b: int(a <= b),
    "gt": lambda a, b: int(a > b),
    "ge": lambda a, b: int(a >= b),
}
PAIRS = list(itertools.product(("u32", "s32"), repeat=2))
TRIPLES = list(itertools.product(("u32", "s32"), repeat=3))
PARTS = {"b0": (0, 8), "b1": (8, 8), "b2": (16, 8), "b3": (24, 8), "h0": (0, 16), "h1": (16, 16)}
CASES = {}


def clamp(value, kind, width):
    low = -(1 << width - 1) if kind == "s32" else 0
    return max(low, min(value, low + (1 << width) - 1))


def scalar(name, operation, kinds, kind, sat, last):
    """kinds: of a and b; kind: of the result; last: a second operation, or a part of d, or ""."""
    signed, shift = kind == "s32", name in ("vshl", "vshr")

    def saturated(value):
        if shift:
            return clamp(wrapped(value, 34), kind, 32)
        if last in PARTS:
            most = 2 ** (PARTS[last][1] - signed) - 1
            return value if 0 <= value <= most else most
        return clamp(value, kind, 32) if signed else max(value, 0)

    def run(a, b, c=0):
        value = operation(read(a, kinds[0]), read(b, kinds[1]))
        value = saturated(value) if sat else value
        if last == "add":
            value += c
        elif last in ("min", "max"):
            value = wrapped(value, 32 if name in ("vadd", "vsub") or shift and sat else 64)
            value = {"min": min, "max": max}[last](
                value if signed else value % 2**64, read(c, kind)
            )
        elif last:
            start, width = PARTS[last]
            mask = (1 << width) - 1 << start
            value = (value if last == "h1" else value << start) & mask | c & ~mask
        return value & 0xFFFFFFFF

    return run


def wrapped(value, width):
    """The low bits of an integer as a signed number."""
    value &= (1 << width) - 1
    return value - (value >> width - 1 << width)


def shifted(left, wrap):
    def run(a, b):
        b = b & 31 if wrap else min(b, 32)
        return a << b if left else a >> b

    return run


def pieces(word, width, signed):
    found = [word >> i & (1 << width) - 1 for i in range(0, 32, width)]
    return [x - (x >> width - 1 << width) for x in found] if signed else found


def simd(operation, width, kinds, kind, sat, add, mask):
    def run(a, b, c):
        sides = (pieces(a, width, kinds[0] == "s32"), pieces(b, width, kinds[1] == "s32"))
        values = map(operation, *sides)
        values = [clamp(x, kind, width) if sat else x for x in values]
        chosen = [str(i) in mask for i in range(32 // width)]
        if add:
            return c + sum(x for x, use in zip(values, chosen, strict=True) if use) & 0xFFFFFFFF
        old = pieces(c, width, False)
        parts = [x if use else y for x, y, use in zip(values, old, chosen, strict=True)]
        return sum((x & (1 << width) - 1) << width * i for i, x in enumerate(parts))

    return run


def multiply_add(kinds, sat, shift, sign):
    signed = "s32" in kinds or sign in ("negab", "negc")

    def run(a, b, c):
        a, b, c = (read(x, "s32") for x in (a, b, c))
        product, c = -a * b if sign == "negab" else a * b, -c if sign == "negc" else c
        value = product + c + (sign == "po")
        if shift and not signed:
            value %= 2**64
        value >>= shift
        return (clamp(value, "s32" if signed else "u32", 32) if sat else value) & 0xFFFFFFFF

    return run


def _name(*parts):
    return ".".join(part for part in parts if part)


SECOND = ("add", "min", "max")
MASKS = {16: ["0", "1", "10"], 8: "0 1 10 2 20 21 210 3 30 31 310 32 320 321 3210".split()}
turn = itertools.count()


def last_words():
    """No word, a second operation and a part of the result, others at each call."""
    number = next(turn)
    return "", SECOND[number % 3], list(PARTS)[number % 6]


for name in ("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vavrg"):
    for (d, a, b), sat in itertools.product(TRIPLES, ("", "sat")):
        for last in last_words() if name != "vavrg" else ():
            one = scalar(name, OPERATIONS[name], (a, b), d, sat, last)
            CASES[_name(name, d, a, b, sat, last)] = one
    for width, (d, a, b), sat, add in itertools.product((16, 8), TRIPLES, ("", "sat"), ("", "add")):
        mask = MASKS[width][next(turn) % len(MASKS[width])]
        text = _name(f"{name}{32 // width}", d, a, b, sat, add, "to" + mask)
        CASES[text] = simd(OPERATIONS[name], width, (a, b), d, sat, add, mask)
for (d, a), sat, left, mode in itertools.product(PAIRS, ("", "sat"), (0, 1), ("wrap", "clamp")):
    for last in last_words():
        name = ("vshr", "vshl")[left]
        one = scalar(name, shifted(left, mode == "wrap"), (a, "u32"), d, sat, last)
        CASES[_name(name, d, a, "u32", sat, mode, last)] = one
for (a, b), compare in itertools.product(PAIRS, COMPARE):
    for last in last_words():
        one = scalar("vset", OPERATIONS[compare], (a, b), a, "", last)
        CASES[_name("vset", a, b, compare, last)] = one
for width, (a, b), compare, add in itertools.product((16, 8), PAIRS, COMPARE, ("", "add")):
    mask = MASKS[width][next(turn) % len(MASKS[width])]
    text = _name(f"vset{32 // width}", a, b, compare, add, "to" + mask)
    CASES[text] = simd(OPERATIONS[compare], width, (a, b), "u32", "", add, mask)
for (d, a, b), sat, shift in itertools.product(TRIPLES, ("", "sat"), (0, 7, 15)):
    sign = ("", "po", "negab", "negc")[next(turn) % 4]
    text = _name("vmad", d, a, b, sat, f"shr{shift}" if shift else "", sign)
    CASES[text] = multiply_add((a, b), sat, shift, sign)


def packed(kind, filled):
    width = int(kind[1:])

    def run(a, b, c=0):
        parts = (clamp(read(x, "s32"), f"{kind[0]}32", width) & (1 << width) - 1 for x in (a, b))
        high, low = parts
        both = high << width | low
        return (c << 2 * width | both) & 0xFFFFFFFF if filled else both

    return run


for kind in ("u16", "s16"):
    CASES[f"cvt.pack.sat.{kind}.s32"] = packed(kind, False)
for kind in ("u8", "s8", "u4", "s4", "u2", "s2"):
    CASES[f"cvt.pack.sat.{kind}.s32.b32"] = packed(kind, True)


# --- pairs of 8-bit floats ------------------------------------------------------------------------
LIMITS = {"e4m3": (4, 3, 448, 0x7E), "e5m2": (5, 2, 57344, 0x7B)}


def to_float8(number, kind, relu):
    exponent_bits, fraction_bits, largest, top = LIMITS[kind]
    if number.kind == "nan":
        return 0x7F
    if relu and number.sign:
        return 0
    sign = number.sign << 7
    if number.kind == "inf" or number.size > largest:
        return sign | top
    bias = (1 << exponent_bits - 1) - 1
    exponent = 1 - bias
    while number.size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    count = round(number.size / Fraction(2) ** (exponent - fraction_bits))  # Python: ties to even
    return sign | (exponent + bias - 1 << fraction_bits) + count


def from_float8(code, kind, relu):
    exponent_bits, fraction_bits, _, top = LIMITS[kind]
    size, negative = code & 0x7F, code >> 7
    if kind == "e4m3" and size == 0x7F or kind == "e5m2" and size > 0x7C:
        return 0x7FFF
    if relu and negative:
        return 0
    if size > top:
        return negative << 15 | 0x7C00
    exponent, fraction = size >> fraction_bits, size & (1 << fraction_bits) - 1
    bias = (1 << exponent_bits - 1) - 1
    value = Fraction(fraction, 1 << fraction_bits) + (exponent > 0)
    value *= Fraction(2) ** (max(exponent, 1) - bias)
    number = decode(0, "f16")._replace(kind="finite" if value else "zero", size=value)
    return encode(number._replace(sign=negative), "f16")


for kind, relu in itertools.product(LIMITS, (False, True)):
    text = f"{'.relu' * relu}.{kind}x2"

    def one(bits, fmt, kind=kind, relu=relu):
        return to_float8(decode(bits, fmt), kind, relu)

    CASES[f"cvt.rn.satfinite{text}.f32"] = lambda a, b, one=one: one(a, "f32") << 8 | one(b, "f32")
    CASES[f"cvt.rn.satfinite{text}.f16x2"] = lambda a, one=one: (
        one(a >> 16, "f16") << 8 | one(a & 0xFFFF, "f16")
    )
    CASES[f"cvt.rn{'.relu' * relu}.f16x2.{kind}x2"] = lambda a, kind=kind, relu=relu: (
        from_float8(a >> 8, kind, relu) << 16 | from_float8(a & 0xFF, kind, relu)
    )


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("family", sorted({text.split(".")[0] for text in CASES}))
def test_family(family):
    for opcode, oracle in CASES.items():
        if opcode.split(".")[0] == family:
            check(opcode, oracle, count=30)


def test_what_an_h200_gave():
    """Each line: an opcode, its operands and the result, in hexadecimal digits."""
    for line in Path(__file__).with_name("h200_video.txt").read_text().splitlines():
        opcode, *words = line.split()
        *operands, wanted = (np.uint32(int(word, 16)) for word in words)
        operation = lookup(opcode)
        dtypes = [{"s32": np.int32, "u32": np.uint32}[kind] for kind in operation.sources]
        found = operation.fn(*(x.view(d) for x, d in zip(operands, dtypes, strict=True)))
        assert found.view(np.uint32) == wanted, line
        if opcode in CASES:
            assert CASES[opcode](*map(int, operands)) == wanted, line


@pytest.mark.parametrize("kind", LIMITS)
def test_every_8_bit_float_and_its_neighbours(kind):
    pairs = [(high << 8 | 255 - high,) for high in range(256)]
    check(f"cvt.rn.f16x2.{kind}x2", CASES[f"cvt.rn.f16x2.{kind}x2"], lanes=pairs)
    halves = [from_float8(code, kind, False) for code in range(255)]
    near = [(x << 16 | (x + step & 0xFFFF),) for x in halves for step in (-1, 1, 32, 64, 256)]
    text = f"cvt.rn.satfinite.{kind}x2.f16x2"
    check(text, CASES[text], lanes=near)
