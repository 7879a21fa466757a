"""Shifts, bit fields, logic and byte operations of PTX on NumPy values.

Values are NumPy arrays or scalars of the operand types' own dtypes (isa.DTYPE). Where PTX or the
hardware defines more than the obvious (amounts past the width, bounds of bit fields), the rule
stands beside the function. Nothing writes to its inputs.
"""

import numpy as np

from .float32 import flush
from .row import BITS, INTEGERS, WORDS, Row, plain

_U32 = np.uint32
_U64 = np.uint64


def unsigned(x):
    """The same bits as unsigned integers of the same width."""
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def width(x):
    """The number of bits in one element of `x`."""
    return 8 * x.dtype.itemsize


def shift_left(a, amount):
    """a << amount; amounts past the width give 0."""
    if a.dtype.itemsize == 8:
        return a << amount.astype(a.dtype)
    return _narrow(np.left_shift, a, amount)


def shift_right(a, amount):
    """a >> amount, arithmetic for signed `a`; amounts past the width act as the width."""
    if a.dtype.itemsize == 8:
        return a >> amount.astype(a.dtype)
    return _narrow(np.right_shift, a, amount)


def _narrow(shift, a, amount):
    """Shift 16- and 32-bit values; NumPy itself defines amounts past the width as PTX does."""
    if a.dtype.itemsize == 2:
        amount = np.minimum(amount, _U32(16))
    return shift(a, amount.view(a.dtype) if a.dtype.itemsize == 4 else amount.astype(a.dtype))


def funnel(left, clamp):
    """shf: the 64 bits b:a shifted by c, its upper word (left) or lower word (right)."""

    def shift(a, b, c):
        c = np.minimum(c, _U32(32)) if clamp else c & _U32(31)
        both = (b.astype(_U64) << _U64(32)) | a
        if left:
            return (both << c >> _U64(32)).astype(_U32)
        return (both >> c).astype(_U32)

    return shift


# --- bits -----------------------------------------------------------------------------------------
def reverse_bits(x):
    """brev: bit 0 becomes the top bit."""
    step = 1
    for mask in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F):
        mask, amount = x.dtype.type(mask & (2 ** width(x) - 1)), x.dtype.type(step)
        x = ((x >> amount) & mask) | ((x & mask) << amount)
        step *= 2
    return x.byteswap()


def population(x):
    """popc: the number of one bits, as uint32."""
    return np.bitwise_count(x).astype(_U32)


def _smeared(x):
    """`x` with every bit below its highest one set."""
    for amount in (1, 2, 4, 8, 16, 32)[: width(x).bit_length() - 1]:
        x = x | (x >> x.dtype.type(amount))
    return x


def leading_zeros(x):
    """clz: zero bits above the highest one; the width for 0. Result uint32."""
    return _U32(width(x)) - population(_smeared(x))


def find_leading(shift_amount):
    """bfind: position of the highest bit that is not the sign; all ones if there is none.

    With .shiftamt the result is instead how far to shift left to bring it to the top.
    """

    def find(x):
        if x.dtype.kind == "i":
            x = unsigned(np.where(x < 0, ~x, x)[()])
        position = population(_smeared(x)) - _U32(1)
        if shift_amount:
            return np.where(x == 0, position, _U32(width(x) - 1) - position)[()]
        return position

    return find


def find_nth(mask, base, offset):
    """fns: position of the offset-th one bit of `mask` from `base`, upward or (below 0) downward.

    Offset 0 asks whether bit `base` itself is one. All ones if there is no such bit. An offset of
    -2^31, whose magnitude 32 bits can not hold, gives 0 on an H200.
    """
    position = np.arange(32, dtype=_U32)
    mask, base = np.asarray(mask)[..., None], np.asarray(base)[..., None]
    offset = np.asarray(offset, np.int64)[..., None]
    side = np.where(offset == 0, position == base, position >= base)
    side = np.where(offset < 0, position <= base, side)
    found = ((mask >> position) & _U32(1) == 1) & side & (base < 32)
    upward, downward = found.cumsum(-1), found[..., ::-1].cumsum(-1)[..., ::-1]
    hit = found & (np.where(offset < 0, downward, upward) == np.maximum(np.abs(offset), 1))
    missing = np.where(offset[..., 0] == -(2**31), _U32(0), _U32(0xFFFFFFFF))
    return np.where(hit.any(-1), hit.argmax(-1).astype(_U32), missing)[()]


def _field(a, position, length):
    """(position, length) of a bit field in `a` as the hardware takes them.

    Of a 32-bit field's bounds it reads 8 bits; those of a 64-bit one, which it emulates, whole, so
    that 65 stands for everything past the top.
    """
    if width(a) == 32:
        return position & _U32(255), length & _U32(255)
    return np.minimum(position, _U32(65)), np.minimum(length, _U32(65))


def low_ones(kind, count):
    """`count` (uint32) ones from bit 0, at most the whole width, as unsigned NumPy type `kind`."""
    bits = 8 * np.dtype(kind).itemsize
    count = np.minimum(count, _U32(bits)).astype(kind)
    short = (kind(1) << np.minimum(count, kind(bits - 1))) - kind(1)
    return np.where(count == kind(bits), ~kind(0), short)[()]


def extract_field(a, position, length):
    """bfe: `length` bits of `a` from `position`, sign-extended for signed `a`.

    Bits past the top repeat the sign (0 when unsigned).
    """
    bits, word = width(a), unsigned(a)
    kind = word.dtype.type
    position, length = _field(a, position, length)
    start = np.minimum(position, _U32(bits))
    field = (word >> start.astype(kind)) & low_ones(kind, length)
    if a.dtype.kind == "u":
        return field
    top = np.minimum(position + length - _U32(1), _U32(bits - 1)).astype(kind)
    negative = ((word >> top) & kind(1) == 1) & (length > 0)
    not_filled = ~low_ones(kind, np.minimum(length, _U32(bits) - start))
    return np.where(negative, field | not_filled, field)[()].view(a.dtype)


def insert_field(a, b, position, length):
    """bfi: `b` with its `length` bits from `position` replaced by the low bits of `a`."""
    position, length = _field(a, position, length)
    mask = field_mask(a.dtype.type, position, length)
    return (b & ~mask) | (shift_left(a, position) & mask)


def field_mask(kind, position, length):
    """`length` ones from bit `position`, cut off at the top, as NumPy type `kind`."""
    past = _U32(8 * np.dtype(kind).itemsize)
    return np.left_shift(low_ones(kind, length), np.minimum(position, past).astype(kind))


def bit_mask(clamp):
    """bmsk: `b` ones from bit `a`; both clamped to 32, or taken modulo 32."""

    def mask(a, b):
        if not clamp:
            a, b = a & _U32(31), b & _U32(31)
        return field_mask(_U32, a, b)

    return mask


def extend(clamp):
    """szext: the low `b` bits of `a`, sign- or zero-extended to 32."""

    def extended(a, b):
        b = np.minimum(b, _U32(32)) if clamp else b & _U32(31)
        up = (_U32(32) - b).astype(_U64)
        shifted = (a.astype(np.int64) << up.view(np.int64)).astype(a.dtype)
        out = np.right_shift(shifted.astype(np.int64), up.view(np.int64))
        return out.astype(a.dtype)

    return extended


def conditional_not(a):
    """cnot: 1 where `a` is 0, else 0."""
    return (a == 0).astype(a.dtype)


def logic3(table):
    """lop3: any function of three bits; bit 4a + 2b + c of `table` is its value."""

    def combine(a, b, c):
        out = a ^ a
        for row in range(8):
            if table >> row & 1:
                term = (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
                out = out | term
        return out

    return combine


def logic3_lanes(a, b, c, table):
    """lop3 with its table as an operand (uint32); an immediate arrives here as a scalar."""
    if not isinstance(table, np.ndarray):
        return logic3(int(table) & 255)(a, b, c)
    out = a & _U32(0)
    for row in range(8):
        term = (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        out = out | (term * (table >> _U32(row) & _U32(1)))
    return out


# --- bytes ----------------------------------------------------------------------------------------

# byte chosen by each selector mode for c = 0..3, lowest byte first (PTX ISA, prmt)
PERMUTE_MODES = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0,) * 4, (1,) * 4, (2,) * 4, (3,) * 4),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


def permute(mode=None):
    """prmt: four bytes picked from the eight of b:a by `c`, or by a mode and c's low two bits.

    Without a mode each nibble of c picks a byte; its bit 3 replicates that byte's sign instead.
    """
    selectors = None
    if mode:
        packed = [sum(byte << 4 * i for i, byte in enumerate(row)) for row in PERMUTE_MODES[mode]]
        selectors = np.array(packed, _U32)

    def pick(a, b, c):
        if selectors is not None:
            c = selectors[c & _U32(3)]
        if isinstance(c, np.ndarray):
            return _pick_lanes(a, b, c)
        nibbles = [int(c) >> 4 * i & 15 for i in range(4)]
        return sum(
            (_pick_byte(a, b, nibble) << _U32(8 * i) for i, nibble in enumerate(nibbles)), _U32(0)
        )

    return pick


def _pick_byte(a, b, nibble):
    """The byte of b:a that one selector nibble, the same in all lanes, asks for."""
    word, up = b if nibble & 4 else a, 24 - 8 * (nibble & 3)
    if nibble & 8:
        return ((word << _U32(up)) >> _U32(31)) * _U32(255)
    return (word >> _U32(24 - up)) & _U32(255)


def _pick_lanes(a, b, c):
    both, out = (b.astype(_U64) << _U64(32)) | a, _U32(0)
    for i in range(4):
        nibble = c >> _U32(4 * i)
        byte = (both >> ((nibble & _U32(7)) * _U32(8)).astype(_U64)).astype(_U32) & _U32(255)
        sign = (byte >> _U32(7)) * _U32(255)
        byte = np.where(nibble & _U32(8), sign, byte)[()]
        out = out | (byte << _U32(8 * i))
    return out


def dot_bytes(a_signed, b_signed):
    """dp4a: c plus the four products of the bytes of `a` and `b`."""

    def dot(a, b, c):
        total = c
        for i in range(4):
            total = total + _piece(a, i, 8, a_signed, c) * _piece(b, i, 8, b_signed, c)
        return total

    return dot


def dot_halves(a_signed, b_signed, high):
    """dp2a: c plus the products of a's two 16-bit halves with b's two low (or high) bytes."""
    first = 2 if high else 0

    def dot(a, b, c):
        total = c
        for i in range(2):
            total = total + _piece(a, i, 16, a_signed, c) * _piece(b, first + i, 8, b_signed, c)
        return total

    return dot


def _piece(word, index, bits, signed, like):
    """Piece `index` of `bits` bits of a 32-bit word, extended to like's dtype."""
    up = 32 - bits * (index + 1)
    word = word.view(np.int32 if signed else _U32)
    kind = word.dtype.type
    return np.right_shift(word << kind(up), kind(32 - bits)).view(like.dtype)


def pack(dtype: np.dtype, parts: tuple):
    """Join parts into one wider value, the first in the low bits."""
    bits = 8 * dtype.itemsize // len(parts)
    whole = parts[0].astype(dtype)
    for i, part in enumerate(parts[1:], 1):
        whole = whole | (part.astype(dtype) << dtype.type(bits * i))
    return whole


def unpack(value, count: int) -> list:
    """Cut a value into `count` unsigned parts, the low bits first."""
    size = value.dtype.itemsize // count
    kind = np.dtype(f"u{size}")
    return [(value >> value.dtype.type(8 * size * i)).astype(kind) for i in range(count)]


# -- rows of the table --------------------------------------------------------------------------
_ANY = f"{BITS} {INTEGERS} f32 f64"
_ANY_OF = _ANY.replace(" ", ",")


def _select(a, b, chosen):
    if isinstance(chosen, np.ndarray):
        return np.where(chosen, a, b)
    return a if chosen else b


def _sign_select(types, modifiers):
    """slct: a where c >= 0 (-0.0 counts, NaN does not), else b."""
    ftz = "ftz" in modifiers

    def select(a, b, c):
        return _select(a, b, (flush(c) if ftz else c) >= 0)

    return select


def _funnel(left, clamp):
    return Row("b32", "T T u32 -> T", plain(funnel(left, clamp)))


def _dot(make):
    """dp4a and dp2a: c and the result are signed where a or b is; make(a signed, b signed)."""

    def build(types, modifiers):
        return make(*(kind == "s32" for kind in types))

    return tuple(
        Row(f"{a}/{b}", f"{a} {b} {total} -> {total}", build)
        for a, b, total in (
            ("s32", "s32", "s32"),
            ("s32", "u32", "s32"),
            ("u32", "s32", "s32"),
            ("u32", "u32", "u32"),
        )
    )


def _dot_halves(high):
    return _dot(lambda a_signed, b_signed: dot_halves(a_signed, b_signed, high))


def _permutations():
    """prmt; a mode stands behind the type: prmt.b32.f4e."""
    modes = {f"prmt.{mode}": permute(mode) for mode in PERMUTE_MODES}
    return {
        name: (Row("b32", "T T T -> T", plain(pick)),)
        for name, pick in {"prmt": permute(), **modes}.items()
    }


def _identity(x):
    return x


BIT_ROWS: dict[str, tuple[Row, ...]] = {
    "mov": (Row(f"{_ANY} pred", "T -> T", plain(_identity)),),
    "selp": (Row(_ANY, "T T pred -> T", plain(_select)),),
    "slct": (
        Row(f"{_ANY_OF}/s32", "D D T -> D", _sign_select),
        Row(f"{_ANY_OF}/f32", "D D T -> D", _sign_select, "ftz"),
    ),
    "popc": (Row("b32 b64", "T -> u32", plain(population)),),
    "clz": (Row("b32 b64", "T -> u32", plain(leading_zeros)),),
    "bfind": (Row(WORDS, "T -> u32", plain(find_leading(False))),),
    "bfind.shiftamt": (Row(WORDS, "T -> u32", plain(find_leading(True))),),
    "fns": (Row("b32", "b32 u32 s32 -> b32", plain(find_nth)),),
    "brev": (Row("b32 b64", "T -> T", plain(reverse_bits)),),
    "bfe": (Row(WORDS, "T u32 u32 -> T", plain(extract_field)),),
    "bfi": (Row("b32 b64", "T T u32 u32 -> T", plain(insert_field)),),
    "bmsk.clamp": (Row("b32", "u32 u32 -> T", plain(bit_mask(True))),),
    "bmsk.wrap": (Row("b32", "u32 u32 -> T", plain(bit_mask(False))),),
    "szext.clamp": (Row("s32 u32", "T u32 -> T", plain(extend(True))),),
    "szext.wrap": (Row("s32 u32", "T u32 -> T", plain(extend(False))),),
    "dp4a": _dot(dot_bytes),
    "dp2a.lo": _dot_halves(False),
    "dp2a.hi": _dot_halves(True),
    "and": (Row(f"{BITS} pred", "T T -> T", plain(np.bitwise_and)),),
    "or": (Row(f"{BITS} pred", "T T -> T", plain(np.bitwise_or)),),
    "xor": (Row(f"{BITS} pred", "T T -> T", plain(np.bitwise_xor)),),
    "not": (Row(f"{BITS} pred", "T -> T", plain(np.invert)),),
    "cnot": (Row(BITS, "T -> T", plain(conditional_not)),),
    "lop3": (Row("b32", "T T T u32 -> T", plain(logic3_lanes)),),
    "shl": (Row(BITS, "T u32 -> T", plain(shift_left)),),
    "shr": (Row(f"{BITS} {INTEGERS}", "T u32 -> T", plain(shift_right)),),
    "shf.l.wrap": (_funnel(True, False),),
    "shf.l.clamp": (_funnel(True, True),),
    "shf.r.wrap": (_funnel(False, False),),
    "shf.r.clamp": (_funnel(False, True),),
    **_permutations(),
}
