"""Control flow of one function: basic blocks, and which registers are live where.

A block's key is its place in the order of running: (place,) in the kernel itself, (call site,
place) in a device function called from there, and so on. Python orders tuples the way the machine
wants to run them: of several groups of lanes, the one with the lowest key runs first, so that the
two sides of a branch meet again.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from kernelscope.ptx.registers import followers
from kernelscope.ptx.syntax import Function, Instruction

Key = tuple[int, ...]
LANE, SHARED_BASE, LOCAL_BASE = 0, 1, 2  # slots every kernel has: lane id and slice offsets
MASKED = ("shfl.sync", "vote.sync", "match.", "redux.sync", "bar.warp.sync", "elect.sync")
WHOLE_WARP = ("wgmma.", "wmma.", "mma.", "ldmatrix.", "stmatrix.", "movmatrix.", "tensormap.cp")
_WHOLE_GROUP = "wgmma.mma_async."
_ENDS = ("bra", "brx", "call", "ret", "exit", "trap", "setmaxnreg")
_POLLS = ("volatile", "relaxed", "acquire", "mmio")


@dataclass(frozen=True)
class Terminator:
    """How a block ends: "jump", "branch", "table", "exit", "return", "barrier", "call", "trap",
    "registers" (setmaxnreg).

    A "return" is one from a recursive function, whose lanes may go back to different places.
    """

    kind: str
    instruction: Instruction | None = None
    slot: int = -1  # predicate (branch), index (table) or number of the call site (return)
    negated: bool = False
    target: Key | None = None
    fall: Key | None = None
    targets: tuple[Key, ...] = ()
    counted: bool = True  # False for the branch that stands in for a guard
    action: object = None  # what a barrier or a call needs besides


@dataclass
class Block:
    """Instructions that run one after another, and how they end.

    operations: the compiled lines, one an instruction; uses: slots read before they are written;
    definitions and live_in: bit masks of slots written, and of slots needed from here on.
    """

    key: Key
    instructions: list[Instruction]
    terminator: Terminator
    successors: tuple[Key, ...] = ()
    operations: list[Callable] = field(default_factory=list)
    uses: tuple[int, ...] = ()
    definitions: int = 0
    live_in: int = 0
    warp_level: bool = False  # its first instruction needs lanes of the warp to be together
    members: Callable | None = None  # reads the mask of those lanes; None: the whole warp
    instance: object = None  # the function and call site it belongs to
    polls: bool = False  # looks at memory that other threads may change: spinning loops do


LONGEST_BLOCK = 2048  # instructions; between two blocks a launch looks at its budget


def is_barrier(opcode: str) -> bool:
    parts = opcode.split(".")
    if "cluster" in parts:
        return "wait" in parts  # barrier.cluster.arrive does not wait
    return parts[0] in ("bar", "barrier") and "warp" not in parts


def is_warp_level(opcode: str) -> bool:
    """Do the lanes of a warp run this instruction together?"""
    return opcode.startswith(MASKED + WHOLE_WARP)


def is_group_level(opcode: str) -> bool:
    """Do the four warps of a warp group run this instruction together?"""
    return opcode.startswith(_WHOLE_GROUP)


def names_members(opcode: str) -> bool:
    """Is the last operand the mask of the lanes that take part?"""
    return opcode.startswith(MASKED)


def looks_at_others(opcode: str) -> bool:
    """Atomics whose result is used, loads that the compiler may not merge or move, and waits for
    the phase of an mbarrier.
    """
    root, *parts = opcode.split(".")
    if root == "mbarrier":
        return parts[0] in ("test_wait", "try_wait")
    return root == "atom" or root == "ld" and any(part in _POLLS for part in parts)


def ends_block(instruction: Instruction) -> bool:
    """Is this a branch, a call, an exit or a barrier, so that a block of lines ends with it?"""
    root = instruction.opcode.split(".")[0]
    return root in _ENDS or is_barrier(instruction.opcode)


def leaders(function: Function) -> list[int]:
    """Indices of the instructions that start a block."""
    starts = {0, *function.labels.values(), *range(0, len(function.body), LONGEST_BLOCK)}
    for instruction in function.body:
        i = instruction.index
        if ends_block(instruction):
            starts.add(i + 1)
        if is_warp_level(instruction.opcode):
            starts.add(i)
        if instruction.guard is not None and not instruction.opcode.startswith("bra"):
            starts |= {i, i + 1}
    return sorted(s for s in starts if s <= len(function.body))


def running_order(function: Function) -> list[int]:
    """Return each instruction's place, and the end's: a block comes behind all that lead to it,
    unless they go back to it. Where the text has them so, its order stays.

    Compilers may place a block before what leads to it. Lanes that have reached it would run ahead
    of those that are on their way.
    """
    body = function.body
    starts = sorted({0, *leaders(function), len(body)}) if body else [0]
    number = {start: at for at, start in enumerate(starts)}
    ends = starts[1:]
    follows = [followers(body[end - 1], end, function) for end in ends] + [[]]
    follows = [[number[one] for one in after] for after in follows]
    back = _edges_back(follows)
    left = [0] * len(starts)
    for at, after in enumerate(follows):
        for one in after:
            left[one] += (at, one) not in back
    ready = [at for at, count in enumerate(left) if not count]
    places, place = [0] * (len(body) + 1), 0
    while ready:
        at = heapq.heappop(ready)
        for index in range(starts[at], ends[at] if at < len(ends) else len(body)):
            places[index], place = place, place + 1
        for one in follows[at]:
            left[one] -= (at, one) not in back
            if not left[one] and (at, one) not in back:
                heapq.heappush(ready, one)
    places[len(body)] = len(body)
    return places


def _edges_back(follows: list[list[int]]) -> set[tuple[int, int]]:
    """The edges to a block from which a search has come, and has not left it."""
    found, state = set(), [0] * len(follows)  # 1: the search is below it, 2: is done with it
    for root in range(len(follows)):
        path = [(root, iter(follows[root]))] if not state[root] else []
        while path:
            at, rest = path[-1]
            state[at] = 1
            for one in rest:
                if state[one] == 1:
                    found.add((at, one))
                elif not state[one]:
                    path.append((one, iter(follows[one])))
                    break
            else:
                state[at] = 2
                path.pop()
    return found


def solve_liveness(
    blocks: dict[Key, Block], uses: dict[Key, int], always: int, check: Callable[[], None]
) -> None:
    """Fill in `live_in`: backward data flow over slot bit masks until nothing changes.

    `always` holds what is needed after the function returns, whatever happens in it. check() is
    called for each block and may raise.
    """
    order = sorted(blocks, reverse=True)
    for key in order:
        blocks[key].live_in = uses[key] | always
    changed = True
    while changed:
        changed = False
        for key in order:
            check()
            block = blocks[key]
            live = uses[key] | (live_out(blocks, block, always) & ~block.definitions) | always
            if live != block.live_in:
                block.live_in, changed = live, True


def live_out(blocks: dict[Key, Block], block: Block, always: int) -> int:
    """Slots needed after a block."""
    out = always
    for successor in block.successors:
        if successor in blocks:
            out |= blocks[successor].live_in
    return out
