"""The operation table's moves, selections, bit fields, logic, shifts and byte operations."""

import numpy as np

from . import bits, float32
from .row import BITS, INTEGERS, WORDS, Row, plain

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
        return _select(a, b, (float32.flush(c) if ftz else c) >= 0)

    return select


def _funnel(left, clamp):
    return Row("b32", "T T u32 -> T", plain(bits.funnel(left, clamp)))


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
    return _dot(lambda a_signed, b_signed: bits.dot_halves(a_signed, b_signed, high))


def _permutations():
    """prmt; a mode stands behind the type: prmt.b32.f4e."""
    modes = {f"prmt.{mode}": bits.permute(mode) for mode in bits.PERMUTE_MODES}
    return {
        name: (Row("b32", "T T T -> T", plain(pick)),)
        for name, pick in {"prmt": bits.permute(), **modes}.items()
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
    "popc": (Row("b32 b64", "T -> u32", plain(bits.population)),),
    "clz": (Row("b32 b64", "T -> u32", plain(bits.leading_zeros)),),
    "bfind": (Row(WORDS, "T -> u32", plain(bits.find_leading(False))),),
    "bfind.shiftamt": (Row(WORDS, "T -> u32", plain(bits.find_leading(True))),),
    "fns": (Row("b32", "b32 u32 s32 -> b32", plain(bits.find_nth)),),
    "brev": (Row("b32 b64", "T -> T", plain(bits.reverse_bits)),),
    "bfe": (Row(WORDS, "T u32 u32 -> T", plain(bits.extract_field)),),
    "bfi": (Row("b32 b64", "T T u32 u32 -> T", plain(bits.insert_field)),),
    "bmsk.clamp": (Row("b32", "u32 u32 -> T", plain(bits.bit_mask(True))),),
    "bmsk.wrap": (Row("b32", "u32 u32 -> T", plain(bits.bit_mask(False))),),
    "szext.clamp": (Row("s32 u32", "T u32 -> T", plain(bits.extend(True))),),
    "szext.wrap": (Row("s32 u32", "T u32 -> T", plain(bits.extend(False))),),
    "dp4a": _dot(bits.dot_bytes),
    "dp2a.lo": _dot_halves(False),
    "dp2a.hi": _dot_halves(True),
    "and": (Row(f"{BITS} pred", "T T -> T", plain(np.bitwise_and)),),
    "or": (Row(f"{BITS} pred", "T T -> T", plain(np.bitwise_or)),),
    "xor": (Row(f"{BITS} pred", "T T -> T", plain(np.bitwise_xor)),),
    "not": (Row(f"{BITS} pred", "T -> T", plain(np.invert)),),
    "cnot": (Row(BITS, "T -> T", plain(bits.conditional_not)),),
    "lop3": (Row("b32", "T T T u32 -> T", plain(bits.logic3_lanes)),),
    "shl": (Row(BITS, "T u32 -> T", plain(bits.shift_left)),),
    "shr": (Row(f"{BITS} {INTEGERS}", "T u32 -> T", plain(bits.shift_right)),),
    "shf.l.wrap": (_funnel(True, False),),
    "shf.l.clamp": (_funnel(True, True),),
    "shf.r.wrap": (_funnel(False, False),),
    "shf.r.clamp": (_funnel(False, True),),
    **_permutations(),
}
