"""cvt between every pair of types, with every rounding and clamp, against exact fractions."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from .isa_harness import by_type, check, check_all, groups
from .isa_oracle import FORMATS, bits_of, decode, encode, exact, read, round_integer

INTEGERS = tuple(f"{sign}{width}" for sign in "us" for width in (8, 16, 32, 64))
FLOATS = ("f16", "bf16", "f32", "f64")
MODES = ("rn", "rz", "rm", "rp")
CASES = {}


def limits(kind):
    width = bits_of(kind)
    return (-(1 << width - 1), (1 << width - 1) - 1) if kind[0] == "s" else (0, (1 << width) - 1)


def clamp(value, kind):
    low, high = limits(kind)
    return max(low, min(high, value)) & (1 << bits_of(kind)) - 1


def integer_to_integer(target, source, sat):
    def run(bits):
        value = read(bits, source)
        return clamp(value, target) if sat else value & (1 << bits_of(target)) - 1

    return run


def integer_to_float(target, source, mode, sat):
    return lambda bits: encode(exact(read(bits, source)), target, mode, sat=sat)


def float_to_integer(target, source, mode, ftz):
    def run(bits):
        x = decode(bits, source, ftz)
        if x.kind == "nan":
            special = source == "f64" or bits_of(target) == 64
            return 1 << bits_of(target) - 1 if special else 0
        size = Fraction(2) ** 80 if x.kind == "inf" else x.size
        whole = round_integer(size, x.sign, mode)
        return clamp(-whole if x.sign else whole, target)

    return run


def float_to_float(target, source, mode, ftz=False, sat=False, relu=False):
    def run(bits):
        # .ftz concerns .f32 alone, on either side, and hardware ignores it on the way to .f16
        x = decode(bits, source, ftz and source == "f32" and target != "f16")
        if x.kind == "nan" and not sat and (payload := nan_bits(target, source, bits, ftz)):
            return payload
        return encode(x, target, mode, ftz=ftz and target == "f32", sat=sat, relu=relu)

    return run


def nan_bits(target, source, bits, ftz):
    """The NaN that a conversion passes on, or None where it gives the canonical one."""
    if target == source == "f32" and not ftz:
        return bits
    if (target, source) == ("f32", "bf16") and not ftz:
        return bits << 16
    if (target, source) == ("f64", "f32") and ftz:
        return 0x7FFFFFFFE0000000
    if "f64" not in (target, source):
        return None
    # sign and the payload's top bits stay; the NaN becomes quiet
    (_, from_bits, _), (to_exponent, to_bits, _) = FORMATS[source], FORMATS[target]
    payload = bits & (1 << from_bits) - 1
    shift = to_bits - from_bits
    payload = payload << shift if shift > 0 else payload >> -shift
    sign = bits >> bits_of(source) - 1
    exponent = (1 << to_exponent) - 1 << to_bits
    return sign << bits_of(target) - 1 | exponent | payload | 1 << to_bits - 1


def float_to_integral(kind, mode, ftz, sat):
    def run(bits):
        x = decode(bits, kind, ftz)
        if x.kind == "finite":
            whole = round_integer(x.size, x.sign, mode)
            x = exact(-whole if x.sign else whole, x.sign)
        return encode(x, kind, sat=sat)

    return run


for target, source in itertools.product(INTEGERS, INTEGERS):
    CASES[f"cvt.{target}.{source}"] = integer_to_integer(target, source, False)
    if not (limits(target)[0] <= limits(source)[0] and limits(source)[1] <= limits(target)[1]):
        CASES[f"cvt.sat.{target}.{source}"] = integer_to_integer(target, source, True)
for target, source, mode in itertools.product(FLOATS, INTEGERS, MODES):
    if target == "bf16" and bits_of(source) == 8:
        continue
    CASES[f"cvt.{mode}.{target}.{source}"] = integer_to_float(target, source, mode, False)
for target, source in itertools.product(("f16", "f32", "f64"), INTEGERS):
    CASES[f"cvt.rn.sat.{target}.{source}"] = integer_to_float(target, source, "rn", True)
for target, source, mode in itertools.product(INTEGERS, FLOATS, ("rni", "rzi", "rmi", "rpi")):
    if source == "bf16" and bits_of(target) == 8:
        continue
    CASES[f"cvt.{mode}.{target}.{source}"] = float_to_integer(target, source, mode, False)
    if source == "f32":
        CASES[f"cvt.{mode}.ftz.{target}.f32"] = float_to_integer(target, "f32", mode, True)
        CASES[f"cvt.{mode}.sat.{target}.f32"] = float_to_integer(target, "f32", mode, False)
for mode, ftz, sat in itertools.product(("rni", "rzi", "rmi", "rpi"), (False, True), (False, True)):
    for kind in FLOATS:
        if not (ftz and kind != "f32") and not (sat and kind == "bf16"):
            text = f"cvt.{mode}{'.ftz' * ftz}{'.sat' * sat}.{kind}.{kind}"
            CASES[text] = float_to_integral(kind, mode, ftz, sat)


def _add_float_conversions():
    pairs = "f32 f16, f64 f16, f64 f32, f32 bf16, f64 bf16, f32 f32, f16 f16, f64 f64"
    widening = [pair.split() for pair in pairs.split(", ")]
    for target, source in widening:
        for ftz, sat in itertools.product((False, True), repeat=2):
            if not (ftz and "f32" not in (target, source)) and not (sat and source == "bf16"):
                text = f"cvt{'.ftz' * ftz}{'.sat' * sat}.{target}.{source}"
                CASES[text] = float_to_float(target, source, "rn", ftz, sat)
    narrowing = [("f16", "f32"), ("f16", "f64"), ("f32", "f64"), ("bf16", "f32"), ("bf16", "f64")]
    for (target, source), mode in itertools.product(narrowing, MODES):
        CASES[f"cvt.{mode}.{target}.{source}"] = float_to_float(target, source, mode)
        if "f32" in (target, source) and target != "bf16":
            CASES[f"cvt.{mode}.ftz.{target}.{source}"] = float_to_float(target, source, mode, True)
        if target != "bf16":
            CASES[f"cvt.{mode}.sat.{target}.{source}"] = float_to_float(
                target, source, mode, sat=True
            )
    for mode in MODES:
        CASES[f"cvt.{mode}.f16.bf16"] = float_to_float("f16", "bf16", mode)
        CASES[f"cvt.{mode}.bf16.f16"] = float_to_float("bf16", "f16", mode)
    CASES["cvt.bf16.bf16"] = float_to_float("bf16", "bf16", "rn")
    for kind, mode, relu in itertools.product(("f16", "bf16"), ("rn", "rz"), (False, True)):
        one = float_to_float(kind, "f32", mode, relu=relu)
        CASES[f"cvt.{mode}{'.relu' * relu}.{kind}.f32"] = one
        # the first source goes to the upper half
        CASES[f"cvt.{mode}{'.relu' * relu}.{kind}x2.f32"] = lambda a, b, one=one: (
            one(a) << 16 | one(b)
        )


def to_tf32(mode, relu):
    """tf32 lies in the upper 19 bits of its word."""

    def run(bits):
        x = decode(bits, "f32")
        if x.kind == "nan":
            return bits & 0xFFFFE000 if mode == "rna" else 0x7FFFE000
        return encode(x, "tf32", mode, relu=relu) << 13

    return run


_add_float_conversions()
CASES["cvt.rna.tf32.f32"] = to_tf32("rna", False)
for mode, relu in itertools.product(("rn", "rz"), (False, True)):
    CASES[f"cvt.{mode}{'.relu' * relu}.tf32.f32"] = to_tf32(mode, relu)


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("name", groups(by_type, CASES))
def test_rows(name):
    check_all(name, by_type, CASES, count=60)


def test_integers_around_the_floats_middles():
    """Integers that lie on, just below and just above the middle between two float32 numbers."""
    middles = [(1 << k) + (1 << k - 24) for k in range(24, 63)]
    lanes = [(m + d,) for m in middles for d in (-1, 0, 1)]
    for mode in MODES:
        for kind in ("s64", "u64"):
            opcode = f"cvt.{mode}.f32.{kind}"
            check(opcode, CASES[opcode], lanes=lanes)
        narrow = [row for row in lanes if row[0] < 2**31]
        check(f"cvt.{mode}.f32.s32", CASES[f"cvt.{mode}.f32.s32"], lanes=narrow)


def test_floats_around_the_integers_limits():
    """The last float that fits, the first that does not, and ties."""
    values = [0.5, 1.5, 2.5, 127.5, 128.5, 255.5, 32767.5, 65535.5]
    values += [2.0**31, 2.0**31 - 128, 2.0**31 - 0.5, 2.0**32, 2.0**32 - 0.5]
    values += [2.0**63, 2.0**63 - 1024, 2.0**64, 2.0**64 - 2048]
    doubles = [(int(np.float64(s * v).view(np.uint64)),) for v in values for s in (1, -1)]
    singles = [(int(np.float32(s * v).view(np.uint32)),) for v in values for s in (1, -1)]
    for target, mode in itertools.product(INTEGERS, ("rni", "rzi", "rmi", "rpi")):
        check(f"cvt.{mode}.{target}.f64", CASES[f"cvt.{mode}.{target}.f64"], lanes=doubles)
        check(f"cvt.{mode}.{target}.f32", CASES[f"cvt.{mode}.{target}.f32"], lanes=singles)


def test_every_half():
    """All 65536 bit patterns of both 16-bit formats widen exactly."""
    for kind in ("f16", "bf16"):
        opcode = f"cvt.f32.{kind}"
        check(opcode, CASES[opcode], lanes=[(bits,) for bits in range(0, 65536, 7)])


def test_ties_to_half():
    """float32 values on, and one bit beside, the middle between two 16-bit neighbours."""
    lanes = []
    for kind in ("f16", "bf16"):
        for bits in (0, 1, 2, 0x3FF, 0x400, 0x3C00, 0x3C01, 0x3F81, 0x7BFE, 0x7BFF, 0x7F7F):
            x, y = decode(bits, kind), decode(bits + 1, kind)
            top = y.size if y.kind == "finite" else x.size * 2 - decode(bits - 1, kind).size
            if x.kind in ("zero", "finite"):
                middle = encode(exact((x.size + top) / 2), "f32")
                lanes += [(middle + d | s,) for d in (-1, 0, 1) for s in (0, 1 << 31)]
    for kind, mode in itertools.product(("f16", "bf16"), MODES):
        check(f"cvt.{mode}.{kind}.f32", CASES[f"cvt.{mode}.{kind}.f32"], lanes=lanes)
