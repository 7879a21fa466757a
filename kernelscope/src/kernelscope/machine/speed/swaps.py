"""Loops of compare-and-swap that many lanes go round for the same places.

`do { old = *p; } while (atomicCAS(p, old, f(old)) != old)` is how CUDA C adds or takes a maximum
where the hardware has no instruction. In lockstep one lane of a place wins a pass, the first one,
and the next one in lane order wins the next. So where all of them have seen what is there now, the
loop is one update after another in lane order. Those of different places go together: pass k does
the k-th lane of each, with arrays as long as there are places, and nobody tries in vain.

A loop is taken for such a one by what its lines say (see `find`), and left alone otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from kernelscope.isa.table import DTYPE
from kernelscope.ptx.registers import reads_and_writes
from kernelscope.ptx.syntax import TYPE_BYTES, Address, Instruction, Register
from kernelscope.translate.control_flow import LANE, Block
from kernelscope.translate.instructions import Decoder
from kernelscope.translate.memory_instructions import memory_space
from kernelscope.translate.operands import type_of

from ..memory import bounds, differs, scalar, spread

_KEPT = ("ld", "st", "red", "atom", "bar", "barrier", "cp", "mbarrier", "nanosleep", "alloca")
_LOCKSTEP = 4  # passes of all lanes ahead of each look whether something else is better
_COMPARED = ("setp.ne", "setp.eq")


@dataclass(frozen=True)
class Swap:
    """A loop of one block around one compare-and-swap.

    at: the number of its instruction; loads: the numbers of loads, from places that stay the same;
    seen, new: read the value that a lane expects, and the one it would put there, from registers;
    address, others: read the addresses of the swap and of the loads; result: the slot of what was
    there, `carried` that of what the lane expects.
    """

    block: Block
    at: int
    loads: tuple[int, ...]
    kind: str
    carried: int
    result: int
    seen: Callable
    new: Callable
    address: Callable
    others: tuple[Callable, ...]

    @property
    def instruction(self) -> Instruction:
        return self.block.instructions[self.at]


def find(block: Block) -> Swap | None:
    """The swap that a block repeats until it succeeds; None where it may be something else."""
    t, body = block.terminator, block.instructions
    roots = [i.opcode.split(".")[0] for i in body]
    swaps = [
        at for at, i in enumerate(body) if roots[at] == "atom" and "cas" in i.opcode.split(".")
    ]
    if t.kind != "branch" or t.target != block.key or len(swaps) != 1 or block.warp_level:
        return None
    at, instance = swaps[0], block.instance
    result, address, expected, new = body[at].operands[:4]
    loads = tuple(number for number, root in enumerate(roots) if root == "ld")
    others = [root for number, root in enumerate(roots) if number != at and root != "ld"]
    names = [one.name for one in (result, expected) if isinstance(one, Register)]
    carried = [slot for slot in block.uses if block.definitions >> slot & 1]
    if len(names) < 2 or len(carried) != 1 or any(root in _KEPT for root in others):
        return None
    name = next(n for n, slot in instance.slots.items() if slot == carried[0])
    if not _repeats_until_it_succeeds(block, at, name):
        return None
    addresses = [address, *(body[number].operands[1] for number in loads)]
    if any(_is_changed(one, block) for one in addresses) or loads and max(loads) > at:
        return None
    kind, decoder = type_of(body[at].opcode), Decoder(instance)

    def reader(text: str) -> Callable:
        return eval(f"lambda R, c: {text}", decoder.names)

    return Swap(
        block,
        at,
        loads,
        kind,
        carried[0],
        instance.slot(result.name),
        reader(decoder.read(Register(name), kind)),
        reader(decoder.read(new, kind)),
        reader(decoder.address(address)),
        tuple(reader(decoder.address(body[number].operands[1])) for number in loads),
    )


def _is_changed(address: Address, block: Block) -> bool:
    """May an address be another one in the next pass?"""
    base = address.base
    slots = block.instance.slots
    return not isinstance(base, Register) or bool(block.definitions >> slots[base.name] & 1)


def _repeats_until_it_succeeds(block: Block, at: int, carried: str) -> bool:
    """Does the swap expect the carried register, which then gets what was there, and does the
    block repeat while these differ? Copies are followed from line to line.
    """
    means = {carried: "expected"}
    for number, instruction in enumerate(block.instructions):
        opcode, operands = instruction.opcode, instruction.operands
        _, writes = reads_and_writes(instruction)
        sources = [means.get(getattr(one, "name", None)) for one in operands[1:]]
        means = {name: what for name, what in means.items() if name not in writes}
        if number == at:
            if sources[1] != "expected":
                return False
            means[operands[0].name] = "found"
        elif opcode.startswith("mov.") and isinstance(operands[0], Register) and sources[0]:
            means[operands[0].name] = sources[0]
        elif opcode.startswith(_COMPARED) and opcode.count(".") == 2 and opcode[-3] in "sub":
            if set(sources) == {"expected", "found"} and isinstance(operands[0], Register):
                means[operands[0].name] = opcode[5:7]
    t = block.terminator
    guard = means.get(t.instruction.guard.name) if t.instruction.guard else None
    return means.get(carried) == "found" and guard == ("eq" if t.negated else "ne")


class Swaps:
    """The compare-and-swap loops of a chunk. It steps aside for observers and clocks."""

    def __init__(self, chunk):
        self.chunk, self.lanes = chunk, chunk.lanes
        self.allowed = not (chunk.reports.observers or chunk.kernel.reads_clock)
        self.found: dict[tuple, Swap | None] = {}
        self.previous: Block | None = None
        self.passes = 0

    def settle(self, block: Block) -> bool:
        """Run a block for the lanes that have come back to it, so that each of them succeeds."""
        self.passes = self.passes + 1 if self.previous is block else 0
        self.previous = block
        if self.passes % _LOCKSTEP != _LOCKSTEP - 1 or self.lanes.R[LANE].size < 2:
            return False
        if block.key not in self.found:
            self.found[block.key] = find(block)
        swap = self.found[block.key]
        return self.allowed and swap is not None and self.changes(swap) and self.run(swap)

    def changes(self, swap: Swap) -> bool:
        """Would most lanes change what is there? A maximum soon does not, and then all lanes
        succeed in one pass of lockstep.
        """
        R = list(self.lanes.R)
        expected = swap.seen(R, self.chunk)
        for operation in swap.block.operations[: swap.at]:
            operation(R, self.chunk)
        changed = np.count_nonzero(differs(swap.new(R, self.chunk), expected))
        return 2 * changed > self.lanes.R[LANE].size

    def run(self, swap: Swap) -> bool:
        """Update all places; False, with nothing changed, where lockstep would differ."""
        lanes, memory, kind = self.lanes, self.chunk.memory, swap.kind
        R, count, size = lanes.R, lanes.R[LANE].size, TYPE_BYTES[kind]
        space, address = memory_space(swap.instruction.opcode), swap.address(R, self.chunk)
        if any(_meet(address, size, other(R, self.chunk)) for other in swap.others):
            return False
        where = space, address, size.bit_length() - 1, size, swap.instruction, "atomic"
        found, index, valid = memory.locate(*where)
        if found is None or valid is not None:
            return False
        view, index = found.view[DTYPE[kind]], spread(index, count)
        if differs(view.take(index), swap.seen(R, self.chunk)).any():
            return False
        old = self.update(swap, view, index)
        memory.globals.version += 1
        self.finish(swap, old)
        return True

    def update(self, swap: Swap, view, index: np.ndarray) -> np.ndarray:
        """What each lane found at its place, the lanes of a place one after another."""
        passes, order = _passes(index)
        operations, lanes = swap.block.operations, self.lanes
        whole = list(lanes.R)
        for number in swap.loads:
            operations[number](whole, self.chunk)
        inputs = {slot for slot in swap.block.uses if slot != swap.carried}
        inputs |= {slot for slot, value in enumerate(whole) if value is not lanes.R[slot]}
        values = {LANE: whole[LANE]} | {slot: lanes.R[slot] for slot in inputs}
        values |= {slot: whole[slot] for slot in inputs if whole[slot] is not None}
        values = {slot: v if scalar(v) else v[order] for slot, v in values.items() if v is not None}
        places, old, first = index[order], np.empty(index.size, view.dtype), 0
        steps = [op for at, op in enumerate(operations[: swap.at]) if at not in swap.loads]
        stored = np.dtype(self.chunk.kernel.slot_types[swap.carried])
        for last in passes:
            R = [None] * len(whole)
            for slot, value in values.items():
                R[slot] = value if scalar(value) else value[first:last]
            here = places[first:last]
            old[order[first:last]] = R[swap.carried] = before = view[here]
            R[swap.carried] = before.view(stored)
            for step in steps:
                step(R, self.chunk)
            view[here] = swap.new(R, self.chunk)
            first = last
        return old

    def finish(self, swap: Swap, old: np.ndarray) -> None:
        """The registers after the pass in which each lane has succeeded."""
        R, operations = self.lanes.R, swap.block.operations
        types = self.chunk.kernel.slot_types
        R[swap.carried] = old.view(types[swap.carried])
        for operation in operations[: swap.at]:
            operation(R, self.chunk)
        R[swap.result] = old.view(types[swap.result])
        for operation in operations[swap.at + 1 :]:
            operation(R, self.chunk)


def _meet(address, size: int, other) -> bool:
    """May a load of up to 16 bytes read what is swapped?"""
    low, high, _ = bounds(address)
    other_low, other_high, _ = bounds(other)
    return low < other_high + 16 and other_low < high + size


def _passes(index: np.ndarray) -> tuple[list[int], np.ndarray]:
    """(where each pass ends, lanes in the order of passes): pass k has the k-th lane of a place."""
    order = np.argsort(index, kind="stable")
    places = index[order]
    starts = np.flatnonzero(np.append(True, places[1:] != places[:-1]))
    turn = np.arange(index.size) - np.repeat(starts, np.diff(starts, append=index.size))
    return np.cumsum(np.bincount(turn)).tolist(), order[np.argsort(turn, kind="stable")]
