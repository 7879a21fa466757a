"""The operation table's arithmetic: add to fma, min and max, roots, approximations, carries."""

import numpy as np

from . import bits, comparisons, float16, integers
from . import float32 as numerics
from . import float64 as doubles
from .row import INTEGERS, ROUNDING, WORDS, Row, plain, rounding


def _saturated(compute):
    return lambda *values: numerics.saturate(compute(*values))


def _float(name):
    """An IEEE float32 or float64 instruction, from its rounding, .ftz and .sat."""

    def build(types, modifiers):
        mode = rounding(modifiers)
        if types[-1] == "f64":
            return doubles.double(name, mode)
        compute = numerics.single(name, mode, "ftz" in modifiers)
        return _saturated(compute) if "sat" in modifiers else compute

    return build


def _half(make):
    """.f16 and .bf16 instructions: make(kind, modifiers) computes one number, or each of a pair."""

    def build(types, modifiers):
        kind = types[-1].removesuffix("x2")
        compute = make(kind, modifiers)
        return compute if kind == types[-1] else float16.paired(compute)

    return build


def _half_arithmetic(name):
    flags = ("ftz", "sat", "relu")
    return _half(
        lambda kind, given: float16.arithmetic(name, kind, *(flag in given for flag in flags))
    )


def _single_pairs(name):
    """.f32x2: two floats in 64 bits, the first in the low half."""

    def build(types, modifiers):
        compute = numerics.single(name, rounding(modifiers), "ftz" in modifiers)

        def both(*values):
            low, high = zip(*(bits.unpack(value, 2) for value in values), strict=True)
            parts = (compute(*(part.view(np.float32) for part in side)) for side in (low, high))
            return bits.pack(np.dtype(np.uint64), [part.view(np.uint32) for part in parts])

        return both

    return build


def _floats(name, operands, relu=""):
    """A float instruction in all its widths; `relu`: that modifier, where the halves have it."""
    single, half = _float(name), _half_arithmetic(name)
    return (
        Row("f32", operands, single, f"{ROUNDING} ftz sat"),
        Row("f32x2", operands, _single_pairs(name), f"{ROUNDING} ftz"),
        Row("f64", operands, single, ROUNDING),
        Row("f16 f16x2", operands, half, f"rn ftz sat {relu}"),
        Row("bf16 bf16x2", operands, half, f"rn {relu}"),
    )


def _sum(name, ufunc):
    """add or sub, of integers and floats."""
    return (
        Row("s16 u16 u32 s64 u64", "T T -> T", plain(ufunc)),
        Row("s32", "T T -> T", _saturating(ufunc), "sat"),
        *_floats(name, "T T -> T"),
    )


def _integer_pair(kind, compute):
    """.u16x2 and .s16x2: compute() of each half."""
    half = np.dtype("i2" if kind == "s16x2" else "u2")
    return float16.paired(lambda *values: compute(*(v.view(half) for v in values)).view("u2"))


def _saturating(ufunc):
    def build(types, modifiers):
        return integers.saturating(ufunc) if "sat" in modifiers else ufunc

    return build


def _minmax(largest):
    def integer(types, modifiers):
        ufunc = np.maximum if largest else np.minimum
        if "relu" not in modifiers:
            return ufunc
        return lambda a, b: np.maximum(ufunc(a, b), a.dtype.type(0))

    def pair(types, modifiers):
        return _integer_pair(types[-1], integer(types, modifiers))

    def single(types, modifiers):
        return comparisons.extremum(largest, modifiers)

    half = _half(
        lambda kind, modifiers: float16.extremum(
            largest, kind, "ftz" in modifiers, "NaN" in modifiers, "xorsign" in modifiers
        )
    )
    return (
        Row("s16 u16 u32 s64 u64", "T T -> T", integer),
        Row("s32", "T T -> T", integer, "relu"),
        Row("u16x2", "T T -> T", pair),
        Row("s16x2", "T T -> T", pair, "relu"),
        Row("f32", "T T -> T", single, "ftz NaN xorsign abs"),
        Row("f64", "T T -> T", single),
        Row("f16 f16x2", "T T -> T", half, "ftz NaN xorsign abs"),
        Row("bf16 bf16x2", "T T -> T", half, "NaN xorsign abs"),
    )


def _sign(name):
    def single(types, modifiers):
        return comparisons.sign_operation(name, "ftz" in modifiers)

    integer = plain(np.abs if name == "abs" else np.negative)
    half = _half(lambda kind, modifiers: float16.sign_operation(name, kind, "ftz" in modifiers))
    return (
        Row("s16 s32 s64", "T -> T", integer),
        Row("f32", "T -> T", single, "ftz"),
        Row("f64", "T -> T", single),
        Row("f16 f16x2", "T -> T", half, "ftz"),
        Row("bf16 bf16x2", "T -> T", half),
    )


def _approximate(name):
    def single(types, modifiers):
        return numerics.approximation(name, "ftz" in modifiers)

    # tanh.approx.f32 alone has no .ftz
    return Row("f32", "T -> T", single, "approx" if name == "tanh" else "approx ftz")


def _approximate_half(function, types, modifiers="approx"):
    build = _half(lambda kind, given: float16.through_double(function, kind, "ftz" in given))
    return Row(types, "T -> T", build, modifiers)


def _approximate_double(name):
    def build(types, modifiers):
        return numerics.approximation_f64(name, "ftz" in modifiers)

    return Row("f64", "T -> T", build, "approx ftz")


def _ieee_or_approximate(name):
    """rcp and sqrt: the text chooses .approx or an IEEE rounding."""

    def single(types, modifiers):
        if "approx" in modifiers:
            return numerics.approximation(name, "ftz" in modifiers)
        return _float(name)(types, modifiers)

    return (
        Row("f32", "T -> T", single, f"approx ftz {ROUNDING}"),
        Row("f64", "T -> T", _float(name), ROUNDING),
    )


def _division(types, modifiers):
    if "approx" in modifiers:
        return numerics.divide_approximately("ftz" in modifiers)
    return _float("div")(types, modifiers)  # .full promises 2 ulp; this gives the nearest


def _plus(product):
    """The product of two operands and, with .sat clamped, the sum with a third."""

    def build(types, modifiers):
        total = integers.saturating(np.add) if "sat" in modifiers else np.add
        return lambda a, b, c: total(product(a, b), c)

    return build


def _carrying(name, operands, step, product=None):
    """A row of a .cc chain; `name` says by its first part whether the carry is read."""
    reads = name.startswith(("addc", "subc", "madc"))
    writes = name.endswith("cc")
    build = plain(integers.carrying(step, reads, writes, product))
    return Row(WORDS, operands, build, carry=" ".join(["reads"] * reads + ["writes"] * writes))


def _carry_rows():
    add, subtract = integers.add_carry, integers.subtract_borrow
    rows = {name: _carrying(name, "T T -> T", add) for name in ("add.cc", "addc", "addc.cc")}
    for name in ("sub.cc", "subc", "subc.cc"):
        rows[name] = _carrying(name, "T T -> T", subtract)
    for half, product in (("lo", np.multiply), ("hi", integers.multiply_high)):
        for name in (f"mad.{half}.cc", f"madc.{half}", f"madc.{half}.cc"):
            rows[name] = _carrying(name, "T T T -> T", add, product)
    return {name: (row,) for name, row in rows.items()}


ARITHMETIC_ROWS: dict[str, tuple[Row, ...]] = {
    "add": (
        *_sum("add", np.add),
        Row("u16x2 s16x2", "T T -> T", lambda types, _: _integer_pair(types[-1], np.add)),
    ),
    "sub": _sum("sub", np.subtract),
    "mul": _floats("mul", "T T -> T"),
    "mul.lo": (Row(INTEGERS, "T T -> T", plain(np.multiply)),),
    "mul.hi": (Row(INTEGERS, "T T -> T", plain(integers.multiply_high)),),
    "mul.wide": (Row("s16 u16 s32 u32", "T T -> W", plain(integers.multiply_wide)),),
    "mul24.lo": (Row("s32 u32", "T T -> T", plain(integers.multiply_24(False))),),
    "mul24.hi": (Row("s32 u32", "T T -> T", plain(integers.multiply_24(True))),),
    "mad": (
        Row("f32", "T T T -> T", _float("fma"), f"{ROUNDING} ftz sat"),
        Row("f64", "T T T -> T", _float("fma"), ROUNDING),
    ),
    "mad.lo": (Row(INTEGERS, "T T T -> T", _plus(np.multiply)),),
    "mad.hi": (
        Row("s16 u16 u32 s64 u64", "T T T -> T", _plus(integers.multiply_high)),
        Row("s32", "T T T -> T", _plus(integers.multiply_high), "sat"),
    ),
    "mad.wide": (Row("s16 u16 s32 u32", "T T W -> W", _plus(integers.multiply_wide)),),
    "mad24.lo": (Row("s32 u32", "T T T -> T", _plus(integers.multiply_24(False))),),
    "mad24.hi": (Row("s32 u32", "T T T -> T", _plus(integers.multiply_24(True))),),
    "fma": _floats("fma", "T T T -> T", "relu"),
    "sad": (Row(INTEGERS, "T T T -> T", plain(integers.sum_of_differences)),),
    "div": (
        Row(INTEGERS, "T T -> T", plain(integers.divide)),
        Row("f32", "T T -> T", _division, f"{ROUNDING} approx full ftz"),
        Row("f64", "T T -> T", _float("div"), ROUNDING),
    ),
    "rem": (Row(INTEGERS, "T T -> T", plain(integers.remainder)),),
    "abs": _sign("abs"),
    "neg": _sign("neg"),
    "min": _minmax(False),
    "max": _minmax(True),
    "copysign": (Row("f32 f64", "T T -> T", plain(numerics.copy_sign)),),
    "rcp": (*_ieee_or_approximate("rcp"), _approximate_double("rcp")),
    "sqrt": _ieee_or_approximate("sqrt"),
    "rsqrt": (_approximate("rsqrt"), _approximate_double("rsqrt")),
    "ex2": (
        _approximate("ex2"),
        _approximate_half(np.exp2, "f16 f16x2"),
        _approximate_half(np.exp2, "bf16 bf16x2", "approx ftz"),
    ),
    "lg2": (_approximate("lg2"),),
    "sin": (_approximate("sin"),),
    "cos": (_approximate("cos"),),
    "tanh": (_approximate("tanh"), _approximate_half(np.tanh, "f16 f16x2 bf16 bf16x2")),
    **_carry_rows(),
}
