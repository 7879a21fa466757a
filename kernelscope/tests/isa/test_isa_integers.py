"""Integer, bit and predicate rows of the operation table against Python integers."""

import itertools

import pytest

from .isa_harness import by_name, check, check_all, groups
from .isa_oracle import bits_of, read, signed

SIXES = ("s16", "u16", "s32", "u32", "s64", "u64")
WORDS = ("s32", "u32", "s64", "u64")
BITS = ("b16", "b32", "b64")


def wrap(kind, function):
    """`function` on typed integers, its result cut to the kind's width."""
    return lambda *bits: int(function(*(read(b, kind) for b in bits))) & (1 << bits_of(kind)) - 1


def limit(low, high):
    return lambda x: max(low, min(high, x))


def quotient(a, b):
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a, b):
    return -1 if b == 0 else a - quotient(a, b) * b


CASES = {}


def typed(name, kinds, function):
    for kind in kinds:
        CASES[f"{name}.{kind}"] = wrap(kind, function)


typed("add", SIXES, lambda a, b: a + b)
typed("sub", SIXES, lambda a, b: a - b)
typed("mul.lo", SIXES, lambda a, b: a * b)
typed("mad.lo", SIXES, lambda a, b, c: a * b + c)
typed("div", SIXES, quotient)
typed("rem", SIXES, remainder)
typed("min", SIXES, min)
typed("max", SIXES, max)
typed("sad", SIXES, lambda a, b, c: c + abs(a - b))
typed("abs", ("s16", "s32", "s64"), abs)
typed("neg", ("s16", "s32", "s64"), lambda a: -a)
typed("and", (*BITS, "pred"), lambda a, b: a & b)
typed("or", (*BITS, "pred"), lambda a, b: a | b)
typed("xor", (*BITS, "pred"), lambda a, b: a ^ b)
typed("not", (*BITS, "pred"), lambda a: ~a)
typed("cnot", BITS, lambda a: a == 0)
typed("mov", (*BITS, *SIXES, "f32", "f64", "pred"), lambda a: a)
into_s32 = limit(-(2**31), 2**31 - 1)
typed("add.sat", ["s32"], lambda a, b: into_s32(a + b))
typed("sub.sat", ["s32"], lambda a, b: into_s32(a - b))
typed("mad.hi.sat", ["s32"], lambda a, b, c: into_s32((a * b >> 32) + c))
typed("min.relu", ["s32"], lambda a, b: max(min(a, b), 0))
typed("max.relu", ["s32"], lambda a, b: max(a, b, 0))


def paired(one):
    def run(*words):
        low, high = (one(*(w >> shift & 0xFFFF for w in words)) for shift in (0, 16))
        return high << 16 | low

    return run


for name, kind in itertools.product(("add", "min", "max"), ("u16", "s16")):
    CASES[f"{name}.{kind}x2"] = paired(CASES[f"{name}.{kind}"])
for name, pick in (("min", min), ("max", max)):
    CASES[f"{name}.relu.s16x2"] = paired(wrap("s16", lambda a, b, pick=pick: max(pick(a, b), 0)))
for kind in SIXES:
    width = bits_of(kind)
    typed("mul.hi", [kind], lambda a, b, w=width: a * b >> w)
    typed("mad.hi", [kind], lambda a, b, c, w=width: (a * b >> w) + c)


def wide(kind, addend):
    width = bits_of(kind)
    double = (1 << 2 * width) - 1

    def run(a, b, c=0):
        return (read(a, kind) * read(b, kind) + c) & double

    return run if addend else lambda a, b: run(a, b)


for kind in ("s16", "u16", "s32", "u32"):
    CASES[f"mul.wide.{kind}"] = wide(kind, False)
    CASES[f"mad.wide.{kind}"] = wide(kind, True)


def product_24(kind, high):
    def multiply(a, b):
        low = [x & 0xFFFFFF for x in (a, b)]
        a, b = (signed(x, 24) for x in low) if kind == "s32" else low
        return a * b >> (16 if high else 0)

    return multiply


for kind, high in itertools.product(("s32", "u32"), (False, True)):
    name, product = "hi" if high else "lo", product_24(kind, high)
    CASES[f"mul24.{name}.{kind}"] = wrap(kind, product)
    CASES[f"mad24.{name}.{kind}"] = wrap(kind, lambda a, b, c, p=product: p(a, b) + c)


# --- carry chains ---


def chain(kind, subtracts, product, reads, writes):
    """The adder: subtraction adds the complement, and a carry that nothing has set."""
    width = bits_of(kind)
    mask = (1 << width) - 1

    def run(*bits):
        carry = bits[-1] if reads else int(subtracts)
        first, second = bits[0], bits[1]
        if product:
            full = read(bits[0], kind) * read(bits[1], kind)
            first, second = (full >> width if product == "hi" else full) & mask, bits[2]
        total = first + (second ^ mask if subtracts else second) + carry
        return (total & mask, total >> width) if writes else total & mask

    return run


for kind in WORDS:
    for name, subtracts in (("add", False), ("sub", True)):
        CASES[f"{name}.cc.{kind}"] = chain(kind, subtracts, None, False, True)
        CASES[f"{name}c.{kind}"] = chain(kind, subtracts, None, True, False)
        CASES[f"{name}c.cc.{kind}"] = chain(kind, subtracts, None, True, True)
    for half in ("lo", "hi"):
        CASES[f"mad.{half}.cc.{kind}"] = chain(kind, False, half, False, True)
        CASES[f"madc.{half}.{kind}"] = chain(kind, False, half, True, False)
        CASES[f"madc.{half}.cc.{kind}"] = chain(kind, False, half, True, True)


# --- shifts and bits ---

for kind in (*BITS, *SIXES):
    width = bits_of(kind)
    if kind in BITS:
        CASES[f"shl.{kind}"] = lambda a, n, w=width: a << min(n, w) & (1 << w) - 1
    CASES[f"shr.{kind}"] = lambda a, n, k=kind, w=width: read(a, k) >> min(n, w) & (1 << w) - 1
CASES["shf.l.wrap.b32"] = lambda a, b, c: (b << 32 | a) << (c & 31) >> 32 & 0xFFFFFFFF
CASES["shf.l.clamp.b32"] = lambda a, b, c: (b << 32 | a) << min(c, 32) >> 32 & 0xFFFFFFFF
CASES["shf.r.wrap.b32"] = lambda a, b, c: (b << 32 | a) >> (c & 31) & 0xFFFFFFFF
CASES["shf.r.clamp.b32"] = lambda a, b, c: (b << 32 | a) >> min(c, 32) & 0xFFFFFFFF


def find(kind, shift_amount):
    def run(bits):
        value = read(bits, kind)
        value = ~value if value < 0 else value
        if value == 0:
            return 0xFFFFFFFF
        position = value.bit_length() - 1
        return bits_of(kind) - 1 - position if shift_amount else position

    return run


def nth(mask, base, offset):
    """PTX's pseudo code for fns; hardware gives 0 where 32 bits do not hold |offset|."""
    if offset == 1 << 31:
        return 0
    offset = signed(offset, 32)
    if offset == 0:
        return base if base < 32 and mask >> base & 1 else 0xFFFFFFFF
    position, count, step = base, abs(offset) - 1, 1 if offset > 0 else -1
    while 0 <= position < 32:
        if mask >> position & 1:
            if count == 0:
                return position
            count -= 1
        position += step
    return 0xFFFFFFFF


def bounds(width, position, length):
    """Hardware reads 8 bits of a 32-bit field's bounds, and all of a 64-bit one's."""
    return (position & 255, length & 255) if width == 32 else (position, length)


def extract(kind):
    """PTX's pseudo code for bfe."""

    def run(a, position, length):
        top, position, length = bits_of(kind) - 1, *bounds(bits_of(kind), position, length)
        sign = 0
        if kind[0] == "s" and length:
            sign = a >> min(position + length - 1, top) & 1
        return sum(
            (a >> position + i & 1 if i < length and position + i <= top else sign) << i
            for i in range(top + 1)
        )

    return run


def insert(width):
    def run(a, b, position, length):
        position, length = bounds(width, position, length)
        for i in range(min(length, width)):
            if position + i < width:
                b = b & ~(1 << position + i) | (a >> i & 1) << position + i
        return b

    return run


for kind in ("b32", "b64"):
    width = bits_of(kind)
    CASES[f"popc.{kind}"] = lambda a: a.bit_count()
    CASES[f"clz.{kind}"] = lambda a, w=width: w - a.bit_length()
    CASES[f"brev.{kind}"] = lambda a, w=width: int(f"{a:0{w}b}"[::-1], 2)
    CASES[f"bfi.{kind}"] = insert(width)
for kind in WORDS:
    CASES[f"bfind.{kind}"] = find(kind, False)
    CASES[f"bfind.shiftamt.{kind}"] = find(kind, True)
    CASES[f"bfe.{kind}"] = extract(kind)
CASES["fns.b32"] = nth


def mask_of(clamp):
    def run(a, b):
        a, b = (min(a, 32), min(b, 32)) if clamp else (a & 31, b & 31)
        return ((1 << b) - 1) << a & 0xFFFFFFFF

    return run


def extend(kind, clamp):
    def run(a, n):
        n = min(n, 32) if clamp else n & 31
        low = a & (1 << n) - 1
        return (signed(low, n) if kind == "s32" and n else low) & 0xFFFFFFFF

    return run


for clamp in (True, False):
    name = "clamp" if clamp else "wrap"
    CASES[f"bmsk.{name}.b32"] = mask_of(clamp)
    for kind in ("s32", "u32"):
        CASES[f"szext.{name}.{kind}"] = extend(kind, clamp)


def logic(a, b, c, table):
    return sum(
        (table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i for i in range(32)
    )


CASES["lop3.b32"] = logic


# --- bytes ---


def permute(a, b, c):
    data, out = b << 32 | a, 0
    for i in range(4):
        nibble = c >> 4 * i & 15
        byte = data >> 8 * (nibble & 7) & 255
        out |= ((255 if byte >> 7 else 0) if nibble & 8 else byte) << 8 * i
    return out


def permute_mode(pick):
    """pick(c, i): which byte becomes byte i, for the low two bits c of the selector."""

    def run(a, b, c):
        data = b << 32 | a
        return sum((data >> 8 * (pick(c & 3, i) % 8) & 255) << 8 * i for i in range(4))

    return run


CASES["prmt.b32"] = permute
CASES["prmt.b32.f4e"] = permute_mode(lambda c, i: c + i)
CASES["prmt.b32.b4e"] = permute_mode(lambda c, i: c - i)
CASES["prmt.b32.rc8"] = permute_mode(lambda c, i: c)
CASES["prmt.b32.ecl"] = permute_mode(lambda c, i: max(c, i))
CASES["prmt.b32.ecr"] = permute_mode(lambda c, i: min(c, i))
CASES["prmt.b32.rc16"] = permute_mode(lambda c, i: (c & 1) * 2 + (i & 1))


def pieces(word, size, kind):
    values = [word >> i & (1 << size) - 1 for i in range(0, 32, size)]
    return [signed(v, size) for v in values] if kind == "s32" else values


def dot(a_kind, b_kind, size, first):
    def run(a, b, c):
        factors = zip(pieces(a, size, a_kind), pieces(b, 8, b_kind)[first:], strict=False)
        return (sum(x * y for x, y in factors) + c) & 0xFFFFFFFF

    return run


for a_kind, b_kind in itertools.product(("s32", "u32"), repeat=2):
    CASES[f"dp4a.{a_kind}.{b_kind}"] = dot(a_kind, b_kind, 8, 0)
    CASES[f"dp2a.lo.{a_kind}.{b_kind}"] = dot(a_kind, b_kind, 16, 0)
    CASES[f"dp2a.hi.{a_kind}.{b_kind}"] = dot(a_kind, b_kind, 16, 2)


# --- selection ---

for kind in (*BITS, *SIXES, "f32", "f64"):
    CASES[f"selp.{kind}"] = lambda a, b, p: a if p else b
    CASES[f"slct.{kind}.s32"] = lambda a, b, c: b if c >> 31 else a


@pytest.mark.parametrize("name", groups(by_name, CASES))
def test_rows(name):
    check_all(name, by_name, CASES)


def test_lop3_every_table():
    """All 256 functions of three bits: the operands 0xf0, 0xcc, 0xaa give the table itself back."""
    lanes = [(0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA, table) for table in range(256)]
    check("lop3.b32", lambda a, b, c, table: table * 0x01010101, lanes=lanes)


def test_shift_amounts_around_the_width():
    for kind in (*BITS, *SIXES):
        width = bits_of(kind)
        amounts = [0, 1, width - 1, width, width + 1, 2 * width, 2**31, 2**32 - 1]
        values = [1 << width - 1, (1 << width) - 1, 0x55 << 3]
        lanes = list(itertools.product(values, amounts))
        check(f"shr.{kind}", CASES[f"shr.{kind}"], lanes=lanes)
        if kind in BITS:
            check(f"shl.{kind}", CASES[f"shl.{kind}"], lanes=lanes)


def test_smallest_integer_divided_by_minus_one():
    for kind in ("s16", "s32", "s64"):
        width = bits_of(kind)
        lanes = [(1 << width - 1, (1 << width) - 1)]
        check(f"div.{kind}", lambda a, b: a, lanes=lanes)
        check(f"rem.{kind}", lambda a, b: 0, lanes=lanes)
