"""The operation table's conversions: cvt."""

import itertools

from . import conversions
from .row import ROUNDING, Row, rounding


def _convert(types, modifiers):
    return conversions.conversion(*types, modifiers)


def _convert_pair(types, modifiers):
    return conversions.packing(types[0], rounding(modifiers), "relu" in modifiers)


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
    ),
}
