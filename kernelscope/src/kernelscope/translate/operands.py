"""Operands of PTX instructions as Python text: registers, literals, addresses, {a, b} vectors.

A register's value is kept in the dtype that STORED names; an instruction sees it in isa.DTYPE of
its own type. Where those differ, the text views the one as the other; ld, st and cvt may also name
a wider register than they use (`ld.u8 %r1`), which cuts or widens the value.
"""

import re
from functools import lru_cache

import numpy as np
from kernelscope.isa.bits import pack, unpack
from kernelscope.isa.table import DTYPE
from kernelscope.ptx.registers import symbols_in
from kernelscope.ptx.syntax import (
    TYPE_BYTES,
    Immediate,
    Instruction,
    Inverted,
    Pair,
    Register,
    Symbol,
    Vector,
    format_operand,
)

from ..errors import UnknownInstruction, UnsupportedInstruction

_PARTS = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}  # bytes -> type of one item of a {a, b} operand


# Words of PTX. `@` and a number follow a name that is declared in an inner scope.
_OPCODE = re.compile(r"[a-z][a-z0-9]*(\.[A-Za-z0-9_]+(::[A-Za-z0-9_]+)*)*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_$%.~]+(@[0-9]+)?", re.ASCII)


def printable(instruction: Instruction) -> str:
    """The text of an instruction on one line of ASCII, with other characters escaped."""
    return str(instruction).encode("unicode_escape").decode("ascii")


def check_words(instruction: Instruction, registers: set[str]) -> None:
    """Raise UnsupportedInstruction unless each word of an instruction is spelled as PTX spells it.

    registers: those of its guard and operands. All operands are checked, so also those of
    instructions that have no effect here.
    """
    if not _is_opcode(instruction.opcode):
        raise UnsupportedInstruction(f"opcode {ascii(instruction.opcode)}")
    for name in (*registers, *symbols_in(instruction.operands)):
        if not _is_name(name):
            raise UnsupportedInstruction(f"operand {ascii(name)}")


@lru_cache(maxsize=1 << 10)
def _is_opcode(word: str) -> bool:
    return _OPCODE.fullmatch(word) is not None


@lru_cache(maxsize=1 << 14)
def _is_name(word: str) -> bool:
    return _NAME.fullmatch(word) is not None


def type_of(opcode: str) -> str:
    """The last type among the opcode's parts: "ld.global.v4.f32" -> "f32"."""
    for part in reversed(opcode.split(".")):
        if part in TYPE_BYTES:
            return part
    raise UnsupportedInstruction(f"{opcode}: no type")


def code_of(dtype: np.dtype) -> str:
    """The name of a dtype in the generated text: "f4"."""
    return "b1" if dtype.kind == "b" else f"{dtype.kind}{dtype.itemsize}"


# Register type -> name of the dtype that its value is kept in: integers without their sign.
STORED = {kind: code_of(dtype).replace("i", "u") for kind, dtype in DTYPE.items()}
_STORED_DTYPES = {kind: np.dtype(code) for kind, code in STORED.items()}


class OperandText:
    """The text for operands of one function instance's instructions.

    names: what the text refers to, the namespace in which it is compiled. UnsupportedInstruction
    is raised for an operand that the simulator does not know.
    """

    def __init__(self, instance):
        self.instance = instance
        self.names: dict[str, object] = {
            "np": np,
            "pack": pack,
            "unpack": unpack,
            **{code_of(d): d for d in DTYPE.values()},
        }
        self.names["__builtins__"] = {}
        self.constants: dict[tuple, str] = {}

    # -- names ----------------------------------------------------------------------------------
    def constant(self, value) -> str:
        """A name for an immutable value; equal values share one."""
        key = (type(value), value.tobytes() if isinstance(value, np.generic) else value)
        if key not in self.constants:
            self.constants[key] = f"k{len(self.constants)}"
            self.names[self.constants[key]] = value
        return self.constants[key]

    def object(self, prefix: str, value) -> str:
        """A name of its own for any object."""
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def call(self, method: str, instruction: Instruction, *arguments: object) -> str:
        """The call of a method of the chunk's parts, which takes the instruction last."""
        texts = [*map(str, arguments), self.object("ins", instruction)]
        return f"c.{method}({', '.join(texts)})"

    @staticmethod
    def decoded(decode, opcode: str):
        """decode(opcode), with errors as the translation has them."""
        try:
            return decode(opcode)
        except UnknownInstruction as error:
            raise UnsupportedInstruction(str(error)) from None

    # -- reading --------------------------------------------------------------------------------
    def read(self, operand, kind: str) -> str:
        """Python text for an operand seen as PTX type `kind`."""
        match operand:
            case Register(name):
                return self.read_register(name, kind)
            case Immediate():
                return self.immediate(operand, kind)
            case Inverted(inner):
                return f"np.logical_not({self.read_register(inner.name, 'pred')})"
            case Symbol(name, offset):
                return self.symbol(name, offset, kind)
            case Vector(items):
                return self.packed(items, kind)
        raise UnsupportedInstruction(f"operand {format_operand(operand)}")

    def immediate(self, operand: Immediate, kind: str) -> str:
        """A literal as a constant of the dtype that `kind` is seen in."""
        dtype = DTYPE[kind]
        if kind == "pred":
            return self.constant(np.bool_(operand.value != 0))
        bits = int(operand.value)
        if operand.float_bits == 64 and kind == "f32":
            return self.constant(np.float32(np.uint64(bits).view(np.float64)))
        if operand.float_bits == 32 and kind == "f64":
            return self.constant(np.float64(np.uint32(bits).view(np.float32)))
        if dtype.kind == "f" and not operand.float_bits:
            return self.constant(dtype.type(bits))
        unsigned = np.dtype(f"u{dtype.itemsize}").type(bits & ((1 << 8 * dtype.itemsize) - 1))
        return self.constant(unsigned.view(dtype))

    def read_register(self, name: str, kind: str) -> str:
        """A register's value in the dtype of `kind`; wider registers are cut."""
        stored, wanted = self.stored_dtype(name), DTYPE[kind]
        text = f"R[{self.instance.slot(name)}]"
        if stored == wanted:
            return text
        if stored.itemsize == wanted.itemsize:
            return f"{text}.view({code_of(wanted)})"
        if stored.kind == "f":
            text = f"{text}.view(u{stored.itemsize})"
        return f"{text}.astype(u{wanted.itemsize}).view({code_of(wanted)})"

    def stored_dtype(self, name: str) -> np.dtype:
        """The dtype in which a register's value is kept."""
        return _STORED_DTYPES[self.instance.register_type(name)]

    def symbol(self, name: str, offset: int, kind: str) -> str:
        """The address of a variable within its own space."""
        place = self.constant(self.instance.place_of(name))
        text = f"c.memory.address_of({place}, {offset:d})"
        text = text if TYPE_BYTES[kind] == 8 else f"np.uint32({text})"
        return f"{text}.view({code_of(DTYPE[kind])})" if DTYPE[kind].kind == "i" else text

    def packed(self, items: tuple, kind: str) -> str:
        """{a, b} as one wider value, the first item in the low bits."""
        whole = TYPE_BYTES[kind]
        part = _PARTS[whole // len(items)]
        pieces = ", ".join(self.read(item, part) for item in items)
        text = f"pack(u{whole}, ({pieces},))"
        dtype = DTYPE[kind]
        return text if dtype.kind == "u" else f"{text}.view({code_of(dtype)})"

    # -- writing --------------------------------------------------------------------------------
    def write(self, operand, kind: str, text: str) -> str:
        """A statement that puts the value `text` of PTX type `kind` into an operand."""
        if isinstance(operand, Vector):
            return self.write_parts(operand.items, kind, text)
        if not isinstance(operand, Register):
            raise UnsupportedInstruction(f"destination {format_operand(operand)}")
        if operand.name == "_":
            return text
        converted = _converted(text, DTYPE[kind], self.stored_dtype(operand.name))
        return f"R[{self.instance.slot(operand.name)}] = {converted}"

    def write_parts(self, items: tuple, kind: str, text: str) -> str:
        """{a, b} = one wider value: the first item gets the low bits."""
        part, whole = _PARTS[TYPE_BYTES[kind] // len(items)], f"u{TYPE_BYTES[kind]}"
        return self.write_items(items, part, f"unpack(({text}).view({whole}), {len(items)})")

    def write_items(self, items, kind: str, call: str) -> str:
        """Statements that put the values which a call returns into operands, one each."""
        writes = [self.write(item, kind, f"t[{i}]") for i, item in enumerate(items)]
        return "; ".join([f"t = {call}", *writes])

    def write_halves(self, operand: Vector, values: str) -> str:
        """{a, b} = two values of 64 bits."""
        low, high = operand.items
        return f"t, u = {values}; {self.write(low, 'b64', 't')}; {self.write(high, 'b64', 'u')}"

    def write_pair(self, operand, kinds: tuple[str, str], call: str) -> str:
        """`d|p` = the two results of a call; the text may leave out the second."""
        if not isinstance(operand, Pair):
            return self.write(operand, kinds[0], f"{call}[0]")
        first = self.write(operand.first, kinds[0], "t")
        return f"t, u = {call}; {first}; {self.write(operand.second, kinds[1], 'u')}"


def _converted(text: str, value: np.dtype, stored: np.dtype) -> str:
    """A value's text as the dtype in which a register keeps it."""
    if stored == value:
        return text
    if stored.itemsize == value.itemsize:
        return f"{text}.view({code_of(stored)})"
    widened = "i" if value.kind == "i" else "u"  # widening keeps the sign of signed types
    text = f"{text}.view({widened}{value.itemsize}).astype({widened}{stored.itemsize})"
    return text if stored.kind == widened else f"{text}.view({code_of(stored)})"
