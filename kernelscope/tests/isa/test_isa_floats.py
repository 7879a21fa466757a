"""Float arithmetic rows of the operation table against exact fractions."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from kernelscope.isa.float64 import _BLOCK, _fma_in_steps, fma_f64

from . import isa_oracle as exact
from .isa_harness import by_name, check, check_all, groups
from .isa_oracle import FORMATS, decode, encode

MODES = ("rn", "rz", "rm", "rp")
HALVES = ("f16", "bf16")
CASES = {}


def oracle(kind, function, mode="rn", **flags):
    """An operation on Numbers as one on bits; `flags` are encode's, .ftz applies to inputs too."""

    def run(*bits):
        ftz = flags.get("ftz", False)
        return encode(function(*(decode(b, kind, ftz) for b in bits)), kind, mode, **flags)

    return run


def paired(one, width=16):
    """An oracle on halves of `width` bits as one on packed words."""

    def run(*words):
        mask = (1 << width) - 1
        low, high = (one(*(w >> shift & mask for w in words)) for shift in (0, width))
        return high << width | low

    return run


def exact_functions(mode):
    return {
        "add": lambda a, b: exact.add(a, b, mode),
        "sub": lambda a, b: exact.add(a, exact.negate(b), mode),
        "mul": exact.multiply,
        "fma": lambda a, b, c: exact.add(exact.multiply(a, b), c, mode),
        "mad": lambda a, b, c: exact.add(exact.multiply(a, b), c, mode),
        "div": exact.divide,
        "rcp": lambda a: exact.divide(exact.exact(1), a),
        "sqrt": exact.square_root,
    }


for mode in MODES:
    for name, function in exact_functions(mode).items():
        saturates = name not in ("div", "rcp", "sqrt")
        for ftz, sat in itertools.product((False, True), (False, True) if saturates else (False,)):
            text = f"{name}.{mode}{'.ftz' * ftz}{'.sat' * sat}.f32"
            CASES[text] = oracle("f32", function, mode, ftz=ftz, sat=sat)
        CASES[f"{name}.{mode}.f64"] = oracle("f64", function, mode)
CASES["add.f32"], CASES["mul.ftz.f32"] = CASES["add.rn.f32"], CASES["mul.rn.ftz.f32"]
CASES["div.full.f32"], CASES["div.full.ftz.f32"] = CASES["div.rn.f32"], CASES["div.rn.ftz.f32"]

for mode, name, ftz in itertools.product(MODES, ("add", "sub", "mul", "fma"), ("", ".ftz")):
    CASES[f"{name}.{mode}{ftz}.f32x2"] = paired(CASES[f"{name}.{mode}{ftz}.f32"], 32)
for kind in HALVES:
    functions = exact_functions("rn")
    for name in ("add", "sub", "mul", "fma"):
        flags = [{}, {"sat": True}, {"ftz": True}, {"ftz": True, "sat": True}]
        flags = flags if kind == "f16" else [{}]
        for chosen in flags + ([{"relu": True}] if name == "fma" else []):
            text = f"{name}.rn{''.join('.' + flag for flag in chosen)}.{kind}"
            CASES[text] = oracle(kind, functions[name], **chosen)
            CASES[text + "x2"] = paired(CASES[text])


# --- minimum, maximum, signs, tests ---


def extreme(kind, largest, ftz, keep_nan, by_magnitude):
    top = 1 << FORMATS[kind][0] + FORMATS[kind][1]

    def run(a, b):
        sign = (a ^ b) & top if by_magnitude else 0
        if by_magnitude:
            a, b = a & ~top, b & ~top
        chosen = exact.extreme(decode(a, kind, ftz), decode(b, kind, ftz), largest, keep_nan)
        bits = encode(chosen, kind, ftz=ftz)
        # a NaN stays canonical whatever the signs
        return bits if chosen.kind == "nan" else bits | sign

    return run


for kind, largest in itertools.product(("f32", "f64", *HALVES), (False, True)):
    name = "max" if largest else "min"
    for ftz, keep_nan, by_magnitude in itertools.product((False, True), repeat=3):
        if (kind == "f64" and (ftz or keep_nan or by_magnitude)) or (kind == "bf16" and ftz):
            continue
        text = f"{name}{'.ftz' * ftz}{'.NaN' * keep_nan}{'.xorsign.abs' * by_magnitude}.{kind}"
        CASES[text] = extreme(kind, largest, ftz, keep_nan, by_magnitude)
        if kind in HALVES:
            CASES[text + "x2"] = paired(CASES[text])


def sign_change(kind, name, ftz):
    exponent_bits, fraction_bits, _ = FORMATS[kind]
    top = 1 << exponent_bits + fraction_bits

    def run(bits):
        if decode(bits, kind).kind == "nan":
            return bits if kind == "f64" else FORMATS[kind][2]
        if ftz and bits & ~top < 1 << fraction_bits:
            bits &= top
        return bits & ~top if name == "abs" else bits ^ top

    return run


for name, kind, ftz in itertools.product(("abs", "neg"), ("f32", "f64", *HALVES), (False, True)):
    if ftz and kind in ("f64", "bf16"):
        continue
    CASES[f"{name}{'.ftz' * ftz}.{kind}"] = sign_change(kind, name, ftz)
    if kind in HALVES:
        CASES[f"{name}{'.ftz' * ftz}.{kind}x2"] = paired(sign_change(kind, name, ftz))


def test_class(kind, name):
    smallest = {"f32": Fraction(2) ** -126, "f64": Fraction(2) ** -1022}[kind]

    def run(bits):
        x = decode(bits, kind)
        small = x.kind == "finite" and x.size < smallest
        return {
            "finite": x.kind in ("zero", "finite"),
            "infinite": x.kind == "inf",
            "number": x.kind != "nan",
            "notanumber": x.kind == "nan",
            "normal": x.kind == "zero" or (x.kind == "finite" and not small),
            "subnormal": small,
        }[name]

    return run


for kind in ("f32", "f64"):
    top = 1 << exact.bits_of(kind) - 1
    CASES[f"copysign.{kind}"] = lambda a, b, top=top: a & top | b & ~top
    for name in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        CASES[f"testp.{name}.{kind}"] = test_class(kind, name)
test_class.__test__ = False


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("name", groups(by_name, CASES))
def test_rows(name):
    check_all(name, by_name, CASES)


# --- rounding, where it is hardest ---


def _f32(x):
    return int(np.float32(x).view(np.uint32))


def test_fma_f32_ties():
    """Products just beside the middle between two floats: float64 alone would round them twice."""
    lanes = []
    for k in range(24, 80):
        for sign in (1, -1):
            # 1 + 2^-24 lies in the middle; the addend, below float64's digits, decides
            a, b = 1 + 2.0**-12, 1 - 2.0**-12 + 2.0**-23
            lanes.append((_f32(a), _f32(b), _f32(sign * 2.0**-k)))
            lanes.append((_f32(1 + 2.0**-23), _f32(1.5), _f32(sign * 2.0**-k)))
            lanes.append((_f32(2.0**-24), _f32(1 + 2.0 ** -(k % 24)), _f32(sign)))
            lanes.append((_f32(2.0**-60), _f32(sign * 2.0**-k), _f32(3.0)))
            lanes.append((_f32(2.0**-24), _f32(1.0), _f32(1 + 2.0**-23)))
            lanes.append((_f32(2.0**-12 + 2.0**-35), _f32(sign * 2.0**-12), _f32(1.0)))
    for mode, flush in itertools.product(MODES, ("", ".ftz")):
        opcode = f"fma.{mode}{flush}.f32"
        check(opcode, CASES[opcode], lanes=lanes)


def test_fma_f32_rounded_twice_would_differ():
    """A case that product-and-add in float64 gets wrong, so that the test above means something."""
    a, b, c = 2.0**-12 + 2.0**-35, 2.0**-12, 1.0
    twice = np.float32(np.float64(np.float32(a)) * np.float64(np.float32(b)) + c)
    tiny = np.float32(2.0**-60)
    twice_tie = np.float32((1 + 2.0**-24) + np.float64(tiny))
    assert twice_tie == 1
    assert encode(exact.exact(1 + Fraction(1, 2**24) + Fraction(1, 2**60)), "f32") == _f32(
        1 + 2.0**-23
    )
    assert twice in (1, np.float32(1 + 2.0**-23))


def test_f32_results_around_the_smallest_normal():
    rng = np.random.default_rng(5)
    rows = []
    for _ in range(150):
        a = float(np.float32(rng.uniform(1, 2)))
        b = float(np.float32(2.0**-126 / a * (1 + rng.integers(-3, 4) * 2.0**-24)))
        c = float(rng.choice([0, 2.0**-149, -(2.0**-149), 2.0**-148, 2.0**-126, -(2.0**-126)]))
        rows.append((_f32(a), _f32(b), _f32(c)))
        rows.append((_f32(2.0**-80 * a), _f32(2.0**-69), _f32(c)))
    for mode in MODES:
        check(f"fma.{mode}.f32", CASES[f"fma.{mode}.f32"], lanes=rows)
        check(f"fma.{mode}.ftz.f32", CASES[f"fma.{mode}.ftz.f32"], lanes=rows)
        pairs = [row[:2] for row in rows]
        check(f"mul.{mode}.ftz.f32", CASES[f"mul.{mode}.ftz.f32"], lanes=pairs)
        check(f"div.{mode}.f32", CASES[f"div.{mode}.f32"], lanes=pairs)


def _f16(x):
    return int(np.float16(x).view(np.uint16))


def test_f16_results_around_the_smallest_normal():
    rng = np.random.default_rng(8)
    rows = []
    for _ in range(300):
        a = float(np.float16(2.0**-7 * rng.uniform(1, 2)))
        b = float(np.float16(2.0**-14 / a * (1 + rng.integers(-3, 4) * 2.0**-11)))
        c = float(rng.choice([0, 2.0**-24, -(2.0**-24), 2.0**-15, 2.0**-14, -(2.0**-14)]))
        rows.append((_f16(a), _f16(b), _f16(c)))
        rows.append((_f16(-a), _f16(b), _f16(c)))
        rows.append((_f16(a), _f16(2.0**-7 * rng.uniform(0.5, 1)), _f16(c)))
    pairs = [row[:2] for row in rows]
    for flags in ("ftz", "ftz.sat"):
        check(f"fma.rn.{flags}.f16", CASES[f"fma.rn.{flags}.f16"], lanes=rows)
        check(f"mul.rn.{flags}.f16", CASES[f"mul.rn.{flags}.f16"], lanes=pairs)
        sums = [(row[0] & 0x83FF | 0x400, row[1]) for row in rows]
        for name in ("add", "sub"):
            check(f"{name}.rn.{flags}.f16", CASES[f"{name}.rn.{flags}.f16"], lanes=sums)
    packed = [
        tuple(low << 16 | high for low, high in zip(rows[i], rows[-i], strict=True))
        for i in range(1, 200)
    ]
    check("fma.rn.ftz.f16x2", CASES["fma.rn.ftz.f16x2"], lanes=packed)


# Read on an H200: a result that 24 digits would round below 2^-126 is flushed, though the coarser
# steps of subnormal numbers would lift it there; one that 24 digits round up to 2^-126 is not.
SEEN_ON_H200 = [
    ("mul.rn.ftz.f32", (0x00800000, 0x3F7FFFFF), 0x00000000),
    ("mul.rn.ftz.f32", (0x80800000, 0x3F7FFFFF), 0x80000000),
    ("mul.rn.ftz.f32", (0x00800400, 0x3F7FF800), 0x00800000),
    ("mul.rp.ftz.f32", (0x00800800, 0x3F7FF000), 0x00000000),
    ("mul.rm.ftz.f32", (0x80800000, 0x3F7FFFFF), 0x80000000),
    ("fma.rn.ftz.f32", (0x00800800, 0x3F7FF000, 0), 0x00000000),
    ("fma.rn.ftz.f32", (0x0D800000, 0xA6800000, 0x00800000), 0x00000000),
    ("fma.rm.ftz.f32", (0x0D800000, 0x26800000, 0x80800000), 0x80000000),
    ("div.rn.ftz.f32", (0x3F7FFFFF, 0x7E800000), 0x00000000),
    ("div.rp.ftz.f32", (0x3F800001, 0x7E800002), 0x00000000),
    ("rcp.rp.ftz.f32", (0x7E800001,), 0x00000000),
    ("mul.ftz.f16", (0x8400, 0xBBFF), 0x0000),
    ("mul.ftz.f16x2", (0x3C018400, 0x403D3BFF), 0x403E8000),
    ("mul.rn.ftz.f16x2", (0x0400FBFF, 0xBBFFD289), 0x80007C00),
    ("mul.ftz.sat.f16x2", (0xBBFF2240, 0x8400CB40), 0x00000000),
    ("fma.rn.ftz.f16x2", (0x8400A3FF, 0xBBFF3C00, 0x83FF4380), 0x00004378),
    # of two NaN, float64 keeps the second in add and mul, the first in div; fma looks at b, c, a
    ("add.rn.f64", (0x7FF8000000000001, 0xFFF8000000000002), 0xFFF8000000000002),
    ("mul.rn.f64", (0xFFF8000000000002, 0x7FF0000000000003), 0x7FF8000000000003),
    ("div.rn.f64", (0x7FF8000000000001, 0xFFF8000000000002), 0x7FF8000000000001),
    (
        "fma.rn.f64",
        (0x7FF8000000000001, 0x3FF0000000000000, 0xFFF8000000000004),
        0xFFF8000000000004,
    ),
    ("fma.rn.f64", (0, 0x7FF0000000000000, 0x7FF8000000000001), 0x7FF8000000000001),
]


@pytest.mark.parametrize(("opcode", "operands", "expected"), SEEN_ON_H200)
def test_hardware_results(opcode, operands, expected):
    check(opcode, lambda *bits: expected, lanes=[operands, operands])


def test_fma_f64_ties_and_extremes():
    rng = np.random.default_rng(6)
    bits = lambda x: int(np.float64(x).view(np.uint64))  # noqa: E731
    rows = []
    for _ in range(100):
        e = int(rng.integers(-60, 61))
        a, b = 1 + rng.integers(0, 2**26) * 2.0**-26, 1 + rng.integers(0, 2**27) * 2.0**-27
        rows.append((bits(a), bits(b), bits(rng.choice([-1, 1]) * 2.0**e)))
        rows.append((bits(a), bits(b), bits(-a * b)))  # only the product's error is left
        rows.append((bits(1 + 2.0**-52), bits(1.5), bits(rng.choice([-1, 1]) * 2.0**-e)))
        scale = int(rng.integers(-540, -500))
        rows.append((bits(a * 2.0**scale), bits(b * 2.0**scale), bits(a * 2.0**-1060)))
        rows.append((bits(a * 2.0**600), bits(b * 2.0**420), bits(-a * 2.0**1020)))
    for mode in MODES:
        check(f"fma.{mode}.f64", CASES[f"fma.{mode}.f64"], lanes=rows)


SPECIAL_F64 = (0.0, -0.0, np.inf, -np.inf, 5e-324, 1e300, -1e-300, 1.0)


@pytest.mark.parametrize("form", ["normal", "integers", "wide", "near one", "powers", "cancels"])
def test_fma_f64_of_many_lanes_is_that_of_single_lanes(form):
    """Lanes that are known from bounds, and those that are not, over several blocks."""
    rng, n = np.random.default_rng(5), 2 * _BLOCK + 5
    values = {
        "normal": lambda: rng.standard_normal(n),
        "integers": lambda: rng.integers(-(2**27), 2**27, n).astype(float),
        "wide": lambda: np.ldexp(rng.standard_normal(n), rng.integers(-390, 390, n)),
        "near one": lambda: 1 + rng.integers(-3, 4, n) * 2.0 ** -rng.integers(26, 53, n),
        "powers": lambda: rng.integers(1, 9, n) * 2.0 ** rng.integers(-60, 60, n),
        "cancels": lambda: rng.standard_normal(n),
    }[form]
    a, b, c = values(), values(), values()
    if form == "cancels":
        c = -(a * b) * (1 + rng.integers(-2, 3, n) * 2.0**-52)
    for one in (a, b, c):
        some = rng.random(n) < 0.03
        one[some] = rng.choice(SPECIAL_F64, some.sum())
    with np.errstate(all="ignore"):
        for addend in (c, c[3], np.float64(0)):
            got, expected = fma_f64(a, b, addend), _fma_in_steps(a, b, addend, "rn")
            differs = got.view(np.uint64) != expected.view(np.uint64)
            assert np.isnan(got[differs]).all() and np.isnan(expected[differs]).all()


def test_long_chunks_take_the_same_path_as_short_ones():
    """One tie, one subnormal, one NaN among many ordinary lanes."""
    rng = np.random.default_rng(7)
    rows = [tuple(_f32(x) for x in rng.standard_normal(3)) for _ in range(300)]
    rows[40] = (_f32(2.0**-24), _f32(1.0), _f32(1.0 + 2.0**-23))
    rows[77] = (1, _f32(2.0**100), _f32(1e-30))
    rows[200] = (0x7FC00001, _f32(1), _f32(1))
    for opcode in ("fma.rn.f32", "fma.rn.ftz.f32"):
        for count in (41, 100, 300):
            check(opcode, CASES[opcode], lanes=rows[:count])
