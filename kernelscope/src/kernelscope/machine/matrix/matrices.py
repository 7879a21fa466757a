"""Matrix instructions of a warp: products of fragments, and matrices that move to and from memory.

All warps that run are computed at once. Registers arrive as arrays over the active lanes or as
scalars; a fragment's bits are (warps, 32 * elements) arrays, lane by lane.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from kernelscope.addresses import WINDOWS
from kernelscope.events import Fragment, MatrixProduct
from kernelscope.isa.matrix import SM_90, Layout, Multiplication, Transfer
from kernelscope.isa.matrix.tensor_core import Numbers, decode, multiply, widen
from kernelscope.translate.control_flow import LANE, LOCAL_BASE, SHARED_BASE

from ...errors import SimulatorError
from ..access import Memory
from ..lanes import ChunkLanes
from ..memory import spread
from ..reports import Reports

_KEPT = 32  # operands that are kept decoded
_RAW = {1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}
_WORD, _HALF = _RAW[4], _RAW[2]
_BASES = (SHARED_BASE, LOCAL_BASE)


def _fragment(name: str, layout: Layout, values: np.ndarray) -> Fragment:
    """A fragment as observers see it; B is held transposed."""
    row, column, rows, columns = layout.row, layout.column, layout.rows, layout.columns
    if layout.transposed or name == "B":
        row, column, rows, columns = column, row, columns, rows
    count = row.shape[1]
    register = np.arange(count) * layout.registers // count
    values = values.reshape(-1, 32, count)
    return Fragment(name, layout.kind, rows, columns, row, column, register, values)


def _product(form: Multiplication, warps, left: Numbers, right: Numbers, sums, result):
    """A product as observers see it."""
    values = left.value, right.value, widen(sums, form.c.kind), widen(result, form.d.kind)
    layouts = form.a, form.b, form.c, form.d
    found = zip("ABCD", layouts, values, strict=True)
    return MatrixProduct(form.shape, warps, tuple(_fragment(*one) for one in found))


class Matrices:
    """The matrix instructions of a chunk.

    operands: fragments of A and B that were decoded last, with the registers they come from;
    checked, rows: what was found for the lanes that ran last; product: makes the last one for
    observers.
    """

    def __init__(self, lanes: ChunkLanes, memory: Memory, reports: Reports):
        self.lanes, self.memory, self.reports = lanes, memory, reports
        self.operands: dict[tuple, tuple[tuple, Numbers]] = {}
        self.checked: tuple = (None, 0)
        self.product: Callable[[], MatrixProduct] | None = None
        self.rows: dict[int, tuple] = {}

    # -- warps ----------------------------------------------------------------------------------
    def warps(self, instruction) -> tuple[int, np.ndarray | None]:
        """(number of warps, place of each active lane among 32 a warp; None: all are active).

        Reports warps of which some lanes are missing; raises SimulatorError if no observer goes on.
        """
        lane = self.lanes.R[LANE]
        if self.checked[0] is lane:
            return self.checked[1], None
        warp = lane >> 5
        starts = np.flatnonzero(np.diff(warp, prepend=-1))
        if lane.size == 32 * starts.size:
            self.checked, self.rows = (lane, starts.size), {}
            return starts.size, None
        self.refuse(instruction, lane, starts)
        number = np.cumsum(np.diff(warp, prepend=warp[0]) > 0)
        return starts.size, number * 32 + (lane & 31)

    def refuse(self, instruction, lane: np.ndarray, starts: np.ndarray) -> None:
        """Tell of warps that do not have all of their 32 lanes at the instruction."""
        counts = np.diff(starts, append=lane.size)
        short = int(np.argmax(counts < 32))
        first = lane[starts[short] : starts[short] + counts[short]]
        instance = self.reports.block.instance
        message = (
            f"{self.lanes.kernel.name}: `{instruction.opcode}` at {instance.where(instruction)} is "
            f"executed by {counts[short]} of the 32 lanes of a warp "
            f"(first: {self.lanes.thread_text(first)}); a matrix instruction needs all of them, "
            f"and its result is undefined. Launch whole warps, and keep it out of branches that "
            f"only some lanes of a warp take"
        )
        event = self.reports.fault("divergent-barrier", message, instance, instruction, first)
        if event is not None:
            raise SimulatorError(message)

    def gather(self, registers: tuple, bits: int, count: int, place) -> np.ndarray:
        """(warps, elements of a warp) bits of what registers of the active lanes hold."""
        width = registers[0].dtype.itemsize
        words = np.zeros((32 * count, len(registers)), _RAW[width])
        for i, value in enumerate(registers):
            words[slice(None) if place is None else place, i] = value.view(_RAW[width])
        return words.view(_RAW[bits // 8]).reshape(count, -1)

    @staticmethod
    def scatter(elements: np.ndarray, layout: Layout, place) -> list[np.ndarray]:
        """Registers of the active lanes, one array each, from (warps, elements of a warp) bits."""
        word = _RAW[layout.register_bytes]
        words = np.ascontiguousarray(elements).reshape(-1, layout.place.size // 32).view(word).T
        if layout.kind in ("f32", "f64"):
            words = words.view(f"f{word.itemsize}")
        return [np.ascontiguousarray(one if place is None else one[place]) for one in words]

    # -- products -------------------------------------------------------------------------------
    def multiply(self, form: Multiplication, a: tuple, b: tuple, c: tuple, instruction):
        """mma, wmma.mma: the registers of D, one array each."""
        count, place = self.warps(instruction)
        left, right = (
            self.operand(registers, layout, count, place)
            for registers, layout in ((a, form.a), (b, form.b))
        )
        sums = self.gather(c, form.c.bits, count, place)
        result = multiply(form, left, right, sums, SM_90)
        if self.reports.observers:
            warps = self.lanes.R[LANE] >> 5
            warps = warps[np.diff(warps, prepend=-1) > 0]
            self.product = partial(_product, form, warps, left, right, sums, result)
        return self.scatter(result, form.d, place)

    def last_product(self) -> MatrixProduct | None:
        """The last product as observers see it."""
        return self.product() if self.product is not None else None

    def operand(self, registers: tuple, layout: Layout, count: int, place) -> Numbers:
        """A fragment of A or B as numbers; several products in a row often share one."""
        key = (layout.kind, *map(id, registers), id(self.lanes.R[LANE]))
        known = self.operands.get(key)
        if known is not None:
            return known[1]
        numbers = decode(self.gather(registers, layout.bits, count, place), layout.kind)
        while len(self.operands) >= _KEPT:
            del self.operands[next(iter(self.operands))]
        # the arrays are kept with it: as long as they live, no others have their ids
        self.operands[key] = (registers, self.lanes.R[LANE]), numbers
        return numbers

    # -- 8x8 matrices ---------------------------------------------------------------------------
    def load_rows(self, space: str, address, matrices: int, transposed: bool, instruction):
        """ldmatrix: 8x8 matrices of 16 bits, whose rows of 16 bytes the lanes have addresses of.

        Lanes 8 i to 8 i + 7 give the rows of matrix i. Returns a register for each matrix.
        """
        count, place = self.warps(instruction)
        chosen, row = self.row_lanes(8 * matrices)
        parts = self.of_lanes(
            chosen,
            lambda at: self.memory.load("shared", at, _WORD, 2, 4, instruction),
            self.shared_address(space, address),
        )
        words = np.zeros((count * 8 * matrices, 4), _WORD)
        words[row] = np.stack(parts, axis=1)
        tiles = words.view(_HALF).reshape(count, matrices, 8, 8)
        if transposed:
            tiles = np.ascontiguousarray(tiles.swapaxes(2, 3))
        held = tiles.view(_WORD).reshape(count, matrices, 32).swapaxes(0, 1).reshape(matrices, -1)
        return [one if place is None else one[place] for one in held]

    def store_rows(self, space: str, address, registers: tuple, transposed: bool, instruction):
        """stmatrix: the opposite of load_rows."""
        count, place = self.warps(instruction)
        matrices = len(registers)
        words = self.gather(registers, 32, count, place).reshape(count, 32, matrices)
        tiles = np.ascontiguousarray(words.swapaxes(1, 2)).view(_HALF)
        tiles = tiles.reshape(count, matrices, 8, 8)
        if transposed:
            tiles = np.ascontiguousarray(tiles.swapaxes(2, 3))
        chosen, row = self.row_lanes(8 * matrices)
        rows = tiles.view(_WORD).reshape(-1, 4)[row]
        values = tuple(np.ascontiguousarray(part) for part in rows.T)
        self.of_lanes(
            chosen,
            lambda at: self.memory.store("shared", at, values, _WORD, 2, instruction),
            self.shared_address(space, address),
        )

    def transpose(self, register, instruction):
        """movmatrix: the transpose of one 8x8 matrix of 16 bits."""
        count, place = self.warps(instruction)
        tiles = self.gather((register,), 16, count, place).reshape(count, 8, 8)
        moved = np.ascontiguousarray(tiles.swapaxes(1, 2)).view(_WORD).ravel()
        return moved if place is None else moved[place]

    def row_lanes(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """(which active lanes are among the first `rows` of their warp, the row of each of them).

        Rows are counted through all warps.
        """
        lane = self.lanes.R[LANE]
        whole = self.checked[0] is lane
        if whole and rows in self.rows:
            return self.rows[rows]
        warp = np.cumsum(np.diff(lane >> 5, prepend=lane[0] >> 5) > 0)
        chosen = np.flatnonzero(lane & 31 < rows)
        found = chosen, (warp * rows + (lane & 31))[chosen]
        if whole:
            self.rows[rows] = found
        return found

    def of_lanes(self, chosen: np.ndarray, action, address: np.ndarray):
        """Return action(address), run by some of the active lanes."""
        if chosen.size == address.size:
            return action(address)
        return self.lanes.narrowed(chosen, _BASES, lambda: action(address[chosen]))

    def shared_address(self, space: str, address) -> np.ndarray:
        """Addresses within shared memory, where generic ones must lead too."""
        address = spread(address, self.lanes.R[LANE].size)
        return address - np.uint64(WINDOWS["shared"]) if space == "generic" else address

    # -- fragments of wmma ----------------------------------------------------------------------
    def load_fragment(self, form: Transfer, space: str, address, stride, instruction):
        """wmma.load: the registers of a fragment. stride: elements from line to line in memory."""
        count, place = self.warps(instruction)
        layout, size = form.layout, form.layout.bits // 8
        tiles = list(dict.fromkeys(layout.tiles))
        if space == "shared" and form.by_rows:
            found = self.load_tiles(form, tiles, address, stride, instruction)
        elif form.across and size == 2:
            words = [
                self.memory.load(space, at, _WORD, 2, 1, instruction)
                for at in self.tile_addresses(form, tiles, address, stride)
            ]
            halves = (self.gather((one,), 16, count, place).reshape(count, 8, 8) for one in words)
            found = [self.tile_register(one.swapaxes(1, 2), place) for one in halves]
        else:
            found = self.load_elements(form, space, tiles, address, stride, instruction)
        registers = [found[tiles.index(tile)] for tile in layout.tiles]
        flat = [one for part in registers for one in (part if isinstance(part, list) else [part])]
        if layout.kind in ("f32", "f64"):
            return [one.view(f"f{one.dtype.itemsize}") for one in flat]
        return flat

    def load_tiles(self, form: Transfer, tiles: list, address, stride, instruction) -> list:
        """A register for each tile, loaded as ldmatrix does: a lane fetches a line of a tile."""
        lane = self.lanes.R[LANE] & 31
        found, size = [], form.layout.bits // 8
        for first in range(0, len(tiles), 4):
            some = tiles[first : first + 4]
            tile = np.array(some)[lane // 8 % len(some)]
            line, start = (tile[:, 1], tile[:, 0]) if form.across else (tile[:, 0], tile[:, 1])
            offset = ((line + lane % 8) * stride + start) * size
            at = address + offset.astype(np.uint64)
            found += self.load_rows("shared", at, len(some), form.across, instruction)
        return found

    def load_elements(self, form: Transfer, space, tiles, address, stride, instruction) -> list:
        """The registers of each tile, a list of them, loaded by the lanes that hold them."""
        layout, found = form.layout, []
        size = layout.bits // 8
        for at in self.tile_addresses(form, tiles, address, stride):
            if form.across:  # each element by itself
                step = (spread(stride, at.size) * size).astype(np.uint64)
                parts = [
                    self.memory.load(
                        space,
                        at + np.uint64(i) * step,
                        _RAW[size],
                        size.bit_length() - 1,
                        1,
                        instruction,
                    )
                    for i in range(layout.span)
                ]
                parts = [spread(part, at.size) for part in parts]
                bits = np.stack(parts, axis=1).view(_RAW[layout.register_bytes])
                found.append([np.ascontiguousarray(one) for one in bits.T])
                continue
            width = layout.register_bytes
            count = layout.span * size // width
            part = self.memory.load(
                space, at, _RAW[width], width.bit_length() - 1, count, instruction
            )
            found.append(part if isinstance(part, list) else [part])
        return found

    def store_fragment(self, form: Transfer, space: str, address, stride, registers, instruction):
        """wmma.store: a fragment to memory."""
        count, place = self.warps(instruction)
        layout, size = form.layout, form.layout.bits // 8
        width = layout.register_bytes
        each = layout.span * size // width
        item, shift = _RAW[width], width.bit_length() - 1
        addresses = self.tile_addresses(form, list(layout.tiles), address, stride)
        for i, at in enumerate(addresses):
            mine = tuple(one.view(item) for one in registers[i * each : (i + 1) * each])
            if not form.across:
                self.memory.store(space, at, mine, item, shift, instruction)
            elif size == 2:
                tile = self.gather(mine, 16, count, place).reshape(count, 8, 8).swapaxes(1, 2)
                moved = (self.tile_register(tile, place),)
                self.memory.store(space, at, moved, item, shift, instruction)
            else:
                step = (spread(stride, at.size) * size).astype(np.uint64)
                for j, value in enumerate(mine):
                    there = at + np.uint64(j) * step
                    self.memory.store(space, there, (value,), item, shift, instruction)

    def tile_addresses(self, form: Transfer, tiles: list, address, stride):
        """Yield the addresses at which the lanes reach each tile.

        Where neighbours are apart in memory and two of them share a word, a lane reaches the line
        of the transposed tile that its number names.
        """
        lane = self.lanes.R[LANE] & 31
        address, stride = spread(address, lane.size), spread(stride, lane.size).astype(np.int64)
        size, span = form.layout.bits // 8, form.layout.span
        for row, column in tiles:
            line, start = row + lane // 4, column + lane % 4 * span
            if form.across and size == 2:
                line, start = column + lane // 4, row + lane % 4 * 2
            elif form.across:
                line, start = start, line
            yield address + ((line * stride + start) * size).astype(np.uint64)

    @staticmethod
    def tile_register(tiles: np.ndarray, place) -> np.ndarray:
        """The register that holds (warps, 8, 8) tiles of 16 bits."""
        words = np.ascontiguousarray(tiles).view(_WORD).ravel()
        return words if place is None else words[place]
