"""Which registers an instruction reads and writes, which symbols it names, and which registers a
function may read before it writes them.
"""

from collections.abc import Iterator
from functools import lru_cache

from ..budget import check_budget
from .syntax import (
    Address,
    Function,
    Immediate,
    Instruction,
    Inverted,
    Pair,
    Register,
    Selected,
    Symbol,
    Vector,
)

_NO_RESULT = """
    st red bra brx bar barrier ret exit trap membar fence prefetch prefetchu nanosleep brkpt
    pmevent call cp discard applypriority setmaxnreg griddepcontrol stmatrix stackrestore
    tensormap
""".split()
_ENDS = ("bra", "brx", "ret", "exit", "trap")


def registers_in(operand) -> Iterator[str]:
    """Yield the names of the registers inside an operand, `_` left out."""
    match operand:
        case Register(name):
            if name != "_":
                yield name
        case Inverted(inner) | Selected(inner):
            yield from registers_in(inner)
        case Vector(items):
            for item in items:
                yield from registers_in(item)
        case Pair(first, second):
            yield from registers_in(first)
            yield from registers_in(second)
        case Address(base, _, extra):
            yield from registers_in(base)
            for item in extra:
                yield from registers_in(item)
        case tuple():
            for item in operand:
                yield from registers_in(item)
        case Immediate() | Symbol() | None:
            return


def symbols_in(operand) -> Iterator[str]:
    """Yield the names of variables, functions and labels in an operand, or in several."""
    match operand:
        case Symbol(name):
            yield name
        case Vector(items) | tuple(items):
            for item in items:
                if not isinstance(item, Register | Immediate):  # as most are: this saves time
                    yield from symbols_in(item)
        case Pair(first, second):
            yield from symbols_in((first, second))
        case Inverted(inner):
            yield from symbols_in(inner)
        case Address(base, _, extra):
            if not isinstance(base, Register) or extra:
                yield from symbols_in((base, *extra))


def has_result(opcode: str) -> bool:
    """Is the first operand of an instruction its result?"""
    parts = opcode.split(".")
    if parts[0] in ("bar", "barrier"):
        return "red" in parts
    if parts[0] == "wmma":
        return parts[1:2] != ["store"]
    if parts[0] == "wgmma":
        return parts[1:2] == ["mma_async"]
    if parts[0] == "mbarrier":
        return parts[1] not in ("init", "inval", "expect_tx", "complete_tx")
    return parts[0] not in _NO_RESULT


def reads_and_writes(
    instruction: Instruction, guard: bool = True
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the registers that an instruction reads and writes.

    guard: whether the register of its guard counts as read, also where no operand reads it.
    """
    if instruction.registers is None:
        instruction.registers = _of_operands(instruction.opcode, instruction.operands)
    reads, writes = instruction.registers
    if guard and instruction.guard is not None:
        reads |= {instruction.guard.name}
    return reads, writes


@lru_cache(maxsize=1 << 14)  # similar kernels have most instructions in common
def _of_operands(opcode: str, operands: tuple) -> tuple[frozenset[str], frozenset[str]]:
    """`reads_and_writes` but for the guard."""
    parts = opcode.split(".")
    result = operands[:1] if has_result(opcode) else ()
    reads, writes = set(registers_in(operands[len(result) :])), set(registers_in(result))
    if parts[0] in ("addc", "subc", "madc"):
        reads.add("%carry")
    if parts[0] == "wgmma" and not _starts_anew(operands):
        reads |= writes
    if "cc" in parts or parts[0] in ("addc", "subc", "madc"):
        writes.add("%carry")
    return frozenset(reads), frozenset(writes)


def _starts_anew(operands: tuple) -> bool:
    """Does a wgmma.mma_async leave out what the registers of its sums hold, by a literal 0?"""
    return _item(operands, 3) == Immediate(0)


def may_start_anew(instruction: Instruction) -> bool:
    """Does a predicate say whether a wgmma.mma_async reads the registers of its sums?"""
    root = instruction.opcode.split(".", 1)[0]
    return root == "wgmma" and isinstance(_item(instruction.operands, 3), Register | Inverted)


def _item(operands: tuple, at: int):
    return operands[at] if len(operands) > at else None


def live_at_entry(function: Function) -> set[str]:
    """Return the registers of a function that some path reads before it writes them."""
    body, number = function.body, {name: at for at, name in enumerate(function.registers)}

    def mask(names) -> int:
        return sum(1 << number[name] for name in names if name in number)

    starts = {0, *function.labels.values()}
    starts |= {one.index + 1 for one in body if one.opcode.split(".", 1)[0] in _ENDS}
    ordered = sorted(at for at in starts if at < len(body))
    uses, kills, follows = {}, {}, {}
    for start, end in zip(ordered, [*ordered[1:], len(body)], strict=True):
        used = killed = 0
        for instruction in body[start:end]:
            reads, writes = reads_and_writes(instruction)
            used |= mask(reads) & ~killed
            if instruction.guard is None:
                killed |= mask(writes)
        uses[start], kills[start] = used, killed
        follows[start] = followers(body[end - 1], end, function)
    live, changed = dict(uses), any(uses.values())
    while changed:
        changed = False
        for start in reversed(ordered):
            check_budget(function.name, lambda: "the search for variables that nothing sets")
            after = 0
            for other in follows[start]:
                after |= live.get(other, 0)
            found = uses[start] | after & ~kills[start]
            changed |= found != live[start]
            live[start] = found
    return {name for name, at in number.items() if live.get(0, 0) >> at & 1}


def followers(last: Instruction, end: int, function: Function) -> list[int]:
    """Return the places that may run after a block: its last instruction, and where it ends."""
    root, names = last.opcode.split(".", 1)[0], list(symbols_in(last.operands))
    if root == "brx":
        names = [one for name in names for one in function.tables.get(name, ())]
    jumps = [function.labels.get(name, end) for name in names if root in ("bra", "brx")]
    return jumps if root in _ENDS and last.guard is None else [end, *jumps]
