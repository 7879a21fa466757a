"""Read-modify-write operations: what `atom` and `red` put into memory.

Lanes that update one place do so one after another, in lane order. That is a loop only where it
has to be: lanes with places of their own go at once, the first lanes of each place go at once, then
the second ones, and sums of integers are running sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import UnsupportedInstruction
from . import table as isa

_MODIFIERS = set(
    """
    global shared local relaxed acquire release acq_rel cta gpu sys cluster noftz ftz
    L2::cache_hint
""".split()
)
_SAFE_F32 = np.float32(2.0**-100)  # sums of larger numbers can not be subnormal
_MAX_ROUNDS = 64  # beyond, one lane after another is faster


@dataclass(frozen=True)
class AtomicOperation:
    """fn(old, *operands) -> new, all of one dtype.

    at: a ufunc that does many lanes in lane order; in_shared: what a generic address in shared
    memory calls for, where that differs.
    """

    name: str
    fn: Callable
    at: np.ufunc | None = None
    in_shared: AtomicOperation | None = None

    def in_order(self, view: np.ndarray, index: np.ndarray, operands: tuple) -> bool:
        """Apply all lanes' operands in lane order, without old values; False: not done, as it
        would not be exact.
        """
        if self.at is None:
            return False
        if view.dtype == np.float32:
            values = np.abs(np.append(operands[0], view[index]))
            if not (values[values != 0] >= _SAFE_F32).all():
                return False
        self.at.at(view, index, operands[0])
        return True

    def update(self, view: np.ndarray, index: np.ndarray, operands: tuple) -> np.ndarray:
        """Apply all lanes' operands in lane order; returns each lane's old value."""
        if self.name == "cas":
            return self.compare_and_swap(view, index, *operands)
        order = np.argsort(index, kind="stable")
        places, starts, counts = np.unique(index[order], return_index=True, return_counts=True)
        if counts.max(initial=0) > _MAX_ROUNDS and view.dtype.kind in "iu" and self.name == "add":
            return self.running_sums(view, places, starts, counts, order, operands[0])
        old = np.empty(index.size, view.dtype)
        for k in range(int(counts.max(initial=0))):  # the k-th lane of every place
            more = counts > k
            lanes = order[starts[more] + k]
            before = view[places[more]]
            old[lanes] = before
            view[places[more]] = self.fn(before, *(o[lanes] for o in operands))
        return old

    @staticmethod
    def running_sums(view, places, starts, counts, order, values) -> np.ndarray:
        sorted_values = values[order]
        after = np.cumsum(sorted_values, dtype=view.dtype)
        base = np.repeat(after[starts] - sorted_values[starts], counts)
        before = after - sorted_values - base + np.repeat(view[places], counts)
        view[places] += after[starts + counts - 1] - (after[starts] - sorted_values[starts])
        old = np.empty(values.size, view.dtype)
        old[order] = before
        return old

    @staticmethod
    def compare_and_swap(view, index, expected, new) -> np.ndarray:
        """Only lanes that find what they expect change anything: one round for each of these."""
        old = view.take(index)
        rest = np.arange(index.size)
        places, place = np.unique(index, return_inverse=True)
        while True:
            hits = rest[old[rest] == expected[rest]]
            if not hits.size:
                return old
            winners = hits[np.unique(place[hits], return_index=True)[1]]
            view[index[winners]] = new[winners]
            winner = np.full(places.size, index.size)  # where nobody wins, nobody comes later
            winner[place[winners]] = winners
            rest = rest[rest > winner[place[rest]]]
            old[rest] = view[index[rest]]


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


def operation(opcode: str, kind: str) -> AtomicOperation:
    """The operation of an `atom`/`red` opcode on values of PTX type `kind`.

    f32 addition flushes subnormals in global memory, not in shared memory (PTX ISA, atom).
    """
    parts = [part for part in opcode.split(".")[1:] if part.split("::")[0] not in _MODIFIERS]
    parts = [part for part in parts if part != "L2::cache_hint"]
    if len(parts) != 2 or parts[0] not in _INTEGER:
        raise UnsupportedInstruction(f"{opcode}: this atomic operation is not supported")
    name = parts[0]
    if kind[0] in "us" or kind.startswith("b") and kind[1:].isdigit():
        return AtomicOperation(name, *_INTEGER[name])
    if name == "add" and kind == "f32":
        keeps = AtomicOperation(name, isa.lookup("add.rn.f32").fn, np.add)
        return AtomicOperation(name, isa.lookup("add.rn.ftz.f32").fn, np.add, keeps)
    if name == "exch":
        return AtomicOperation(name, _INTEGER["exch"][0])
    at = np.add if (name, kind) == ("add", "f64") else None
    rounding = ".rn" if name == "add" else ""
    return AtomicOperation(name, isa.lookup(f"{name}{rounding}.{kind}").fn, at)
