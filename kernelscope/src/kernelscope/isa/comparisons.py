"""Comparisons, predicates, signs and extremes of PTX on NumPy values.

Ordered float comparisons (eq .. ge) are false if an operand is NaN, the unordered ones (equ .. geu)
true; `num` asks that neither is NaN, `nan` that one is. lo, ls, hi and hs are the unsigned names of
lt, le, gt and ge, whose types are unsigned already.
"""

import itertools

import numpy as np

from . import float16
from . import float32 as numerics
from .row import Row, plain


def _unordered(ufunc):
    """The comparison that is also true where an operand is NaN."""
    return lambda a, b: ufunc(a, b) | _has_nan(a, b)


def _has_nan(a, b):
    return np.isnan(a) | np.isnan(b)


def _ordered_not_equal(a, b):
    return np.less(a, b) | np.greater(a, b)


OPERATORS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
    "equ": _unordered(np.equal),
    "neu": np.not_equal,
    "ltu": _unordered(np.less),
    "leu": _unordered(np.less_equal),
    "gtu": _unordered(np.greater),
    "geu": _unordered(np.greater_equal),
    "num": lambda a, b: ~_has_nan(a, b),
    "nan": _has_nan,
}
COMBINERS = {"": None, "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_FLOATS = ("f16", "bf16", "f32", "f64")


def _comparison(name, kind, ftz):
    compare = OPERATORS[name]
    if name == "ne" and kind in _FLOATS:
        compare = _ordered_not_equal
    if kind in ("f16", "bf16"):

        def widened(x):
            return float16.widen(float16.flush(x) if ftz else x, kind)

        return lambda a, b: compare(widened(a), widened(b))
    if not ftz:
        return compare

    def flushed(a, b):
        if numerics.has_subnormal(a, b):
            return compare(numerics.flush(a), numerics.flush(b))
        return compare(a, b)

    return flushed


def _halves_of(x):
    return x.astype(np.uint16), (x >> np.uint32(16)).astype(np.uint16)


def predicate(name, combine):
    """Builder of setp: two predicates, the comparison (combined with a third operand) and that of
    its complement; for packed types the comparisons of the lower and of the upper halves."""
    join = COMBINERS[combine]

    def build(types, modifiers):
        kind = types[-1]
        packed = kind.endswith("x2")
        compare = _comparison(name, kind.removesuffix("x2"), "ftz" in modifiers)

        def both(a, b):
            if packed:
                (a_low, a_high), (b_low, b_high) = _halves_of(a), _halves_of(b)
                return compare(a_low, b_low), compare(a_high, b_high)
            out = compare(a, b)
            return out, ~out

        if join is None:
            return both

        def joined(a, b, c):
            p, q = both(a, b)
            return join(p, c), join(q, c)

        return joined

    return build


_TRUE = {
    "u32": np.uint32(0xFFFFFFFF),
    "s32": np.int32(-1),
    "f32": np.float32(1),
    "u16": np.uint16(0xFFFF),
    "s16": np.int16(-1),
    "f16": np.uint16(0x3C00),
    "bf16": np.uint16(0x3F80),
}


def value(name, combine):
    """Builder of set: all ones, or 1.0, where the comparison holds, else 0."""
    join = COMBINERS[combine]

    def build(types, modifiers):
        target, kind = types
        packed = kind.endswith("x2")
        compare = _comparison(name, kind.removesuffix("x2"), "ftz" in modifiers)
        one = _TRUE[target.removesuffix("x2")]
        if packed and target in ("u32", "s32"):
            one = np.uint16(0xFFFF)

        def choose(truth, third):
            truth = join(truth, *third) if join else truth
            return np.where(truth, one, one.dtype.type(0))[()]

        def run(a, b, *third):
            if not packed:
                return choose(compare(a, b), third)
            (a_low, a_high), (b_low, b_high) = _halves_of(a), _halves_of(b)
            low = choose(compare(a_low, b_low), third)
            word = float16.pack(choose(compare(a_high, b_high), third), low)
            return word.view(np.int32) if target == "s32" else word

        return run

    return build


def _smallest_normal(x):
    return np.finfo(x.dtype).smallest_normal


TESTS = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda x: ~np.isnan(x),
    "notanumber": np.isnan,
    # zero counts as a normal number
    "normal": lambda x: np.isfinite(x) & ((np.abs(x) >= _smallest_normal(x)) | (x == 0)),
    "subnormal": lambda x: (np.abs(x) < _smallest_normal(x)) & (x != 0),
}


def extremum(largest, modifiers):
    """min or max of float32 or float64 with .ftz, .NaN and .xorsign.abs."""
    choose = numerics.extremum(largest, "NaN" in modifiers, "ftz" in modifiers)
    if "xorsign" in modifiers:
        of_magnitudes = choose

        def choose(a, b):
            negative = np.signbit(a) != np.signbit(b)
            magnitude = of_magnitudes(np.abs(a), np.abs(b))
            return np.where(negative & ~np.isnan(magnitude), -magnitude, magnitude)[()]

    return choose


def sign_operation(name, ftz):
    """abs or neg of a float: the sign bit cleared or flipped; with .ftz a subnormal becomes zero.

    NaN becomes the canonical one in .f32, and stays, made quiet, in .f64.
    """
    ufunc = np.abs if name == "abs" else np.negative

    def compute(a):
        if a.dtype == np.float64:
            return np.where(np.isnan(a), a * np.float64(1), ufunc(a))[()]
        flushed = numerics.flush(a) if ftz and numerics.has_subnormal(a) else a
        return numerics.canonical(ufunc(flushed))

    return compute


# -- rows of the table --------------------------------------------------------------------------
_UNSIGNED = "u16,u32,u64"
_WHOLE = f"s16,s32,s64,{_UNSIGNED}"
_NUMBERS = "u32,s32,f32"  # what `set` gives for a comparison of f32, f64 or integers


def _compared_types(name):
    """The number types that a comparison operator takes: integers, or none, and whether floats."""
    if name in ("eq", "ne"):
        return f"{_WHOLE},b16,b32,b64", True
    if name in ("lt", "le", "gt", "ge"):
        return _WHOLE, True
    return (_UNSIGNED, False) if name in ("lo", "ls", "hi", "hs") else ("", True)


def _setp_rows(name, combine):
    whole, floats = _compared_types(name)
    build = predicate(name, combine)
    operands = f"T T{' pred' if combine else ''} -> pred pred"
    rows = [Row(whole.replace(",", " "), operands, build)] if whole else []
    if floats:
        rows.append(Row("f32 f16 f16x2", operands, build, "ftz"))
        rows.append(Row("f64 bf16 bf16x2", operands, build))
    return tuple(rows)


def _set_rows(name, combine):
    whole, floats = _compared_types(name)
    build = value(name, combine)
    operands = f"T T{' pred' if combine else ''} -> D"
    rows = [Row(f"{_NUMBERS}/{whole}", operands, build)] if whole else []
    if floats:
        rows += [
            Row(f"{_NUMBERS}/f32", operands, build, "ftz"),
            Row(f"{_NUMBERS}/f64", operands, build),
            Row("f16,u16,s16,u32,s32/f16 f16x2,u32,s32/f16x2", operands, build, "ftz"),
            Row("bf16,u16,s16,u32,s32/bf16 bf16x2,u32,s32/bf16x2", operands, build),
        ]
    return tuple(rows)


def _comparison_rows():
    found = {}
    for name, combine in itertools.product(OPERATORS, COMBINERS):
        suffix = f"{name}.{combine}" if combine else name
        found[f"setp.{suffix}"] = _setp_rows(name, combine)
        found[f"set.{suffix}"] = _set_rows(name, combine)
    for name in TESTS:
        found[f"testp.{name}"] = (Row("f32 f64", "T -> pred", plain(TESTS[name])),)
    return found


COMPARISON_ROWS: dict[str, tuple[Row, ...]] = _comparison_rows()
