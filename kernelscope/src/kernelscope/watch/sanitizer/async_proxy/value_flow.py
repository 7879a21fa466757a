"""Where the registers of products of warp groups come from and go to, found before a launch.

A debug build keeps arrays in local memory: it loads the registers of each wgmma, and stores them
again right behind it, long before the product has ended. So a value is followed through loads,
stores and moves, which the optimised build does without; anything else uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from kernelscope.ptx.registers import reads_and_writes
from kernelscope.ptx.source_module import SourceModule
from kernelscope.ptx.syntax import Function, Instruction, Register, Vector

_WIDTH = {"b32", "f32", "u32", "s32", "f16x2", "b16", "u16", "s16", "f16"}


@dataclass(frozen=True)
class ValueStep:
    """The effect of one instruction on values of products.

    kind: "load", "store", "move", "product" or "other"; results, sources: registers in operand
    order, None for what is not followed; of a product the sums and, from registers, A; of others
    the registers that are written, and those that are used.
    """

    function: str
    kind: str
    results: tuple[str | None, ...]
    sources: tuple[str | None, ...]


def _items(operand) -> tuple:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _names(operand, kept: set[str]) -> tuple[str | None, ...]:
    return tuple(
        one.name if isinstance(one, Register) and one.name in kept else None
        for one in _items(operand)
    )


def _is_product(instruction: Instruction) -> bool:
    return instruction.opcode.startswith("wgmma.mma_async")


class ValueFlow:
    """The steps of a module's functions, by the id of their instruction.

    feeds: (function, register) of those that may reach a product.
    """

    def __init__(self, source: SourceModule):
        self.steps: dict[int, ValueStep] = {}
        self.feeds: set[tuple[str, str]] = set()
        functions = source.module.functions.values()
        if any(_is_product(one) for function in functions for one in function.body):
            for function in functions:
                self.add(function)

    def add(self, function: Function) -> None:
        narrow = {name for name, type_ in function.registers.items() if type_.strip(".") in _WIDTH}
        holds, feeds, moves = set(), set(), []
        for one in function.body:
            root = one.opcode.split(".", 1)[0]
            if _is_product(one):
                registers = {
                    n for n in _names(one.operands[0], narrow) + self.left(one, narrow) if n
                }
                holds |= registers
                feeds |= registers
            elif root == "ld" and "param" not in one.opcode:
                holds.update(name for name in _names(one.operands[0], narrow) if name)
            elif root == "mov" and len(one.operands) == 2:
                moves.append((_names(one.operands[0], narrow), _names(one.operands[1], narrow)))
        changed = True
        while changed:
            before = len(holds), len(feeds)
            for results, sources in moves:
                if holds.intersection(sources):
                    holds.update(filter(None, results))
                if feeds.intersection(results):
                    feeds.update(filter(None, sources))
            changed = before != (len(holds), len(feeds))
        self.feeds |= {(function.name, name) for name in feeds}
        for one in function.body:
            step = self.step(one, function.name, holds, feeds)
            if step is not None:
                self.steps[id(one)] = step

    @staticmethod
    def left(product: Instruction, kept: set[str]) -> tuple[str | None, ...]:
        """The registers of A, none where it is in shared memory."""
        a = product.operands[1]
        return _names(a, kept) if isinstance(a, Vector) else ()

    def step(self, one: Instruction, function: str, holds, feeds) -> ValueStep | None:
        parts, every = one.opcode.split("."), holds | feeds
        if _is_product(one):
            return ValueStep(
                function, "product", _names(one.operands[0], every), self.left(one, every)
            )
        if parts[0] == "ld" and "param" not in parts:
            results = _names(one.operands[0], every)
            return ValueStep(function, "load", results, ()) if any(results) else None
        if parts[0] == "st" and "param" not in parts:
            return ValueStep(function, "store", (), _names(one.operands[1], every))
        if parts[0] == "mov" and len(one.operands) == 2:
            results, sources = _names(one.operands[0], every), _names(one.operands[1], every)
            alike = len(results) == len(sources) and all(sources)
            if any(results) and alike:
                return ValueStep(function, "move", results, sources)
        reads, writes = reads_and_writes(one)
        used, written = tuple(sorted(reads & holds)), tuple(sorted(writes & every))
        return ValueStep(function, "other", written, used) if used or written else None


_KNOWN: WeakKeyDictionary[SourceModule, ValueFlow] = WeakKeyDictionary()


def flow_of(source: SourceModule) -> ValueFlow:
    """Return the ValueFlow of a module, which its launches share."""
    if source not in _KNOWN:
        _KNOWN[source] = ValueFlow(source)
    return _KNOWN[source]
