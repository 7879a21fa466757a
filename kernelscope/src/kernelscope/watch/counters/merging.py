"""Which `ld.shared` or `st.shared` ptxas joins into one 64- or 128-bit access.

NVRTC's PTX asks for shared words one by one; ptxas, which makes the machine code, joins accesses of
one base register at neighbouring offsets where nothing in between may change what loads read, or
read or change what stores write, and where it can prove that the wider access is aligned. What a
request and a bank conflict is depends on it, so the counters join them in the same way. Judged once
from the code, never from addresses.
"""

import weakref
from collections import defaultdict
from dataclasses import dataclass

from kernelscope.events import Launch
from kernelscope.ptx.registers import reads_and_writes
from kernelscope.ptx.syntax import Function, Immediate, Register, Symbol

_CAP = 1 << 16  # alignments are powers of two up to this one
_NOT_FOLLOWED = 64  # a chain of `base + constant` definitions is followed at most so far
_SPLITS = """
    bra brx call ret exit trap bar barrier membar fence cp mbarrier nanosleep griddepcontrol
    ldmatrix stmatrix wmma wgmma
""".split()
_ADDS = ("add", "sub")


@dataclass(frozen=True)
class Merge:
    """An access that stands for itself and others: `start` is where the joined access begins,
    relative to this one's own address, in bytes; `size` its bytes a lane; `members` how many.
    """

    start: int
    size: int
    members: int


def _root(instruction) -> str:
    return instruction.opcode.split(".")[0]


def _constant(operand) -> int | None:
    is_int = isinstance(operand, Immediate) and not operand.float_bits
    return operand.value if is_int else None


def _low_bit(value: int) -> int:
    return min(value & -value, _CAP) if value else _CAP


class _Code:
    """What ptxas can know of one function's registers: definitions and alignments."""

    def __init__(self, function: Function, shared_offsets: dict[str, int]):
        self.function, self.offsets = function, shared_offsets
        self.definitions: dict[str, list] = defaultdict(list)
        for instruction in function.body:
            for name in reads_and_writes(instruction)[1]:
                self.definitions[name].append(instruction)
        self.alignment = self._solve()

    def _solve(self) -> dict[str, int]:
        """Largest power of two that divides each register, over all its definitions."""
        known = dict.fromkeys(self.definitions, _CAP)
        changed = True
        while changed:
            changed = False
            for name, definitions in self.definitions.items():
                found = min(self._result(d, known) for d in definitions)
                if found != known[name]:
                    known[name], changed = found, True
        return known

    def _operand(self, operand, known) -> int:
        value = _constant(operand)
        if value is not None:
            return _low_bit(value)
        if isinstance(operand, Register):
            return known.get(operand.name, 1)
        offset = self._symbol(operand)
        return 1 if offset is None else _low_bit(offset)

    def _symbol(self, operand) -> int | None:
        """Address of a shared variable that an operand names."""
        place = self.offsets.get(operand.name) if isinstance(operand, Symbol) else None
        return None if place is None else place + operand.offset

    def _result(self, instruction, known) -> int:
        root, sources = _root(instruction), instruction.operands[1:]
        if instruction.opcode.startswith(("add.f", "sub.f", "mul.f", "mad.f")):
            return 1
        at = [self._operand(source, known) for source in sources]
        if root in ("mov", "cvta", "cvt") and at:
            return at[0]
        if root in ("add", "sub", "or", "xor", "min", "max", "selp"):
            return min(at[:2])
        if root == "and":
            return max(at)
        if root == "shl":
            shift = _constant(sources[1])
            return min(at[0] << shift, _CAP) if shift is not None and shift < 64 else at[0]
        if root == "mul" and ".hi" not in instruction.opcode:
            return min(at[0] * at[1], _CAP)
        if root == "mad" and ".hi" not in instruction.opcode:
            return min(at[0] * at[1], at[2], _CAP)
        return 1

    def base(self, operand) -> tuple[object, int, int] | None:
        """(root, offset, alignment of the root) of a load's address; None where unknown."""
        offset = operand.offset
        if operand.base is None:
            return "shared", offset, _CAP
        place = self._symbol(operand.base)
        if place is not None:
            return "shared", place + offset, _CAP
        if not isinstance(operand.base, Register):
            return None
        name = operand.base.name
        for _ in range(_NOT_FOLLOWED):
            step = self._step(name)
            if step is None:
                break
            source, constant = step
            offset += constant
            if source is None:
                return "shared", offset, _CAP
            name = source
        return name, offset, self.alignment.get(name, 1)

    def _step(self, name: str) -> tuple[str | None, int] | None:
        """Where the register is another one, or a variable (None), plus a constant."""
        if len(self.definitions[name]) != 1:
            return None
        instruction = self.definitions[name][0]
        root, sources = _root(instruction), instruction.operands[1:]
        if instruction.guard is not None or root not in ("mov", "cvta", *_ADDS):
            return None
        place = self._symbol(sources[0])
        constant = _constant(sources[1]) if root in _ADDS else 0
        if constant is None:
            return None
        constant = -constant if root == "sub" else constant
        if place is not None:
            return None, place + constant
        if not isinstance(sources[0], Register) or len(self.definitions[sources[0].name]) != 1:
            return None
        return sources[0].name, constant


def _shared_role(instruction) -> str:
    """ "load" or "store" where the instruction may access shared memory so, else ""."""
    parts = instruction.opcode.split(".")
    if parts[0] not in ("ld", "st", "atom", "red"):
        return ""
    if any(part.startswith(("global", "local", "param", "const")) for part in parts):
        return ""
    return "load" if parts[0] == "ld" else "store"


def _bytes(instruction) -> int:
    """Bytes a lane of a plain shared access that can be joined; 0 for other instructions."""
    parts = instruction.opcode.split(".")
    if parts[0] not in ("ld", "st") or instruction.guard is not None:
        return 0
    if not parts[1].startswith("shared") or parts[1] == "shared::cluster" or len(parts) > 4:
        return 0
    width = int(parts[-1].lstrip("bsuf")) // 8
    lanes = {"v2": 2, "v4": 4}.get(parts[2], 1)
    plain = len(parts) == 3 or parts[2] in ("v2", "v4")
    total = width * lanes
    return total if plain and width >= 4 and total <= 8 else 0


_MERGES: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def merges_of(launch: Launch) -> dict[int, Merge | None]:
    """Return find_merges over the functions of the launch's module; kept for its next launches."""
    known = _MERGES.setdefault(launch.source, {})
    if launch.kernel not in known:
        found: dict[int, Merge | None] = {}
        for function in launch.source.module.functions.values():
            found.update(find_merges(function, launch.shared_places))
        known[launch.kernel] = found  # only now: it may be interrupted
    return known[launch.kernel]


def find_merges(function: Function, shared_offsets: dict[str, int]) -> dict[int, Merge | None]:
    """id of an `ld.shared` or `st.shared` -> how it is joined; None where another stands for it.

    function: the parsed PTX function (`body` of instructions, `labels`). shared_offsets: the
    address of each shared variable. Accesses that stay as they are do not appear.
    """
    if not any(i.opcode.startswith(("ld.shared", "st.shared")) for i in function.body):
        return {}
    code, found = _Code(function, shared_offsets), {}
    for group in (*_groups(code, "load"), *_groups(code, "store")):
        alignment = group[0][3]
        for width in (16, 8):
            if alignment >= width:
                group = _join(group, width, found)
    return found


def _groups(code: _Code, role: str):
    """Loads, or stores, of one base between two points where ptxas may not move them: lists of
    (instruction, offset, bytes, alignment of the base).

    Loads of several bases may pass each other. A store may not pass a store of another base, nor
    any load: they could mean the same address.
    """
    labels = set(code.function.labels.values())
    groups: dict[object, list] = defaultdict(list)
    versions: dict[str, int] = defaultdict(int)
    for instruction in code.function.body:
        key = member = None
        if _bytes(instruction) and _shared_role(instruction) == role:
            at = instruction.operands[1 if role == "load" else 0]
            if (base := code.base(at)) is not None:
                root, offset, alignment = base
                key = root, versions[root]
                member = instruction, offset, _bytes(instruction), alignment
        shared = _shared_role(instruction)
        passes = shared == "load" if role == "load" else not shared or key in groups
        # ptxas moves loads that follow a branch of only some lanes to before it.
        passed = role == "load" and _root(instruction) == "bra" and instruction.guard is not None
        splits = _root(instruction) in _SPLITS and not passed
        if (shared and not passes) or splits or instruction.index in labels:
            yield from groups.values()
            groups.clear()
        if member is not None:
            groups[key].append(member)
        for name in reads_and_writes(instruction)[1]:
            versions[name] += 1
    yield from groups.values()


def _join(group: list, width: int, found: dict) -> list:
    """Join the accesses that fill aligned windows of `width` bytes; returns those left over."""
    windows: dict[int, dict[int, tuple]] = defaultdict(dict)
    for access in group:
        _, offset, size, _ = access
        if offset % size == 0 and offset not in windows[offset // width]:
            windows[offset // width][offset] = access
    joined = set()
    for number, accesses in windows.items():
        if len(accesses) < 2 or not _fills(accesses, width):
            continue
        members = list(accesses.values())  # in program order: the first stands for all
        leader, offset = members[0][:2]
        found[id(leader)] = Merge(number * width - offset, width, len(members))
        found.update((id(access[0]), None) for access in members[1:])
        joined.update(id(access[0]) for access in members)
    return [access for access in group if id(access[0]) not in joined]


def _fills(accesses: dict[int, tuple], width: int) -> bool:
    """Do the accesses cover a whole aligned window of `width` bytes, none of it twice?"""
    end = min(accesses) // width * width
    start = end
    for offset in sorted(accesses):
        if offset != end:
            return False
        end += accesses[offset][2]
    return end - start == width
