"""Video instructions of PTX: arithmetic on a byte, a half or all of a word, or on all its parts.

The scalar ones (vadd ... vset) extend what they select of their sources, compute exactly, clamp to
the result's type with .sat, and then apply a second operation with `c`, or put a byte or half of
the result into `c`. The others (vadd2, vadd4 ...) do so for each half or byte; the parts that their
mask leaves out are those of `c`, or with .add all are added to it.

A part of the destination (d.h1) is a modifier here, and so is a mask (d.b20 is `.to20`); `.negab`
and `.negc` stand for the signs of vmad's operands. Parts of sources are selected before, by
select_part and select_parts.
"""

import numpy as np

from ..bits import permute
from ..comparisons import OPERATORS
from ..row import Row

_U32 = np.uint32
_ALL = np.int64(0xFFFFFFFF)
_BOTH = "u32,s32"
_SCALAR_PARTS = "b0 b1 b2 b3 h0 h1"
_HALVES = "to0 to1 to10"
_BYTES = "to0 to1 to10 to2 to20 to21 to210 to3 to30 to31 to310 to32 to320 to321 to3210"
_SECOND = {"add": np.add, "min": np.minimum, "max": np.maximum}
_COMPARISONS = "eq ne lt le gt ge"


# --- parts of a word ------------------------------------------------------------------------------


def place_of(part: str) -> tuple[int, int]:
    """(first bit, width) of the part that a selector such as "b2" or "h1" names; "": the word."""
    if not part:
        return 0, 32
    width = 8 if part[0] == "b" else 16
    return width * int(part[1]), width


def select_part(value, part: str):
    """A byte or half of 32-bit values, extended as their dtype is."""
    start, width = place_of(part)
    kind = value.dtype.type
    return np.right_shift(value << kind(32 - start - width), kind(32 - width))


def select_parts(a, b, part: str):
    """The parts of the two words b:a that a selector such as "h32" or "b7654" lists, as uint32."""
    digits = [int(digit) for digit in reversed(part[1:])]
    if part[0] == "h":
        digits = [2 * digit + high for digit in digits for high in (0, 1)]
    selector = sum(digit << 4 * i for i, digit in enumerate(digits))
    return permute()(a.view(_U32), b.view(_U32), _U32(selector))


def _clamp(value, signed: bool, width: int):
    low = -(1 << width - 1) if signed else 0
    return np.clip(value, low, low + (1 << width) - 1)


def _word(value, kind: str):
    """The low 32 bits of int64 values, as the dtype of "s32" or "u32"."""
    word = (value & _ALL).astype(_U32)
    return word.view(np.int32) if kind == "s32" else word


# --- operations on int64 --------------------------------------------------------------------------


def _average(a, b):
    """Half the sum; a tie goes up where the sum is positive, and down where it is negative."""
    total = a + b
    return np.where(total >= 0, total + 1 >> 1, total >> 1)[()]


def _shift_left(a, b):
    """a << b for b up to 32: what that takes past int64 keeps its sign and its low 32 zeros."""
    far = np.sign(a) << np.int64(40)
    return np.where(b > 31, far, a << np.minimum(b, 31))[()]


_BINARY = {
    "vadd": np.add,
    "vsub": np.subtract,
    "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum,
    "vmax": np.maximum,
}


def _amount(modifiers):
    """The shift's amount: at most 32, or modulo 32."""
    if "clamp" in modifiers:
        return lambda b: np.minimum(b, 32)
    return lambda b: b & 31


def _shifting(shift):
    def make(modifiers):
        amount = _amount(modifiers)
        return lambda a, b: shift(a, amount(b))

    return make


def _comparing(modifiers):
    compare = next(OPERATORS[name] for name in _COMPARISONS.split() if name in modifiers)
    return lambda a, b: compare(a, b).astype(np.int64)


def _scalar(make, result_kind=None):
    """What builds a scalar instruction: make(modifiers) gives the operation on int64."""

    def build(types, modifiers):
        operation, kind = make(modifiers), result_kind or types[0]
        part = next((p for p in _SCALAR_PARTS.split() if p in modifiers), "")
        start, width = place_of(part)
        second = next((_SECOND[name] for name in _SECOND if name in modifiers), None)

        def compute(a, b, c=None):
            value = operation(a.astype(np.int64), b.astype(np.int64))
            if "sat" in modifiers:
                value = _clamp(value, kind == "s32", width)
            if second:
                value = second(value, c.astype(np.int64))
            elif part:
                mask = np.int64((1 << width) - 1 << start)
                value = value << np.int64(start) & mask | c.astype(np.int64) & ~mask
            return _word(value, kind)

        return compute

    return build


def _parts(word, signed: bool, width: int) -> list:
    """The bytes or halves of a word, the lowest first, as int64."""
    top = np.int64(1 << width - 1) if signed else np.int64(0)
    word = word.view(_U32).astype(np.int64)
    mask = np.int64((1 << width) - 1)
    return [((word >> np.int64(i) & mask) ^ top) - top for i in range(0, 32, width)]


def _simd(width: int, make, result_kind=None):
    """What builds an instruction on the parts of words."""

    def build(types, modifiers):
        operation, kind = make(modifiers), result_kind or types[0]
        a_kind, b_kind = types[-2:]
        masks = (_HALVES if width == 16 else _BYTES).split()
        mask = next((m for m in masks if m in modifiers), masks[-1])

        def compute(a, b, c):
            pieces = zip(
                _parts(a, a_kind == "s32", width), _parts(b, b_kind == "s32", width), strict=True
            )
            total = c.astype(np.int64)
            for i, (x, y) in enumerate(pieces):
                if str(i) not in mask[2:]:
                    continue
                value = operation(x, y)
                if "sat" in modifiers:
                    value = _clamp(value, kind == "s32", width)
                if "add" in modifiers:
                    total = total + value
                    continue
                place = np.int64((1 << width) - 1 << width * i)
                total = total & ~place | value << np.int64(width * i) & place
            return _word(total, kind)

        return compute

    return build


def _multiply_add(types, modifiers):
    """vmad: the exact product plus `c`, shifted, and its low 32 bits or clamped."""
    signed = "s32" in types[1:] or bool(modifiers & {"negab", "negc"})
    shift = {"shr7": 7, "shr15": 15}.get(next(iter(modifiers & {"shr7", "shr15"}), ""), 0)

    def compute(a, b, c):
        product = a.astype(object) * b.astype(object)  # up to 66 bits: Python's integers
        c = c.view(np.int32 if signed else _U32).astype(object)
        if "negab" in modifiers:
            product = -product
        elif "negc" in modifiers:
            c = -c
        total = product + c + ("po" in modifiers) >> shift
        if "sat" in modifiers:
            low, high = (-(2**31), 2**31 - 1) if signed else (0, 2**32 - 1)
            total = np.minimum(np.maximum(total, low), high)
        word = np.asarray(total & 0xFFFFFFFF).astype(_U32)[()]
        return word.view(np.int32) if types[0] == "s32" else word

    return compute


# -- rows of the table --------------------------------------------------------------------------
def _scalar_rows(types, a, b, result, build, modifiers="sat"):
    """Rows without `c`, with a second operation on it, and with a part that goes into it."""
    return (
        Row(types, f"{a} {b} -> {result}", build, modifiers),
        Row(types, f"{a} {b} {result} -> {result}", build, f"{modifiers} add min max"),
        Row(types, f"{a} {b} {result} -> {result}", build, f"{modifiers} {_SCALAR_PARTS}"),
    )


def _simd_row(width, types, a, b, result, build, modifiers="sat"):
    masks = _HALVES if width == 16 else _BYTES
    return (Row(types, f"{a} {b} {result} -> {result}", build, f"{modifiers} add {masks}"),)


def _always(operation):
    return lambda modifiers: operation


_TYPES = f"{_BOTH}/{_BOTH}/{_BOTH}"
VIDEO_ROWS: dict[str, tuple[Row, ...]] = {
    **{
        name: _scalar_rows(_TYPES, "A", "T", "D", _scalar(_always(operation)))
        for name, operation in _BINARY.items()
    },
    **{
        name: _scalar_rows(
            f"{_BOTH}/{_BOTH}/u32", "A", "T", "D", _scalar(_shifting(shift)), "sat clamp wrap"
        )
        for name, shift in {"vshl": _shift_left, "vshr": np.right_shift}.items()
    },
    "vset": _scalar_rows(
        f"{_BOTH}/{_BOTH}", "D", "T", "u32", _scalar(_comparing, "u32"), _COMPARISONS
    ),
    "vmad": (Row(_TYPES, "A T D -> D", _multiply_add, "sat shr7 shr15 po negab negc"),),
    **{
        f"{name}{32 // width}": _simd_row(
            width, _TYPES, "A", "T", "D", _simd(width, _always(operation))
        )
        for name, operation in {**_BINARY, "vavrg": _average}.items()
        for width in (16, 8)
    },
    **{
        f"vset{32 // width}": _simd_row(
            width,
            f"{_BOTH}/{_BOTH}",
            "D",
            "T",
            "u32",
            _simd(width, _comparing, "u32"),
            _COMPARISONS,
        )
        for width in (16, 8)
    },
}
