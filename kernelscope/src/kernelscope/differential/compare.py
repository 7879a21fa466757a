"""Compares two machines' results of one opcode, bit for bit or within the ISA's bounds."""

import numpy as np
from kernelscope.differential.bounds import bound_of, judge
from kernelscope.differential.opcodes import FLOATS, Opcode
from kernelscope.isa import table as isa

EXAMPLES = 4


# --- reading results ------------------------------------------------------------------------------


def halves(bits: np.ndarray, kind: str) -> tuple[np.ndarray, str]:
    """Packed pairs as one array of twice the length; else unchanged."""
    if kind.endswith("x2"):
        both = [(bits >> np.uint32(shift)).astype(np.uint16) for shift in (0, 16)]
        return np.concatenate(both), kind[:-2]
    return bits, kind


def is_nan(bits: np.ndarray, kind: str) -> np.ndarray:
    """Which elements are NaN; none of a type that is no float."""
    if kind not in FLOATS:
        return np.zeros(bits.shape, bool)
    exponent_bits, fraction_bits = FLOATS[kind]
    infinity = (1 << exponent_bits) - 1 << fraction_bits
    mask = (1 << exponent_bits + fraction_bits) - 1
    return (bits & bits.dtype.type(mask)) > bits.dtype.type(infinity)


def as_double(bits: np.ndarray, kind: str) -> np.ndarray:
    """Bits of a float or integer type as float64 values."""
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
        {
            "operands": [hex(int(x[i])) for x in operands],
            "first": [hex(int(x[i])) for x in first],
            "second": [hex(int(x[i])) for x in second],
        }
        for i in np.flatnonzero(bad)[:: max(1, int(bad.sum()) // EXAMPLES)][:EXAMPLES]
    ]
    return record


def _outside(record, bound, code, inputs, a, b, kind) -> np.ndarray:
    """Lanes where either result is outside of the bound, or a special value differs."""
    kinds = [source.removesuffix("x2") for source in code.sources]
    values = [as_double(x, k) for x, k in zip(inputs, kinds, strict=True)]
    if "ftz" in code.text and kind in ("f32", "f64"):
        least = 2.0**-1022 if kind == "f64" else 2.0**-126
        values = [np.where(np.abs(v) < least, np.copysign(0, v), v) for v in values]
    verdict = judge(bound, values, as_double(a, kind), as_double(b, kind), kind)
    record.update(verdict.facts)
    both_nan = is_nan(a, kind) & is_nan(b, kind) & (kind == "f64")
    return verdict.apart | verdict.special & (a != b) & ~both_nan
