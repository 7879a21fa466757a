"""Decodes the opcodes of matrix instructions: shape, types, fragments.

Raises UnknownInstruction, with the opcode and the part that is not understood.
"""

import itertools
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ...errors import UnknownInstruction
from .layouts import Layout, layout

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")
_TYPES = ("f16", "bf16", "tf32", "f32", "f64", "s8", "u8", "s32", "e4m3", "e5m2")
_HALF, _BYTE = ("f16", "bf16"), ("s8", "u8")
# The shapes of each type of A.
_SHAPES = {
    "mma": {
        **dict.fromkeys(_HALF, ((16, 8, 16), (16, 8, 8))),
        "tf32": ((16, 8, 8), (16, 8, 4)),
        **dict.fromkeys(_BYTE, ((8, 8, 16), (16, 8, 16), (16, 8, 32))),
        **dict.fromkeys(("e4m3", "e5m2"), ((16, 8, 32),)),
        "f64": ((8, 8, 4),),
    },
    "wmma": {
        **dict.fromkeys((*_HALF, *_BYTE), ((16, 16, 16), (32, 8, 16), (8, 32, 16))),
        "tf32": ((16, 16, 8),),
        "f64": ((8, 8, 4),),
    },
}
_KNOWN = {"sync", "aligned", "row", "col", "satfinite", "mma", "rn"}
_SUMS = {
    "f16": ("f16", "f32"),
    "e4m3": ("f32",),
    "e5m2": ("f32",),
    "s8": ("s32",),
    "u8": ("s32",),
    "f64": ("f64",),
}


@dataclass(frozen=True)
class Multiplication:
    """D = A B + C of one warp: what an mma or wmma.mma opcode says.

    a, b, c, d: the fragments; saturate: clamp integer sums instead of wrapping them; most: products
    that are added at once, whatever the hardware could add.
    """

    opcode: str
    shape: tuple[int, int, int]
    a: Layout
    b: Layout
    c: Layout
    d: Layout
    saturate: bool
    most: int

    @cached_property
    def order_k(self) -> np.ndarray:
        """(k,) the columns of A in the order in which they are added."""
        columns = np.arange(self.shape[2])
        if not self.adds_last:
            return columns
        return np.concatenate([columns[columns % 4 < 2], columns[columns % 4 >= 2]])

    @property
    def adds_last(self) -> bool:
        """Is C added with one rounding to nearest, after all products?

        sm_90 has no mma of 8-bit floats: ptxas 13.0 makes two products of .f16, first with the
        lower halves of all registers, then with the upper ones, and an add.
        """
        return self.a.kind in ("e4m3", "e5m2")

    @cached_property
    def spread_a(self) -> np.ndarray:
        """(k * m * n,) element of A's fragment for each product, k the slowest."""
        return np.repeat(self.a.source.T[self.order_k, :, None], self.shape[1], axis=2).ravel()

    @cached_property
    def spread_b(self) -> np.ndarray:
        """(k * m * n,) element of B's fragment for each product, k the slowest."""
        return np.repeat(self.b.source.T[self.order_k, None, :], self.shape[0], axis=1).ravel()

    @cached_property
    def order_c(self) -> np.ndarray:
        """(m * n,) element of C's fragment of each sum."""
        source = self.c.source
        return (source.T if self.c.transposed else source).ravel()

    @cached_property
    def order_d(self) -> np.ndarray:
        """(32 * elements,) sum that each element of D's fragment gets."""
        row, column = self.d.row, self.d.column
        row, column = (column, row) if self.d.transposed else (row, column)
        return (row * self.shape[1] + column).ravel()


@dataclass(frozen=True)
class Transfer:
    """wmma.load or wmma.store of a fragment.

    across: neighbours of the held matrix are apart in memory, by the stride that is an operand;
    by_rows: ptxas loads it from shared memory with ldmatrix.
    """

    opcode: str
    layout: Layout
    across: bool
    by_rows: bool = False


@lru_cache(maxsize=256)
def multiplication(opcode: str) -> Multiplication:
    """Decode "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" or a wmma.mma."""
    root, *parts = opcode.split(".")
    shape, types = _shape(opcode, parts), [part for part in parts if part in _TYPES]
    if root == "wmma" and len(types) == 2:  # d and c alone: the others are f16
        types[1:1] = ["f16", "f16"]
    if len(types) != 4:
        raise UnknownInstruction(f"{opcode}: expected the types of d, a, b and c")
    d, a, b, c = types
    _check(opcode, root, shape, a)
    sums = _SUMS.get(a, ("f32",))
    alike = a == b or {a, b} <= set(_BYTE) or {a, b} <= {"e4m3", "e5m2"}
    if not alike or d not in sums or c not in sums:
        raise UnknownInstruction(f"{opcode}: no product of .{a} and .{b} to .{d} with .{c}")
    if root == "mma" and ("row", "col") not in itertools.pairwise(parts):
        raise UnknownInstruction(f"{opcode}: only .row.col")
    unknown = [p for p in parts if p not in _KNOWN | set(_TYPES) and not _SHAPE.match(p)]
    if unknown:
        raise UnknownInstruction(f"{opcode}: no modifier '.{unknown[0]}' here")
    wmma = root == "wmma"
    fragments = [
        layout(name, shape, kind, wmma) for name, kind in zip("abcc", (a, b, c, d), strict=True)
    ]
    # ptxas makes two products of 4 columns each of wmma's 8 columns of .tf32
    most = 4 if wmma and a == "tf32" else shape[2]
    return Multiplication(opcode, shape, *fragments, "satfinite" in parts, most)


@lru_cache(maxsize=256)
def transfer(opcode: str) -> Transfer:
    """Decode "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16" or a wmma.store.d."""
    parts = opcode.split(".")
    shape, kind = _shape(opcode, parts), parts[-1]
    operand = parts[2]  # behind wmma.load, and before the shape
    if kind not in _TYPES or operand not in "abcd":
        raise UnknownInstruction(f"{opcode}: no fragment of type '.{kind}'")
    if operand in "ab":
        _check(opcode, "wmma", shape, kind)
    elif kind not in ("f16", "f32", "s32", "f64"):
        raise UnknownInstruction(f"{opcode}: no sums of type '.{kind}'")
    held = layout("c" if operand in "cd" else operand, shape, kind, True)
    natural = "col" if operand == "b" or held.transposed else "row"
    across, bits = natural not in parts, held.bits
    by_rows = operand in "ab" and (bits == 16 or bits == 8 and not across)
    return Transfer(opcode, held, across, by_rows)


def _shape(opcode: str, parts: list[str]) -> tuple[int, int, int]:
    found = next(filter(None, map(_SHAPE.match, parts)), None)
    if found is None:
        raise UnknownInstruction(f"{opcode}: no shape such as .m16n8k16")
    return tuple(int(size) for size in found.groups())


def _check(opcode: str, root: str, shape: tuple[int, int, int], kind: str) -> None:
    if shape not in _SHAPES[root].get(kind, ()):
        m, n, k = shape
        raise UnknownInstruction(f"{opcode}: {root} has no shape m{m}n{n}k{k} of type .{kind} here")
