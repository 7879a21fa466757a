"""Mbarriers, tiles of bulk copies, products under way and the work of each warp of a traced block.

A state is as observers are told it: a tile lands when an mbarrier is asked for its bytes, and a
product is open until its warps have waited for it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from kernelscope.events import Access, AsyncOperation, BarrierEvent, InstructionEvent, MachineView
from kernelscope.ptx.c_types import dtype_of

from .recording import place_text
from .traced_block import TracedBlock

_ENGINES = ("mbarrier.", "cp.async.bulk", "cp.reduce.async.bulk", "wgmma.")
_BARRIERS = ("bar", "barrier")
_MBARRIER_BYTES = 8
# What a group does in a step: the first of these that applies.
WAITS_MBARRIER, WAITS_BARRIER = "waits at an mbarrier", "waits at a barrier"
PRODUCTS, COPIES, EXPONENTIALS = "orders products", "orders a copy", "exponentials"
OTHER, STANDS, ENDED = "other work", "", "ended"
WORK = (WAITS_MBARRIER, WAITS_BARRIER, PRODUCTS, COPIES, EXPONENTIALS, OTHER, STANDS, ENDED)
IN_FLIGHT, READ, LANDED, FREE = "in flight", "read", "landed", "free"


def opcodes_of(source, kernel: str) -> set[str]:
    """Return the opcodes of a kernel and of the functions that it calls by name."""
    functions = source.module.functions
    found, names, left = set(), {kernel}, [kernel]
    while left:
        for instruction in functions[left.pop()].body:
            found.add(instruction.opcode)
            if instruction.opcode.split(".")[0] == "call":
                called = {getattr(one, "name", "") for one in instruction.operands}
                left += (called & functions.keys()) - names
                names |= called
    return found


def uses_engines(opcodes: set[str]) -> bool:
    """Return whether there are mbarriers, bulk copies or products of warp groups."""
    return any(one.startswith(_ENGINES) for one in opcodes)


@dataclass(eq=False)
class _Tile:
    """A destination of bulk copies. release: the mbarrier that says it may be filled again."""

    number: int
    start: int
    end: int
    flights: int = 0
    readers: int = 0  # products and copies that read it
    free: bool = False
    release: int = -1

    @property
    def state(self) -> str:
        if self.flights:
            return IN_FLIGHT
        if self.readers:
            return READ
        return FREE if self.free else LANDED


class Engines:
    """The asynchronous side of one block; changes() gives what a frame has of it.

    names: name -> (byte address in shared memory, bytes of an element), for parts of one array;
    mbarriers, tiles, groups: as Recording has them.
    """

    def __init__(self, memory: TracedBlock, opcodes: set[str], names: Mapping[str, tuple]):
        self.memory = memory
        self.names = sorted((at, size, name) for name, (at, size) in names.items())
        wide = any(one.startswith("wgmma.") for one in opcodes)
        self.width = 128 if wide else 32  # threads of a group
        what, count = "warpgroup" if wide else "warp", -(-memory.threads // self.width)
        self.groups = [{"name": f"{what} {i}", "first": i * self.width} for i in range(count)]
        self.mbarriers: list[dict] = []
        self.destinations: list[dict] = []
        self.numbers: dict[int, int] = {}  # byte address of an mbarrier -> its number
        self.states: dict[int, tuple] = {}  # number -> as machine.mbarrier() gives it
        self.tiles: list[_Tile] = []
        self.read_by: dict[AsyncOperation, list[_Tile]] = {}
        self.last_wait = np.full(memory.threads, -1)  # the mbarrier that each thread has passed
        self.told: list[tuple[str, AsyncOperation]] = []  # since the last instruction
        self.doing: dict[int, tuple[str, str]] = {}  # group -> (work, detail) in this frame
        self.waits: dict[int, tuple[str, str]] = {}  # group -> its last wait that did not pass
        self.waiting, self.ran, self.failed = np.zeros((3, memory.threads), bool)
        self.touched: set[int] = set()  # tiles that threads read in this frame
        self.grouped: tuple = (None, [])  # threads of the last instruction, their groups
        self.open = [0] * count
        self.products: list[dict] = []
        self.landed: list[_Tile] = []
        self.recorded: dict[tuple, object] = {}  # (kind, number) -> as last recorded

    # -- names ----------------------------------------------------------------------------------
    def name_of(self, address: int, size: int = 1) -> str:
        """The place of some bytes of shared memory, as the source or the caller names it."""
        buffer = self.array_at(address)
        for at, item, name in reversed(self.names):
            if at <= address and self.array_at(at) is buffer:
                index, rest = divmod(address - at, item)
                return f"{name}[{index}]" + (f" + {rest}" if rest else "")
        if buffer is not None:
            return self.element_name(buffer, address - buffer.start, size)
        return f"shared memory + {address}"

    def array_at(self, address: int):
        """The shared array that has this byte, or None."""
        for buffer in self.memory.buffers:
            inside = buffer.start <= address < buffer.start + buffer.size
            if buffer.space == "shared" and inside:
                return buffer
        return None

    def element_name(self, buffer, offset: int, size: int) -> str:
        """`tiles[1]` for a row of an array, `memory + 4096` where no element has these bytes."""
        array = self.memory.arrays[buffer.name]
        shape, item = array["shape"], dtype_of(array["dtype"]).itemsize
        if offset == 0 and size >= buffer.size:
            return buffer.name
        for axis in range(1, len(shape) + 1):
            row = item * prod(shape[axis:])
            if row == size and offset % row == 0:
                return buffer.name + place_text(offset // row, shape[:axis])
        if size == _MBARRIER_BYTES and buffer.name in self.memory.untyped and not offset % size:
            return f"{buffer.name}[{offset // size}]"  # of a type such as a typedef's
        return f"{buffer.name} + {offset}"

    # -- events ---------------------------------------------------------------------------------
    def instruction(self, event: InstructionEvent, threads: np.ndarray) -> None:
        """After an instruction of these threads of the block, which the current frame has."""
        told, self.told = self.told, []
        for what, operation in told:
            getattr(self, what)(operation, event.machine)
        opcode = event.instruction.opcode
        kind, detail = OTHER, ""
        if opcode.startswith("mbarrier."):
            kind, detail = self.mbarrier(event, opcode.split(".")[1])
        elif opcode.split(".")[0] in _BARRIERS and _waits(opcode):
            kind, detail = WAITS_BARRIER, _barrier_name(event)
        elif opcode.startswith("ex2"):
            kind = EXPONENTIALS
        for what, operation in told:
            if what == "issued":
                kind = PRODUCTS if operation.completion == "wgmma_group" else COPIES
        if opcode.startswith(("mbarrier.", "cp.async.mbarrier")) or told:
            self.poll(event.machine)
        self.note_reads(event)
        self.ran[threads] = True
        if kind == WAITS_BARRIER:
            self.failed[threads] = True
        if threads is not self.grouped[0]:
            self.grouped = threads, np.unique(threads // self.width).tolist()
        for group in self.grouped[1]:
            now = self.doing.get(group, (STANDS, ""))
            if WORK.index(kind) <= WORK.index(now[0]):
                self.doing[group] = kind, detail
                if kind in (WAITS_MBARRIER, WAITS_BARRIER):
                    self.waits[group] = kind, detail

    def barrier(self, event: BarrierEvent) -> None:
        """Threads pass a barrier: they do not wait any more."""
        for _, lanes in event.arrivals:
            _, threads = self.memory.mine(np.sort(lanes), event.machine)
            self.waiting[threads] = self.failed[threads] = False
            for group in np.unique(threads // self.width).tolist():
                if self.doing.get(group, ("",))[0] == WAITS_BARRIER:
                    self.doing[group] = OTHER, ""

    # -- mbarriers ------------------------------------------------------------------------------
    def own(self, access: Access, machine: MachineView) -> np.ndarray:
        """(lanes,) bool: does the access go to this block's shared memory?"""
        block = self.memory.number - machine.first_block
        home = (
            access.lanes // (32 * machine.warps_per_block) if access.block is None else access.block
        )
        return (home == block) & (True if access.valid is None else access.valid)

    def mbarrier(self, event: InstructionEvent, what: str) -> tuple[str, str]:
        """Note what an instruction on mbarriers does; (work, detail) of its threads."""
        access = next((one for one in event.accesses if one.space == "shared"), None)
        if access is None:
            return OTHER, ""
        mine = self.own(access, event.machine)
        if what in ("init", "inval"):
            for address in np.unique(access.address[mine]).tolist():
                self.start(address) if what == "init" else self.numbers.pop(address, None)
            return OTHER, ""
        use = event.machine.phase_use
        if use is None or use.passed is None:
            return OTHER, ""
        first = event.machine.lane_of(self.memory.number)
        detail = ""
        for lane in range(use.chosen.size):
            place = use.chosen[lane]
            number = self.numbers.get(int(access.address[place]), -1) if mine[place] else -1
            thread = int(access.lanes[place]) - first
            if not 0 <= thread < self.memory.threads:
                continue
            self.failed[thread] = not use.passed[lane]
            if use.passed[lane]:
                self.last_wait[thread] = number
            elif not detail and number >= 0:
                detail = f"{self.mbarriers[number]['name']}, parity {use.parity[lane]}"
        return (WAITS_MBARRIER, detail) if detail else (OTHER, "")

    def start(self, address: int) -> None:
        self.numbers[address] = len(self.mbarriers)
        self.mbarriers.append({"name": self.name_of(address, _MBARRIER_BYTES), "start": address})

    def poll(self, machine: MachineView) -> None:
        """Compare all mbarriers with what they were; a phase that has ended frees its tiles."""
        block = self.memory.number - machine.first_block
        for address, number in self.numbers.items():
            state = machine.mbarrier(block, address)
            before, self.states[number] = self.states.get(number), state
            if before is not None and before[3] != state[3]:
                for tile in self.tiles:
                    tile.free |= tile.release == number and not tile.flights

    # -- copies and products --------------------------------------------------------------------
    def shared_part(self, operation: AsyncOperation, machine: MachineView, kinds: tuple):
        """Yield (first byte, end) of each access of an operation to this block's shared memory."""
        for access in operation.accesses:
            if access.space == "shared" and access.kind in kinds:
                address = access.address[self.own(access, machine)]
                if address.size:
                    yield int(address.min()), int(address.max()) + access.size

    def concerns(self, operation: AsyncOperation, machine: MachineView) -> bool:
        """Is an operation ordered by this block, or does it touch its shared memory?"""
        by_us = self.memory.mine(operation.lanes, machine)[1].size
        return bool(by_us) or any(self.shared_part(operation, machine, ("load", "store", "atomic")))

    def issued(self, operation: AsyncOperation, machine: MachineView) -> None:
        for start, end in self.shared_part(operation, machine, ("store", "atomic")):
            tile = self.tile(start, end)
            tile.flights, tile.free = tile.flights + 1, False
            tile.release = self.release_of(operation, machine)
        reads = list(self.shared_part(operation, machine, ("load",)))
        self.read_by[operation] = [t for low, high in reads for t in self.under(low, high)]
        for tile in self.read_by[operation]:
            tile.readers += 1
        if operation.completion == "wgmma_group":
            self.order_product(operation, reads, machine)

    def order_product(self, operation: AsyncOperation, reads: list, machine: MachineView) -> None:
        group = int(self.memory.mine(operation.lanes, machine)[1][0]) // self.width
        self.open[group] += 1
        shape, kinds = _product_form(operation.instruction.opcode)
        places = ["registers"] * (2 - len(reads)) + [self.operand(*one) for one in reads]
        product = {"group": group, "shape": shape, "kinds": kinds, "A": places[0], "B": places[1]}
        self.products.append(product | {"bytes": [list(one) for one in reads]})

    def operand(self, start: int, end: int) -> str:
        """The tile that an operand is in, else its first byte."""
        found = [self.destinations[tile.number]["name"] for tile in self.under(start, end)]
        return " and ".join(found) or self.name_of(start)

    def read(self, operation: AsyncOperation, machine: MachineView) -> None:
        """The source of a copy may change again."""
        for tile in self.read_by.pop(operation, ()):
            tile.readers -= 1

    def completed(self, operation: AsyncOperation, machine: MachineView) -> None:
        self.read(operation, machine)
        if operation.completion == "wgmma_group":
            group = int(self.memory.mine(operation.lanes, machine)[1][0]) // self.width
            self.open[group] -= 1
        for start, end in self.shared_part(operation, machine, ("store", "atomic")):
            tile = self.tile(start, end)
            tile.flights -= 1
            self.landed.append(tile)

    def tile(self, start: int, end: int) -> _Tile:
        for tile in self.tiles:
            if (tile.start, tile.end) == (start, end):
                return tile
        name = self.name_of(start, end - start)
        self.destinations.append({"name": name, "start": start, "size": end - start})
        self.tiles.append(_Tile(len(self.tiles), start, end))
        return self.tiles[-1]

    def under(self, start: int, end: int) -> Iterator[_Tile]:
        """Tiles that have some of these bytes."""
        return (tile for tile in self.tiles if tile.start < end and start < tile.end)

    def release_of(self, operation: AsyncOperation, machine: MachineView) -> int:
        """The mbarrier that the ordering thread waited at last; -1: none, or the copy's own."""
        _, threads = self.memory.mine(operation.lanes, machine)
        last = int(self.last_wait[threads[0]]) if threads.size else -1
        counts = operation.mbarrier and self.numbers.get(operation.mbarrier[1], -1)
        return -1 if last == counts else last

    def note_reads(self, event: InstructionEvent) -> None:
        """Threads read a tile by themselves."""
        for access in event.accesses if self.tiles else ():
            if access.space == "shared" and access.kind == "load":
                address = access.address[self.own(access, event.machine)].astype(np.int64)
                for tile in self.tiles if address.size else ():
                    if ((tile.start <= address) & (address < tile.end)).any():
                        self.touched.add(tile.number)

    # -- frames ---------------------------------------------------------------------------------
    def changes(self, alive: np.ndarray) -> dict[str, list]:
        """Return what a frame has of the engines, and begin the next one.

        alive: (threads,) bool, which threads of the block have not ended.
        """
        found = {
            "mbarriers": self.changed("mbarrier", self.states.items()),
            "tiles": self.changed("tile", ((t.number, (self.shown(t),)) for t in self.tiles)),
            "work": self.changed("work", self.work(alive)),
            "open": self.changed("open", ((i, (n,)) for i, n in enumerate(self.open))),
            "products": self.products,
        }
        self.doing, self.touched, self.products, self.landed = {}, set(), [], []
        self.ran[:] = self.failed[:] = False
        return {name: rows for name, rows in found.items() if rows}

    def shown(self, tile: _Tile) -> str:
        threads_read = tile.number in self.touched and not tile.flights
        return READ if threads_read else tile.state

    def work(self, alive: np.ndarray) -> Iterator[tuple[int, tuple[str, str]]]:
        self.waiting = self.waiting & ~self.ran | self.failed
        for group in range(len(self.groups)):
            mine = slice(group * self.width, (group + 1) * self.width)
            now = self.waits[group] if self.waiting[mine].any() else (STANDS, "")
            now = self.doing.get(group, now)
            over = now[0] == STANDS and not alive[mine].any()
            yield group, (ENDED, "") if over else now

    def changed(self, kind: str, rows) -> list[list]:
        """Those [number, *values] that differ from what was last recorded."""
        found = []
        for number, values in rows:
            if self.recorded.get((kind, number)) != values:
                self.recorded[kind, number] = values
                found.append([number, *values])
        return found


def _waits(opcode: str) -> bool:
    parts = opcode.split(".")
    return "warp" not in parts and ("sync" in parts or "red" in parts or "wait" in parts)


def _barrier_name(event: InstructionEvent) -> str:
    operands, parts = event.instruction.operands, event.instruction.opcode.split(".")
    if "cluster" in parts:
        return "of the cluster"
    at = 1 if "red" in parts else 0  # its result comes first
    number = 0
    if len(operands) > at:
        number = event.machine.operand(event.instruction, operands[at], event.lanes.size)
    return "" if number is None else str(int(np.ravel(number)[0]))


def _product_form(opcode: str) -> tuple[list[int], list[str]]:
    """([m, n, k], types of D, A and B) of `wgmma.mma_async...m64n128k16.f32.f16.f16`."""
    parts = opcode.split(".")
    at = next(i for i, part in enumerate(parts) if part.startswith("m64n"))
    m, rest = parts[at][1:].split("n")
    return [int(m), *map(int, rest.split("k"))], parts[at + 1 : at + 4]
