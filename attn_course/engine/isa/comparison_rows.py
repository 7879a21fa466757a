"""The operation table's comparisons: setp, set, testp."""

import itertools

from . import comparisons
from .row import Row

_UNSIGNED = "u16,u32,u64"
_WHOLE = f"s16,s32,s64,{_UNSIGNED}"
_NUMBERS = "u32,s32,f32"  # what `set` gives for a comparison of f32, f64 or integers


def _compared_types(name):
    """The number types that a comparison operator takes: integers, or none, and whether floats."""
    if name in ("eq", "ne"):
        return f"{_WHOLE},b16,b32,b64", True
    if name in ("lt", "le", "gt", "ge"):
        return _WHOLE, True
    return (_UNSIGNED, False) if name in ("lo", "ls", "hi", "hs") else ("", True)


def _setp_rows(name, combine):
    whole, floats = _compared_types(name)
    build = comparisons.predicate(name, combine)
    operands = f"T T{' pred' if combine else ''} -> pred pred"
    rows = [Row(whole.replace(",", " "), operands, build)] if whole else []
    if floats:
        rows += [
            Row("f32 f16 f16x2", operands, build, "ftz"),
            Row("f64 bf16 bf16x2", operands, build),
        ]
    return tuple(rows)


def _set_rows(name, combine):
    whole, floats = _compared_types(name)
    build = comparisons.value(name, combine)
    operands = f"T T{' pred' if combine else ''} -> D"
    rows = [Row(f"{_NUMBERS}/{whole}", operands, build)] if whole else []
    if floats:
        rows += [
            Row(f"{_NUMBERS}/f32", operands, build, "ftz"),
            Row(f"{_NUMBERS}/f64", operands, build),
            Row("f16,u16,s16,u32,s32/f16 f16x2,u32,s32/f16x2", operands, build, "ftz"),
            Row("bf16,u16,s16,u32,s32/bf16 bf16x2,u32,s32/bf16x2", operands, build),
        ]
    return tuple(rows)


def _comparison_rows():
    found = {}
    for name, combine in itertools.product(comparisons.OPERATORS, comparisons.COMBINERS):
        suffix = f"{name}.{combine}" if combine else name
        found[f"setp.{suffix}"] = _setp_rows(name, combine)
        found[f"set.{suffix}"] = _set_rows(name, combine)
    for test in comparisons.TESTS:
        found[f"testp.{test}"] = (Row("f32 f64", "T -> pred", comparisons.test(test)),)
    return found


COMPARISON_ROWS: dict[str, tuple[Row, ...]] = _comparison_rows()
