"""Instructions as lines of Python on plain numbers (see forms): registers, pure ones, memory.

`r5` is register 5. Memory is memoryviews of what NumPy computes on. A global address is compared
with the stretch that the same place met last (`lo3`, `hi3`); outside of it the place asks the
machine, which raises `Aside` where nothing is. A line that raises `Aside` has changed nothing.
"""

import itertools
import math
from functools import cache

import numpy as np
from kernelscope.isa.table import DTYPE, find_row, lookup
from kernelscope.ptx.syntax import (
    TYPE_BYTES,
    Address,
    Immediate,
    Instruction,
    Inverted,
    Pair,
    Register,
    Symbol,
    Vector,
)

from ...address_space import SPACE
from ...errors import UnknownInstruction, UnsupportedInstruction
from ...isa.narrow import VIDEO_ROWS
from ...isa.special_registers import CLOCKS
from ..control_flow import LOCAL_BASE, SHARED_BASE
from ..instructions import NOTHING, WINDOWS, WRAPPING
from ..memory_instructions import item_type, items_of, memory_space
from ..operands import STORED, code_of, type_of
from .forms import EXACT, LEAST, Aside, bits_of, cut, fma, form_of, quotient, remainder, signed

_FORMATS = {"u1": "B", "u2": "H", "u4": "I", "u8": "Q", "f4": "f", "f8": "d"}
_BASES = {"shared": SHARED_BASE, "local": LOCAL_BASE}
_PLAIN = f"if not (t > {LEAST!r} or t < -{LEAST!r} or t == 0.0): raise Aside"
_ROUNDED = [_PLAIN, "SINGLE[0] = t; t = SINGLE[0]"]
_NUMBER = ["if t != t: raise Aside"]
_TOP = (1 << 64) - 1
_scratch = memoryview(bytearray(8))
_SINGLE, _DOUBLE, _WORD, _LONG = (_scratch.cast(letter) for letter in "fdIQ")


def views(prefix: str, data: np.ndarray) -> dict[str, memoryview]:
    """Memory, (bytes,) uint8, as items of each kind: "G_u4" for the prefix G.

    A tail that fills no item is left out.
    """
    whole = memoryview(data)
    return {
        f"{prefix}_{code}": whole[: data.size & -int(code[1])].cast(letter)
        for code, letter in _FORMATS.items()
    }


@cache
def _arena() -> dict[str, memoryview]:
    return views("G", SPACE.bytes)


def _word_of(value: float) -> int:
    """The bits of a .f32 value."""
    _SINGLE[0] = value
    return _WORD[0]


def _single_of(bits: int) -> float:
    """The .f32 value of some bits; Aside for NaN and subnormals."""
    _WORD[0] = bits
    value = _SINGLE[0]
    if not (value > LEAST or value < -LEAST or value == 0.0):
        raise Aside
    return value


def _long_of(value: float) -> int:
    """The bits of a .f64 value."""
    _DOUBLE[0] = value
    return _LONG[0]


def _double_of(bits: int) -> float:
    """The .f64 value of some bits; Aside for NaN."""
    _LONG[0] = bits
    if _DOUBLE[0] != _DOUBLE[0]:
        raise Aside
    return _DOUBLE[0]


_TO_BITS, _FROM_BITS = {4: "word_of", 8: "long_of"}, {4: "single_of", 8: "double_of"}
NAMES = {
    **{"Aside": Aside, "fma": fma, "quotient": quotient, "remainder": remainder},
    **{"sqrt": math.sqrt, "floor": math.floor, "ceil": math.ceil, "inf": math.inf},
    **{"word_of": _word_of, "single_of": _single_of, "long_of": _long_of, "double_of": _double_of},
    **{"SINGLE": _SINGLE, "DOUBLE": _DOUBLE, "LONG": _LONG},
    **{name.__name__: name for name in (abs, float, int, min, max, round, bool)},
    **{f"u{size}": np.dtype(f"u{size}").type for size in (1, 2, 4, 8)},
    **{"f4": np.float32, "f8": np.float64, "b1": np.bool_},
    **{f"i{size}": np.dtype(f"i{size}") for size in (1, 2, 4, 8)},
    "__builtins__": {},
}


class ScalarLines:
    """The lines of a loop's instructions.

    names: what they refer to; before: lines ahead of the loop; slots, written: the registers that
    they use, and of them those that they change; views: of shared and local memory.
    """

    def __init__(self):
        self.names = NAMES | _arena()
        self.before: list[str] = []
        self.views: set[str] = set()
        self.slots: set[int] = set()
        self.written: set[int] = set()
        self._numbers = itertools.count()

    def lines(self, instance, instruction: Instruction) -> list[str]:
        """What the lane does at an instruction: `raise Aside` where that is NumPy's turn."""
        self.instance = instance
        root = instruction.opcode.split(".")[0]
        if root in VIDEO_ROWS or "bulk" in instruction.opcode:
            return ["raise Aside"]
        if root in NOTHING:
            return []
        try:
            return getattr(self, f"_{root}", self.pure)(instruction)
        except (Aside, UnsupportedInstruction, UnknownInstruction):
            return ["raise Aside"]

    # -- operands -------------------------------------------------------------------------------
    def name(self, slot: int) -> str:
        self.slots.add(slot)
        return f"r{slot}"

    def register(self, name: str) -> str:
        """The variable of a register; a clock is no such thing."""
        if name in CLOCKS:
            raise Aside
        return self.name(self.instance.slot(name))

    def stored(self, name: str) -> str:
        return STORED[self.instance.register_type(name)]

    def read(self, operand, kind: str) -> str:
        """A name, a number or text in brackets: the operand seen as PTX type `kind`."""
        match operand:
            case Register(name):
                return self.seen(self.register(name), self.stored(name), kind)
            case Immediate():
                return self.number(operand, kind)
            case Inverted(inner):
                return f"(not {self.register(inner.name)})"
            case Symbol(name, offset):
                return self.address_of(name, offset, TYPE_BYTES[kind])
            case Vector(items):
                part = 8 * TYPE_BYTES[kind] // len(items)
                texts = (self.read(item, f"b{part}") for item in items)
                return "(" + " | ".join(f"{t} << {part * i}" for i, t in enumerate(texts)) + ")"
        raise Aside

    @staticmethod
    def seen(text: str, stored: str, kind: str) -> str:
        """A register's variable as a type sees it; wider registers are cut."""
        wanted, size = DTYPE[kind], int(stored[1])
        if kind == "pred" or wanted.kind == stored[0] == "f" and size == wanted.itemsize:
            return text
        if wanted.kind == "f":
            if size != wanted.itemsize:
                raise Aside
            return f"{_FROM_BITS[size]}({text})"
        if stored[0] == "f":
            text = f"{_TO_BITS[size]}({text})"
        return f"({cut(text, 8 * wanted.itemsize)})" if size > wanted.itemsize else text

    @staticmethod
    def number(operand: Immediate, kind: str) -> str:
        """A literal in the type that an instruction sees."""
        bits, dtype = int(operand.value), DTYPE[kind]
        if kind == "pred":
            return str(bits != 0)
        if dtype.kind != "f":
            return str(bits & (1 << 8 * dtype.itemsize) - 1)
        if not operand.float_bits:
            value = float(dtype.type(bits))
        else:
            given = np.dtype(f"u{operand.float_bits // 8}").type(bits)
            value = float(dtype.type(given.view(f"f{operand.float_bits // 8}")))
        if value != value or kind == "f32" and 0 < abs(value) <= LEAST:
            raise Aside
        return f"({value!r})"

    def address_of(self, name: str, offset: int, size: int) -> str:
        """The address of a variable, found once ahead of the loop."""
        place, text = f"place{next(self._numbers)}", f"y{next(self._numbers)}"
        self.names[place] = self.instance.place_of(name)
        address = cut(f"int(c.memory.address_of({place}, {offset:d}))", 8 * size)
        self.before.append(f"{text} = {address}")
        return text

    def write(self, operand, kind: str, text: str) -> list[str]:
        """Put the value of PTX type `kind` into an operand."""
        if isinstance(operand, Vector):
            bits = 8 * TYPE_BYTES[kind] // len(operand.items)
            parts = (cut(f"u >> {bits * i}", bits) for i in range(len(operand.items)))
            pairs = zip(operand.items, parts, strict=True)
            return [f"u = {text}", *(one for i, p in pairs for one in self.write(i, f"b{bits}", p))]
        if not isinstance(operand, Register):
            raise Aside
        if operand.name == "_":
            return []
        stored, value = self.stored(operand.name), DTYPE[kind]
        size = int(stored[1])
        if value.kind == "f" and stored[0] != "f":
            text = f"{_TO_BITS[value.itemsize]}({text})"
        elif value.kind in "ui" and stored[0] == "f":
            text = f"{_FROM_BITS[size]}({text})"
        elif value.kind == "i" and size > value.itemsize:
            text = cut(signed(f"({text})", 8 * value.itemsize), 8 * size)
        slot = self.instance.slot(operand.name)
        self.written.add(slot)
        return [f"{self.name(slot)} = {text}"]

    def finish(self, operand, kind: str, text: str, exact: bool = False) -> list[str]:
        """`write`, of a float once it is found to be one that is kept here, and rounded."""
        if exact or DTYPE[kind].kind != "f":
            return self.write(operand, kind, text)
        checks = _ROUNDED if kind == "f32" else _NUMBER
        return [f"t = {text}", *checks, *self.write(operand, kind, "t")]

    # -- registers only -------------------------------------------------------------------------
    def pure(self, instruction: Instruction) -> list[str]:
        """An operation of the table: an expression, or the call of its function."""
        opcode = WRAPPING.sub(r"\1.u\2", instruction.opcode)
        operation = lookup(opcode)
        destination, *operands = instruction.operands
        pairs = zip(operands, operation.sources, strict=True)
        values = tuple(self.read(operand, kind) for operand, kind in pairs)
        if opcode.startswith(("fma.rn", "mad.rn")) and operation.results == ("f32",):
            if not opcode.endswith((".sat.f32", ".relu.f32")):
                return self.fma(destination, *values)
        text = form_of(opcode, values)
        if text is None:
            return self.called(opcode, operation, destination, values)
        kind = operation.results[0]
        if isinstance(destination, Pair):
            if find_row(opcode)[0].count(".") > 1:  # what it combines with counts for both results
                return self.called(opcode, operation, destination, values)
            second = self.write(destination.second, kind, "not t")
            return [f"t = {text}", *second, *self.write(destination.first, kind, "t")]
        return self.finish(destination, kind, text, opcode.split(".")[0] in EXACT)

    def fma(self, destination, a: str, b: str, c: str) -> list[str]:
        """fma.rn.f32: rounded to .f64 first, which harms where that gives the middle between two
        .f32 numbers: then the 29 bits that .f32 drops are 100...0.
        """
        return [
            f"x = {a} * {b}; t = x + {c}; DOUBLE[0] = t",
            f"if LONG[0] & 536870911 == 268435456 and (t - x != {c} or t - {c} != x): raise Aside",
            *_ROUNDED,
            *self.write(destination, "f32", "t"),
        ]

    def called(self, opcode: str, operation, destination, values: tuple) -> list[str]:
        """The call of the table's function on NumPy scalars, for what has no form of its own."""
        name = opcode.replace(".", "_")
        self.names[name] = operation.fn
        texts = [
            f"u{DTYPE[kind].itemsize}({value}).view({code_of(DTYPE[kind])})"
            if DTYPE[kind].kind == "i"
            else f"{code_of(DTYPE[kind])}({value})"
            for value, kind in zip(values, operation.sources, strict=True)
        ]
        carry = self.register("%carry") if operation.uses_carry else ""
        if operation.reads_carry:
            texts.append(f"b1({carry})")
        call = f"{name}({', '.join(texts)})"
        pair, lines = isinstance(destination, Pair), [f"v = {call}"]
        targets = (destination.first, destination.second) if pair else (destination,)
        several = operation.writes_carry or len(operation.results) == 2
        for i, (target, kind) in enumerate(zip(targets, operation.results, strict=False)):
            lines += self.result(target, kind, f"v[{i}]" if several else "v")
        if operation.writes_carry:
            self.written.add(self.instance.slot("%carry"))
            lines.append(f"{carry} = bool(v[1])")
        return lines

    def result(self, destination, kind: str, text: str) -> list[str]:
        """A NumPy scalar as a plain number."""
        dtype = DTYPE[kind]
        if dtype.kind == "f":
            return self.finish(destination, kind, f"float({text})")
        if dtype.kind == "b":
            return self.write(destination, kind, f"bool({text})")
        return self.write(destination, kind, cut(f"int({text})", 8 * dtype.itemsize))

    def _mov(self, instruction: Instruction) -> list[str]:
        destination, source = instruction.operands
        if "b128" in instruction.opcode:
            raise Aside
        kind = type_of(instruction.opcode)
        return self.write(destination, kind, self.read(source, kind))

    def _cvta(self, instruction: Instruction) -> list[str]:
        destination, source = instruction.operands
        kind, window = type_of(instruction.opcode), WINDOWS.get(memory_space(instruction.opcode))
        text = self.read(source, kind)
        if window:
            sign = "-" if ".to." in instruction.opcode else "+"
            text = cut(f"{text} {sign} {window}", bits_of(kind))
        return self.write(destination, kind, text)

    def aside(self, instruction: Instruction) -> list[str]:
        raise Aside

    _call = _atom = _red = _cp = _mbarrier = _barrier = _nanosleep = _alloca = aside
    _tensormap = aside
    _stacksave = _stackrestore = _createpolicy = _isspacep = _mapa = _getctarank = aside

    # -- memory ---------------------------------------------------------------------------------
    def place(self, space: str, operand: Address, kind: str, count: int, writes: bool):
        """(lines that leave a checked address in `x`, the name of a view) of some items."""
        base, offset, size = operand.base, operand.offset, TYPE_BYTES[kind] * count
        code = code_of(DTYPE[kind]).replace("i", "u")
        if base is None:
            text = str(offset & _TOP)
        elif isinstance(base, Symbol):
            text = self.address_of(base.name, offset, 8)
        elif TYPE_BYTES[self.instance.register_type(base.name)] == 4:
            text = cut(f"{self.read(base, 'u32')} + {offset}", 32)
        else:
            text = f"{self.read(base, 'u64')} + {offset}"
        lines, aligned = [f"x = {text}"], f" or x & {size - 1}" * (size > 1)
        if space in _BASES:
            end = f"{space}_end"
            lines += [f"if not 0 <= x <= {end} - {size}{aligned}: raise Aside"]
            view = f"{space}_{code}"
            self.views.add(view)
            return [*lines, f"x += {self.name(_BASES[space])}"], view
        low, high = (f"{name}{next(self._numbers)}" for name in ("lo", "hi"))
        self.before.append(f"{low} = {high} = -1")
        ask = f"{low}, {high} = stretch(x, {size}, {writes})"
        return [*lines, f"if not {low} <= x <= {high}{aligned}: {ask}"], f"G_{code}"

    def space_of(self, opcode: str, operand: Address) -> str:
        space = memory_space(opcode)
        if space != "param":
            return space
        place = self.instance.place_of(operand.base.name)[0] if operand.base else "parameter"
        return "local" if place == "local" else "parameter"

    def _ld(self, instruction: Instruction) -> list[str]:
        opcode, (destination, source, *_) = instruction.opcode, instruction.operands
        kind, items = item_type(opcode), items_of(destination, opcode)
        space, size = self.space_of(opcode, source), TYPE_BYTES[kind]
        if space == "parameter":
            return self.parameter(source, kind, items)
        found, view = self.place(space, source, kind, len(items), False)
        texts = [f"{view}[{self.index(size, i)}]" for i in range(len(items))]
        check = {"f32": [_PLAIN], "f64": _NUMBER}.get(kind, [])
        checks = [line for text in texts for line in (f"t = {text}", *check) if check]
        if len(items) == 1 and check:
            return [*found, *checks, *self.write(items[0], kind, "t")]
        writes = (self.write(item, kind, text) for item, text in zip(items, texts, strict=True))
        return [*found, *checks, *itertools.chain(*writes)]

    _ldu = _ld

    def parameter(self, source: Address, kind: str, items: tuple) -> list[str]:
        """A kernel's parameter, read ahead of the loop."""
        at, size = self.instance.place_of(source.base.name)[1] + source.offset, TYPE_BYTES[kind]
        lines = []
        for i, item in enumerate(items):
            text, bits = f"y{next(self._numbers)}", f"b{8 * size}"
            self.before.append(f"{text} = int(c.memory.parameter({at + i * size:d}, u{size}))")
            lines += self.write(item, bits if kind[0] == "f" else kind, text)
        return lines

    def _st(self, instruction: Instruction) -> list[str]:
        opcode, (destination, source, *_) = instruction.opcode, instruction.operands
        kind, items = item_type(opcode), items_of(source, opcode)
        space, size = self.space_of(opcode, destination), TYPE_BYTES[kind]
        if space == "parameter":
            raise Aside
        found, view = self.place(space, destination, kind, len(items), True)
        values = [self.read(item, kind) for item in items]
        if any("_of(" in value for value in values):
            found, values = [f"v = ({', '.join(values)},)", *found], [f"v[{i}]" for i in range(9)]
        writes = [f"{view}[{self.index(size, i)}] = {values[i]}" for i in range(len(items))]
        return [*found, *writes, f"told[{int(space == 'local')}] = True"]

    @staticmethod
    def index(size: int, item: int) -> str:
        """The place in a view of the `item`-th item at the address in `x`."""
        text = f"x >> {size.bit_length() - 1}" if size > 1 else "x"
        return f"({text}) + {item}" if item else text
