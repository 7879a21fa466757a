"""Float rows of the operation table against exact fractions; approximations against their bounds."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from . import isa_oracle as exact
from .isa_harness import check
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


def paired(one):
    """An oracle on 16-bit halves as one on packed words."""

    def run(*words):
        low, high = (one(*(w >> shift & 0xFFFF for w in words)) for shift in (0, 16))
        return high << 16 | low

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


@pytest.mark.parametrize("opcode", CASES)
def test_row(opcode):
    check(opcode, CASES[opcode])


# --- comparisons ---


ORDERED = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "lo": lambda a, b: a < b, "ls": lambda a, b: a <= b, "hi": lambda a, b: a > b,
    "hs": lambda a, b: a >= b,
}  # fmt: skip
COMBINE = {
    "": lambda t, c: t, "and": lambda t, c: t & c, "or": lambda t, c: t | c, "xor": lambda t, c: t ^ c
}  # fmt: skip
INTEGERS = ("s16", "u16", "s32", "u32", "s64", "u64")
UNSIGNED, BITS = ("u16", "u32", "u64"), ("b16", "b32", "b64")
COMPARISONS = {}


def compare(name, kind, ftz):
    """The truth of a comparison of two bit patterns."""

    def run(a, b):
        if kind in INTEGERS + BITS:
            return ORDERED[name](exact.read(a, kind), exact.read(b, kind))
        a, b = decode(a, kind, ftz), decode(b, kind, ftz)
        unordered = "nan" in (a.kind, b.kind)
        if name in ("num", "nan"):
            return unordered == (name == "nan")
        if unordered:
            return name.endswith("u") and name != "lu"
        order = ORDERED[name.removesuffix("u") if len(name) == 3 else name]
        return order(exact._rank(a), exact._rank(b))

    return run


def setp(name, kind, combine, ftz):
    join = COMBINE[combine]

    def run(a, b, third=0):
        if kind.endswith("x2"):
            one = compare(name, kind[:-2], ftz)
            truth = [one(a & 0xFFFF, b & 0xFFFF), one(a >> 16, b >> 16)]
        else:
            truth = [compare(name, kind, ftz)(a, b)]
            truth.append(not truth[0])
        return tuple(bool(join(t, bool(third))) for t in truth)

    return run if combine else lambda a, b: run(a, b)


TRUE = {"u32": 2**32 - 1, "s32": 2**32 - 1, "f32": 0x3F800000, "u16": 0xFFFF, "s16": 0xFFFF,
        "f16": 0x3C00, "bf16": 0x3F80}  # fmt: skip


def set_value(name, target, kind, combine, ftz):
    truth_of = setp(name, kind, combine, ftz)

    def run(*bits):
        first, second = truth_of(*bits)
        if not kind.endswith("x2"):
            return TRUE[target] if first else 0
        one = TRUE[target[:-2]] if target.endswith("x2") else 0xFFFF
        return (one if second else 0) << 16 | (one if first else 0)

    return run


def _add_comparisons():
    floats = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")
    unordered = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
    for combine in COMBINE:
        suffix = f".{combine}" * bool(combine)
        for name in (*ORDERED, *unordered):
            kinds = floats
            if name in ORDERED:
                whole = UNSIGNED if name in ("lo", "ls", "hi", "hs") else INTEGERS
                kinds = whole + (floats if whole == INTEGERS else ())
                kinds += BITS if name in ("eq", "ne") else ()
            for kind, ftz in itertools.product(kinds, (False, True)):
                if ftz and kind not in ("f32", "f16", "f16x2"):
                    continue
                flush = ".ftz" * ftz
                COMPARISONS[f"setp.{name}{suffix}{flush}.{kind}"] = setp(name, kind, combine, ftz)
                for target in _targets(kind):
                    text = f"set.{name}{suffix}{flush}.{target}.{kind}"
                    COMPARISONS[text] = set_value(name, target, kind, combine, ftz)


def _targets(kind):
    if kind.endswith("x2"):
        return (kind, "u32", "s32")
    return ("u32", "s32") + ((kind, "u16", "s16") if kind in HALVES else ("f32",))


_add_comparisons()


def test_comparisons():
    """Every comparison operator, combination, type and result type."""
    for opcode, expected in COMPARISONS.items():
        check(opcode, expected, count=24)


def test_slct_takes_the_sign_of_a_float():
    def choose(ftz):
        def run(a, b, c):
            c = decode(c, "f32", ftz)
            return a if c.kind != "nan" and (c.kind == "zero" or not c.sign) else b

        return run

    for kind in ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64"):
        check(f"slct.{kind}.f32", choose(False), count=60)
        check(f"slct.ftz.{kind}.f32", choose(True), count=60)


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
    assert encode(exact.exact(1 + Fraction(1, 2**24) + Fraction(1, 2**60)), "f32") == _f32(1 + 2.0**-23)
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


# --- approximations ---


def double_of(bits, kind, ftz):
    x = decode(bits, kind, ftz)
    if x.kind == "finite":
        return float(x.value)
    return {"nan": math.nan, "inf": math.inf, "zero": 0.0}[x.kind] * (-1 if x.sign else 1)


def reference(name, x):
    with np.errstate(all="ignore"):
        x = np.float64(x)
        return float({
            "ex2": np.exp2, "lg2": np.log2, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
            "sqrt": np.sqrt, "rcp": lambda x: 1 / x, "rsqrt": lambda x: 1 / np.sqrt(x),
        }[name](x))  # fmt: skip


# name -> (relative bound, absolute bound), from the PTX ISA's description of each instruction
BOUNDS = {"ex2": (2**-22, 0), "lg2": (2**-22, 2**-22), "rcp": (2**-23, 0), "rsqrt": (2**-22.9, 0),
          "sqrt": (2**-23, 0), "sin": (0, 2**-20.5), "cos": (0, 2**-20.5),
          "tanh": (2**-11, 0)}  # fmt: skip
APPROXIMATE = [
    *(f"{name}.approx{ftz}.f32" for name in BOUNDS for ftz in ("", ".ftz")),
    "rcp.approx.ftz.f64", "rsqrt.approx.f64", "rsqrt.approx.ftz.f64",
    *(f"{name}.approx.{kind}" for name in ("ex2", "tanh") for kind in HALVES),
]  # fmt: skip


def close(name, kind, ftz):
    """agree(): NaN for NaN, signed zeros and infinities exactly, else within the documented bound."""
    relative, absolute = BOUNDS[name]
    if kind == "f64":
        relative = 2.0**-20
    if kind in HALVES:
        relative = max(relative, 2.0**-9.9 if kind == "f16" else 2.0**-7)
    smallest = {"f32": 2.0**-149, "f64": 2.0**-1074, "f16": 2.0**-24, "bf16": 2.0**-133}[kind]
    normal = {"f32": 2.0**-126, "f64": 2.0**-1022}.get(kind, 0)

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
    check(opcode, lambda bits: reference(name, double_of(bits, kind, ftz)), agree=close(name, kind, ftz))


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


def test_packed_approximations_treat_both_halves():
    for kind in HALVES:
        one = 0x3C00 if kind == "f16" else 0x3F80
        infinity = 0xFC00 if kind == "f16" else 0xFF80
        check(f"ex2.approx.{kind}x2", lambda x, o=one: o, lanes=[(infinity << 16,)])
        check(f"tanh.approx.{kind}x2", lambda x, o=one: (0x8000 | o) << 16, lanes=[(infinity << 16,)])


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
