"""setp, set and slct of every type against exact comparisons."""

import itertools
import operator

import pytest

from . import isa_oracle as exact
from .isa_harness import check
from .isa_oracle import decode

HALVES = ("f16", "bf16")

ORDERED = {name: getattr(operator, name) for name in "eq ne lt le gt ge".split()}
ORDERED |= {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}
COMBINE = {"": lambda t, c: t, "and": operator.and_, "or": operator.or_, "xor": operator.xor}
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


TRUE = {
    "u32": 2**32 - 1,
    "s32": 2**32 - 1,
    "f32": 0x3F800000,
    "u16": 0xFFFF,
    "s16": 0xFFFF,
    "f16": 0x3C00,
    "bf16": 0x3F80,
}


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


@pytest.mark.turns(17)
@pytest.mark.system
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
