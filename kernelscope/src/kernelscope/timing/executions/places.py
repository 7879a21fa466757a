"""Where PTX instructions stand: basic blocks, the loops around them, the code behind exits."""

from dataclasses import dataclass
from functools import lru_cache

from ...ptx.registers import followers
from ...ptx.source_module import SourceModule
from ...ptx.syntax import Function, Instruction
from ..machine_code import (
    MachineCode,
    Segment,
    dominators,
    loops_of,
    numbers_of,
    reached,
    yielding,
)
from .counts import BlockPlace


@dataclass(frozen=True)
class Exit:
    """A branch out of a loop to code that other ways out of the loop do not take.

    taken: does it leave where the branch is taken?; blocks: of that code, the numbers of its basic
    blocks; function: those of the function in which it stands.
    """

    taken: bool
    blocks: frozenset[int]
    function: range


@dataclass(frozen=True)
class Places:
    """blocks: instruction's id -> its basic block; exits: id of a branch -> where it leaves to."""

    blocks: dict[int, BlockPlace]
    exits: dict[int, Exit]


@lru_cache(maxsize=64)
def steps_that_yield(source: SourceModule, machine: MachineCode) -> frozenset[int]:
    """Return the ids of the instructions that begin a step of a loop in which lanes yield."""
    closing, blocks = yielding(machine.segments), places_of(source).blocks
    if not closing:
        return frozenset()
    numbers = numbers_of(source)
    heads = {
        header for one in blocks if numbers[one] in closing for header in blocks[one].loops[:1]
    }
    first = {place.block: one for one, place in reversed(blocks.items())}
    return frozenset(first[head] for head in heads)


@lru_cache(maxsize=64)  # a kernel is often launched again
def places_of(source: SourceModule) -> Places:
    """Return where the PTX instructions of a module stand."""
    found, exits, number = {}, {}, 0
    for function in source.module.functions.values():
        starts, blocks = {0, *function.labels.values()}, []
        for instruction in function.body:
            if instruction.index in starts or not blocks:
                blocks.append([])
            blocks[-1].append(instruction)
            if instruction.opcode.startswith(("bra", "brx", "ret", "exit")):
                starts.add(instruction.index + 1)
        flow = _flow(blocks, function)
        loops = sorted(loops_of(flow), key=lambda one: len(one.body)) if flow else []
        for at, block in enumerate(blocks):
            above = [up for one in loops if one.header == at for up in one.above[:1]]
            place = BlockPlace(
                number + 1 + at,
                tuple(number + 1 + one.header for one in loops if at in one.body),
                number + 1 + above[0] if above else 0,
            )
            found |= {id(instruction): place for instruction in block}
        for at, taken, own in _exits(blocks, flow, loops):
            behind = frozenset(number + 1 + one for one in own)
            whole = range(number + 1, number + 1 + len(blocks))
            exits[id(blocks[at][-1])] = Exit(taken, behind, whole)
        number += len(blocks)
    return Places(found, exits)


def _flow(blocks: list[list[Instruction]], function: Function) -> tuple[Segment, ...]:
    """A function's basic blocks as segments without code."""
    number = {block[0].index: at for at, block in enumerate(blocks)}
    flow = []
    for block in blocks:
        after = followers(block[-1], block[-1].index + 1, function)
        flow.append(Segment([], [number[at] for at in dict.fromkeys(after) if at in number]))
    return tuple(flow)


def _exits(blocks, flow: tuple[Segment, ...], loops: list):
    """(block, does it leave where its branch is taken, the blocks behind) of each branch out of a
    loop. Those are of one exit that come before the point where all meet again.

    Where they meet at the end only, since one returns, lanes go on together behind the loop.
    """
    meets = _meeting_points(flow)
    for loop in loops:
        heads = {one.header for one in loops if loop.header in one.body}
        latches = {at for at in loop.body if loop.header in flow[at].follows}
        found, ends = [], {}  # first block behind an exit -> all of them
        for at in sorted(loop.body):
            follows, branch = flow[at].follows, blocks[at][-1].opcode.split(".")[0] == "bra"
            for first in follows if branch and len(follows) == 2 else ():
                if first not in loop.body and (own := reached(flow, first, {meets[at], *heads})):
                    found.append((at, first == follows[1], first))
                    ends[first] = ends.get(first, set()) | own
        usual = {first for at, _, first in found if at in {loop.header, *latches}}
        for at, taken, first in found:
            others = set().union(*(own for one, own in ends.items() if one != first))
            at_end = meets[at] < 0 or all(_returns(one) for one in blocks[meets[at]])
            if ends[first] - others and not (at_end and first in usual):
                yield at, taken, ends[first] - others


def _returns(instruction: Instruction) -> bool:
    return instruction.opcode.startswith(("ret", "exit"))


def _meeting_points(flow: tuple[Segment, ...]) -> list[int]:
    """The nearest block that every path from each block to an end passes, -1 for none."""
    back = [Segment([]) for _ in range(len(flow) + 1)]  # the first is where all end
    for at, block in enumerate(flow):
        for after in block.follows or [-1]:
            back[after + 1].follows.append(at + 1)
    return [above[0] - 1 if above else -1 for above in dominators(tuple(back))[1:]]
