"""Pure PTX operations: instruction text -> a NumPy function of its operands.

``lookup("fma.rn.ftz.f32")`` decodes an instruction once into an `Operation`; running it is then one
call with NumPy values (an array with one element a lane, or a scalar where all lanes agree).
Memory, control flow, barriers, shuffles, votes and special registers are not here: they need the
machine.

ROWS maps a name to its rows, one an instruction form. A name holds the parts of the text that
change an instruction's meaning, as in "mul.wide"; a `Row` says which types it takes, the modifiers
that it understands, its operands, and what builds its function.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import UnknownInstruction
from .arithmetic import ARITHMETIC_ROWS
from .bits import BIT_ROWS
from .comparisons import COMPARISON_ROWS
from .conversions import CONVERSION_ROWS
from .narrow import VIDEO_ROWS
from .row import Row

ROWS: dict[str, tuple[Row, ...]] = {
    **ARITHMETIC_ROWS,
    **BIT_ROWS,
    **COMPARISON_ROWS,
    **CONVERSION_ROWS,
    **VIDEO_ROWS,
}
_UNSIGNED = {"8": np.uint8, "16": np.uint16, "32": np.uint32, "64": np.uint64}
DTYPE = {
    **{prefix + width: np.dtype(kind) for prefix in "ub" for width, kind in _UNSIGNED.items()},
    **{f"s{width}": np.dtype(f"i{width // 8}") for width in (8, 16, 32, 64)},
    **{kind: np.dtype(np.uint16) for kind in ("f16", "bf16")},
    **{kind: np.dtype(np.uint16) for kind in ("e4m3x2", "e5m2x2")},
    **{kind: np.dtype(np.uint32) for kind in ("f16x2", "bf16x2", "u16x2", "s16x2", "tf32")},
    "f32x2": np.dtype(np.uint64),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "pred": np.dtype(np.bool_),
}


@dataclass(frozen=True)
class Operation:
    """One decoded instruction.

    sources and results are PTX types (keys of DTYPE), in operand order. `fn` takes one NumPy value
    per source, of the dtype DTYPE names, and returns the result, or a tuple of them if there are
    several. With reads_carry it takes the carry flag (bool) as a last argument more; with
    writes_carry it returns (result, carry).
    """

    name: str
    sources: tuple[str, ...]
    results: tuple[str, ...]
    fn: Callable
    reads_carry: bool = False
    writes_carry: bool = False

    @property
    def uses_carry(self) -> bool:
        """Is the carry flag read or written?"""
        return self.reads_carry or self.writes_carry


@functools.cache
def lookup(opcode: str) -> Operation:
    """The operation that the full dotted text names, such as "setp.lt.and.u32".

    Raises UnknownInstruction, with the text and the part that is not understood.
    """
    _, row, types, modifiers = find_row(opcode)
    letters = {"T": types[-1], "D": types[0], "A": types[len(types) // 2]}
    if types[-1][1:] in ("16", "32"):
        letters["W"] = f"{types[-1][0]}{2 * int(types[-1][1:])}"
    sources, results = (
        tuple(letters.get(part, part) for part in side.split()) for side in row.operands.split("->")
    )
    reads, writes = "reads" in row.carry, "writes" in row.carry
    return Operation(opcode, sources, results, row.build(types, modifiers), reads, writes)


def find_row(opcode: str):
    """(row name, Row, types, modifiers) of an instruction text; raises UnknownInstruction."""
    base, *parts = opcode.split(".")
    types = tuple(part for part in parts if part in DTYPE)
    parts = [part for part in parts if part not in DTYPE]
    name, modifiers = _split_name(base, parts)
    if name not in ROWS:
        raise UnknownInstruction(f"{opcode}: no operation '{'.'.join([base, *parts])}'")
    fitting = [row for row in ROWS[name] if types in row.type_choices()]
    if not fitting:
        given = ".".join(types or sorted(modifiers)) or "none"
        raise UnknownInstruction(f"{opcode}: '{name}' does not take type '{given}'")
    for row in fitting:
        if modifiers <= set(row.modifiers.split()):
            return name, row, types, modifiers
    unknown = sorted(modifiers - set(fitting[0].modifiers.split()))
    raise UnknownInstruction(f"{opcode}: '{name}' has no modifier '.{unknown[0]}' for this type")


def _split_name(base, parts):
    """(row name, modifiers): the longest leading run of parts that names rows."""
    for count in range(len(parts), 0, -1):
        name = ".".join([base, *parts[:count]])
        if name in ROWS:
            return name, frozenset(parts[count:])
    return base, frozenset(parts)
