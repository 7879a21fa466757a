"""Read-modify-write operations: what `atom` and `red` put into memory.

Lanes that update one place do so one after another, in lane order. What a ufunc does is a running
result over each place's lanes, all places at once. Of other operations the first lanes of each
place go at once, then the second ones; where few places have many lanes, a loop takes the lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

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
# A round takes as long as a loop over 128 lanes, or running results over 128 and a small share.
_LANES_A_ROUND, _LANES_TO_START = 128, 1024


@dataclass(frozen=True)
class AtomicOperation:
    """fn(old, *operands) -> new, all of one dtype.

    at: a ufunc that does many lanes in lane order; walk: a loop over lanes, for Python integers;
    in_shared: what a generic address in shared memory calls for, where that differs.
    """

    name: str
    fn: Callable
    at: np.ufunc | None = None
    walk: Callable | None = None
    in_shared: AtomicOperation | None = None

    def in_order(self, view: np.ndarray, index: np.ndarray, operands: tuple) -> bool:
        """Apply all lanes' operands in lane order, without old values; False: not done, as it
        would not be exact.
        """
        if self.at is None:
            return False
        if view.dtype.kind == "f":
            values = np.abs(np.append(operands[0], view[index]))
            least = _SAFE_F32 if view.dtype == np.float32 else 0
            if not ((values < np.inf) & ((values >= least) | (values == 0))).all():
                return False
        self.at.at(view, index, operands[0])
        return True

    def update(self, view: np.ndarray, index: np.ndarray, operands: tuple) -> np.ndarray:
        """Apply all lanes' operands in lane order; returns each lane's old value."""
        order = np.argsort(index, kind="stable")
        places, starts, counts = _runs(index[order])
        operands = tuple(operand[order] for operand in operands)
        seen = None
        if counts.max(initial=0) * _LANES_A_ROUND > index.size + _LANES_TO_START:
            if self.at is not None:
                seen = self.running(view, places, starts, counts, operands[0])
            elif self.walk is not None:
                seen = self.one_by_one(view, places, counts, operands)
        if seen is None:
            seen = self.rounds(view, places, starts, counts, operands)
        old = np.empty(index.size, view.dtype)
        old[order] = seen
        return old

    # Lanes are sorted by place from here on: counts[i] of them, from starts[i], update places[i].
    def running(self, view, places, starts, counts, operand) -> np.ndarray | None:
        """The old values as running results; None, and nothing done, where these are not exact.

        Places with up to twice as many lanes as others share a table, a row a place.
        """
        row = np.repeat(np.arange(places.size), counts)
        column = np.arange(operand.size) - starts[row]
        like = np.frexp(counts)[1]
        old, last, sizes = np.empty(operand.size, view.dtype), view[places], np.unique(like)
        for size in sizes:
            rows = lanes = slice(None)
            if sizes.size > 1:
                rows, lanes = np.nonzero(like == size)[0], np.nonzero(like[row] == size)[0]
            table = np.zeros((last[rows].size, counts[rows].max() + 1), view.dtype)
            line = row[lanes] if sizes.size == 1 else np.searchsorted(rows, row[lanes])
            table[:, 0] = last[rows]
            table[line, column[lanes] + 1] = operand[lanes]
            after = self.at.accumulate(table, axis=1, dtype=view.dtype)
            if view.dtype.kind == "f" and not (_is_plain(table) and _is_plain(after)):
                return None
            old[lanes] = after[line, column[lanes]]
            last[rows] = after[np.arange(len(after)), counts[rows]]
        view[places] = last
        return old

    def one_by_one(self, view, places, counts, operands) -> np.ndarray:
        """One lane after another, on the bits of the values as Python integers."""
        bits, seen = view.view(f"u{view.itemsize}"), []
        lanes = zip(*(operand.view(bits.dtype).tolist() for operand in operands), strict=True)
        bits[places] = [
            self.walk(value, islice(lanes, count), seen)
            for value, count in zip(bits[places].tolist(), counts.tolist(), strict=True)
        ]
        return np.array(seen, bits.dtype).view(view.dtype)

    def rounds(self, view, places, starts, counts, operands) -> np.ndarray:
        """The k-th lanes of all places at once, for each k."""
        old = np.empty(counts.sum(), view.dtype)
        for k in range(int(counts.max(initial=0))):
            more = counts > k
            lanes, here = starts[more] + k, places[more]
            old[lanes] = before = view[here]
            view[here] = self.fn(before, *(operand[lanes] for operand in operands))
        return old


def _runs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(value, start, length) of each run of equal values in a sorted array."""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: values.size])
    return values[starts], starts, np.diff(starts, append=values.size)


def _is_plain(values: np.ndarray) -> bool:
    """Return whether no value is subnormal or NaN: then NumPy's sums are the hardware's bits."""
    size = np.abs(values)
    return bool(((size >= np.finfo(values.dtype).tiny) | (size == 0)).all())


def _increment(old, limit):
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1)).astype(old.dtype)


def _decrement(old, limit):
    wraps = (old == 0) | (old > limit)
    return np.where(wraps, limit, old - old.dtype.type(1)).astype(old.dtype)


# Loops over the operands of lanes: append what each lane finds, return what the last one leaves.
def _increments(value, lanes, seen):
    for (limit,) in lanes:
        seen.append(value)
        value = 0 if value >= limit else value + 1
    return value


def _decrements(value, lanes, seen):
    for (limit,) in lanes:
        seen.append(value)
        value = value - 1 if 0 < value <= limit else limit
    return value


def _exchanges(value, lanes, seen):
    for (new,) in lanes:
        seen.append(value)
        value = new
    return value


def _swaps(value, lanes, seen):
    for expected, new in lanes:
        seen.append(value)
        if value == expected:
            value = new
    return value


_INTEGER = {
    "add": (np.add, np.add),
    "and": (np.bitwise_and, np.bitwise_and),
    "or": (np.bitwise_or, np.bitwise_or),
    "xor": (np.bitwise_xor, np.bitwise_xor),
    "min": (np.minimum, np.minimum),
    "max": (np.maximum, np.maximum),
    "inc": (_increment, None, _increments),
    "dec": (_decrement, None, _decrements),
    "exch": (lambda old, new: new, None, _exchanges),
    "cas": (lambda old, expected, new: np.where(old == expected, new, old), None, _swaps),
}


def operation(opcode: str, kind: str) -> AtomicOperation:
    """The operation of an `atom`/`red` opcode on values of PTX type `kind`.

    f32 addition flushes subnormals in global memory, not in shared memory (PTX ISA, atom).
    """
    parts = [part for part in opcode.split(".")[1:] if part.split("::")[0] not in _MODIFIERS]
    parts = [part for part in parts if part not in ("L2::cache_hint", "v2", "v4", "v8")]
    names = [part for part in parts if part in _INTEGER]  # the type may stand before it
    if len(parts) != 2 or len(names) != 1:
        raise UnsupportedInstruction(f"{opcode}: this atomic operation is not supported")
    (name,) = names
    if kind[0] in "us" or kind.startswith("b") and kind[1:].isdigit():
        return AtomicOperation(name, *_INTEGER[name])
    if name == "add" and kind == "f32":
        keeps = AtomicOperation(name, isa.lookup("add.rn.f32").fn, np.add)
        return AtomicOperation(name, isa.lookup("add.rn.ftz.f32").fn, np.add, in_shared=keeps)
    if name == "exch":
        return AtomicOperation(name, *_INTEGER["exch"])
    at = np.add if (name, kind) == ("add", "f64") else None
    rounding = ".rn" if name == "add" else ""
    return AtomicOperation(name, isa.lookup(f"{name}{rounding}.{kind}").fn, at)


# -- reductions of bulk copies: cp.reduce.async.bulk does those of `red` on each element -----------
REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_BITWISE = ("and", "or", "xor")
_REDUCED_INTEGERS = ("s32", "u32", "s64", "u64")
# Operation -> the types of PTX that it takes in global memory, and in shared memory of a cluster.
REDUCED_TYPES = {
    "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"),
    **dict.fromkeys(("min", "max"), (*_REDUCED_INTEGERS, "f16", "bf16")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(_BITWISE, ("b32", "b64")),
}
CLUSTER_REDUCED_TYPES = {
    "add": ("u32", "s32", "u64"),
    **dict.fromkeys(("min", "max"), ("u32", "s32")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(_BITWISE, ("b32",)),
}
# Element type of a tensor map -> the type of PTX in which its reductions compute.
_ELEMENTS = {
    "uint32": "u32",
    "int32": "s32",
    "uint64": "u64",
    "int64": "s64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float32_ftz": "f32",
    "float64": "f64",
}


@dataclass(frozen=True)
class Reduction:
    """An operation that a copy does on what is in memory already, on values of a dtype."""

    operation: AtomicOperation
    dtype: np.dtype


def reduction(name: str, kind: str, known: dict = REDUCED_TYPES) -> Reduction:
    """An operation on values of a PTX type; UnsupportedInstruction where the ISA has none."""
    if kind not in known[name]:
        raise UnsupportedInstruction(f".{name} takes .{', .'.join(known[name])}, not .{kind}")
    found = operation(f"red.global.{name}.{kind}", kind)
    # Sums of f32 keep subnormals, as those in shared memory do: so an H200 has it.
    return Reduction(found.in_shared or found, isa.DTYPE[kind])


def reduction_of_elements(name: str, element: str) -> Reduction:
    """An operation on the elements of a tensor map, by their type there."""
    kind = _ELEMENTS.get(element, element)
    if kind in ("s32", "u32", "u64") and name in _BITWISE:  # int64: illegal on an H200
        kind = f"b{kind[1:]}"
    return reduction(name, kind)
