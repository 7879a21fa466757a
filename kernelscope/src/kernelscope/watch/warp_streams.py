"""Single warps: the spread of a block's work, and the instructions that run during copies."""

from dataclasses import dataclass

import numpy as np
from kernelscope.events import InstructionEvent, Launch, Observer
from kernelscope.ptx.registers import reads_and_writes, registers_in


class WarpWork(Observer):
    """Counts the instructions and the global loads that every warp of a launch executes.

    with observe(WarpWork()) as work:
        kernel(grid, block, args)
    work.instructions   # (blocks, warps a block) int64
    work.loads          # the same of its loads from global memory

    Only the last launch is kept.
    """

    def __init__(self):
        super().__init__()
        self.instructions = self.loads = np.zeros((0, 0), np.int64)

    def launch_started(self, launch: Launch) -> None:
        blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
        self.instructions = np.zeros((blocks, launch.warps), np.int64)
        self.loads = np.zeros_like(self.instructions)

    def instruction(self, event: InstructionEvent) -> None:
        at = event.active_warps + (event.machine.first_lane >> 5)
        self.instructions.reshape(-1)[at] += 1
        if any(access.space == "global" and access.kind == "load" for access in event.accesses):
            self.loads.reshape(-1)[at] += 1


@dataclass(frozen=True)
class Flight:
    """A group of loads under way: from the instruction that began it to the one that waited.

    begin, end: the warp's instruction count; products: its float32 multiply-adds in between.
    """

    begin: int
    end: int
    products: int


class InFlight(Observer):
    """Follows one warp: when its loads from global into shared memory are under way.

    Asynchronous copies travel until the wait that covers their commit group; a load into registers
    until the first instruction that reads one of them. That is the order of the PTX: ptxas may move
    a load further up.

    block, warp: which warp to follow. copies_only: leave loads into registers out.
    product_opcodes: what counts as a multiply-add; with "mul" a product alone counts too.
    flights: a Flight each, in the order in which they ended; products: (count,) int64, the
    instruction counts at which the warp's multiply-adds ran; length: its instructions in all.
    """

    def __init__(
        self,
        block: int = 0,
        warp: int = 0,
        *,
        copies_only: bool = False,
        product_opcodes: tuple[str, ...] = ("fma",),
    ):
        super().__init__()
        self.block, self.warp, self.copies_only = block, warp, copies_only
        self.product_opcodes = product_opcodes
        self.flights: list[Flight] = []
        self.length = 0
        self._products: list[int] = []
        self._loading: list[tuple[frozenset[str], int]] = []  # registers, where their load began
        self._copying: int | None = None
        self._groups: list[int | None] = []  # where each group under way began; None: empty

    @property
    def products(self) -> np.ndarray:
        return np.array(self._products, np.int64)

    @property
    def products_under_way(self) -> int:
        """Multiply-adds that ran while at least one load was under way."""
        covered = np.zeros(self.length + 1, bool)
        for flight in self.flights:
            covered[flight.begin : flight.end] = True
        return int(covered[self.products].sum())

    def launch_started(self, launch: Launch) -> None:
        self._loading, self._copying, self._groups = [], None, []  # what an earlier launch left

    def instruction(self, event: InstructionEvent) -> None:
        first = event.machine.lane_of(self.block, self.warp)
        at = int(np.searchsorted(event.lanes, first))
        if at == event.lanes.size or event.lanes[at] >= first + 32:
            return
        self._follow(event.instruction)
        self.length += 1

    def _follow(self, instruction) -> None:
        opcode = instruction.opcode
        if self._loading:
            self._use(reads_and_writes(instruction)[0])
        if opcode.startswith(self.product_opcodes) and opcode.endswith("f32"):
            self._products.append(self.length)
        elif opcode.startswith("ld.global") and not self.copies_only:
            self._loading.append((frozenset(registers_in(instruction.operands[0])), self.length))
        elif opcode == "cp.async.commit_group":
            self._groups.append(self._copying)
            self._copying = None
        elif opcode == "cp.async.wait_group":
            self._wait(int(instruction.operands[0].value))
        elif opcode == "cp.async.wait_all":
            self._groups.append(self._copying)
            self._copying = None
            self._wait(0)
        elif opcode.startswith(("cp.async.ca", "cp.async.cg")) and self._copying is None:
            self._copying = self.length

    def _use(self, read: set[str]) -> None:
        for registers, begin in self._loading:
            if registers & read:
                self._landed(begin)
        self._loading = [one for one in self._loading if not one[0] & read]

    def _wait(self, newer: int) -> None:
        arrived = max(len(self._groups) - newer, 0)
        for begin in self._groups[:arrived]:
            if begin is not None:
                self._landed(begin)
        del self._groups[:arrived]

    def _landed(self, begin: int) -> None:
        since = sum(begin < at for at in self._products)
        self.flights.append(Flight(begin, self.length, since))
