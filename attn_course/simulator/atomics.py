"""Read-modify-write operations: what `atom` and `red` put into memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from . import isa

_MODIFIERS = {
    "global", "shared", "local", "relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys",
    "cluster", "noftz", "ftz", "L2::cache_hint",
}  # fmt: skip
_SAFE_F32 = np.float32(2.0**-100)  # sums of larger numbers can not be subnormal


@dataclass(frozen=True)
class AtomicOperation:
    """fn(old, *operands) -> new, all of one dtype; `at`: a ufunc that does many in lane order."""

    name: str
    fn: Callable
    at: np.ufunc | None = None

    def in_order(self, view: np.ndarray, index: np.ndarray, operands: tuple) -> bool:
        """Apply all lanes' operands in lane order without returning old values, if that is exact."""
        if self.at is None:
            return False
        if view.dtype == np.float32:
            values = np.abs(np.append(operands[0], view[index]))
            if not (values[values != 0] >= _SAFE_F32).all():
                return False
        self.at.at(view, index, operands[0])
        return True


def _increment(old, limit):
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1)).astype(old.dtype)


def _decrement(old, limit):
    wraps = (old == 0) | (old > limit)
    return np.where(wraps, limit, old - old.dtype.type(1)).astype(old.dtype)


_INTEGER = {
    "add": (np.add, np.add),
    "and": (np.bitwise_and, np.bitwise_and),
    "or": (np.bitwise_or, np.bitwise_or),
    "xor": (np.bitwise_xor, np.bitwise_xor),
    "min": (np.minimum, np.minimum),
    "max": (np.maximum, np.maximum),
    "inc": (_increment, None),
    "dec": (_decrement, None),
    "exch": (lambda old, new: new, None),
    "cas": (lambda old, expected, new: np.where(old == expected, new, old), None),
}


def operation(opcode: str, kind: str, space: str) -> AtomicOperation:
    """The operation of an `atom`/`red` opcode on values of PTX type `kind`.

    f32 addition flushes subnormals in global memory and keeps them in shared memory (PTX ISA, atom).
    """
    parts = [p for p in opcode.split(".")[1:] if p not in _MODIFIERS and not p.startswith("shared::")]
    if len(parts) != 2 or parts[0] not in _INTEGER:
        raise isa.UnknownInstruction(f"{opcode}: this atomic operation is not supported")
    name = parts[0]
    if kind[0] in "us" or kind.startswith("b") and kind[1:].isdigit():
        return AtomicOperation(name, *_INTEGER[name])
    if name == "add" and kind == "f32":
        flush = "" if space == "shared" else ".ftz"
        return AtomicOperation(name, isa.lookup(f"add.rn{flush}.f32").fn, np.add)
    if name == "exch":
        return AtomicOperation(name, _INTEGER["exch"][0])
    at = np.add if (name, kind) == ("add", "f64") else None
    return AtomicOperation(name, isa.lookup(f"{name}{'.rn' if name == 'add' else ''}.{kind}").fn, at)
