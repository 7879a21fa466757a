"""Products of warp groups: wgmma, whose operands come from shared memory by matrix descriptors.

Operands are read and sums written when the instruction is issued. The compiler's PTX moves
registers between the issue and the wait, so sums cannot come later; who touches them too early is
for observers to say, which hear when each product is issued and when the wait for it has passed.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from kernelscope.events import Access, AsyncOperation, Fragment, MatrixProduct
from kernelscope.isa.matrix.blocks import add_integers, add_products, tile
from kernelscope.isa.matrix.layouts import Layout
from kernelscope.isa.matrix.tensor_core import widen
from kernelscope.isa.matrix.warpgroup import WARPS, GroupMultiplication, GroupProduct
from kernelscope.translate.control_flow import LANE

from ...errors import SimulatorError
from ..access import Memory
from ..lanes import ChunkLanes
from ..memory import scalar
from ..reports import Reports
from .matrices import Matrices
from .tiles import Tiles

LANES = 32 * WARPS  # of a group
_KEPT = 4  # sums that are kept as matrices
_WORD = np.dtype("u4")
_INTEGERS = {"s8": np.int8, "u8": np.uint8}
_RAW = {8: np.dtype("u1"), 16: np.dtype("u2"), 32: _WORD}


@dataclass
class _Open:
    """A product under way: its operation, and the commit group that each warp has put it in."""

    operation: AsyncOperation
    group: dict[int, int]  # of the warps that have not waited for it


class WarpGroups:
    """The products of warp groups of a chunk.

    checked: what was found for the lanes that ran last; sums: results as matrices, by the registers
    that hold them; committed: commit groups that each warp has closed; under_way: products that
    some warp has not waited for, while observers listen.
    """

    def __init__(self, lanes: ChunkLanes, memory: Memory, reports: Reports, matrices: Matrices):
        self.lanes, self.memory, self.reports, self.matrices = lanes, memory, reports, matrices
        self.tiles = Tiles(lanes, memory, reports)
        self.checked: tuple = (None, 0, None)
        self.sums: dict[tuple, tuple[tuple, np.ndarray]] = {}
        self.committed = np.zeros(lanes.block_count * lanes.warps_per_block, np.int64)
        self.under_way: list[_Open] = []

    # -- groups ---------------------------------------------------------------------------------
    def groups(self, instruction) -> tuple[int, np.ndarray | None]:
        """(number of groups, place of each active lane among 128 a group; None: all are active).

        Reports groups of which some lanes are missing; raises SimulatorError if no observer goes
        on.
        """
        lane = self.lanes.R[LANE]
        if self.checked[0] is lane:
            return self.checked[1:]
        thread = lane % (32 * self.lanes.warps_per_block)
        first = np.flatnonzero(np.diff(thread // LANES + lane - thread, prepend=-1))
        place = None
        if lane.size != LANES * first.size:
            self.refuse(instruction, lane, first)
            number = np.repeat(np.arange(first.size), np.diff(first, append=lane.size))
            place = number * LANES + thread % LANES
        self.checked = lane, first.size, place
        return first.size, place

    def refuse(self, instruction, lane: np.ndarray, first: np.ndarray) -> None:
        """Tell of groups that do not have all of their 128 lanes at the instruction."""
        counts = np.diff(first, append=lane.size)
        short = int(np.argmax(counts < LANES))
        here = lane[first[short] : first[short] + counts[short]]
        thread = here % (32 * self.lanes.warps_per_block)
        start = int(thread[0]) // LANES * WARPS
        whole = np.bincount(thread // 32, minlength=start + WARPS)[start:] == 32
        missing = ", ".join(str(start + i) for i in np.flatnonzero(~whole).tolist())
        where = self.reports.block.instance.where(instruction)
        self.fault(
            "divergent-barrier",
            f"{self.lanes.kernel.name}: `{instruction.opcode}` at {where} needs the four warps "
            f"{start} to {start + WARPS - 1} of a warp group, and all of their lanes; of warp "
            f"{missing} not all come there (first who came: {self.lanes.thread_text(here)}). "
            f"Launch blocks of a multiple of {LANES} threads, and let all four warps take the same "
            "branch",
            instruction,
            here,
        )

    def fault(self, kind: str, message: str, instruction, lanes: np.ndarray) -> None:
        """Tell of a fault; raise it as a SimulatorError unless an observer goes on."""
        instance = self.reports.block.instance
        event = self.reports.fault(kind, message, instance, instruction, lanes)
        if event is not None:
            raise SimulatorError(message, event.line)

    def first_lanes(self) -> np.ndarray:
        """(groups,) place among the active lanes of the first lane of each group."""
        _, count, place = self.checked
        if place is None:
            return np.arange(count) * LANES
        return np.flatnonzero(np.diff(place // LANES, prepend=-1))

    def uniform(self, value, what: str, instruction) -> list:
        """The value of each group, in which all lanes must agree."""
        first = self.first_lanes()
        if scalar(value):
            return [value.item()] * first.size
        own = value[first]
        counts = np.diff(first, append=value.size)
        apart = np.flatnonzero(value != np.repeat(own, counts))
        if apart.size:
            lane = self.lanes.R[LANE][apart[:1]]
            of_first = self.lanes.R[LANE][first[np.searchsorted(first, apart[0], "right") - 1]]
            where = self.reports.block.instance.where(instruction)
            self.fault(
                "divergent-barrier",
                f"{self.lanes.kernel.name} at {where}: {what} of `{instruction.opcode}` is not the "
                f"same in all threads of a warp group: {self.lanes.thread_text(lane)} has another "
                f"one than {self.lanes.thread_text(np.array([of_first]))}. Compute it from what "
                "the four warps have in common",
                instruction,
                lane,
            )
        return own.tolist()

    # -- products -------------------------------------------------------------------------------
    def multiply(self, product: GroupProduct, sums: tuple, a, b, keeps, instruction):
        """wgmma.mma_async: the registers of D, one array each.

        sums: registers of D; a: registers, or a descriptor; b: a descriptor; keeps: scale-d, is D
        added to the product?
        """
        count, place = self.groups(instruction)
        form, chosen = product.form, self.uniform(keeps, "scale-d", instruction)
        sources = {"B": self.uniform(b, "the descriptor of B", instruction)}
        if not isinstance(a, tuple):
            sources["A"] = self.uniform(a, "the descriptor of A", instruction)
            left = self.tiles.read(product, "A", sources["A"], self.first_lanes(), instruction)
        else:
            left = self.from_registers(a, form.order_a, form.held_a.bits, count, place)
            left = left.reshape(count, form.shape[0], form.shape[2]).swapaxes(1, 2)
        right = self.tiles.read(product, "B", sources["B"], self.first_lanes(), instruction)
        start = self.start(form, sums, chosen, count, place)
        result = self.result(product, left, right, start)
        if self.reports.observers:
            parts, held = (left, right, start, result), isinstance(a, tuple)
            self.matrices.product = partial(_product, form, self.first_warps(), parts, held)
            self.issue(product, sources, instruction)
        return self.to_registers(form, result, place)

    @staticmethod
    def result(product: GroupProduct, left, right, start: np.ndarray) -> np.ndarray:
        """(groups, 64, n) bits of D; left: (groups, k, 64), right: (groups, k, n) bits."""
        form = product.form
        if form.d == "s32":
            a, b = left.view(_INTEGERS[form.a]), right.view(_INTEGERS[form.b])
            return add_integers(a.swapaxes(1, 2), b, start, form.saturate)
        a = tile(left, form.a, product.negated[0])
        b = tile(right, form.b, product.negated[1])
        return add_products(a, b, start, form.d, form.model)

    def start(self, form, sums: tuple, chosen: list, count: int, place) -> np.ndarray:
        """(groups, 64, n) bits that the product is added to: zeros where scale-d says so."""
        shape = count, *form.shape[:2]
        if not any(chosen):
            return np.zeros(shape, _RAW[form.held_d.bits])
        known = self.sums.pop(tuple(map(id, sums)), None)  # the product overwrites them
        if known is not None:
            found = known[1]
        else:
            found = self.from_registers(sums, form.order_d, form.held_d.bits, count, place)
            found = found.reshape(shape)
        return found if all(chosen) else np.where(np.array(chosen)[:, None, None], found, 0)

    @staticmethod
    def from_registers(registers: tuple, order: np.ndarray, bits: int, count: int, place):
        """(groups, elements) bits of a matrix that registers of the active lanes hold."""
        words = np.zeros((len(registers), LANES * count), _WORD)
        for row, value in zip(words, registers, strict=True):
            row[slice(None) if place is None else place] = value.view(_WORD)
        words = words.reshape(len(registers), count, LANES).swapaxes(0, 1).reshape(count, -1)
        return words.view(_RAW[bits]).take(order, axis=1)

    def to_registers(self, form: GroupMultiplication, result: np.ndarray, place) -> list:
        """Registers of the active lanes, one array each, that hold a (groups, 64, n) matrix."""
        count = len(result)
        words = result.reshape(count, -1).take(form.order_registers, axis=1).view(_WORD)
        words = words.reshape(count, -1, LANES).swapaxes(0, 1).reshape(-1, count * LANES)
        if form.d == "f32":
            words = words.view(np.float32)
        registers = tuple(words if place is None else words[:, place])
        while len(self.sums) >= _KEPT:
            del self.sums[next(iter(self.sums))]
        # the registers are kept with it: as long as they live, no others have their ids
        self.sums[tuple(map(id, registers))] = registers, result
        return registers

    # -- what observers hear --------------------------------------------------------------------
    def first_warps(self) -> np.ndarray:
        """(groups,) number of the first warp of each group, counted through the chunk."""
        warp = self.lanes.R[LANE][self.first_lanes()] >> 5
        within = warp % self.lanes.warps_per_block
        return warp - within % WARPS

    def issue(self, product: GroupProduct, sources: dict, instruction) -> None:
        """Tell of the products of all groups, and keep them until they have been waited for."""
        line, issued = self.reports.line(instruction), []
        for at, warp in enumerate(self.first_warps().tolist()):
            lanes = np.arange(LANES) + 32 * warp
            block = warp // self.lanes.warps_per_block
            accesses = []
            for name in sorted(sources):
                address, size = self.tiles.runs(product, name, sources[name][at])
                first, home = np.full(address.size, lanes[0]), np.full(address.size, block)
                accesses.append(Access("shared", "load", address, first, size, None, home))
            operation = AsyncOperation(instruction, line, lanes, tuple(accesses), "wgmma_group")
            warps = range(warp, warp + WARPS)
            last = {one: int(self.committed[one]) for one in warps if one < self.committed.size}
            self.under_way.append(_Open(operation, last))
            issued.append(operation)
        self.reports.async_issued(issued)

    def commit(self) -> None:
        """wgmma.commit_group: close the commit group of each running warp."""
        self.committed[self.running_warps()] += 1

    def wait(self, newer: int) -> None:
        """wgmma.wait_group: wait for all but the `newer` newest commit groups of each warp."""
        if not self.under_way:
            return
        warps, kept, done = self.running_warps().tolist(), [], []
        for product in self.under_way:
            for warp in warps:
                if product.group.get(warp, np.inf) < self.committed[warp] - newer:
                    del product.group[warp]
            if product.group:
                kept.append(product)
            else:
                done.append(product.operation)
        self.under_way = kept
        self.reports.async_completed(done)

    def running_warps(self) -> np.ndarray:
        """(warps,) numbers of the warps that run, counted through the chunk."""
        warps = self.lanes.R[LANE] >> 5
        return warps[np.flatnonzero(np.diff(warps, prepend=-1))]


def _product(form: GroupMultiplication, warps: np.ndarray, parts: tuple, held: bool):
    """A product as observers see it, from the bits of A, B, C and D; held: A in registers."""
    left, right, start, result = parts
    matrices = left.swapaxes(1, 2), right, start, result
    kinds = form.a, form.b, form.d, form.d
    layouts = form.held_a if held else None, None, form.held_d, form.held_d
    found = zip("ABCD", kinds, matrices, layouts, strict=True)
    return MatrixProduct(form.shape, warps, tuple(_fragment(*one) for one in found))


def _fragment(name: str, kind: str, bits: np.ndarray, held: Layout | None) -> Fragment:
    """A matrix of a product: as it is, or as the 128 lanes of a group hold it."""
    values = widen(np.ascontiguousarray(bits), kind)
    rows, columns = bits.shape[1:]
    if held is None:
        nobody = np.zeros((0, 0), np.int64)
        return Fragment(name, kind, rows, columns, nobody, nobody, nobody.ravel(), values)
    first = np.repeat(np.arange(WARPS) * held.rows, 32)[:, None]
    row, column = np.tile(held.row, (WARPS, 1)) + first, np.tile(held.column, (WARPS, 1))
    count = row.shape[1]
    register = np.arange(count) * held.registers // count
    return Fragment(name, kind, rows, columns, row, column, register, values[:, row, column])
