"""Each PTX instruction becomes one line of NumPy, compiled once.

`R` is the register file (slot -> array over the active lanes, or one scalar), `c` the chunk of
blocks that runs. `Program.python(name)` prints the lines:

    fma.rn.ftz.f32 %f14, %f13, %f12, %f29;   ->   R[14] = fma_rn_ftz_f32(R[13], R[12], R[29])
"""

from __future__ import annotations

import itertools
import re

import numpy as np

from . import atomics, isa
from .errors import UnsupportedInstruction
from .memory import LOCAL_WINDOW, SHARED_WINDOW
from .syntax import (
    TYPE_BYTES,
    Address,
    Immediate,
    Instruction,
    Inverted,
    Pair,
    Register,
    Symbol,
    Vector,
    format_operand,
)

STORED = {  # register type -> dtype its value is kept in
    "pred": "?", "b8": "u1", "u8": "u1", "s8": "u1", "b16": "u2", "u16": "u2", "s16": "u2",
    "f16": "u2", "bf16": "u2", "b32": "u4", "u32": "u4", "s32": "u4", "f16x2": "u4",
    "bf16x2": "u4", "f32": "f4", "b64": "u8", "u64": "u8", "s64": "u8", "f64": "f8",
}  # fmt: skip
_TYPES = {  # PTX type -> dtype an operation sees
    "pred": "?", "b8": "u1", "u8": "u1", "s8": "i1", "b16": "u2", "u16": "u2", "s16": "i2",
    "f16": "u2", "bf16": "u2", "b32": "u4", "u32": "u4", "s32": "i4", "f16x2": "u4",
    "bf16x2": "u4", "f32": "f4", "tf32": "u4", "b64": "u8", "u64": "u8", "s64": "i8", "f64": "f8",
}  # fmt: skip
_DTYPES = {
    code: np.dtype(code)
    for code in ("?", "u1", "i1", "u2", "i2", "u4", "i4", "f4", "u8", "i8", "f8")
}
_PARTS = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}  # bytes -> type of one item of a {a, b} operand
_SPACES = ("global", "shared", "local", "param", "const")
_NOTHING = (
    "membar", "fence", "prefetch", "prefetchu", "nanosleep", "pmevent", "discard",
    "applypriority", "setmaxnreg", "griddepcontrol", "brkpt",
    "bar",  # bar.warp: the lanes are together, nothing is left to do
)  # fmt: skip
_WRAPPING = re.compile(r"^(add|sub|mul\.lo|mad\.lo)\.s(16|32|64)$")


def type_of(opcode: str) -> str:
    """The last type among the opcode's parts: "ld.global.v4.f32" -> "f32"."""
    for part in reversed(opcode.split(".")):
        if part in TYPE_BYTES:
            return part
    raise UnsupportedInstruction(f"{opcode}: no type")


def memory_space(opcode: str) -> str:
    for part in opcode.split(".")[1:]:
        part = part.split("::")[0]
        if part in _SPACES:
            return "global" if part == "const" else part
    return "generic"


class Decoder:
    """Translates the instructions of one function instance to lines of Python."""

    def __init__(self, instance):
        self.instance = instance
        self.names: dict[str, object] = {"np": np, **_DTYPES, "b1": _DTYPES["?"]}
        self.constants: dict[tuple, str] = {}

    # -- operands -------------------------------------------------------------------------------
    def constant(self, value) -> str:
        key = (type(value), value.tobytes() if isinstance(value, np.generic) else value)
        if key not in self.constants:
            self.constants[key] = f"k{len(self.constants)}"
            self.names[self.constants[key]] = value
        return self.constants[key]

    def object(self, prefix: str, value) -> str:
        """A name in the generated text for any object."""
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def immediate(self, operand: Immediate, kind: str) -> str:
        dtype = _DTYPES[_TYPES[kind]]
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

    def read_register(self, name: str, kind: str) -> str:
        stored = _DTYPES[STORED[self.instance.register_type(name)]]
        wanted = _DTYPES[_TYPES[kind]]
        text = f"R[{self.instance.slot(name)}]"
        if stored == wanted:
            return text
        if stored.itemsize == wanted.itemsize:
            return f"{text}.view({wanted.kind}{wanted.itemsize})"
        if stored.kind == "f":
            text = f"{text}.view(u{stored.itemsize})"
        code = f"{wanted.kind}{wanted.itemsize}"
        return f"{text}.astype(u{wanted.itemsize}).view({code})"

    def symbol(self, name: str, offset: int, kind: str) -> str:
        text = f"c.address_of({self.instance.place_of(name)!r}, {offset})"
        return text if TYPE_BYTES[kind] == 8 else f"np.uint32({text})"

    def packed(self, items: tuple, kind: str) -> str:
        """{a, b} as one wider value, the first item in the low bits."""
        whole = TYPE_BYTES[kind]
        part = _PARTS[whole // len(items)]
        pieces = ", ".join(self.read(item, part) for item in items)
        text = f"c.pack(u{whole}, ({pieces},))"
        return text if _TYPES[kind][0] == "u" else f"{text}.view({_TYPES[kind]})"

    def write(self, operand, kind: str, text: str) -> str:
        """A statement that puts the value `text` of PTX type `kind` into an operand."""
        if isinstance(operand, Vector):
            part = _PARTS[TYPE_BYTES[kind] // len(operand.items)]
            whole = f"u{TYPE_BYTES[kind]}"
            lines = [f"t = c.unpack(({text}).view({whole}), {len(operand.items)})"]
            for i, item in enumerate(operand.items):
                lines.append(self.write(item, part, f"t[{i}]"))
            return "; ".join(lines)
        if not isinstance(operand, Register):
            raise UnsupportedInstruction(f"destination {format_operand(operand)}")
        if operand.name == "_":
            return text
        stored = _DTYPES[STORED[self.instance.register_type(operand.name)]]
        value = _DTYPES[_TYPES[kind]]
        if stored != value:
            code = f"{stored.kind}{stored.itemsize}"
            if stored.itemsize == value.itemsize:
                text = f"{text}.view({code})"
            else:  # widening keeps the sign of signed types
                widened = "i" if value.kind == "i" else "u"
                text = f"{text}.view({widened}{value.itemsize}).astype({widened}{stored.itemsize})"
                text = text if code[0] == widened else f"{text}.view({code})"
        return f"R[{self.instance.slot(operand.name)}] = {text}"

    # -- instructions ---------------------------------------------------------------------------
    def line(self, instruction: Instruction) -> str:
        """The Python statement of one instruction; raises UnsupportedInstruction."""
        root = instruction.opcode.split(".")[0]
        if root in _NOTHING:
            return "pass"
        handler = getattr(self, f"_{root}", None)
        if handler is not None:
            return handler(instruction)
        return self.pure(instruction)

    def function(self, opcode: str, fn) -> str:
        name = re.sub(r"\W", "_", opcode)
        self.names[name] = fn
        return name

    def pure(self, instruction: Instruction) -> str:
        opcode = _WRAPPING.sub(r"\1.u\2", instruction.opcode)
        operands = instruction.operands
        try:
            operation = isa.lookup(opcode)
        except isa.UnknownInstruction as error:
            raise UnsupportedInstruction(str(error)) from None
        sources = [self.read(o, t) for o, t in zip(operands[1:], operation.sources, strict=False)]
        if operation.reads_carry:
            sources.append(f"R[{self.instance.slot('%carry')}]")
        call = f"{self.function(opcode, operation.fn)}({', '.join(sources)})"
        if operation.writes_carry:
            return f"t, R[{self.instance.slot('%carry')}] = {call}; " + self.write(
                operands[0], operation.results[0], "t"
            )
        if len(operation.results) == 2:
            return self.two_predicates(operands[0], call)
        return self.write(operands[0], operation.results[0], call)

    def two_predicates(self, operand, call: str) -> str:
        if isinstance(operand, Pair):
            first = self.write(operand.first, "pred", "t")
            second = self.write(operand.second, "pred", "u")
            return f"t, u = {call}; {first}; {second}"
        return self.write(operand, "pred", f"{call}[0]")

    def _mov(self, instruction: Instruction) -> str:
        destination, source = instruction.operands
        kind = type_of(instruction.opcode)
        if isinstance(source, Register) and source.name.startswith(("%clock", "%globaltimer")):
            return self.write(destination, kind, f"c.clock(u{TYPE_BYTES[kind]})")
        return self.write(destination, kind, self.read(source, kind))

    def _cvta(self, instruction: Instruction) -> str:
        """Global addresses are generic ones already; shared and local have a window."""
        destination, source = instruction.operands
        kind = type_of(instruction.opcode)
        window = self.names_window(memory_space(instruction.opcode))
        text = self.read(source, kind)
        if window:
            sign = "-" if ".to." in instruction.opcode else "+"
            text = f"({text} {sign} {self.constant(np.uint64(window))})"
        return self.write(destination, kind, text)

    @staticmethod
    def names_window(space: str) -> int:
        return {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space, 0)

    def _isspacep(self, instruction: Instruction) -> str:
        destination, source = instruction.operands
        space = instruction.opcode.split(".")[1].split("::")[0]
        text = f"c.is_in({space!r}, {self.read(source, 'b64')})"
        return self.write(destination, "pred", text)

    # -- memory ---------------------------------------------------------------------------------
    def address(self, operand: Address) -> str:
        offset = np.uint64(operand.offset & (2**64 - 1))
        if operand.base is None:
            return self.constant(offset)
        if isinstance(operand.base, Symbol):
            return self.symbol(operand.base.name, operand.offset, "u64")
        kind = self.instance.register_type(operand.base.name)
        if TYPE_BYTES[kind] == 4:
            text = self.read_register(operand.base.name, "u32")
            if operand.offset:  # the sum wraps around at 32 bits
                offset = np.uint32(operand.offset & 0xFFFFFFFF)
                text = f"({text} + {self.constant(offset)})"
            return f"{text}.astype(u8)"
        text = self.read_register(operand.base.name, "u64")
        return f"{text} + {self.constant(offset)}" if operand.offset else text

    def space_of(self, instruction: Instruction, operand: Address) -> str:
        space = memory_space(instruction.opcode)
        if space == "param":
            if isinstance(operand.base, Symbol):
                return self.instance.place_of(operand.base.name)[0]
            return "global"
        return space

    def _ld(self, instruction: Instruction) -> str:
        destination, source = instruction.operands[:2]
        kind = type_of(instruction.opcode)
        dtype, shift = _DTYPES[_TYPES[kind]], TYPE_BYTES[kind].bit_length() - 1
        items = destination.items if isinstance(destination, Vector) else (destination,)
        space = self.space_of(instruction, source)
        if space == "parameter":
            offset = self.instance.place_of(source.base.name)[1] + source.offset
            return "; ".join(
                self.write(item, kind, f"c.parameter({at}, {_code(dtype)})")
                for at, item in zip(itertools.count(offset, dtype.itemsize), items, strict=False)
            )
        call = (
            f"c.load_{space}({self.address(source)}, {_code(dtype)}, {shift}, {len(items)}, "
            f"{self.object('ins', instruction)})"
        )
        if len(items) == 1:
            return self.write(items[0], kind, call)
        writes = [self.write(item, kind, f"t[{i}]") for i, item in enumerate(items)]
        return "; ".join([f"t = {call}", *writes])

    _ldu = _ld

    def _st(self, instruction: Instruction) -> str:
        destination, source = instruction.operands[:2]
        kind = type_of(instruction.opcode)
        dtype, shift = _DTYPES[_TYPES[kind]], TYPE_BYTES[kind].bit_length() - 1
        items = source.items if isinstance(source, Vector) else (source,)
        values = ", ".join(self.read(item, kind) for item in items)
        space = self.space_of(instruction, destination)
        return (
            f"c.store_{space}({self.address(destination)}, ({values},), {_code(dtype)}, {shift}, "
            f"{self.object('ins', instruction)})"
        )

    def _atom(self, instruction: Instruction) -> str:
        return self.atomic(instruction, instruction.operands[0], instruction.operands[1:])

    def _red(self, instruction: Instruction) -> str:
        return self.atomic(instruction, None, instruction.operands)

    def atomic(self, instruction: Instruction, destination, operands: tuple) -> str:
        kind = type_of(instruction.opcode)
        space = memory_space(instruction.opcode)
        name = self.object("atom", atomics.operation(instruction.opcode, kind))
        values = "".join(f"{self.read(o, kind)}, " for o in operands[1:])
        wanted = isinstance(destination, Register) and destination.name != "_"
        if wanted:
            slot = self.instance.slot(destination.name)
            wanted = self.instance.is_live_after(instruction, slot)
        dtype, shift = _DTYPES[_TYPES[kind]], TYPE_BYTES[kind].bit_length() - 1
        call = (
            f"c.atomic_{space}({self.address(operands[0])}, {name}, ({values}), {_code(dtype)}, "
            f"{shift}, {wanted}, {self.object('ins', instruction)})"
        )
        return self.write(destination, kind, call) if wanted else call

    # -- asynchronous copies and clusters ---------------------------------------------------------
    def _cp(self, instruction: Instruction) -> str:
        parts = instruction.opcode.split(".")
        if parts[:2] != ["cp", "async"] or "bulk" in parts or "mbarrier" in parts:
            raise UnsupportedInstruction(f"{instruction.opcode}: only cp.async without mbarrier")
        if "commit_group" in parts:
            return "c.commit_copies()"
        if "wait_all" in parts:
            return "c.wait_copies(None)"
        if "wait_group" in parts:
            return f"c.wait_copies({self.read(instruction.operands[0], 'u32')})"
        to, source, size, *rest = instruction.operands
        available = self.read(size, "u32")
        if rest and isinstance(rest[0], Register) and self.is_predicate(rest[0]):
            available = f"np.where({self.read(rest[0], 'pred')}, 0, {available})[()]"
        elif rest and "L2::cache_hint" not in instruction.opcode or len(rest) > 1:
            available = self.read(rest[0], "u32")
        return (
            f"c.copy_async({self.address(to)}, {self.address(source)}, {size.value}, {available}, "
            f"{self.object('ins', instruction)})"
        )

    def is_predicate(self, register: Register) -> bool:
        return self.instance.register_type(register.name) == "pred"

    def _barrier(self, instruction: Instruction) -> str:
        if not instruction.opcode.startswith("barrier.cluster.arrive"):
            raise UnsupportedInstruction(instruction.opcode)
        return "c.cluster_arrive()"

    def _mapa(self, instruction: Instruction) -> str:
        destination, address, rank = instruction.operands
        kind = type_of(instruction.opcode)
        text = f"c.map_address({self.read(address, kind)}, {self.read(rank, 'u32')})"
        return self.write(destination, kind, text)

    def _getctarank(self, instruction: Instruction) -> str:
        destination, address = instruction.operands
        text = f"c.rank_of_address({self.read(address, type_of(instruction.opcode))})"
        return self.write(destination, "u32", text)

    # -- warp level -----------------------------------------------------------------------------
    @staticmethod
    def mode(instruction: Instruction, *known: str) -> str:
        """Which of the known words the opcode contains."""
        return next(part for part in instruction.opcode.split(".") if part in known)

    def two_results(self, operand, kinds: tuple[str, str], call: str) -> str:
        """`d|p`, where the second result may be left out."""
        if not isinstance(operand, Pair):
            operand = Pair(operand, Register("_"))
        first = self.write(operand.first, kinds[0], "t")
        return f"t, u = {call}; {first}; {self.write(operand.second, kinds[1], 'u')}"

    def _shfl(self, instruction: Instruction) -> str:
        destination, *sources = instruction.operands[:4]
        mode = self.mode(instruction, "up", "down", "bfly", "idx")
        value, b, c = (self.read(source, "b32") for source in sources)
        call = f"c.shuffle({mode!r}, {value}, {b}, {c})"
        return self.two_results(destination, ("b32", "pred"), call)

    def _vote(self, instruction: Instruction) -> str:
        destination, predicate, members = instruction.operands
        mode = self.mode(instruction, "all", "any", "uni", "ballot")
        value = self.read(predicate, "pred")
        call = f"c.vote({mode!r}, {value}, {self.read(members, 'b32')})"
        return self.write(destination, "b32" if mode == "ballot" else "pred", call)

    def _match(self, instruction: Instruction) -> str:
        destination, value, members = instruction.operands
        value = self.read(value, type_of(instruction.opcode))
        arguments = f"{value}, {self.read(members, 'b32')}"
        if self.mode(instruction, "any", "all") == "any":
            return self.write(destination, "b32", f"c.match_any({arguments})")
        return self.two_results(destination, ("b32", "pred"), f"c.match_all({arguments})")

    def _redux(self, instruction: Instruction) -> str:
        destination, value, members = instruction.operands
        kind = type_of(instruction.opcode)
        mode = self.mode(instruction, "add", "min", "max", "and", "or", "xor")
        call = f"c.redux({mode!r}, {self.read(value, kind)}, {self.read(members, 'b32')})"
        return self.write(destination, kind, call)

    def _elect(self, instruction: Instruction) -> str:
        destination, members = instruction.operands
        call = f"c.elect({self.read(members, 'b32')})"
        return self.two_results(destination, ("b32", "pred"), call)

    def _activemask(self, instruction: Instruction) -> str:
        return self.write(instruction.operands[0], "b32", "c.active_mask()")


def _code(dtype: np.dtype) -> str:
    return "b1" if dtype.kind == "b" else f"{dtype.kind}{dtype.itemsize}"
