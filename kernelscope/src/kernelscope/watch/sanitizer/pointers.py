"""The variable that an address is computed from, which bounds the access.

Shared variables are next to each other in the block's memory, and so are the local variables of a
function in the thread's: memory alone does not tell an index past the end of one array from one
into the next. The PTX does: `mov %rd1, x; add %rd2, %rd1, %rd3; ld [%rd2]` reads x. It is followed
through the registers of a function and through the arguments of direct calls. Not judged: pointers
that come from memory or from a cast of a number, differences of pointers, a constant index into a
local array (the compiler names the byte in the frame, not the array), pointers to local variables
in the functions that they are passed to, and an index below a local array that has another right
before it (that address may be the other array's end).
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from kernelscope.events import Access, InstructionEvent, Launch
from kernelscope.ptx.debug_names import variables
from kernelscope.ptx.registers import has_result, registers_in, symbols_in
from kernelscope.ptx.source_module import SourceModule
from kernelscope.ptx.syntax import (
    Address,
    Function,
    Immediate,
    Instruction,
    Register,
    Symbol,
)

from .values import Values

_COPIES = ("mov", "cvta", "cvt")
_ROUNDS = 50  # over a function until its registers are known; two or three are usual


@dataclass(frozen=True)
class Origin:
    """The possible contents of a register.

    places: addresses in these variables, each (PTX name, byte in the function's frame or None);
    unknown: it may also be an address in something else.
    """

    places: frozenset = frozenset()
    unknown: bool = False

    def __or__(self, other: Origin) -> Origin:
        return Origin(self.places | other.places, self.unknown or other.unknown)

    def __add__(self, other: Origin) -> Origin:
        """A pointer and an index, in either order."""
        if self.places and other.places:
            return UNKNOWN
        if self.places or other.places:
            return self if self.places else other
        return UNKNOWN if self.unknown or other.unknown else NUMBER


NUMBER = Origin()
UNKNOWN = Origin(unknown=True)


class Origins:
    """The origins of the registers of a module's functions, each found when it is first needed."""

    def __init__(self, source: SourceModule):
        self.source, self.module = weakref.proxy(source), source.module
        self.values = Values(source.module)
        module = source.module
        self.frames: dict[str, list[tuple[str, int, int]]] = {}  # of variables(), by function
        self.known: dict[str, dict[str, Origin]] = {}
        self.running: set[str] = set()
        self.calls: dict[str, list[tuple[Function, Instruction]]] = {}  # by the name of the callee
        self.pointed: set[str] = set()  # functions whose address is taken
        for variable in module.variables.values():
            self.pointed.update(name for _, name in variable.relocations)
        for function in module.functions.values():
            for instruction in function.body:
                if instruction.opcode.startswith("call"):
                    for operand in instruction.operands:
                        if isinstance(operand, Symbol):
                            self.calls.setdefault(operand.name, []).append((function, instruction))
                elif instruction.opcode.startswith("mov"):
                    self.pointed.update(symbols_in(instruction.operands))

    def of(self, function: Function) -> dict[str, Origin]:
        """Register -> its origin; registers that hold plain numbers are left out."""
        if function.name not in self.known:
            found: dict[str, Origin] = {}
            self.running.add(function.name)
            writing = [
                (one, tuple(registers_in(one.operands[0])))
                for one in function.body
                if one.operands and has_result(one.opcode)
            ]
            for _ in range(_ROUNDS):
                before = dict(found)
                for instruction, written in writing:
                    result = self.result(instruction, function, found)
                    if result is NUMBER:
                        continue
                    for name in written:
                        known = found.get(name)
                        found[name] = result if known in (None, result) else known | result
                if found == before:
                    break
            self.running.discard(function.name)
            self.known[function.name] = found
        return self.known[function.name]

    def result(self, instruction: Instruction, function: Function, found: dict) -> Origin:
        root, operands = instruction.opcode.split(".", 1)[0], instruction.operands[1:]
        if root == "ld":
            return self.loaded(instruction, function)
        values = [self.operand(one, function, found) for one in operands]
        if root in _COPIES and len(values) == 1:
            return values[0]
        if root == "selp":
            return values[0] | values[1]
        if root == "add":
            return self.sum(instruction, values)
        if root == "sub":
            return UNKNOWN if values[1].places else values[0]
        if root == "mad":
            product = UNKNOWN if values[0].places or values[1].places else NUMBER
            return product + values[2]
        if any(value is not NUMBER for value in values):
            return UNKNOWN
        return UNKNOWN if root in ("atom", "shfl", "mapa") else NUMBER

    @staticmethod
    def sum(instruction: Instruction, values: list[Origin]) -> Origin:
        """An index into a variable; or a variable's place in the frame: `add %rd1, %SP, 16`."""
        total, last = values[0] + values[1], instruction.operands[-1]
        if total.places and isinstance(last, Immediate):
            return Origin(
                frozenset((n, int(last.value) if at == _FRAME else at) for n, at in total.places),
                total.unknown,
            )
        return total

    def operand(self, operand, function: Function, found: dict) -> Origin:
        if isinstance(operand, Register):
            return found.get(operand.name, NUMBER)
        if isinstance(operand, Symbol):
            variable = function.variables.get(operand.name)
            variable = variable or self.module.variables.get(operand.name)
            if variable is not None and variable.space in ("shared", "local"):
                place = _FRAME if variable.space == "local" else None
                return Origin(frozenset([(operand.name, place)]))
            if not function.is_entry and any(operand.name == p.name for p in function.parameters):
                return Origin(frozenset([(operand.name, 0)]))
            return UNKNOWN
        return NUMBER if isinstance(operand, Immediate) else UNKNOWN

    # -- calls ----------------------------------------------------------------------------------
    def loaded(self, instruction: Instruction, function: Function) -> Origin:
        address = instruction.operands[1]
        if not instruction.opcode.startswith("ld.param") or function.is_entry:
            return UNKNOWN
        names = [parameter.name for parameter in function.parameters]
        if not isinstance(address.base, Symbol) or address.base.name not in names:
            return UNKNOWN
        callers = self.calls.get(function.name, [])
        if address.offset or function.name in self.pointed or not callers:
            return UNKNOWN
        passed, number = NUMBER, names.index(address.base.name)
        for caller, call in callers:
            passed |= self.argument(caller, call, number)
        return passed

    def argument(self, caller: Function, call: Instruction, number: int) -> Origin:
        """An argument of a call; addresses in the caller's frame mean nothing to the callee."""
        if caller.name in self.running:
            return UNKNOWN
        variable = call.operands[-1][number]
        stores = [
            one
            for one in caller.body
            if one.opcode.startswith("st.param") and one.operands[0].base == variable
        ]
        if len(stores) != 1 or stores[0].operands[0].offset:
            return UNKNOWN
        found = self.operand(stores[0].operands[1], caller, self.of(caller))
        shared = frozenset(place for place in found.places if place[1] is None)
        return Origin(shared, found.unknown or shared != found.places)

    # -- frames ---------------------------------------------------------------------------------
    def variables(self, function: Function) -> list[tuple[str, int, int]]:
        """(frame, first byte in it, bytes) of the local variables of known types."""
        if function.name not in self.frames:
            self.frames[function.name] = found = []
            for variable in variables(self.source, function.name):
                places = [piece.place for piece in variable.ranges if piece.place.kind == "local"]
                start, size = variable.struct
                if places and not size:
                    start, size = places[0].offset, variable.size
                if places and size:
                    found.append((places[0].name, start, size))
        return self.frames[function.name]


_KNOWN: WeakKeyDictionary[SourceModule, Origins] = WeakKeyDictionary()


def origins_of(source: SourceModule) -> Origins:
    """Return the Origins of a program, which its launches share."""
    if source not in _KNOWN:
        _KNOWN[source] = Origins(source)
    return _KNOWN[source]


_FRAME = "frame"  # the place of an address of the frame itself, in no variable yet


@dataclass(frozen=True)
class Extent:
    """The bytes [start, end) that an instruction may touch, in its memory or in a frame."""

    start: int
    end: int
    frame: str = ""  # PTX name of the frame or parameter; "" for shared memory

    @staticmethod
    def around(parts: list[Extent]) -> Extent | None:
        if not parts or len({part.frame for part in parts}) > 1:
            return None
        start, end = min(p.start for p in parts), max(p.end for p in parts)
        return Extent(start, end, parts[0].frame)


class Bounds:
    """The limits of the memory instructions of a launch."""

    def __init__(self, launch: Launch):
        self.launch, self.origins = launch, origins_of(launch.source)
        self.known: dict[int, tuple] = {}  # id -> (the instruction, its limits)

    def exceeding(self, access: Access, event: InstructionEvent) -> tuple | None:
        """((lanes,) bool that leave the variable, its first byte, its end); None if none does."""
        known = self.known.get(id(event.instruction))
        if known is None:
            known = (event.instruction, self.find(event.instruction))
            self.known[id(event.instruction)] = known
        limits = known[1]
        if limits is None or (access.space == "local") != bool(limits.frame):
            return None
        if access.space == "global" or access.block is not None:
            return None
        start, end = limits.start, limits.end
        if limits.frame:
            sites = event.machine.running(event.instruction, event.lanes.size)
            if len(sites) != 1 or limits.frame not in sites[0].frame:
                return None
            start, end = start + sites[0].frame[limits.frame], end + sites[0].frame[limits.frame]
        address = access.address.view(np.int64)
        if np.minimum.reduce(address) >= start and np.maximum.reduce(address) <= end - access.size:
            return None
        wrong = (address < start) | (address > end - access.size)
        if access.valid is not None:
            wrong &= access.valid
        return (wrong, start, end) if wrong.any() else None

    def find(self, instruction: Instruction) -> Extent | None:
        address = next((o for o in instruction.operands if isinstance(o, Address)), None)
        if address is None or not isinstance(address.base, Register):
            return None
        function = self.origins.values.function_of(instruction)
        origin = self.origins.of(function).get(address.base.name, NUMBER)
        if origin.unknown:
            return None
        parts = [self.limits(place, function) for place in origin.places]
        return None if None in parts else Extent.around(parts)

    def limits(self, place: tuple, function: Function) -> Extent | None:
        name, offset = place
        if offset is None:
            start = self.launch.shared_places.get(name)
            module = self.launch.source.module
            where = [function.variables, module.variables]
            where += [one.variables for one in module.functions.values()]
            size = next(found[name].size for found in where if name in found)
            if start is None:
                return None
            return Extent(start, start + size if size else self.launch.shared_bytes)
        parameter = next((p for p in function.parameters if p.name == name), None)
        if parameter is not None:
            return Extent(0, parameter.size, name)
        return None if offset == _FRAME else self.local(name, offset, function)

    def local(self, frame: str, offset: int, function: Function) -> Extent | None:
        """The variable that has a byte of the frame, with one that ends there."""
        parts, inside = [], False
        for name, start, size in self.origins.variables(function):
            if name == frame and start <= offset <= start + size:
                inside |= offset < start + size
                parts.append(Extent(start, start + size, frame))
        return Extent.around(parts) if inside else None
