"""Products of warp groups: the opcodes of wgmma.mma_async, and which lane holds which element.

PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Operation". Warp i of a group
holds rows 16 i to 16 i + 15 of A and of the sums, as the fragments of mma.m16n8 have them.
"""

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ...errors import UnknownInstruction
from .layouts import BITS, LANES, Layout, layout
from .tensor_core import SM_90, WGMMA_FLOAT8, Accumulation

WARPS = 4  # of a group
ROWS = 64
K_BYTES = 32  # of a row of A, and of a column of B
_WARP_ROWS = ROWS // WARPS
_SHAPE = re.compile(r"m64n(\d+)k(\d+)$")
_SUMS = {
    "f16": ("f16", "f32"),
    "bf16": ("f32",),
    "tf32": ("f32",),
    "e4m3": ("f16", "f32"),
    "e5m2": ("f16", "f32"),
    "s8": ("s32",),
    "u8": ("s32",),
}
_TYPES = {*_SUMS, "f32", "s32"}
_FAMILIES = ({"e4m3", "e5m2"}, {"s8", "u8"})  # types that may be multiplied with one another
_KNOWN = {"wgmma", "mma_async", "sync", "aligned", "satfinite"}


@dataclass(frozen=True)
class GroupMultiplication:
    """D = A B + D of a group of four warps: what a wgmma.mma_async opcode says.

    shape: (64, n, k); a, b, d: types of the elements; saturate: clamp integer sums; scales: may A
    and B be negated? transposes: may they be stored with rows and columns exchanged?
    """

    opcode: str
    shape: tuple[int, int, int]
    a: str
    b: str
    d: str
    saturate: bool

    @property
    def scales(self) -> bool:
        return self.d != "s32"

    @property
    def transposes(self) -> bool:
        return self.a in ("f16", "bf16")

    @property
    def model(self) -> Accumulation:
        """How the tensor core adds."""
        return WGMMA_FLOAT8 if self.a in ("e4m3", "e5m2") else SM_90

    @cached_property
    def held_a(self) -> Layout:
        """The fragment of a warp's rows of A, where A comes from registers."""
        return layout("a", (_WARP_ROWS, 8, self.shape[2]), self.a)

    @cached_property
    def held_d(self) -> Layout:
        """The fragment of a warp's rows of the sums."""
        return layout("c", (_WARP_ROWS, self.shape[1], self.shape[2]), self.d)

    @cached_property
    def order_a(self) -> np.ndarray:
        """(64 * k,) place of each element of A, row by row, among registers as `places` has."""
        return places(self.held_a)

    @cached_property
    def order_d(self) -> np.ndarray:
        """(64 * n,) place of each sum, row by row, among registers as `places` has."""
        return places(self.held_d)

    @cached_property
    def order_registers(self) -> np.ndarray:
        """(registers * 128 * elements of one,) the sum that each place of a register holds."""
        back = np.empty_like(self.order_d)
        back[self.order_d] = np.arange(back.size)
        return back


@dataclass(frozen=True)
class GroupProduct:
    """A wgmma.mma_async with its immediate operands.

    negated: A, B; k_major: A, B, are neighbours in memory neighbours along K?
    """

    form: GroupMultiplication
    negated: tuple[bool, bool]
    k_major: tuple[bool, bool]


def places(held: Layout) -> np.ndarray:
    """(64 * columns,) where a warp group has each element of a matrix, row by row.

    Registers are counted first, then the 128 lanes, then the elements of one register.
    """
    each = held.span * len(held.tiles) // held.registers  # elements of a register
    found = np.empty((ROWS, held.columns), np.int64)
    lane, element = np.arange(LANES)[:, None], np.arange(held.row.shape[1])
    for warp in range(WARPS):
        at = (element // each * WARPS + warp) * LANES + lane
        found[held.row + warp * held.rows, held.column] = at * each + element % each
    return found.ravel()


@lru_cache(maxsize=256)
def group_multiplication(opcode: str) -> GroupMultiplication:
    """Decode "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16".

    Raises UnknownInstruction, with the opcode and the part that is not understood.
    """
    parts = opcode.split(".")
    if "sp" in parts:
        raise UnknownInstruction(f"{opcode}: no sparse products (.sp) here")
    if "b1" in parts:
        raise UnknownInstruction(f"{opcode}: no products of single bits (.b1) here")
    shape = next(filter(None, map(_SHAPE.match, parts)), None)
    types = [part for part in parts if part in _TYPES]
    unknown = [p for p in parts if p not in _KNOWN | _TYPES and not _SHAPE.match(p)]
    if shape is None or unknown:
        why = f"no modifier '.{unknown[0]}' here" if unknown else "no shape such as .m64n128k16"
        raise UnknownInstruction(f"{opcode}: {why}")
    if not {"sync", "aligned"} <= set(parts):
        raise UnknownInstruction(f"{opcode}: wgmma is .sync.aligned")
    if len(types) != 3:
        raise UnknownInstruction(f"{opcode}: expected the types of d, a and b")
    d, a, b = types
    alike = a == b or any({a, b} <= family for family in _FAMILIES)
    if not alike or d not in _SUMS.get(a, ()):
        raise UnknownInstruction(f"{opcode}: no product of .{a} and .{b} to .{d}")
    if "satfinite" in parts and d != "s32":
        raise UnknownInstruction(f"{opcode}: .satfinite is for sums of .s32")
    n, k = map(int, shape.groups())
    _check_shape(opcode, n, k, a)
    return GroupMultiplication(opcode, (ROWS, n, k), a, b, d, "satfinite" in parts)


def _check_shape(opcode: str, n: int, k: int, kind: str) -> None:
    whole = k == K_BYTES * 8 // BITS[kind]
    step = 16 if kind in ("s8", "u8") and n > 24 else 8
    if not whole or n % step or not 8 <= n <= 256:
        raise UnknownInstruction(f"{opcode}: wgmma has no shape m64n{n}k{k} of type .{kind}")
