"""Compares two machines' results of one opcode, bit for bit or within the ISA's bounds."""

from dataclasses import dataclass

import numpy as np
from differential_opcodes import FLOATS, Opcode

from attn_course.simulator import isa

EXAMPLES = 4
LARGEST = {"f16": 65504.0, "bf16": 3.38e38, "f32": float(np.finfo(np.float32).max),
           "f64": float(np.finfo(np.float64).max)}  # fmt: skip


@dataclass(frozen=True)
class Bound:
    """How far an approximation may be from the exact result, in the domain where that is promised.

    relative and absolute: errors; ulps: units in the last place of the correctly rounded result.
    documented: the instruction's page of the PTX ISA, "Floating Point Instructions" (f32, f64) or
    "Half Precision Floating Point Instructions".
    """

    exact: object
    relative: float = 0.0
    absolute: float = 0.0
    ulps: float = 0.0
    domain: object = None
    documented: str = ""

    def allowed(self, truth: np.ndarray, kind: str) -> np.ndarray:
        exponent_bits, fraction_bits = FLOATS[kind]
        least = 2.0 - (1 << exponent_bits - 1)  # exponent of the least normal number
        with np.errstate(all="ignore"):
            exponent = np.maximum(np.floor(np.log2(np.abs(truth))), least)
        ulp = np.exp2(exponent - fraction_bits)
        return np.maximum(self.absolute, self.relative * np.abs(truth)) + self.ulps * ulp


def _near_zero(x):
    return np.abs(x) <= 2 * np.pi


def _sine(function, name):
    return Bound(function, absolute=2**-20.5, domain=_near_zero,
                 documented=f"{name}: absolute error 2^-20.5 for |a| <= 2 pi")  # fmt: skip


def _reciprocal(x):
    return 1.0 / x


def _high_word(function):
    """rcp and rsqrt on the upper 32 bits of a double."""

    def exact(x):
        return function((x.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64))

    return exact


def _inverse_root(x):
    return 1.0 / np.sqrt(x)


BOUNDS = {
    "rcp.approx.f32": Bound(_reciprocal, ulps=1, documented="rcp: 1 ulp"),
    "sqrt.approx.f32": Bound(np.sqrt, relative=2**-23, documented="sqrt: relative error 2^-23"),
    "rsqrt.approx.f32": Bound(
        _inverse_root, relative=2**-22.9, documented="rsqrt: relative error 2^-22.9"),
    "ex2.approx.f32": Bound(np.exp2, ulps=2, documented="ex2: 2 ulp"),
    "sin.approx.f32": _sine(np.sin, "sin"),
    "cos.approx.f32": _sine(np.cos, "cos"),
    "lg2.approx.f32": Bound(
        np.log2, relative=2**-22, absolute=2**-22,
        documented="lg2: absolute error 2^-22 in (0.5, 2), else relative error 2^-22"),
    "tanh.approx.f32": Bound(np.tanh, relative=2**-11, documented="tanh: relative error 2^-11"),
    "div.approx.f32": Bound(
        np.divide, ulps=2, domain=lambda a, b: (np.abs(b) >= 2.0**-126) & (np.abs(b) <= 2.0**126),
        documented="div: 2 ulp for |b| in [2^-126, 2^126]"),
    "div.full.f32": Bound(np.divide, ulps=2, documented="div: 2 ulp over the full range"),
    "rcp.approx.f64": Bound(
        _high_word(_reciprocal), relative=2**-19, documented="rcp.approx.ftz.f64: 20 bits"),
    "rsqrt.approx.ftz.f64": Bound(
        _high_word(_inverse_root), relative=2**-19, documented="rsqrt.approx.ftz.f64: 20 bits"),
    "rsqrt.approx.f64": Bound(
        _inverse_root, ulps=4, documented="rsqrt: no bound for .f64; 4 ulp are allowed here"),
    "tanh.approx.f16": Bound(
        np.tanh, absolute=2**-10.987, documented="tanh: absolute error 2^-10.987"),
    "tanh.approx.bf16": Bound(np.tanh, absolute=2**-8, documented="tanh: absolute error 2^-8"),
    "ex2.approx.f16": Bound(
        np.exp2, relative=2**-9.9, absolute=2**-24, documented="ex2: relative error 2^-9.9"),
    "ex2.approx.bf16": Bound(np.exp2, relative=2**-7, documented="ex2: relative error 2^-7"),
}  # fmt: skip


def bound_of(text: str) -> Bound | None:
    """An approximation's bound, which its .ftz form shares unless the ISA has one of its own."""
    plain = text.removesuffix("x2")
    return BOUNDS.get(plain) or BOUNDS.get(plain.replace(".ftz", ""))


# --- reading results ------------------------------------------------------------------------------


def halves(bits: np.ndarray, kind: str) -> tuple[np.ndarray, str]:
    """Packed pairs as one array of twice the length; else unchanged."""
    if kind.endswith("x2"):
        both = [(bits >> np.uint32(shift)).astype(np.uint16) for shift in (0, 16)]
        return np.concatenate(both), kind[:-2]
    return bits, kind


def is_nan(bits: np.ndarray, kind: str) -> np.ndarray:
    if kind not in FLOATS:
        return np.zeros(bits.shape, bool)
    exponent_bits, fraction_bits = FLOATS[kind]
    infinity = (1 << exponent_bits) - 1 << fraction_bits
    mask = (1 << exponent_bits + fraction_bits) - 1
    return (bits & bits.dtype.type(mask)) > bits.dtype.type(infinity)


def as_double(bits: np.ndarray, kind: str) -> np.ndarray:
    if kind == "bf16":
        bits, kind = bits.astype(np.uint32) << np.uint32(16), "f32"
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return bits.view({"f16": np.float16}.get(kind) or isa.DTYPE[kind]).astype(np.float64)


def payload_is_open(text: str, kind: str) -> bool:
    """Where the ISA leaves open which NaN comes out: double precision, and a NaN's sign."""
    name = text.split(".")[0]
    if name in ("mov", "selp", "slct", "copysign"):
        return False
    return kind == "f64" or name in ("abs", "neg")


# --- comparing ------------------------------------------------------------------------------------


def compare(code: Opcode, operands, first, second) -> dict:
    """One opcode's record: `mismatches` counts lanes where the machines disagree, None if none ran.

    operands, first and second: lists of (lanes,) unsigned arrays of bits. `nan_payload` counts
    lanes with two NaNs of different bits; they are mismatches unless the ISA leaves the bits open.
    """
    bound = bound_of(code.text)
    record = {"opcode": code.label, "lanes": int(operands[0].size), "nan_payload": 0}
    bad = np.zeros(operands[0].size, bool)
    for kind, a, b in zip(code.results, first, second, strict=True):
        kind = "f32" if ".tf32." in code.text else kind
        lanes = operands[0].size
        (a, kind_of_half), (b, _) = halves(a, kind), halves(b, kind)
        inputs = [halves(x, k)[0] for x, k in zip(operands, code.sources, strict=True)]
        differ = a != b
        both_nan = is_nan(a, kind_of_half) & is_nan(b, kind_of_half)
        record["nan_payload"] += int((differ & both_nan).sum())
        if payload_is_open(code.text, kind_of_half):
            differ &= ~both_nan
        if bound is not None and kind_of_half in FLOATS:
            differ = _outside(record, bound, code, inputs, a, b, kind_of_half)
        bad |= differ.reshape(-1, lanes).any(axis=0)
    record["mismatches"] = int(bad.sum())
    record["examples"] = [
        {"operands": [hex(int(x[i])) for x in operands], "first": [hex(int(x[i])) for x in first],
         "second": [hex(int(x[i])) for x in second]}
        for i in np.flatnonzero(bad)[:: max(1, int(bad.sum()) // EXAMPLES)][:EXAMPLES]
    ]  # fmt: skip
    return record


def _outside(record, bound, code, inputs, a, b, kind) -> np.ndarray:
    """Lanes where either result is outside of the bound, or a special value differs."""
    kinds = [source.removesuffix("x2") for source in code.sources]
    values = [as_double(x, k) for x, k in zip(inputs, kinds, strict=True)]
    least = 2.0**-1022 if kind == "f64" else 2.0**-126
    flushed = "ftz" in code.text and kind in ("f32", "f64")
    with np.errstate(all="ignore"):
        if flushed:
            values = [np.where(np.abs(v) < least, np.copysign(0, v), v) for v in values]
        truth = bound.exact(*values)
        inside = bound.domain(*values) if bound.domain else np.ones(truth.shape, bool)
        x, y = as_double(a, kind), as_double(b, kind)
        allowed = bound.allowed(truth, kind)
        # a result below the least normal number may be flushed
        allowed += np.where(np.abs(truth) < 2 * least, least, 0)
        regular = inside & np.isfinite(truth) & (truth != 0)
        regular &= np.abs(truth) < LARGEST[kind] * (1 - 2**-9)
        errors = [np.where(regular, np.abs(v - truth) / allowed, 0) for v in (x, y)]
        far = ~((errors[0] <= 1) & (errors[1] <= 1))
        special = inside & (np.isnan(truth) | np.isinf(truth) | (truth == 0))
        differ = special & (a != b) & ~(is_nan(a, kind) & is_nan(b, kind) & (kind == "f64"))
    record["documented"] = bound.documented
    largest_errors = (float(np.nanmax(error, initial=0)) for error in errors)
    record["error_over_bound"] = [round(error, 4) for error in largest_errors]
    record["max_ulp"] = max_ulp(x[regular], y[regular], kind)
    return far | differ


def max_ulp(x: np.ndarray, y: np.ndarray, kind: str) -> float:
    """The largest difference of two arrays of doubles in units in the last place of `kind`."""
    return float(np.nanmax(ulps(x, y, kind), initial=0))


def ulps(x: np.ndarray, y: np.ndarray, kind: str) -> np.ndarray:
    """Differences in units in the last place of the larger; a flushed subnormal counts as one."""
    exponent_bits, fraction_bits = FLOATS[kind]
    least = 2.0 - (1 << exponent_bits - 1)
    size = np.maximum(np.abs(x), np.abs(y))
    with np.errstate(all="ignore"):
        unit = np.exp2(np.maximum(np.floor(np.log2(size)), least) - fraction_bits)
        out = np.where(x == y, 0.0, np.abs(x - y) / unit)
        return np.where(size <= np.exp2(least), np.minimum(out, 1.0), out)
