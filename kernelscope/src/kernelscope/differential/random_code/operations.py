"""Operations of random kernels: CUDA C beside exact Python, which knows nothing of PTX.

Values in Python: ints for "i32 u32 i64 u64", bool for "b1", numpy.float32 for "f32", float for
"f64". Kernels are compiled with flush-to-zero for float32, so every float32 operation flushes
subnormal operands and results, keeping the sign; double precision keeps them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import copysign, inf, isfinite, isnan, isqrt
from operator import add, and_, eq, ge, gt, le, lt, mul, ne, or_, sub, truediv, xor

import numpy as np

C_TYPE = {
    "i32": "int",
    "u32": "unsigned",
    "i64": "long long",
    "u64": "unsigned long long",
    "f32": "float",
    "f64": "double",
    "b1": "bool",
}
INTEGERS = ("i32", "u32", "i64", "u64")
FLOATS = ("f32", "f64")
MODES = {"rn": "rn", "rz": "rz", "ru": "rp", "rd": "rm"}
_DIGITS = {"f32": (24, -149, 2**128), "f64": (53, -1074, 2**1024)}
_LEAST_NORMAL = np.float32(2.0**-126)

# C++ that the templates below call: a float's bits with any NaN as one pattern, and back.
PRELUDE = """\
__device__ unsigned bits_of_float(float x) {
  unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc00000u;
  return (bits & 0x7f800000u) == 0 ? bits & 0x80000000u : bits;
}
__device__ float float_of_bits(unsigned bits) {
  return (bits & 0x7f800000u) == 0 ? __uint_as_float(bits & 0x80000000u) : __uint_as_float(bits);
}
__device__ unsigned long long bits_of_double(double x) {
  unsigned long long bits = (unsigned long long)__double_as_longlong(x);
  return (bits & 0x7fffffffffffffffull) > 0x7ff0000000000000ull ? 0x7ff8000000000000ull : bits;
}
// PTX whose guard is an operand too, or that writes what it reads.
#define GUARDED(NAME, LINE)                                                               \\
  __device__ unsigned guarded_##NAME(bool p, unsigned a, unsigned b) {                   \\
    unsigned r = a;                                                                      \\
    asm("{.reg .pred p, q; setp.ne.u32 p, %1, 0; setp.lt.u32 q, %2, %3; " LINE "}"       \\
        : "+r"(r) : "r"((unsigned)p), "r"(a), "r"(b));                                   \\
    return r;                                                                            \\
  }
GUARDED(select, "@p selp.u32 %0, %3, %2, p;")
GUARDED(otherwise, "@!p selp.u32 %0, %2, %3, p;")
GUARDED(compare, "@p setp.lt.and.u32 q, %3, %2, p; selp.u32 %0, %2, %3, q;")
GUARDED(itself, "@p xor.pred p, p, q; selp.u32 %0, %2, %3, p;")
GUARDED(invert, "@!p or.pred p, !p, q; @p not.pred p, p; @!p mov.u32 %0, %3;")
GUARDED(update, "@p mad.lo.u32 %0, %0, %3, %0;")
GUARDED(second, "@q and.pred p, p, q; @p selp.u32 %0, %3, %0, q; @!q add.u32 %0, %0, %0;")
"""


@dataclass(frozen=True)
class RandomOperation:
    """template: C with {0}, {1}, ... for the operands; fn: the same on Python values."""

    name: str
    sources: tuple[str, ...]
    result: str
    template: str
    fn: Callable


OPERATIONS: dict[str, RandomOperation] = {}


def _define(name, sources, result, template, fn):
    assert name not in OPERATIONS, name
    OPERATIONS[name] = RandomOperation(name, tuple(sources.split()), result, template, fn)


def _define_two(name, kind, template, fn):
    """An operation of two operands of the result's own type."""
    _define(f"{name}.{kind}", f"{kind} {kind}", kind, template, fn)


def wrap(kind, value):
    """An int as the C integer type `kind` holds it."""
    width = int(kind[1:])
    value &= (1 << width) - 1
    return value - (1 << width) if kind[0] == "i" and value >> (width - 1) else value


# --- floats ---------------------------------------------------------------------------------------


def flush(x):
    return np.float32(copysign(0.0, x)) if abs(x) < _LEAST_NORMAL else x


def rounded(x, mode, kind):
    """A non-zero Fraction as the nearest float of `kind` in direction `mode`, as a Python float."""
    digits, least, limit = _DIGITS[kind]
    size = abs(x)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    quantum = Fraction(2) ** max(exponent - digits + 1, least)
    count, rest = divmod(size / quantum, 1)
    if mode == "rn":
        count += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and count % 2 == 1)
    else:
        count += rest > 0 and mode == ("rm" if x < 0 else "rp")
    if count * quantum >= limit:
        away = mode == "rn" or mode == ("rm" if x < 0 else "rp")
        value = inf if away else float(limit - Fraction(limit, 2**digits))
    else:
        value = float(count * quantum)
    return -value if x < 0 else value


def _make(x, kind):
    """A Python float that `kind` can hold exactly as a value of `kind`, flushed for f32."""
    return flush(np.float32(x)) if kind == "f32" else float(x)


def _special(function, *values):
    """The IEEE result where an operand is infinite or NaN, or a zero decides; rounding is moot."""
    return float(function(*(np.float64(v) for v in values)))


def directed(kind, mode, exact, special):
    """Round once: `exact` on Fractions of finite operands, `special` on floats for all else.

    A result of zero takes its sign from `special`, except that opposite terms which cancel give
    -0 under rounding down.
    """

    def fn(*operands):
        if kind == "f32":
            operands = [flush(x) for x in operands]
        values = [float(x) for x in operands]
        if not all(map(isfinite, values)):
            return _make(_special(special, *values), kind)
        x = exact(*map(Fraction, values))
        if x is None:
            return _make(_special(special, *values), kind)
        if x == 0:
            return _make(_zero(special, values, mode), kind)
        return _make(rounded(x, mode, kind), kind)

    return fn


def _zero(special, values, mode):
    """The sign of an exact zero."""
    if special in (mul, truediv):
        return copysign(0.0, copysign(1, values[0]) * copysign(1, values[1]))
    if special is np.sqrt:
        return values[0]
    terms = [copysign(1, values[0]), copysign(1, values[1])]
    if special is sub:
        terms[1] = -terms[1]
    if special is _fused_special:
        terms = [terms[0] * terms[1], copysign(1, values[2])]
    if terms[0] == terms[1]:
        return copysign(0.0, terms[0])
    return -0.0 if mode == "rm" else 0.0


def _fused(a, b, c):
    return a * b + c


def _fused_special(a, b, c):
    """`_fused` on floats that are not all finite: a product of finite ones cannot overflow."""
    return c if isfinite(a) and isfinite(b) else a * b + c


def _exact_quotient(a, b):
    return None if b == 0 else a / b


def _exact_root(a):
    """The root with 80 digits or more and a sticky one; None where it is not a real number."""
    if a < 0:
        return None
    scale = 1 << 1100
    whole = int(a * scale * scale)
    low = isqrt(whole)
    return Fraction(2 * low + (low * low != a * scale * scale), 2 * scale)


def nearest_single(function):
    """Round-to-nearest float32 through NumPy's own scalars."""

    def fn(*operands):
        return flush(function(*(flush(x) for x in operands)))

    return fn


def _nearest_double(function):
    def fn(*operands):
        return float(function(*(np.float64(x) for x in operands)))

    return fn


_INTRINSIC = {
    "add": ("fadd", "dadd", "({0} + {1})", add, add),
    "sub": ("fsub", "dsub", "({0} - {1})", sub, sub),
    "mul": ("fmul", "dmul", "({0} * {1})", mul, mul),
    "div": ("fdiv", "ddiv", "({0} / {1})", _exact_quotient, truediv),
}


def _define_floats():
    for kind, place in (("f32", 0), ("f64", 1)):
        nearest = nearest_single if kind == "f32" else _nearest_double
        for name, row in _INTRINSIC.items():
            intrinsic, plain, exact, special = row[place], *row[2:]
            if not (name == "div" and kind == "f32"):
                _define_two(name, kind, plain, nearest(special))
            for c_mode, mode in MODES.items():
                fn = directed(kind, mode, exact, special)
                text = f"__{intrinsic}_{c_mode}({{0}}, {{1}})"
                _define(f"{name}.{mode}.{kind}", f"{kind} {kind}", kind, text, fn)
        letter = "f" if kind == "f32" else ""
        for c_mode, mode in MODES.items():
            name = f"__fma{letter}_{c_mode}" + "({0}, {1}, {2})"
            fma = directed(kind, mode, _fused, _fused_special)
            _define(f"fma.{mode}.{kind}", f"{kind} {kind} {kind}", kind, name, fma)
            root = directed(kind, mode, _exact_root, np.sqrt)
            name = f"__{'f' if kind == 'f32' else 'd'}sqrt_{c_mode}"
            _define(f"sqrt.{mode}.{kind}", kind, kind, name + "({0})", root)
        name = f"fma{letter}({{0}}, {{1}}, {{2}})"
        fma = directed(kind, "rn", _fused, _fused_special)
        _define(f"fma.{kind}", f"{kind} {kind} {kind}", kind, name, fma)
        _define(f"neg.{kind}", kind, kind, "(-{0})", lambda x: -x)
        _define(f"abs.{kind}", kind, kind, f"fabs{letter}({{0}})", abs)
        zero = "0.0f" if kind == "f32" else "0.0"
        for name in ("min", "max"):
            # adding +0 turns -0 into +0: which of two zeros is the larger is left open in C
            template = f"f{name}{letter}({{0}} + {zero}, {{1}} + {zero})"
            _define_two(name, kind, template, _extreme(name, kind))
    quotient = nearest_single(truediv)
    _define("rcp.f32", "f32", "f32", "__frcp_rn({0})", lambda x: quotient(np.float32(1), x))


def _extreme(name, kind):
    choose = min if name == "min" else max

    def fn(a, b):
        a, b = _make(a + 0.0, kind), _make(b + 0.0, kind)
        if isnan(a) or isnan(b):
            return b if isnan(a) else a
        return choose(a, b)

    return fn


# --- integers -------------------------------------------------------------------------------------


def quotient(a, b):
    """C's division: towards zero."""
    return -(-a // b) if (a < 0) != (b < 0) else a // b


def _define_arithmetic(kind):
    unsigned = C_TYPE["u" + kind[1:]]
    cast = f"({C_TYPE[kind]})" if kind[0] == "i" else ""
    inner = f"({unsigned})" if kind[0] == "i" else ""
    width = int(kind[1:])

    def two(name, sign, fn):
        template = f"({cast}({inner}{{0}} {sign} {inner}{{1}}))"
        _define_two(name, kind, template, lambda a, b: wrap(kind, fn(a, b)))

    two("add", "+", add)
    two("sub", "-", sub)
    two("mul", "*", mul)
    for name, sign, fn in (("and", "&", and_), ("or", "|", or_), ("xor", "^", xor)):
        _define_two(name, kind, f"({{0}} {sign} {{1}})", fn)
    _define(f"not.{kind}", kind, kind, "(~{0})", lambda a: wrap(kind, ~a))
    _define(f"neg.{kind}", kind, kind, f"({cast}(0 - {inner}{{0}}))", lambda a: wrap(kind, -a))
    mask = width - 1
    left, right = f"({cast}({inner}{{0}} << ({{1}} & {mask})))", f"({{0}} >> ({{1}} & {mask}))"
    _define(f"shl.{kind}", f"{kind} u32", kind, left, lambda a, b: wrap(kind, a << (b & mask)))
    _define(f"shr.{kind}", f"{kind} u32", kind, right, lambda a, b: a >> (b & mask))
    for name, sign in (("div", "/"), ("rem", "%")):
        for variant, divisor, of in _divisors(kind):

            def fn(a, b, name=name, of=of):
                q = quotient(a, of(b))
                return q if name == "div" else a - q * of(b)

            template = f"({{0}} {sign} {divisor})"
            _define(f"{name}{variant}.{kind}", f"{kind} {kind}", kind, template, fn)
    for name, fn in (("min", min), ("max", max)):
        _define_two(name, kind, f"{name}({{0}}, {{1}})", fn)


def _divisors(kind):
    """(suffix, C, Python) of divisors that are never zero, nor -1: C leaves the least integer
    divided by it open.
    """
    if kind[0] == "u":
        return (
            ("", "({1} | 1u)", lambda b: b | 1),
            ("_by_16_bits", "(({1} & 0xffff) + 1)", lambda b: (b & 0xFFFF) + 1),
        )
    return (
        ("", "(({1} & 0x3ff) + 3)", lambda b: (b & 0x3FF) + 3),
        ("_by_negative", "(({1} & 0x7f) - 200)", lambda b: (b & 0x7F) - 200),
        ("_by_large", "(({1} >> 1 & ~2) | 0x10001)", lambda b: (b >> 1 & ~2) | 0x10001),
    )


def _byte_permute(a, b, selector):
    word, out = a | b << 32, 0
    for i in range(4):
        nibble = selector >> 4 * i & 15
        byte = word >> 8 * (nibble & 7) & 255
        out |= ((255 if byte >> 7 else 0) if nibble & 8 else byte) << 8 * i
    return out


def _bytes(x, kind):
    """The four bytes of a word, each an integer with the sign of `kind`."""
    return [wrap(f"{kind[0]}8", x >> 8 * i) for i in range(4)]


def _define_bit_operations():
    u32, u64 = (1 << 32) - 1, (1 << 64) - 1
    for kind, suffix, c in (("u32", "", "(int)"), ("u64", "ll", "(long long)")):
        width = int(kind[1:])
        for name, result, operand, fn in (
            ("popc", "i32", "{0}", int.bit_count),
            ("clz", "i32", c + "{0}", lambda x, width=width: width - x.bit_length()),
            ("ffs", "i32", c + "{0}", lambda x: (x & -x).bit_length()),
            ("brev", kind, "{0}", lambda x, width=width: int(f"{x:0{width}b}"[::-1], 2)),
        ):
            _define(f"{name}.{kind}", kind, result, f"__{name}{suffix}({operand})", fn)
    highs = {"__mulhi": "i32", "__umulhi": "u32", "__mul64hi": "i64", "__umul64hi": "u64"}
    for name, kind in highs.items():

        def high(a, b, width=int(kind[1:])):
            return a * b >> width

        _define(name, f"{kind} {kind}", kind, f"{name}({{0}}, {{1}})", high)
    permute = "__byte_perm({0}, {1}, {2})"
    _define("prmt", "u32 u32 u32", "u32", permute, lambda a, b, s: _byte_permute(a, b, s & 0x7777))
    for name in ("l", "lc", "r", "rc"):

        def funnel(low, high, n, left=name[0] == "l", clamp=name[-1] == "c"):
            n = min(n, 32) if clamp else n & 31
            word = high << 32 | low
            return (word << n & u64) >> 32 if left else word >> n & u32

        text = f"__funnelshift_{name}({{0}}, {{1}}, {{2}})"
        _define(f"funnel.{name}", "u32 u32 u32", "u32", text, funnel)
    for kind, name in (("u32", "__usad"), ("i32", "__sad")):
        text, fn = name + "({0}, {1}, {2})", lambda a, b, c: wrap("u32", abs(a - b) + c)
        _define(f"sad.{kind}", f"{kind} {kind} u32", "u32", text, fn)
    for kind in ("i32", "u32"):

        def dot(a, b, c, kind=kind):
            return wrap(kind, c + sum(map(mul, _bytes(a, kind), _bytes(b, kind))))

        _define(f"dp4a.{kind}", f"{kind} {kind} {kind}", kind, "__dp4a({0}, {1}, {2})", dot)
    _define("hadd.u32", "u32 u32", "u32", "__uhadd({0}, {1})", lambda a, b: a + b >> 1)
    _define("hadd.i32", "i32 i32", "i32", "__hadd({0}, {1})", lambda a, b: a + b >> 1)
    _define("rhadd.u32", "u32 u32", "u32", "__urhadd({0}, {1})", lambda a, b: a + b + 1 >> 1)
    _define("abs.i32", "i32", "i32", "abs(({0}) | 1)", lambda a: abs(a | 1))
    for kind in ("u32", "i32"):  # a field of a word, which compilers turn into bfe
        text, fn = "(({0} >> ({1} & 15)) & 0x1ff)", lambda a, b: a >> (b & 15) & 0x1FF
        _define(f"field.{kind}", f"{kind} u32", kind, text, fn)


# --- conversions, comparisons, choice -------------------------------------------------------------


def _bits_of_float(x):
    return 0x7FC00000 if isnan(x) else int(flush(x).view(np.uint32))


def _float_of_bits(bits):
    return flush(np.uint32(bits).view(np.float32))


def bits_of_double(x):
    return 0x7FF8000000000000 if isnan(x) else int(np.float64(x).view(np.uint64))


def _to_integer(kind, mode):
    """A float to an integer, clamped to its range; NaN is kept out by the template."""
    span = 1 << int(kind[1:])
    low = -span // 2 if kind[0] == "i" else 0
    high = low + span - 1

    def fn(x):
        x = flush(x) if isinstance(x, np.float32) else x
        if isnan(x):
            return 0
        if not isfinite(x):
            return high if x > 0 else low
        down, rest = divmod(Fraction(float(x)), 1)
        if mode == "rn":
            down += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and down % 2 == 1)
        elif mode == "rp" or (mode == "rz" and x < 0):
            down += rest > 0
        return max(low, min(high, int(down)))

    return fn


def _from_integer(kind, mode):
    return lambda n: _make(rounded(Fraction(n), mode, kind) if n else 0.0, kind)


def _define_conversions():
    for source in INTEGERS:
        for target in INTEGERS:
            if source != target:
                text, fn = f"(({C_TYPE[target]}){{0}})", lambda x, target=target: wrap(target, x)
                _define(f"{target}.{source}", source, target, text, fn)
    short = {"i32": "int", "u32": "uint", "i64": "ll", "u64": "ull"}
    for integer, name in short.items():
        for kind, word in (("f32", "float"), ("f64", "double")):
            for c_mode, mode in MODES.items():
                if kind == "f64" and integer.endswith("32"):
                    continue
                text = f"__{name}2{word}_{c_mode}({{0}})"
                _define(f"{kind}.{mode}.{integer}", integer, kind, text, _from_integer(kind, mode))
            for c_mode, mode in MODES.items():
                text = f"({{0}} == {{0}} ? __{word}2{name}_{c_mode}({{0}}) : 0)"
                _define(f"{integer}.{mode}.{kind}", kind, integer, text, _to_integer(integer, mode))
    for integer in ("i32", "u32"):
        _define(f"f64.{integer}", integer, "f64", "((double){0})", float)
    _define("f64.f32", "f32", "f64", "((double){0})", lambda x: float(flush(x)))
    for c_mode, mode in MODES.items():
        _define(f"f32.{mode}.f64", "f64", "f32", f"__double2float_{c_mode}({{0}})", _narrow(mode))
    _define("bits.f32", "f32", "u32", "bits_of_float({0})", _bits_of_float)
    _define("bits.u32", "u32", "f32", "float_of_bits({0})", _float_of_bits)
    _define("bits.f64", "f64", "u64", "bits_of_double({0})", bits_of_double)
    chosen = "({0} ? 1.5f : -0.25f)"
    _define("f32.b1", "b1", "f32", chosen, lambda p: np.float32(1.5 if p else -0.25))
    for kind in INTEGERS:
        _define(f"{kind}.b1", "b1", kind, f"(({C_TYPE[kind]}){{0}})", int)


def _narrow(mode):
    def fn(x):
        if x == 0 or not isfinite(x):
            return np.float32(x)
        return _make(rounded(Fraction(x), mode, "f32"), "f32")

    return fn


def _define_comparisons():
    signs = {lt: "<", le: "<=", gt: ">", ge: ">=", eq: "==", ne: "!="}
    for kind in (*INTEGERS, *FLOATS):
        for compare, sign in signs.items():

            def fn(a, b, kind=kind, compare=compare):
                a, b = (flush(a), flush(b)) if kind == "f32" else (a, b)
                return bool(compare(a, b))

            name = f"{compare.__name__}.{kind}"
            _define(name, f"{kind} {kind}", "b1", f"({{0}} {sign} {{1}})", fn)
        choose = "({0} ? {1} : {2})"
        _define(f"select.{kind}", f"b1 {kind} {kind}", kind, choose, lambda p, a, b: a if p else b)
    unordered = "(!({0} < {1}) && !({0} >= {1}))"
    _define("unordered.f32", "f32 f32", "b1", unordered, lambda a, b: isnan(a) or isnan(b))
    _define("not", "b1", "b1", "(!{0})", lambda p: not p)
    _define("and", "b1 b1", "b1", "({0} && {1})", lambda p, q: p and q)
    _define("or", "b1 b1", "b1", "({0} || {1})", lambda p, q: p or q)
    _define_guarded()
    _define("odd.u32", "u32", "b1", "(({0} & 1u) != 0)", lambda x: bool(x & 1))


def _define_guarded():
    """Operations of the PTX in PRELUDE."""

    def second(p, a, b):
        q = a < b
        p = p and q if q else p
        r = (b if q else a) if p else a
        return r if q else wrap("u32", r + r)

    for name, fn in {
        "select": lambda p, a, b: b if p else a,
        "otherwise": lambda p, a, b: a if p else b,
        "compare": lambda p, a, b: a if (b < a if p else a < b) else b,
        "itself": lambda p, a, b: a if p and not a < b else b,
        "invert": lambda p, a, b: b,
        "update": lambda p, a, b: wrap("u32", a * b + a) if p else a,
        "second": second,
    }.items():
        text = f"guarded_{name}({{0}}, {{1}}, {{2}})"
        _define(f"guarded_{name}", "b1 u32 u32", "u32", text, fn)


_define_floats()
for _kind in INTEGERS:
    _define_arithmetic(_kind)
_define_bit_operations()
_define_conversions()
_define_comparisons()
BY_RESULT = {kind: [op for op in OPERATIONS.values() if op.result == kind] for kind in C_TYPE}
