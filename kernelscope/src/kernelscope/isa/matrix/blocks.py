"""Large products of tensor cores: many sums of one group each, as wgmma computes them.

The numbers are those of tensor_core. There each product is a float64; here products are float32,
which holds them exactly, and the cut terms are integers of 32 bits, which are added exactly. That
takes a quarter of the time. Blocks with infinities, NaN or extreme exponents go the slow way.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from ..narrow.float8 import widen as widen_float8
from .tensor_core import LEAST_OF, NEVER, Accumulation, decode, sum_group

_PRODUCTS = 1 << 17  # at a time: what the cache holds
_SLOW_PRODUCTS = 1 << 15
_EXTREME = 98  # exponents beyond it do not leave room for the scale of a sum in float32
_NOTHING = NEVER // 2  # an exponent below it is that of zeros
_TERM_BITS = 2  # a product of two numbers below 2 is below 4
_SUM_BITS = 31  # of an int32
_F32_EXPONENT, _F32_BIAS, _F32_FRACTION = 0xFF, 127, 23
_I16, _I32, _U32 = np.int16, np.int32, np.uint32


@dataclass(frozen=True)
class Tile:
    """Rows of A or columns of B: (matrices, k, rows) values and exponents, float32 and int16.

    special: is there an infinity or a NaN?
    """

    value: np.ndarray
    exponent: np.ndarray
    special: bool

    def part(self, matrices: slice, rows: slice) -> "Tile":
        some = matrices, slice(None), rows
        return Tile(self.value[some], self.exponent[some], self.special)

    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """Values and exponents as tensor_core has them."""
        return self.value.astype(np.float64), self.exponent


def tile(raw: np.ndarray, kind: str, negated: bool = False) -> Tile:
    """(matrices, k, rows) bits of a type of floats as a Tile."""
    value = _single(np.ascontiguousarray(raw), kind)
    if negated:
        value = -value
    exponent, special = _exponents(value, LEAST_OF[kind])
    return Tile(value, exponent, special)


def _single(raw: np.ndarray, kind: str) -> np.ndarray:
    """Bits of a type as float32, exactly; .tf32 is cut to its 10 bits of fraction."""
    if kind == "bf16":
        return (raw.astype(_U32) << _U32(16)).view(np.float32)
    if kind == "tf32":
        return (raw & _U32(0xFFFFE000)).view(np.float32)
    if kind in ("e4m3", "e5m2"):
        raw = widen_float8(raw.astype(np.uint16), kind, False)
    return raw.view(np.float16).astype(np.float32)


def _exponents(value: np.ndarray, least: int) -> tuple[np.ndarray, bool]:
    """(exponents of float32 numbers, is one of them an infinity or a NaN?)"""
    biased = (value.view(_U32) >> _U32(_F32_FRACTION) & _U32(_F32_EXPONENT)).astype(_I16)
    special = bool(biased.max(initial=0) == _F32_EXPONENT)
    exponent = np.maximum(biased - _I16(_F32_BIAS), _I16(least))
    return np.where(value == 0, _I16(NEVER), exponent), special


class _Scratch:
    """Memory for a block's products that is used again: new pages cost more than the products."""

    def __init__(self):
        self.flat = {kind: np.empty(_PRODUCTS, kind) for kind in (_I16, np.float32, _I32)}

    def of(self, kind, shape: tuple[int, ...]) -> np.ndarray:
        """An array of any values; the next of this type takes its place."""
        return self.flat[kind][: prod(shape)].reshape(shape)


_scratch = _Scratch()


def add_products(a: Tile, b: Tile, c: np.ndarray, kind: str, model: Accumulation) -> np.ndarray:
    """(matrices, m, n) bits of A B + C, each sum of one group.

    a: (matrices, k, m); b: (matrices, k, n); c: (matrices, m, n) bits of C, which has the type
    `kind`, as the result.
    """
    count, k, m = a.value.shape
    n = b.value.shape[2]
    out = np.empty_like(c)
    rows = max(1, min(n, _PRODUCTS // (k * m)))
    some = max(1, _PRODUCTS // (k * m * rows))
    whole = slice(None)
    for first in range(0, count, some):
        matrices = slice(first, first + some)
        left = a.part(matrices, whole)
        for start in range(0, n, rows):
            columns = slice(start, start + rows)
            place = matrices, whole, columns
            out[place] = _add_block(left, b.part(matrices, columns), c[place], kind, model)
    return out


def _add_block(a: Tile, b: Tile, c: np.ndarray, kind: str, model: Accumulation) -> np.ndarray:
    """`add_products` of a block that the cache holds."""
    start = np.ascontiguousarray(c)
    start = start.view(np.float16).astype(np.float32) if kind == "f16" else start.view(np.float32)
    least, special = _exponents(start, LEAST_OF[kind])
    shape = (*a.value.shape, b.value.shape[2])
    exponents = _scratch.of(_I16, shape)
    np.add(a.exponent[:, :, :, None], b.exponent[:, :, None, :], out=exponents)
    top = np.maximum(np.maximum.reduce(exponents, axis=1), least)
    if a.special or b.special or special or _is_extreme(top):
        return _add_slowly(a, b, np.ascontiguousarray(c), kind, model)
    top = np.maximum(top, _I16(-_EXTREME)).astype(_I32)
    bits = model.fraction_bits
    scale = (bits + _F32_BIAS - top << _F32_FRACTION).view(np.float32)
    terms = _scratch.of(np.float32, shape)
    np.multiply(a.value[:, :, :, None], b.value[:, :, None, :], out=terms)
    np.multiply(terms, scale[:, None], out=terms)
    units = _sum_of_cut(terms, bits + _TERM_BITS)
    units += (start * scale).astype(_I32)
    exact = units * (top + 1023 - bits).astype(np.int64).__lshift__(52).view(np.float64)
    if kind == "f16":
        near = exact.astype(np.float16)
        return (near + near.dtype.type(0)).view(np.uint16)  # zero is positive
    kept = ~np.uint64((1 << 52 - model.result_bits) - 1)
    return (exact.view(np.uint64) & kept).view(np.float64).astype(np.float32).view(_U32)


def _is_extreme(top: np.ndarray) -> bool:
    """Is an exponent out of the range that the scales in float32 are for? Zeros do not count."""
    if top.max() > _EXTREME:
        return True
    low = top < -_EXTREME
    return bool(low.any() and (top[low] > _NOTHING).any())


def _sum_of_cut(terms: np.ndarray, bits: int) -> np.ndarray:
    """(matrices, m, n) float64 sums of (matrices, k, m, n) terms below 2**bits, each cut first."""
    count, k, m, n = terms.shape
    cut = _scratch.of(_I32, terms.shape)
    np.copyto(cut, terms, casting="unsafe")
    together = min(k, 1 << _SUM_BITS - 1 - bits)
    parts = cut.reshape(count, k // together, together, m, n)
    return np.add.reduce(parts, axis=2, dtype=_I32).sum(axis=1, dtype=np.float64)


def _add_slowly(a: Tile, b: Tile, c: np.ndarray, kind: str, model: Accumulation) -> np.ndarray:
    """`_add_block` for any numbers, a few rows of A at a time."""
    count, k, m = a.value.shape
    n = b.value.shape[2]
    out = np.empty_like(c)
    (left, low), (right, high) = a.numbers(), b.numbers()
    rows = max(1, _SLOW_PRODUCTS // (count * k * n))
    for first in range(0, m, rows):
        some = slice(first, first + rows)
        total = decode(c[:, some].reshape(count, -1), kind, model)
        with np.errstate(all="ignore"):
            products = left[:, :, some, None] * right[:, :, None, :]
        exponents = low[:, :, some, None] + high[:, :, None, :]
        special = a.special or b.special or total.special
        flat = count, k, -1
        bits = sum_group(
            products.reshape(flat), exponents.reshape(flat), total, kind, special, model
        )
        out[:, some] = bits.reshape(out[:, some].shape)
    return out


def add_integers(a: np.ndarray, b: np.ndarray, c: np.ndarray, saturate: bool) -> np.ndarray:
    """(matrices, m, n) bits of A B + C of integers.

    a: (matrices, m, k); b: (matrices, k, n), int8 or uint8; c: (matrices, m, n) bits of .s32. The
    sums of 32 products are exact in float32.
    """
    total = np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(np.int64)
    total += c.view(_I32)
    if saturate:
        total = np.clip(total, -(1 << 31), (1 << 31) - 1)
    return total.astype(_I32).view(_U32)
