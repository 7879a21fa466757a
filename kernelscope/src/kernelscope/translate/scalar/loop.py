"""A loop of the program as one Python function of a single lane.

Its blocks stand in program order, each under a test of `at`, the number of the next block. A jump
forward falls through the tests; one backward goes to the head of a `while` around the blocks from
its target on. The registers are local variables, taken from a list and put back into it whenever
the function ends.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType

from kernelscope.ptx.syntax import Instruction, Symbol

from ..control_flow import Block, Key
from ..function import call_parts
from .lines import ScalarLines

SCALAR = "<scalar PTX>"  # the file that tracebacks name for a line
FUEL = 2048  # jumps back until the function returns, so that limits are looked at
_MOST = 2000  # instructions of a loop
_DEEPEST = 8  # loops in each other that get a `while` of their own; Python allows 20 blocks


@dataclass
class Loop:
    """run(registers, c, views, stretch, told, at) -> key of the block to go on with.

    registers: the values of `slots` in order, which it replaces; `written` are those that it may
    change. views: of shared and local memory. stretch(address, size, writes): the lowest and the
    highest address of an access there. told: [is something stored, in local memory; how many of
    FUEL jumps back are left], the last below zero where it has run out of them. at: the number of
    the first block. Where it raises, `place` says at which instruction.
    """

    keys: list[Key]
    places: list[tuple[Key, int]]
    slots: list[int]
    written: set[int]
    run: FunctionType
    local_bytes: int  # of a thread's local memory that its functions need
    whole: bool  # does it leave no instruction to NumPy, whatever the values?

    def place(self, error: BaseException) -> tuple[Key, int] | None:
        """(block, number of the instruction in it) at which an error arose; None: before all."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != SCALAR:
            trace = trace.tb_next
        return self.places[trace.tb_lineno] if trace is not None else None


def loop_of(kernel, head: Key, last: Key) -> Loop | None:
    """The function of the blocks from `head` to `last`, calls and all; None where they are many."""
    keys = sorted(key for key in kernel.blocks if head <= key <= last)
    if sum(len(kernel.blocks[key].instructions) for key in keys) > _MOST:
        return None
    return _Writer(kernel, keys).loop()


class _Writer:
    """The text of one loop's function."""

    def __init__(self, kernel, keys: list[Key]):
        self.kernel, self.keys = kernel, keys
        self.number = {key: at for at, key in enumerate(keys)}
        self.text = ScalarLines()
        self.inner = self.find_inner()

    def find_inner(self) -> dict[int, int]:
        """Number of the first block of a loop -> of its last one, of loops that nest."""
        found: dict[int, int] = {}
        for at, key in enumerate(self.keys):
            for target in self.targets(self.kernel.blocks[key]):
                first = self.number.get(target, len(self.keys))
                if first <= at:
                    found[first] = at
        nested: dict[int, int] = {}
        for first, last in sorted(found.items(), key=lambda one: one[0] - one[1]):
            around = [(f, e) for f, e in nested.items() if f <= last and first <= e]
            if len(around) < _DEEPEST and all(f <= first and last <= e for f, e in around):
                nested[first] = last
        return nested

    def targets(self, block: Block) -> Iterator[Key]:
        t = block.terminator
        if t.kind in ("jump", "pause", "branch"):
            yield t.target
            if t.kind == "branch":
                yield t.fall
        elif t.kind == "call" and (key := self.callee(block)) is not None:
            yield key

    def callee(self, block: Block) -> Key | None:
        """The first block of a function that a call has reached before."""
        call: Instruction = block.terminator.instruction
        target = call_parts(call)[1]
        instance = self.kernel.instances.get(block.instance.key(call.index))
        if instance is None or not isinstance(target, Symbol) or instance.recursion is not None:
            return None
        return instance.key(0)

    def loop(self) -> Loop:
        body = list(self.nest(0, len(self.keys) - 1, 2, whole=True))
        text, slots = self.text, sorted(self.text.slots)
        names = ", ".join(f"r{slot}" for slot in slots) + ","
        space = [f"{view} = views[{view!r}]" for view in sorted(text.views)]
        ends = [f"{one}_end = c.memory.{one}_{end}" for one, end in _ENDS if one in " ".join(space)]
        head = [
            (0, "def loop(registers, c, views, stretch, told, at):"),
            *((1, line) for line in (f"{names} = registers", *text.before, *space, *ends)),
            (1, f"fuel = {FUEL}"),
            (1, "try:"),
        ]
        tail = [(1, "finally:"), (2, f"registers[:] = {names}"), (2, "told[2] = fuel")]
        lines = [(*one, None) for one in head] + body + [(*one, None) for one in tail]
        source = "\n".join("    " * depth + line for depth, line, _ in lines)
        code = next(
            one for one in compile(source, SCALAR, "exec").co_consts if isinstance(one, CodeType)
        )
        places = [None, *(place for *_, place in lines)]
        run = FunctionType(code, text.names)
        needed = max(self.kernel.blocks[key].instance.local_bytes for key in self.keys)
        whole = "raise Aside" not in (line for _, line, _ in body)
        return Loop(self.keys, places, slots, text.written, run, needed, whole)

    def nest(self, first: int, last: int, depth: int, whole: bool = False):
        """(depth, line, place) of the blocks from number `first` to `last`, loops around them."""
        place = (self.keys[first], 0)
        if whole:
            yield depth, "while True:", place
        else:
            yield depth, f"while {first} <= at <= {last}:", place
        at = first
        while at <= last:
            end = self.inner.get(at, at)
            if at in self.inner and (at, end) != (first, last):
                yield from self.nest(at, end, depth + 1)
                at = end + 1
                continue
            yield from self.block(at, depth + 1, alone=first == last)
            at += 1

    def block(self, at: int, depth: int, alone: bool):
        """The lines of one block."""
        key = self.keys[at]
        block = self.kernel.blocks[key]
        if not alone:
            yield depth, f"if at == {at}:", (key, 0)
            depth += 1
        for number, instruction in enumerate(block.instructions):
            lines = ["raise Aside"] if block.warp_level or block.polls else None
            for line in lines or self.text.lines(block.instance, instruction):
                yield depth, line, (key, 0 if lines else number)
        end = (key, len(block.instructions))
        for inner, line in self.end(at, block):
            yield depth + inner, line, end

    def end(self, at: int, block: Block) -> Iterator[tuple[int, str]]:
        """How a block goes on: (depth, line)."""
        t = block.terminator
        if t.kind in ("jump", "pause"):
            yield from self.go(at, t.target, 0)
        elif t.kind == "branch":
            self.text.slots.add(t.slot)
            yield 0, f"if {'not ' * t.negated}r{t.slot}:"
            yield from self.go(at, t.target, 1)
            yield 0, "else:"
            yield from self.go(at, t.fall, 1)
        elif t.kind == "call" and (key := self.callee(block)) is not None:
            yield from self.go(at, key, 0)
        else:
            yield 0, "raise Aside"

    def go(self, at: int, target: Key, depth: int) -> Iterator[tuple[int, str]]:
        number = self.number.get(target)
        if number is None:
            yield depth, f"return {target!r}"
            return
        if number > at:
            yield depth, f"at = {number}"
            return
        yield depth, "fuel -= 1"
        yield depth, f"if fuel < 0: return {target!r}"
        yield depth, f"at = {number}"
        yield depth, "continue"


_ENDS = (("shared", "limit"), ("local", "size"))
