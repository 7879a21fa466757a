"""The table of pure PTX operations, one row an instruction form.

A `Row` says under its name (with the parts of the text that change its meaning, as in "mul.wide")
which types it takes, the modifiers it understands, its operands, and what builds its function. An
operand signature such as "T T -> T" names PTX types, or stands for them: T is the instruction's
(last) type, D the first one of two (the result's), W the type of twice T's width.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attn_course.simulator import (
    approximations,
    bits,
    comparisons,
    conversions,
    doubles,
    halves,
    integers,
    numerics,
)


@dataclass(frozen=True)
class Row:
    """One instruction form of the table.

    build(types, modifiers) makes the function; types is the tuple of type names in the text,
    modifiers the frozenset of the remaining parts. Types are alternatives, "a/b" a pair, of which
    either may list several: "f32,f64/s32".
    """

    types: str
    operands: str
    build: Callable
    modifiers: str = ""
    carry: str = ""

    def type_choices(self) -> list[tuple[str, ...]]:
        """Every tuple of type names this row accepts."""
        return [
            choice
            for alternative in self.types.split()
            for choice in itertools.product(*(part.split(",") for part in alternative.split("/")))
        ]


def _plain(function):
    """A row whose function depends on neither type nor modifiers."""
    return lambda types, modifiers: function


def _mode(modifiers):
    return next((mode for mode in ("rz", "rm", "rp") if mode in modifiers), "rn")


def _saturated(compute):
    return lambda *values: numerics.saturate(compute(*values))


def _float(name):
    """An IEEE float32 or float64 instruction, from its rounding, .ftz and .sat."""

    def build(types, modifiers):
        mode = _mode(modifiers)
        if types[-1] == "f64":
            return doubles.double(name, mode)
        compute = numerics.single(name, mode, "ftz" in modifiers)
        return _saturated(compute) if "sat" in modifiers else compute

    return build


def _half(name):
    """An .f16 or .bf16 instruction, packed or not."""

    def build(types, modifiers):
        kind = types[-1].removesuffix("x2")
        flags = {flag: flag in modifiers for flag in ("ftz", "sat", "relu")}
        compute = halves.arithmetic(name, kind, **flags)
        return halves.paired(compute) if types[-1].endswith("x2") else compute

    return build


def _saturating(ufunc):
    def build(types, modifiers):
        return integers.saturating(ufunc) if "sat" in modifiers else ufunc

    return build


def _carrying(step, name, product=None):
    """The .cc rows: `name` says by its first part whether the carry is read."""
    reads = name.startswith(("addc", "subc", "madc"))
    writes = name.endswith("cc")
    return lambda types, modifiers: integers.carrying(step, reads, writes, product)


INTEGERS = "s16 u16 s32 u32 s64 u64"
WORDS = "s32 u32 s64 u64"
BITS = "b16 b32 b64"
SELECTED = "b16,b32,b64,u16,u32,u64,s16,s32,s64,f32,f64"
HALVES = "f16 f16x2 bf16 bf16x2"
ROUNDING = "rn rz rm rp"


def _minmax(largest):
    def integer(types, modifiers):
        ufunc = np.maximum if largest else np.minimum
        if "relu" not in modifiers:
            return ufunc
        return lambda a, b: np.maximum(ufunc(a, b), np.int32(0))

    def single(types, modifiers):
        return comparisons.extremum(largest, modifiers)

    def half(types, modifiers):
        kind = types[-1].removesuffix("x2")
        compute = halves.extremum(
            largest, kind, "ftz" in modifiers, "NaN" in modifiers, "xorsign" in modifiers
        )
        return halves.paired(compute) if types[-1].endswith("x2") else compute

    return (
        Row("s16 u16 u32 s64 u64", "T T -> T", integer),
        Row("s32", "T T -> T", integer, "relu"),
        Row("f32", "T T -> T", single, "ftz NaN xorsign abs"),
        Row("f64", "T T -> T", single),
        Row("f16 f16x2", "T T -> T", half, "ftz NaN xorsign abs"),
        Row("bf16 bf16x2", "T T -> T", half, "NaN xorsign abs"),
    )


def _sign(name):
    def integer(types, modifiers):
        return np.abs if name == "abs" else np.negative

    def single(types, modifiers):
        return comparisons.sign_operation(name, "ftz" in modifiers)

    def half(types, modifiers):
        compute = halves.sign_operation(name, types[-1].removesuffix("x2"), "ftz" in modifiers)
        return halves.paired(compute) if types[-1].endswith("x2") else compute

    return (
        Row("s16 s32 s64", "T -> T", integer),
        Row("f32", "T -> T", single, "ftz"),
        Row("f64", "T -> T", single),
        Row("f16 f16x2", "T -> T", half, "ftz"),
        Row("bf16 bf16x2", "T -> T", half),
    )


def _approximate(name):
    def single(types, modifiers):
        return approximations.approximation(name, "ftz" in modifiers)

    # tanh.approx.f32 alone has no .ftz
    return Row("f32", "T -> T", single, "approx" if name == "tanh" else "approx ftz")


def _approximate_half(function, types, modifiers="approx"):
    def build(types, modifiers):
        kind = types[-1].removesuffix("x2")
        compute = halves.through_double(function, kind, "ftz" in modifiers)
        return halves.paired(compute) if types[-1].endswith("x2") else compute

    return Row(types, "T -> T", build, modifiers)


def _approximate_double(name):
    def build(types, modifiers):
        return approximations.approximation_f64(name, "ftz" in modifiers)

    return Row("f64", "T -> T", build, "approx ftz")


def _ieee_or_approximate(name):
    """rcp and sqrt: the text chooses .approx or an IEEE rounding."""

    def single(types, modifiers):
        if "approx" in modifiers:
            return approximations.approximation(name, "ftz" in modifiers)
        return _float(name)(types, modifiers)

    return (
        Row("f32", "T -> T", single, f"approx ftz {ROUNDING}"),
        Row("f64", "T -> T", _float(name), ROUNDING),
    )


def _division(types, modifiers):
    if "approx" in modifiers:
        return approximations.divide_approximately("ftz" in modifiers)
    return _float("div")(types, modifiers)  # .full promises 2 ulp; this gives the nearest


def _select(a, b, chosen):
    if isinstance(chosen, np.ndarray):
        return np.where(chosen, a, b)
    return a if chosen else b


def _sign_select(types, modifiers):
    """slct: a where c >= 0 (-0.0 counts, NaN does not), else b."""
    ftz = "ftz" in modifiers

    def select(a, b, c):
        return _select(a, b, (numerics.flush(c) if ftz else c) >= 0)

    return select


def _funnel(left, clamp):
    return Row("b32", "T T u32 -> T", _plain(bits.funnel(left, clamp)))


def _dot(shape):
    def build(types, modifiers):
        signed = [kind.startswith("s") for kind in types]
        if shape == "bytes":
            return bits.dot_bytes(*signed)
        return bits.dot_halves(*signed, shape == "high")

    return tuple(
        Row(f"{a}/{b}", f"{a} {b} {'s32' if 's' in a + b else 'u32'} -> "
            f"{'s32' if 's' in a + b else 'u32'}", build)
        for a in ("s32", "u32") for b in ("s32", "u32")
    )  # fmt: skip


def _mad(high):
    def build(types, modifiers):
        product = integers.multiply_high if high else np.multiply
        if "sat" in modifiers:
            return integers.multiply_add_high_saturating
        return lambda a, b, c: product(a, b) + c

    return build


def _mad_24(high):
    product = integers.multiply_24(high)

    def build(types, modifiers):
        return lambda a, b, c: product(a, b) + c

    return build


def _wide_mad(a, b, c):
    return integers.multiply_wide(a, b) + c


def _identity(x):
    return x


def _copy_row():
    return Row("b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64 pred", "T -> T", _plain(_identity))


ROWS: dict[str, tuple[Row, ...]] = {
    "mov": (_copy_row(),),
    "add": (
        Row("s16 u16 u32 s64 u64", "T T -> T", _plain(np.add)),
        Row("s32", "T T -> T", _saturating(np.add), "sat"),
        Row("f32", "T T -> T", _float("add"), f"{ROUNDING} ftz sat"),
        Row("f64", "T T -> T", _float("add"), ROUNDING),
        Row("f16 f16x2", "T T -> T", _half("add"), "rn ftz sat"),
        Row("bf16 bf16x2", "T T -> T", _half("add"), "rn"),
    ),
    "sub": (
        Row("s16 u16 u32 s64 u64", "T T -> T", _plain(np.subtract)),
        Row("s32", "T T -> T", _saturating(np.subtract), "sat"),
        Row("f32", "T T -> T", _float("sub"), f"{ROUNDING} ftz sat"),
        Row("f64", "T T -> T", _float("sub"), ROUNDING),
        Row("f16 f16x2", "T T -> T", _half("sub"), "rn ftz sat"),
        Row("bf16 bf16x2", "T T -> T", _half("sub"), "rn"),
    ),
    "mul": (
        Row("f32", "T T -> T", _float("mul"), f"{ROUNDING} ftz sat"),
        Row("f64", "T T -> T", _float("mul"), ROUNDING),
        Row("f16 f16x2", "T T -> T", _half("mul"), "rn ftz sat"),
        Row("bf16 bf16x2", "T T -> T", _half("mul"), "rn"),
    ),
    "mul.lo": (Row(INTEGERS, "T T -> T", _plain(np.multiply)),),
    "mul.hi": (Row(INTEGERS, "T T -> T", _plain(integers.multiply_high)),),
    "mul.wide": (Row("s16 u16 s32 u32", "T T -> W", _plain(integers.multiply_wide)),),
    "mul24.lo": (Row("s32 u32", "T T -> T", _plain(integers.multiply_24(False))),),
    "mul24.hi": (Row("s32 u32", "T T -> T", _plain(integers.multiply_24(True))),),
    "mad": (
        Row("f32", "T T T -> T", _float("fma"), f"{ROUNDING} ftz sat"),
        Row("f64", "T T T -> T", _float("fma"), ROUNDING),
    ),
    "mad.lo": (Row(INTEGERS, "T T T -> T", _mad(False)),),
    "mad.hi": (
        Row("s16 u16 u32 s64 u64", "T T T -> T", _mad(True)),
        Row("s32", "T T T -> T", _mad(True), "sat"),
    ),
    "mad.wide": (Row("s16 u16 s32 u32", "T T W -> W", _plain(_wide_mad)),),
    "mad24.lo": (Row("s32 u32", "T T T -> T", _mad_24(False)),),
    "mad24.hi": (Row("s32 u32", "T T T -> T", _mad_24(True)),),
    "fma": (
        Row("f32", "T T T -> T", _float("fma"), f"{ROUNDING} ftz sat"),
        Row("f64", "T T T -> T", _float("fma"), ROUNDING),
        Row("f16 f16x2", "T T T -> T", _half("fma"), "rn ftz sat relu"),
        Row("bf16 bf16x2", "T T T -> T", _half("fma"), "rn relu"),
    ),
    "sad": (Row(INTEGERS, "T T T -> T", _plain(integers.sum_of_differences)),),
    "div": (
        Row(INTEGERS, "T T -> T", _plain(integers.divide)),
        Row("f32", "T T -> T", _division, f"{ROUNDING} approx full ftz"),
        Row("f64", "T T -> T", _float("div"), ROUNDING),
    ),
    "rem": (Row(INTEGERS, "T T -> T", _plain(integers.remainder)),),
    "abs": _sign("abs"),
    "neg": _sign("neg"),
    "min": _minmax(False),
    "max": _minmax(True),
    "copysign": (Row("f32 f64", "T T -> T", _plain(numerics.copy_sign)),),
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
    "tanh": (_approximate("tanh"), _approximate_half(np.tanh, HALVES)),
    "popc": (Row("b32 b64", "T -> u32", _plain(bits.population)),),
    "clz": (Row("b32 b64", "T -> u32", _plain(bits.leading_zeros)),),
    "bfind": (Row(WORDS, "T -> u32", _plain(bits.find_leading(False))),),
    "bfind.shiftamt": (Row(WORDS, "T -> u32", _plain(bits.find_leading(True))),),
    "fns": (Row("b32", "b32 u32 s32 -> b32", _plain(bits.find_nth)),),
    "brev": (Row("b32 b64", "T -> T", _plain(bits.reverse_bits)),),
    "bfe": (Row(WORDS, "T u32 u32 -> T", _plain(bits.extract_field)),),
    "bfi": (Row("b32 b64", "T T u32 u32 -> T", _plain(bits.insert_field)),),
    "bmsk.clamp": (Row("b32", "u32 u32 -> T", _plain(bits.bit_mask(True))),),
    "bmsk.wrap": (Row("b32", "u32 u32 -> T", _plain(bits.bit_mask(False))),),
    "szext.clamp": (Row("s32 u32", "T u32 -> T", _plain(bits.extend(True))),),
    "szext.wrap": (Row("s32 u32", "T u32 -> T", _plain(bits.extend(False))),),
    "dp4a": _dot("bytes"),
    "dp2a.lo": _dot("low"),
    "dp2a.hi": _dot("high"),
    "and": (Row(f"{BITS} pred", "T T -> T", _plain(np.bitwise_and)),),
    "or": (Row(f"{BITS} pred", "T T -> T", _plain(np.bitwise_or)),),
    "xor": (Row(f"{BITS} pred", "T T -> T", _plain(np.bitwise_xor)),),
    "not": (Row(f"{BITS} pred", "T -> T", _plain(np.invert)),),
    "cnot": (Row(BITS, "T -> T", _plain(bits.conditional_not)),),
    "lop3": (Row("b32", "T T T u32 -> T", _plain(bits.logic3_lanes)),),
    "shl": (Row(BITS, "T u32 -> T", _plain(bits.shift_left)),),
    "shr": (Row(f"{BITS} {INTEGERS}", "T u32 -> T", _plain(bits.shift_right)),),
    "shf.l.wrap": (_funnel(True, False),),
    "shf.l.clamp": (_funnel(True, True),),
    "shf.r.wrap": (_funnel(False, False),),
    "shf.r.clamp": (_funnel(False, True),),
    "selp": (Row(f"{BITS} {INTEGERS} f32 f64", "T T pred -> T", _plain(_select)),),
    "slct": (
        Row(f"{SELECTED}/s32", "D D T -> D", _sign_select),
        Row(f"{SELECTED}/f32", "D D T -> D", _sign_select, "ftz"),
    ),
}  # fmt: skip


def _add_permutations():
    ROWS["prmt"] = (Row("b32", "T T T -> T", _plain(bits.permute())),)
    for mode in bits.PERMUTE_MODES:
        # the mode stands behind the type: prmt.b32.f4e
        ROWS[f"prmt.{mode}"] = (Row("b32", "T T T -> T", _plain(bits.permute(mode))),)


def _add_carry_rows():
    add, subtract = integers.add_carry, integers.subtract_borrow
    chains = [(name, add) for name in ("add.cc", "addc", "addc.cc")]
    chains += [(name, subtract) for name in ("sub.cc", "subc", "subc.cc")]
    for name, step in chains:
        ROWS[name] = (Row(WORDS, "T T -> T", _carrying(step, name), carry=_carry_use(name)),)
    for half, product in (("lo", np.multiply), ("hi", integers.multiply_high)):
        for name in (f"mad.{half}.cc", f"madc.{half}", f"madc.{half}.cc"):
            build = _carrying(add, name, product)
            ROWS[name] = (Row(WORDS, "T T T -> T", build, carry=_carry_use(name)),)


def _carry_use(name):
    reads = name.startswith(("addc", "subc", "madc"))
    return " ".join(["reads"] * reads + ["writes"] * name.endswith("cc"))


_UNSIGNED_TYPES = "u16,u32,u64"
_INTEGER_TYPES = f"s16,s32,s64,{_UNSIGNED_TYPES}"


def _compared_types(name):
    """The number types that a comparison operator takes: integers, or none, and whether floats."""
    if name in ("eq", "ne"):
        return f"{_INTEGER_TYPES},b16,b32,b64", True
    if name in ("lt", "le", "gt", "ge"):
        return _INTEGER_TYPES, True
    return (_UNSIGNED_TYPES, False) if name in ("lo", "ls", "hi", "hs") else ("", True)


def _add_comparisons():
    for name, combine in itertools.product(comparisons.OPERATORS, comparisons.COMBINERS):
        whole, floats = _compared_types(name)
        suffix = f".{combine}" if combine else ""
        third = " pred" if combine else ""
        flag, value = f"T T{third} -> pred pred", f"T T{third} -> D"
        setp, choose = comparisons.predicate(name, combine), comparisons.value(name, combine)
        numbers = "u32,s32,f32"
        setp_rows = [Row(whole.replace(",", " "), flag, setp)] * bool(whole)
        set_rows = [Row(f"{numbers}/{whole}", value, choose)] * bool(whole)
        if floats:
            setp_rows += [
                Row("f32 f16 f16x2", flag, setp, "ftz"),
                Row("f64 bf16 bf16x2", flag, setp),
            ]
            set_rows += [
                Row(f"{numbers}/f32", value, choose, "ftz"),
                Row(f"{numbers}/f64", value, choose),
                Row("f16,u16,s16,u32,s32/f16 f16x2,u32,s32/f16x2", value, choose, "ftz"),
                Row("bf16,u16,s16,u32,s32/bf16 bf16x2,u32,s32/bf16x2", value, choose),
            ]
        ROWS[f"setp.{name}{suffix}"], ROWS[f"set.{name}{suffix}"] = (
            tuple(setp_rows),
            tuple(set_rows),
        )
    for test in comparisons.TESTS:
        ROWS[f"testp.{test}"] = (Row("f32 f64", "T -> pred", comparisons.test(test)),)


def _convert(types, modifiers):
    return conversions.conversion(*types, modifiers)


def _convert_pair(types, modifiers):
    return conversions.packing(types[0], _mode(modifiers), "relu" in modifiers)


def _clamped_pairs():
    """The integer conversions for which .sat means something: some source values do not fit."""
    kinds = [f"{sign}{width}" for sign in "us" for width in (8, 16, 32, 64)]
    pairs = []
    for target, source in itertools.product(kinds, kinds):
        bits, own = int(target[1:]), int(source[1:])
        fits = bits >= own if target[0] == source[0] else target[0] == "s" and bits > own
        pairs += [] if fits else [f"{target}/{source}"]
    return " ".join(pairs)


def _add_conversions():
    whole = "u8,u16,u32,u64,s8,s16,s32,s64"
    wide = "u16,u32,u64,s16,s32,s64"  # bf16 converts to and from these only
    exact_modes = "rni rzi rmi rpi"
    ROWS["cvt"] = (
        Row(f"{whole}/{whole}", "T -> D", _convert),
        Row(_clamped_pairs(), "T -> D", _convert, "sat"),
        Row(f"f16,f32,f64/{whole}", "T -> D", _convert, f"{ROUNDING} sat"),
        Row(f"bf16/{wide}", "T -> D", _convert, ROUNDING),
        Row(f"{whole}/f16,f32,f64", "T -> D", _convert, f"{exact_modes} ftz sat"),
        Row(f"{wide}/bf16", "T -> D", _convert, exact_modes),
        Row("tf32/f32", "T -> b32", _convert, "rna rn rz relu"),
        Row("f16/f32,f64", "T -> D", _convert, f"{ROUNDING} ftz sat relu"),
        Row("bf16/f32,f64", "T -> D", _convert, f"{ROUNDING} relu"),
        Row("f16/bf16 bf16/f16", "T -> D", _convert, ROUNDING),
        Row("f32/f64", "T -> D", _convert, f"{ROUNDING} ftz sat"),
        Row("f32,f64/f16 f64/f32", "T -> D", _convert, "ftz sat"),
        Row("f32,f64/bf16", "T -> D", _convert, "ftz"),
        Row("f32/f32", "T -> D", _convert, f"{exact_modes} ftz sat"),
        Row("f16/f16 f64/f64", "T -> D", _convert, f"{exact_modes} sat"),
        Row("bf16/bf16", "T -> D", _convert, exact_modes),
        Row("f16x2,bf16x2/f32", "T T -> D", _convert_pair, "rn rz relu"),
    )


_add_permutations()
_add_carry_rows()
_add_comparisons()
_add_conversions()
