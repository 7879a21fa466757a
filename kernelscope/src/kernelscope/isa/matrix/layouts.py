"""Which lane of a warp holds which element of a matrix: fragments of mma and wmma.

A fragment is made of tiles of 8 rows. Lane 4 * g + t holds, of each tile, `span` neighbouring
elements of row g, from column t * span on; so a tile of 16-bit elements with span 2 has 8 columns.
B is seen transposed here, (N, K): its lanes hold neighbours along K, as those of A do.

mma: PTX ISA 9.0, "Matrix Fragments for mma.m16n8k16" and the sections beside it. The manual leaves
wmma's layouts open. Those here are what ptxas 13.0 makes for sm_80 and sm_90, read from the
addresses of the machine code and compared with an H200: the same tiles, in an order that suits the
mma instructions that a wmma.mma becomes. Of .f16 the registers beyond these repeat them, a legacy
of sm_70.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

LANES = 32
ROWS = 8  # of a tile
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "s32": 32, "f64": 64} | dict.fromkeys(
    ("s8", "u8", "e4m3", "e5m2"), 8
)


@dataclass(frozen=True)
class Layout:
    """A fragment: where the elements of a matrix are.

    rows, columns: of the matrix as it is held; kind: type of an element; span: neighbours of one
    tile that a lane holds; tiles: (first row, first column), in the order of the registers;
    transposed: the instruction's matrix is the transpose of the one that is held.
    """

    rows: int
    columns: int
    kind: str
    span: int
    tiles: tuple[tuple[int, int], ...]
    transposed: bool = False

    @property
    def bits(self) -> int:
        return BITS[self.kind]

    @property
    def register_bytes(self) -> int:
        return max(4, self.bits // 8)

    @property
    def registers(self) -> int:
        return len(self.tiles) * self.span * self.bits // 8 // self.register_bytes

    @cached_property
    def row(self) -> np.ndarray:
        """(32, elements) row of each lane's elements, in the matrix as it is held."""
        first = np.array([r for r, _ in self.tiles])
        lane = np.arange(LANES) // 4
        return np.repeat(lane[:, None] + first, self.span, axis=1)

    @cached_property
    def column(self) -> np.ndarray:
        """(32, elements) column of each lane's elements, in the matrix as it is held."""
        first = np.array([c for _, c in self.tiles])
        lane = np.arange(LANES) % 4 * self.span
        return (lane[:, None, None] + first[:, None] + np.arange(self.span)).reshape(LANES, -1)

    @cached_property
    def place(self) -> np.ndarray:
        """(32 * elements,) place of each element in the held matrix, row by row."""
        return (self.row * self.columns + self.column).ravel()

    @cached_property
    def source(self) -> np.ndarray:
        """(rows, columns) number, lane * elements + i, of the first holder of each element."""
        order = np.arange(self.place.size)[::-1]
        source = np.full(self.rows * self.columns, -1)
        source[self.place[::-1]] = order
        return source.reshape(self.rows, self.columns)


def _by_sixteen(rows: int, columns: int, step: int) -> tuple:
    """Tiles as the first operand of mma has them: pairs of rows of tiles, column by column."""
    return tuple(
        (block + row, column)
        for block in range(0, rows, 16)
        for column in range(0, columns, step)
        for row in range(0, min(16, rows - block), ROWS)
    )


def _by_eight(rows: int, columns: int, step: int) -> tuple:
    """Tiles as the second operand of mma has them: one row of tiles after the other."""
    return tuple(
        (row, column) for row in range(0, rows, ROWS) for column in range(0, columns, step)
    )


@lru_cache(maxsize=256)
def layout(operand: str, shape: tuple[int, int, int], kind: str, wmma: bool = False) -> Layout:
    """The fragment of operand "a", "b" or "c" (which is also d) of a product of `shape` (m, n, k).

    wmma.m8n32k16 is computed as its transpose, so A and B change places, and C is held transposed.
    """
    m, n, k = shape
    swapped = wmma and m == 8 and n > 8
    if operand == "c":
        rows, columns = (n, m) if swapped else (m, n)
        return Layout(rows, columns, kind, 2, _by_sixteen(rows, columns, 8), swapped)
    span = max(1, 32 // BITS[kind]) if kind != "f64" else 1
    rows = m if operand == "a" else n
    order = _by_sixteen if (operand == "a") != swapped else _by_eight
    tiles = order(rows, k, 4 * span)
    if wmma and kind == "f16":
        tiles *= 8 // len(tiles)
    return Layout(rows, k, kind, span, tiles)
