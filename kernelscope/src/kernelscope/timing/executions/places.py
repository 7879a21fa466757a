"""Where PTX instructions stand: basic blocks, the loops around them, the code behind exits."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ...ptx.registers import followers
from ...ptx.source_module import SourceModule
from ...ptx.syntax import Function, Instruction
from ..machine_code import Segment, dominators, loops_of
from .counts import BlockPlace


@dataclass(frozen=True)
class Exit:
    """A branch out of a loop to code that other ways out of the loop do not take.

    taken: does it leave where the branch is taken?; first: of that code, its first instruction's
    id; blocks: the numbers of its basic blocks.
    """

    taken: bool
    first: int
    blocks: frozenset[int]


@dataclass(frozen=True)
class Places:
    """blocks: instruction's id -> its basic block; exits: id of a branch -> where it leaves to."""

    blocks: dict[int, BlockPlace]
    exits: dict[int, Exit]

    def times(self, left: Mapping[int, int], ran: Mapping[int, int]) -> dict[int, float]:
        """Basic block -> how often a warp runs it for once in the simulator.

        Lanes that leave a loop in different steps run what is behind their exit one after another;
        the simulator has them wait for each other. left: by branch, the steps in which warps take
        the exit; ran: executions by warps, by instruction.
        """
        steps, runs = defaultdict(int), defaultdict(dict)
        for branch, leaving in self.exits.items():
            for block in leaving.blocks:
                steps[block] += left.get(branch, 0)
                runs[block][leaving.first] = ran.get(leaving.first, 0)
        return {
            block: max(1.0, count / max(1, sum(runs[block].values())))
            for block, count in steps.items()
        }


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
        for at, taken, first, own in _exits(blocks, flow, loops):
            numbers = frozenset(number + 1 + one for one in own)
            exits[id(blocks[at][-1])] = Exit(taken, id(blocks[first][0]), numbers)
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
    """(block, does it leave where its branch is taken, first block behind, all of these) of each
    branch out of a loop. Those are of one exit that come before the point where all meet again.
    """
    meets = _meeting_points(flow)
    for loop in loops:
        for at in loop.body:
            follows, branch = flow[at].follows, blocks[at][-1].opcode.split(".")[0] == "bra"
            for first in follows if branch and len(follows) == 2 else ():
                own = _reached(flow, first, meets[at]) if first not in loop.body else set()
                if own:
                    yield at, first == follows[1], first, own


def _reached(flow: tuple[Segment, ...], first: int, end: int) -> set[int]:
    """Blocks that a path from the first one reaches before the end."""
    seen, todo = set(), [first]
    while todo:
        at = todo.pop()
        if at != end and at not in seen:
            seen.add(at)
            todo += flow[at].follows
    return seen


def _meeting_points(flow: tuple[Segment, ...]) -> list[int]:
    """The nearest block that every path from each block to an end passes, -1 for none."""
    back = [Segment([]) for _ in range(len(flow) + 1)]  # the first is where all end
    for at, block in enumerate(flow):
        for after in block.follows or [-1]:
            back[after + 1].follows.append(at + 1)
    return [above[0] - 1 if above else -1 for above in dominators(tuple(back))[1:]]
