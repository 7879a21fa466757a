"""How tensor cores add: products of a group are aligned, truncated and summed at once.

Each product is exact. The exponents of a group's products and of the sum so far (those of the
operands added, not of the normalised product) give the largest one; every term is cut to
`fraction_bits` below it, toward zero; the cut terms are added exactly; the result is cut to .f32
toward zero, or rounded to the nearest .f16. This is what Fasi, Higham, Mikaitis and Pranesh,
"Numerical behavior of NVIDIA tensor cores" (PeerJ Computer Science 7:e330, 2021) find, and the
number of bits and the size of groups are those of Xie et al., "MMA-Sim: Bit-Accurate Reference
Model of Tensor Cores and Matrix Cores" (arXiv:2511.10909): `SM_90`, `SM_80` and `WGMMA_FLOAT8`
below. Zeros align nothing, and a sum of zero is positive.

Integers are exact and wrap or clamp at the end; .f64 is a chain of fused multiply-adds. Where
ptxas makes several instructions, their sums follow one another: see Multiplication.

`SM_90` computes the bits of an H200 for each product that `kernelscope.differential` tries (22
November 2026; tests/differential has their checksums). `SM_80` and `WGMMA_FLOAT8` have not been
compared with a GPU.
"""

from dataclasses import dataclass, field

import numpy as np

from .. import float16
from ..float64 import fma_f64
from ..narrow.float8 import widen as widen_float8

LEAST = -126  # exponent of a sum of zero
NEVER = -10000  # exponent of a zero operand: its products align nothing
_U32 = np.uint32
_TF32 = _U32(0xFFFFE000)
LEAST_OF = {"f16": -14, "bf16": -126, "tf32": -126, "f32": -126, "e4m3": -6, "e5m2": -14}
_RAW = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_BLOCK = 1 << 16  # products at a time: what the cache holds


@dataclass(frozen=True)
class Accumulation:
    """How one generation adds.

    fraction_bits: kept of each term, below the largest exponent; group_bytes: operand bytes of a
    row that are summed at once (32 bytes are 16 numbers of .f16, 8 of .tf32); rounding: of a sum to
    .f32, "rz" or "rn"; overflow_to_infinity: of a sum from 2^128 on, else the largest number;
    zeros_align: a zero counts with the least exponent of its type, else it aligns nothing;
    result_bits: of the fraction of a sum in .f32 that is cut, the others are zero.
    """

    fraction_bits: int = 25
    group_bytes: int = 32
    rounding: str = "rz"
    overflow_to_infinity: bool = True
    zeros_align: bool = False
    result_bits: int = 23


SM_90 = Accumulation()
WGMMA_FLOAT8 = Accumulation(fraction_bits=13, result_bits=13)  # of wgmma with 8-bit floats
SM_80 = Accumulation(fraction_bits=24, group_bytes=16)


@dataclass(frozen=True)
class Numbers:
    """Elements of a fragment: (warps, elements) values and exponents, float64 and int16.

    special: is there an infinity or a NaN? spread: what `spread_over` has made of them.
    """

    value: np.ndarray
    exponent: np.ndarray
    special: bool
    spread: dict = field(default_factory=dict)

    def spread_over(self, order: np.ndarray, shape: tuple[int, ...]) -> tuple:
        """(values, exponents) of elements in an `order`, in this shape; kept for the next time."""
        if id(order) not in self.spread:
            value = self.value.take(order, axis=1).reshape(shape)
            exponent = None
            if self.exponent.size:
                exponent = self.exponent.take(order, axis=1).reshape(shape)
            self.spread[id(order)] = order, value, exponent
        return self.spread[id(order)][1:]


def decode(raw: np.ndarray, kind: str, model: Accumulation = SM_90) -> Numbers:
    """(warps, elements) bits of `kind` as numbers."""
    value = widen(raw, kind)
    if kind in ("s8", "u8", "s32", "f64"):
        return Numbers(value, np.zeros(0, np.int16), False)
    bits = value.view(np.int64) >> 52 & 0x7FF
    special = bool((bits == 0x7FF).any())
    exponent = np.maximum(bits - 1023, LEAST_OF[kind])
    if not model.zeros_align:
        exponent = np.where(value == 0, NEVER, exponent)
    return Numbers(value, exponent.astype(np.int16), special)


def widen(raw: np.ndarray, kind: str) -> np.ndarray:
    """Bits of `kind` as float64, exactly; .tf32 is cut to its 10 bits of fraction."""
    if kind in ("f16", "bf16"):
        return float16.widen(raw, kind)
    if kind in ("s8", "s32"):
        return raw.view(f"i{raw.itemsize}").astype(np.float64)
    if kind == "u8":
        return raw.astype(np.float64)
    if kind in ("e4m3", "e5m2"):
        return float16.widen(widen_float8(raw.astype(np.uint16), kind, False), "f16")
    if kind == "f64":
        return raw.view(np.float64)
    return (raw & _TF32 if kind == "tf32" else raw).view(np.float32).astype(np.float64)


def multiply(form, a: Numbers, b: Numbers, c: np.ndarray, model: Accumulation = SM_90):
    """D's fragments, (warps, elements) bits, from A's and B's and the bits of C's.

    form: the Multiplication. Warps are independent.
    """
    m, n, k = form.shape
    out = np.empty((c.shape[0], form.order_d.size), _RAW[form.d.bits])
    step = max(1, _BLOCK // (m * n * k))
    for first in range(0, c.shape[0], step):
        some = slice(first, first + step)
        part = [
            Numbers(x.value[some], x.exponent[some], x.special) if step < c.shape[0] else x
            for x in (a, b)
        ]
        out[some] = _multiply(form, *part, c[some], model).take(form.order_d, axis=1)
    return out


def _multiply(form, a: Numbers, b: Numbers, c: np.ndarray, model: Accumulation) -> np.ndarray:
    """(warps, m * n) bits of D."""
    m, n, k = form.shape
    warps, kind = c.shape[0], form.a.kind
    spread = (warps, k, m * n)
    left, exponent = a.spread_over(form.spread_a, spread)
    right, more = b.spread_over(form.spread_b, spread)
    c = np.ascontiguousarray(c.take(form.order_c, axis=1))
    if kind in ("s8", "u8"):
        return _integer_sum(left, right, c.view(np.int32), form.saturate)
    if kind == "f64":
        total = c.view(np.float64).ravel()
        for i in range(k):
            total = fma_f64(left[:, i].ravel(), right[:, i].ravel(), total)
        return total.view(np.uint64).reshape(c.shape)
    exponent = exponent + more
    special = a.special or b.special

    def summed(start: np.ndarray, start_kind: str, target: str) -> np.ndarray:
        total = decode(start, start_kind, model)
        group = min(form.most, model.group_bytes // (4 if kind == "tf32" else 2))
        for first in range(0, k, group):
            part = slice(first, first + group)
            with np.errstate(invalid="ignore", over="ignore"):
                products = left[:, part] * right[:, part]
            odd = special or total.special
            bits = sum_group(products, exponent[:, part], total, target, odd, model)
            total = decode(bits, target, model) if first + group < k else total
        return bits

    if form.adds_last:
        return _add(summed(np.zeros_like(c), "f32", "f32"), c)
    if form.d.kind == "f16" and form.c.kind == "f32":
        return _halves(summed(c, "f32", "f32"))
    return summed(c, form.c.kind, form.d.kind)


def _add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sum of bits of .f32, rounded to nearest."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = a.view(np.float32) + b.view(np.float32)
    return np.where(np.isnan(total), _U32(0x7FFFFFFF), total.view(_U32))


def _halves(bits: np.ndarray) -> np.ndarray:
    """Bits of .f32 rounded to .f16."""
    with np.errstate(over="ignore", invalid="ignore"):
        near = bits.view(np.float32).astype(np.float16).view(np.uint16)
    return np.where(bits & _U32(0x7FFFFFFF) > _U32(0x7F800000), np.uint16(0x7FFF), near)


def sum_group(products, exponent, total: Numbers, kind: str, special: bool, model) -> np.ndarray:
    """(warps, sums) bits of `kind`: the sum so far and the products, (warps, group, sums)."""
    start, least = total.value, np.maximum(total.exponent, LEAST)
    if special:
        with np.errstate(invalid="ignore"):
            known = products.sum(axis=1) + start  # infinite or NaN where a term is
        odd = ~np.isfinite(known)
        products = np.where(np.isfinite(products), products, 0.0)
        start = np.where(np.isfinite(start), start, 0.0)
        least = np.where(np.isfinite(total.value), least, LEAST)
        exponent = np.minimum(exponent, 300)
    top = np.maximum(exponent.max(axis=1), least).astype(np.int64)
    scale = (model.fraction_bits - top + 1023 << 52).view(np.float64)
    terms = np.multiply(products, scale[:, None], out=products)
    units = np.add.reduce(np.trunc(terms, out=terms), axis=1)
    units += np.trunc(start * scale)
    exact = units / scale
    bits = _round(exact, kind, model)
    if special:
        bits = np.where(odd, _special_bits(known, kind), bits)
    return bits


def _round(exact: np.ndarray, kind: str, model: Accumulation) -> np.ndarray:
    """Exact float64 sums as bits of .f16, rounded to nearest, or of .f32, cut; zero is positive."""
    with np.errstate(over="ignore"):
        near = exact.astype(np.float16 if kind == "f16" else np.float32)
    near = near + near.dtype.type(0)
    if kind == "f16":
        return near.view(np.uint16)
    if model.rounding == "rn":
        return near.view(_U32)
    bits = near.view(_U32) - (np.abs(near) > np.abs(exact))
    bits &= np.where(bits == _U32(1 << 31), _U32(0), ~_U32(0))
    if model.overflow_to_infinity and (np.abs(exact) >= 2.0**128).any():
        bits = np.where(np.abs(exact) >= 2.0**128, near.view(_U32), bits)
    return bits.astype(_U32) & ~_U32((1 << 23 - model.result_bits) - 1)


def _special_bits(known: np.ndarray, kind: str) -> np.ndarray:
    """Infinities and the canonical NaN in `kind`."""
    with np.errstate(over="ignore", invalid="ignore"):
        if kind == "f16":
            bits, nan = known.astype(np.float16).view(np.uint16), np.uint16(0x7FFF)
        else:
            bits, nan = known.astype(np.float32).view(_U32), _U32(0x7FFFFFFF)
    return np.where(np.isnan(known), nan, bits)


def _integer_sum(left, right, c: np.ndarray, saturate: bool) -> np.ndarray:
    total = (left * right).sum(axis=1).astype(np.int64) + c
    if saturate:
        total = np.clip(total, -(1 << 31), (1 << 31) - 1)
    return total.astype(np.int32).view(np.uint32)
