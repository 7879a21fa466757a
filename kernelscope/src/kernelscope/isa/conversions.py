"""cvt: every conversion between integers and floats, with PTX's rounding and saturation.

A conversion is built once, at decode, from the two type names and the modifiers, and then maps
NumPy values of the source's dtype to the result's (see isa.DTYPE). Rules from the PTX ISA's
section on cvt:

- Float to integer always saturates. NaN gives 0, except where the source is .f64 or the result has
  64 bits: there it gives the pattern with only the top bit set.
- Integer to integer wraps, or with .sat clamps.
- A NaN becomes the canonical one (0x7fffffff, 0x7fff) when .f32 is narrowed or flushed and when
  .f16 is widened to .f32; from and to .f64 its sign and payload stay, as H200 hardware does it.
"""

import functools
import itertools

import numpy as np

from . import float16, float32
from .narrow import FLOAT8_ROWS, TO_FLOAT8_ROWS
from .row import ROUNDING, Row, plain, rounding

_INTEGER = {
    f"{k}{w}": np.dtype(f"{'i' if k == 's' else 'u'}{w // 8}")
    for k in "su"
    for w in (8, 16, 32, 64)
}
_ROUNDERS = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_U32 = np.uint32


def conversion(target, source, modifiers):
    """The function of ``cvt.<modifiers>.<target>.<source>``; modifiers is a set of names."""
    mode = next((m for m in ("rz", "rm", "rp", "rna") if m in modifiers), "rn")
    integral = next((_ROUNDERS[m] for m in _ROUNDERS if m in modifiers), None)
    ftz, sat, relu = (name in modifiers for name in ("ftz", "sat", "relu"))
    if source in _INTEGER:
        if target in _INTEGER:
            return _integer_to_integer(target, sat)
        return _integer_to_float(target, mode, sat)
    if target in _INTEGER:
        return _float_to_integer(target, source, integral or np.trunc, ftz)
    if source == target and integral:
        return _float_to_integral(target, integral, ftz, sat)
    return _float_to_float(target, source, mode, ftz, sat, relu)


# --- integers -------------------------------------------------------------------------------------
def _integer_to_integer(target, sat):
    dtype = _INTEGER[target]
    if not sat:
        return lambda x: x.astype(dtype)
    limits = np.iinfo(dtype)

    def clamped(x):
        own = np.iinfo(x.dtype)
        low, high = max(limits.min, own.min), min(limits.max, own.max)
        return np.clip(x, x.dtype.type(low), x.dtype.type(high)).astype(dtype)

    return clamped


def _nearest_and_rest(x):
    """A 64-bit integer as the nearest float64 and what that leaves out, both exact."""
    shift = x.dtype.type(32)
    high = (x >> shift).astype(np.float64) * 2.0**32
    low = (x & x.dtype.type(0xFFFFFFFF)).astype(np.float64)
    return float32.two_sum(high, low)


def _exact(x):
    """Integer `x` as float64, exact for 32 bits, else rounded to odd."""
    if x.dtype.itemsize < 8:
        return x.astype(np.float64)
    return float32.round_to_odd(*_nearest_and_rest(x))


def _integer_to_float(target, mode, sat):
    dtype = {"f32": np.float32, "f64": np.float64}.get(target)

    def convert(x):
        if mode == "rn" and dtype:
            out = x.astype(dtype)
        elif target == "f64":
            wide = x.dtype.itemsize == 8
            out = float32.step(*_nearest_and_rest(x), mode) if wide else x.astype(np.float64)
        elif target == "f32":
            out = float32.round_f32(_exact(x), mode)
        else:
            return float16.clamp(float16.narrow(_exact(x), target, mode), target, sat, False)
        return float32.saturate(out) if sat else out

    return convert


# --- floats to integers ---------------------------------------------------------------------------
def _as_double(x, source, ftz):
    if source in ("f16", "bf16"):
        return float16.widen(x, source)
    if source == "f32":
        x = float32.flush(x) if ftz else x
        return x.astype(np.float64)
    return x


def _float_to_integer(target, source, integral, ftz):
    dtype = _INTEGER[target]
    limits = np.iinfo(dtype)
    top_bit = source == "f64" or dtype.itemsize == 8
    nan = dtype.type(top_bit and (limits.min or 2 ** (limits.bits - 1)))
    # 2^bits, the first float64 too large: the largest 64-bit integers are no float64 themselves
    beyond = np.float64(limits.max + 1)

    def convert(x):
        whole = integral(_as_double(x, source, ftz))
        inside = (whole >= limits.min) & (whole < beyond)
        out = np.where(inside, whole, 0.0).astype(dtype)
        if np.all(inside):
            return out[()]
        edge = np.where(whole > 0, dtype.type(limits.max), dtype.type(limits.min))
        return np.where(inside, out, np.where(np.isnan(whole), nan, edge))[()]

    return convert


def _float_to_integral(kind, integral, ftz, sat):
    def convert(x):
        if kind in ("f16", "bf16"):
            bits = float16.narrow(integral(float16.widen(x, kind)), kind)
            return float16.clamp(bits, kind, sat, False)
        out = integral(float32.flush(x) if ftz else x)
        out = float32.canonical(out) if kind == "f32" else out
        return float32.saturate(out) if sat else out

    return convert


# --- floats to floats -----------------------------------------------------------------------------
def _float_to_float(target, source, mode, ftz, sat, relu):
    if target == "tf32":
        return _to_tf32(mode, relu)
    if target in ("f16", "bf16"):
        return _to_half(target, source, mode, ftz, sat, relu)
    if target == "f64":
        convert = _to_double(source, ftz)
    else:
        convert = _to_single(source, mode, ftz)
    return (lambda x: float32.saturate(convert(x))) if sat else convert


def _to_half(target, source, mode, ftz, sat, relu):
    # hardware does not flush here: .ftz could matter for directed roundings only
    def convert(x):
        if source == "f32" and target == "f16" and mode == "rn":
            bits = x.astype(np.float16).view(np.uint16)
            return float16.clamp(float16.canonical(bits, target), target, sat, relu)
        x = _as_double(x, source, False)
        bits = float16.narrow(x, target, mode)
        if source == "f64":
            bits = np.where(np.isnan(x), float16.truncate_nan(x, target), bits)[()]
        return float16.clamp(bits, target, sat, relu)

    return convert


def _to_double(source, ftz):
    # multiplying by one makes signaling NaN quiet
    if ftz and source == "f32":
        return lambda x: float32.canonical(float32.flush(x)).astype(np.float64)
    return lambda x: _as_double(x, source, ftz) * np.float64(1)


def _to_single(source, mode, ftz):
    if source in ("f16", "bf16"):
        widen = functools.partial(float16.widen_single, kind=source)
        return (lambda x: float32.canonical(float32.flush(widen(x)))) if ftz else widen
    if source == "f32":
        return (lambda x: float32.canonical(float32.flush(x))) if ftz else (lambda x: x)

    def convert(x):
        out = float32.round_f32(x, mode)
        return float32.flush_result(out, lambda x: x, mode, (x,)) if ftz else out

    return convert


def _to_tf32(mode, relu):
    """tf32 keeps 10 bits of fraction in the upper 19 bits of a word; rna rounds ties away from
    zero.

    Hardware makes NaN 0x7fffe000, but under rna only cuts it.
    """

    def convert(x):
        bits = x.view(_U32)
        if mode == "rz":
            rounded = bits
        elif mode == "rna":
            rounded = np.where(np.isfinite(x), bits + _U32(0x1000), bits)[()]
        else:
            rounded = bits + _U32(0xFFF) + ((bits >> _U32(13)) & _U32(1))
        out = rounded & _U32(0xFFFFE000)
        if relu:
            out = np.where(np.signbit(x), _U32(0), out)[()]
        return out if mode == "rna" else np.where(np.isnan(x), _U32(0x7FFFE000), out)[()]

    return convert


# -- rows of the table --------------------------------------------------------------------------
def _convert(types, modifiers):
    return conversion(*types, modifiers)


def _convert_pair(types, modifiers):
    """cvt.f16x2.f32 d, a, b: `a` to the upper half, `b` to the lower (or bf16x2)."""
    mode, relu = rounding(modifiers), "relu" in modifiers
    one = _float_to_float(types[0][:-2], "f32", mode, False, False, relu)
    return lambda a, b: float16.pack(one(a), one(b))


def _packed(name):
    """cvt.pack: `a` and `b` clamped, side by side at the bottom, and what is left of `c` above."""
    width = int(name[1:])
    low = -(1 << width - 1) if name[0] == "s" else 0
    mask = _U32((1 << width) - 1)

    def part(x):
        return np.clip(x, np.int32(low), np.int32(low + int(mask))).view(_U32) & mask

    def pack(a, b, c=None):
        both = part(a) << _U32(width) | part(b)
        return both if c is None else c << _U32(2 * width) | both

    return pack


def _clamped_pairs():
    """The integer conversions for which .sat means something: some source values do not fit."""
    kinds = [f"{sign}{width}" for sign in "us" for width in (8, 16, 32, 64)]
    pairs = []
    for target, source in itertools.product(kinds, kinds):
        bits, own = int(target[1:]), int(source[1:])
        fits = bits >= own if target[0] == source[0] else target[0] == "s" and bits > own
        pairs += [] if fits else [f"{target}/{source}"]
    return " ".join(pairs)


_WHOLE = "u8,u16,u32,u64,s8,s16,s32,s64"
_WIDE = "u16,u32,u64,s16,s32,s64"  # bf16 converts to and from these only
_TO_INTEGER = "rni rzi rmi rpi"

CONVERSION_ROWS: dict[str, tuple[Row, ...]] = {
    "cvt": (
        Row(f"{_WHOLE}/{_WHOLE}", "T -> D", _convert),
        Row(_clamped_pairs(), "T -> D", _convert, "sat"),
        Row(f"f16,f32,f64/{_WHOLE}", "T -> D", _convert, f"{ROUNDING} sat"),
        Row(f"bf16/{_WIDE}", "T -> D", _convert, ROUNDING),
        Row(f"{_WHOLE}/f16,f32,f64", "T -> D", _convert, f"{_TO_INTEGER} ftz sat"),
        Row(f"{_WIDE}/bf16", "T -> D", _convert, _TO_INTEGER),
        Row("tf32/f32", "T -> b32", _convert, "rna rn rz relu"),
        Row("f16/f32,f64", "T -> D", _convert, f"{ROUNDING} ftz sat relu"),
        Row("bf16/f32,f64", "T -> D", _convert, f"{ROUNDING} relu"),
        Row("f16/bf16 bf16/f16", "T -> D", _convert, ROUNDING),
        Row("f32/f64", "T -> D", _convert, f"{ROUNDING} ftz sat"),
        Row("f32,f64/f16 f64/f32", "T -> D", _convert, "ftz sat"),
        Row("f32,f64/bf16", "T -> D", _convert, "ftz"),
        Row("f32/f32", "T -> D", _convert, f"{_TO_INTEGER} ftz sat"),
        Row("f16/f16 f64/f64", "T -> D", _convert, f"{_TO_INTEGER} sat"),
        Row("bf16/bf16", "T -> D", _convert, _TO_INTEGER),
        Row("f16x2,bf16x2/f32", "T T -> D", _convert_pair, "rn rz relu"),
        *FLOAT8_ROWS,
    ),
    "cvt.rn.satfinite": TO_FLOAT8_ROWS,
    "cvt.pack.sat": (
        Row("u16,s16/s32", "T T -> b32", lambda types, _: _packed(types[0])),
        Row("u8,s8/s32/b32", "s32 s32 b32 -> b32", lambda types, _: _packed(types[0])),
    ),
    **{
        f"cvt.pack.sat.{name}": (Row("s32/b32", "D D T -> b32", plain(_packed(name))),)
        for name in ("u4", "s4", "u2", "s2")
    },
}
