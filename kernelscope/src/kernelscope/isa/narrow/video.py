"""Video instructions of PTX: arithmetic on a byte, a half or all of a word, or on all its parts.

The scalar ones (vadd ... vset) extend what they select of their sources, compute exactly, clamp to
the result's type with .sat, and then apply a second operation with `c`, or put a byte or half of
the result into `c`. The others (vadd2, vadd4 ...) do so for each half or byte; the parts that their
mask leaves out are those of `c`, or with .add all are added to it.

That is what the manual says. GPUs since Volta have no such scalar units: ptxas writes several
instructions for each, and what these compute differs. The functions here do what an H200 does:

- .sat on a u32 clamps only at zero: a larger result loses its upper bits. (The manual: 2**32 - 1.)
- .sat with a byte or half as the destination gives the part's largest value for every result that
  is not between zero and it, negative ones included. (The manual: the part's least value for
  those below that.)
- .sat on vshl and vshr takes bit 33 of the shifted value as its sign. (The manual: no result wraps
  before it is clamped.) The clamp is that of 32 bits even where the destination is a part.
- d.h1 receives bits 16 to 31 of the result. (The manual: its low 16 bits, as all other parts do.)
- .min and .max of vadd and vsub, and of shifts with .sat, see the 32-bit result extended by its top
  bit; those of the others see 64 bits. A u32 destination compares them as unsigned, an s32
  destination as signed numbers. (The manual: the exact result, as a number of that type.) For vset
  that type is the first source's.
- vmad with .sat, a shift or a sign multiplies and adds all operands as s32. (The manual: each as
  its type says.) Without any of these only the low 32 bits count, and they are the same.

A part of the destination (d.h1) is a modifier here, and so is a mask (d.b20 is `.to20`); `.negab`
and `.negc` stand for the signs of vmad's operands. Parts of sources are selected before, by
select_part and select_parts.
"""

import numpy as np

from ...errors import UnknownInstruction
from ..bits import permute
from ..comparisons import OPERATORS
from ..row import Row

_U32 = np.uint32
_ALL = np.int64(0xFFFFFFFF)
_BOTH = "u32,s32"
_SCALAR_PARTS = "b0 b1 b2 b3 h0 h1"
_HALVES = "to0 to1 to10"
_BYTES = "to0 to1 to10 to2 to20 to21 to210 to3 to30 to31 to310 to32 to320 to321 to3210"
_SECOND = {"min": np.minimum, "max": np.maximum}
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


_SUMS = ("vadd", "vsub")
_SHIFTS = {"vshl": np.left_shift, "vshr": np.right_shift}
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
    compare = next((OPERATORS[name] for name in _COMPARISONS.split() if name in modifiers), None)
    if compare is None:
        raise UnknownInstruction(f"vset takes one of .{', .'.join(_COMPARISONS.split())}")
    return lambda a, b: compare(a, b).astype(np.int64)


def _scalar(make, name: str):
    """Return the builder of a scalar instruction; make(modifiers) gives its int64 operation."""

    def build(types, modifiers):
        operation, signed = make(modifiers), types[0] == "s32"
        part = next((p for p in _SCALAR_PARTS.split() if p in modifiers), "")
        clamp = _saturation(name, signed, part) if "sat" in modifiers else None
        second = next((_SECOND[word] for word in _SECOND if word in modifiers), None)
        narrow = name in _SUMS or name in _SHIFTS and clamp is not None

        def compute(a, b, c=None):
            value = operation(a.astype(np.int64), b.astype(np.int64))
            if clamp:
                value = clamp(value)
            if "add" in modifiers:
                value = value + c
            elif second:
                value = _second(second, _sign_extended(value, 32) if narrow else value, c, signed)
            elif part:
                value = _into(part, value, c)
            return _word(value, "u32" if name == "vset" else types[0])

        return compute

    return build


def _sign_extended(value, width: int):
    """The low `width` bits of int64 values as signed numbers."""
    rest = np.int64(64 - width)
    return value << rest >> rest


def _saturation(name: str, signed: bool, part: str):
    """What .sat makes of int64 values."""
    if name in _SHIFTS:
        return lambda value: _clamp(_sign_extended(value, 34), signed, 32)
    if part:
        most = np.int64((1 << place_of(part)[1] - signed) - 1)
        return lambda value: np.where((value < 0) | (value > most), most, value)[()]
    if signed:
        return lambda value: _clamp(value, True, 32)
    return lambda value: np.maximum(value, 0)


def _second(choose, value, c, signed: bool):
    """The lesser or greater of int64 values and the words `c`, both of 64 bits."""
    if signed:
        return choose(value, c.view(np.int32).astype(np.int64))
    return choose(value.view(np.uint64), c.astype(np.uint64)).view(np.int64)


def _into(part: str, value, c):
    """The words `c` with the value's low bits in a part; in h1 it is the bits 16 to 31."""
    start, width = place_of(part)
    mask = np.int64((1 << width) - 1 << start)
    moved = value if part == "h1" else value << np.int64(start)
    return moved & mask | c.astype(np.int64) & ~mask


def _parts(word, signed: bool, width: int) -> list:
    """The bytes or halves of a word, the lowest first, as int64."""
    top = np.int64(1 << width - 1) if signed else np.int64(0)
    word = word.view(_U32).astype(np.int64)
    mask = np.int64((1 << width) - 1)
    return [((word >> np.int64(i) & mask) ^ top) - top for i in range(0, 32, width)]


def _simd(width: int, make, result_kind=None):
    """Return the builder of an instruction on the parts of words."""

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
    """vmad: the product plus `c` in 64 bits, shifted, and its low 32 bits or clamped."""
    signed = "s32" in types[1:] or bool(modifiers & {"negab", "negc"})
    shift = {"shr7": 7, "shr15": 15}.get(next(iter(modifiers & {"shr7", "shr15"}), ""), 0)

    def compute(a, b, c):
        a, b, c = (x.view(np.int32).astype(np.int64) for x in (a, b, c))
        product, c = (-a if "negab" in modifiers else a) * b, -c if "negc" in modifiers else c
        total = product + c + ("po" in modifiers)
        if shift and not signed:
            total = (total.view(np.uint64) >> np.uint64(shift)).view(np.int64)
        else:
            total = total >> np.int64(shift)
        return _word(_clamp(total, signed, 32) if "sat" in modifiers else total, types[0])

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
        name: _scalar_rows(_TYPES, "A", "T", "D", _scalar(_always(operation), name))
        for name, operation in _BINARY.items()
    },
    **{
        name: _scalar_rows(
            f"{_BOTH}/{_BOTH}/u32", "A", "T", "D", _scalar(_shifting(shift), name), "sat clamp wrap"
        )
        for name, shift in _SHIFTS.items()
    },
    "vset": _scalar_rows(
        f"{_BOTH}/{_BOTH}", "D", "T", "u32", _scalar(_comparing, "vset"), _COMPARISONS
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
