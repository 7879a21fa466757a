"""Approximate instructions against their documented bounds and special values."""

import math

import numpy as np
import pytest

from .isa_harness import check
from .isa_oracle import decode
from .test_isa_floats import CASES, HALVES, _f32


def double_of(bits, kind, ftz):
    x = decode(bits, kind, ftz)
    if x.kind == "finite":
        return float(x.value)
    return {"nan": math.nan, "inf": math.inf, "zero": 0.0}[x.kind] * (-1 if x.sign else 1)


def reference(name, x):
    exact = {"rcp": lambda x: 1 / x, "rsqrt": lambda x: 1 / np.sqrt(x)}.get(name)
    with np.errstate(all="ignore"):
        return float(
            (exact or getattr(np, {"ex2": "exp2", "lg2": "log2"}.get(name, name)))(np.float64(x))
        )


# name -> (relative bound, absolute bound), from the PTX ISA's description of each instruction
BOUNDS = {
    "ex2": (2**-22, 0),
    "lg2": (2**-22, 2**-22),
    "rcp": (2**-23, 0),
    "rsqrt": (2**-22.9, 0),
    "sqrt": (2**-23, 0),
    "sin": (0, 2**-20.5),
    "cos": (0, 2**-20.5),
    "tanh": (2**-11, 0),
}
APPROXIMATE = [
    *(f"{name}.approx.f32" for name in BOUNDS),
    *(f"{name}.approx.ftz.f32" for name in BOUNDS if name != "tanh"),
    *"rcp.approx.ftz.f64 rsqrt.approx.f64 rsqrt.approx.ftz.f64 ex2.approx.f16".split(),
    *"ex2.approx.ftz.bf16 tanh.approx.f16 tanh.approx.bf16".split(),
]


def close(name, kind, ftz):
    """agree(): NaN for NaN, signed zeros and infinities exactly, else within the bound."""
    relative, absolute = BOUNDS[name]
    if kind == "f64":
        relative = 2.0**-20
    if kind in HALVES:
        relative = max(relative, 2.0**-9.9 if kind == "f16" else 2.0**-7)
    smallest = {"f32": 2.0**-149, "f64": 2.0**-1074, "f16": 2.0**-24, "bf16": 2.0**-133}[kind]
    normal = {"f32": 2.0**-126, "f64": 2.0**-1022, "bf16": 2.0**-126}.get(kind, 0)

    def agree(wanted, found):
        wanted, found = wanted[0], double_of(found[0], kind, False)
        if math.isnan(wanted) or math.isinf(found) or math.isinf(wanted):
            return str(wanted) == str(found) or overflow(wanted, found)
        if ftz and abs(wanted) < normal * (1 + relative) and found == 0:
            return math.copysign(1, found) == math.copysign(1, wanted)
        return abs(found - wanted) <= max(abs(wanted) * relative, absolute, smallest)

    def overflow(wanted, found):
        largest = {"f32": 2.0**128, "f16": 65520.0, "bf16": 2.0**128}.get(kind, math.inf)
        return abs(wanted) >= largest * (1 - 2.0**-9) and math.isinf(found) and wanted * found > 0

    return agree


@pytest.mark.parametrize("opcode", APPROXIMATE)
def test_approximation(opcode):
    name, _, *rest = opcode.split(".")
    kind, ftz = rest[-1], "ftz" in rest
    check(
        opcode,
        lambda bits: reference(name, double_of(bits, kind, ftz)),
        agree=close(name, kind, ftz),
    )


@pytest.mark.parametrize(
    ("opcode", "bits", "expected"),
    [
        ("ex2.approx.ftz.f32", 0xFF800000, 0x00000000),
        ("ex2.approx.ftz.f32", 0x00000001, 0x3F800000),
        ("lg2.approx.ftz.f32", 0x80000000, 0xFF800000),
        ("lg2.approx.f32", 0xBF800000, 0x7FFFFFFF),
        ("rcp.approx.ftz.f32", 0x80000001, 0xFF800000),
        ("rcp.approx.ftz.f32", 0x7F000000, 0x00000000),
        ("rsqrt.approx.ftz.f32", 0xBF800000, 0x7FFFFFFF),
        ("rsqrt.approx.ftz.f32", 0x80000000, 0xFF800000),
        ("sqrt.approx.ftz.f32", 0x80000001, 0x80000000),
        ("sin.approx.ftz.f32", 0x7F800000, 0x7FFFFFFF),
        ("sin.approx.ftz.f32", 0x80000000, 0x80000000),
        ("cos.approx.ftz.f32", 0x00000001, 0x3F800000),
        ("tanh.approx.f32", 0xFF800000, 0xBF800000),
    ],
)
def test_approximation_special_values(opcode, bits, expected):
    check(opcode, lambda x: expected, lanes=[(bits,)])


# Of all float32 numbers (sin and cos: below 64) those with the result nearest to the middle between
# two float32 numbers. A float64 function that is off by the given units in the last place rounds
# to the other neighbour; those of NumPy's vector units and of libm, with and without fma, do not.
@pytest.mark.parametrize(
    ("opcode", "bits", "expected"),
    [
        ("ex2.approx.f32", 0xB52D1F9A, 0x3F7FFFF8),  # 0.02
        ("ex2.approx.f32", 0xBCF3A937, 0x3F7AC6B0),  # 0.07
        ("ex2.approx.f32", 0x3B429D37, 0x3F804384),  # 0.4
        ("ex2.approx.f32", 0xB8D3D026, 0x3F7FFB69),  # 0.7
        ("cos.approx.f32", 0x3C107FE6, 0x3F7FFD74),  # 0.9
        ("cos.approx.f32", 0x39800000, 0x3F800000),  # 1.3
        ("sin.approx.f32", 0x3EF3830F, 0x3EEA6F45),  # 2.4
        ("lg2.approx.f32", 0x3EA07AB9, 0xBFD63DA2),  # 2.7
        ("tanh.approx.f32", 0x3AC37DE2, 0x3AC37DD9),  # 5.0
    ],
)
def test_approximations_give_the_same_bits_on_every_processor(opcode, bits, expected):
    check(opcode, lambda x: expected, lanes=[(bits,)])


def test_packed_approximations_treat_both_halves():
    for kind in HALVES:
        one = 0x3C00 if kind == "f16" else 0x3F80
        infinity = 0xFC00 if kind == "f16" else 0xFF80
        flush = "" if kind == "f16" else ".ftz"
        check(f"ex2.approx{flush}.{kind}x2", lambda x, o=one: o, lanes=[(infinity << 16,)])
        check(
            f"tanh.approx.{kind}x2", lambda x, o=one: (0x8000 | o) << 16, lanes=[(infinity << 16,)]
        )


def test_division_approximation():
    """|b| above 2^126 gives a signed zero, or NaN for infinite a; else within 2 ulp."""
    big, two = 0x7F000001, 0x40000000
    lanes = [(two, big), (two | 1 << 31, big), (0x7F800000, big), (two, 0x7F800000), (two, 0)]
    table = dict(zip(lanes, (0, 1 << 31, 0x7FFFFFFF, 0, 0x7F800000), strict=True))
    for opcode in ("div.approx.f32", "div.approx.ftz.f32"):
        check(opcode, lambda a, b: table[a, b], lanes=lanes)
        flush = "ftz" in opcode

        def agree(wanted, found):
            return abs(wanted[0] - found[0]) <= 2

        exact_oracle = CASES["div.rn.ftz.f32" if flush else "div.rn.f32"]
        small = [(_f32(x), _f32(y)) for x, y in np.random.default_rng(3).standard_normal((50, 2))]
        check(opcode, exact_oracle, agree=agree, lanes=small)
