"""PTX as plain data: what the parser makes and everything else reads."""

from __future__ import annotations

from dataclasses import dataclass, field

_TYPES = {
    1: "b8 u8 s8 pred",
    2: "b16 u16 s16 f16 bf16 e4m3x2 e5m2x2",
    4: "b32 u32 s32 f32 f16x2 bf16x2 u16x2 s16x2",
    8: "b64 u64 s64 f64 f32x2",
    16: "b128",
}
TYPE_BYTES = {name: size for size, names in _TYPES.items() for name in names.split()}


@dataclass(frozen=True)
class Register:
    """A register by its name, special ones such as %tid.x among them."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A literal: an int, or the raw bits of an `0f`/`0d` literal with its width in bits."""

    value: int | float
    float_bits: int = 0  # 32 or 64 when `value` holds the bit pattern of a float


@dataclass(frozen=True)
class Symbol:
    """The name of a variable, a function or a label, with a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """`[base + offset]`: base is a Register, a Symbol or None; `extra`: a tensor's coordinates."""

    base: Register | Symbol | None
    offset: int = 0
    extra: tuple = ()


@dataclass(frozen=True)
class Vector:
    """`{a, b}`: the operands of a vector access, or the parts of one wider value."""

    items: tuple


@dataclass(frozen=True)
class Pair:
    """`p|q`: the two destinations of setp and shfl."""

    first: object
    second: object


@dataclass(frozen=True)
class Inverted:
    """`!p` as a source operand."""

    operand: Register


@dataclass(frozen=True)
class Selected:
    """`a.b1`, `-a`: an operand of a video instruction. part: the words behind the point, or ""."""

    operand: Register | Immediate
    part: str = ""
    negated: bool = False


@dataclass(frozen=True)
class Variable:
    """A declared variable; `size` and `align` are bytes, `type` is that of one element."""

    name: str
    space: str  # global, const, shared, local, param
    type: str
    size: int  # bytes; 0 for an `extern .shared x[]`
    align: int
    initial: bytes | None = None  # what is given; zeros follow
    relocations: tuple = ()  # (byte offset, symbol) pairs inside `initial`
    defined: bool = True  # False: `.extern`, and nothing in the module defines it


@dataclass(frozen=True)
class Position:
    """A place in the CUDA C source."""

    file: int
    line: int
    column: int = 0
    inlined_at: Position | None = None


@dataclass
class Instruction:
    """The whole dotted opcode, its operands, the guard `@p` or `@!p`, its place in the source."""

    opcode: str
    operands: tuple
    guard: Register | None = None
    guard_negated: bool = False
    position: Position | None = None
    index: int = 0  # place in the function
    start: int = field(default=0, compare=False)  # character of the PTX text
    # What `reads_and_writes` has found, which is asked of an instruction many times.
    registers: tuple | None = field(default=None, init=False, compare=False, repr=False)

    def __str__(self) -> str:
        guard = f"@{'!' if self.guard_negated else ''}{self.guard.name} " if self.guard else ""
        return f"{guard}{self.opcode} {', '.join(map(format_operand, self.operands))}".strip() + ";"


@dataclass
class Function:
    """A kernel or a device function; a declaration without a body is not `defined`."""

    name: str
    is_entry: bool
    parameters: list[Variable] = field(default_factory=list)
    returns: list[Variable] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)  # name -> type
    variables: dict[str, Variable] = field(default_factory=dict)  # local, shared, param
    body: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # label -> index into body
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)  # .branchtargets
    limits: dict[str, tuple[int, ...]] = field(default_factory=dict)  # maxntid, reqntid, ...
    defined: bool = False


@dataclass
class Module:
    """All that a PTX text declares; `files` are the numbers that positions refer to.

    debug: was it compiled for a debugger, without optimisation?
    """

    version: str = ""
    target: str = ""
    debug: bool = False
    files: dict[int, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=dict)  # DWARF, as the text between the braces


def format_operand(operand) -> str:
    """An operand as PTX writes it."""
    match operand:
        case Register(name):
            return name
        case Immediate(value, bits):
            return f"0{'f' if bits == 32 else 'd'}{value:0{bits // 4}X}" if bits else str(value)
        case Symbol(name, offset):
            return f"{name}+{offset}" if offset else name
        case Address(base, offset, extra):
            inner = format_operand(base) if base else ""
            inner += f"+{offset}" if offset or not inner else ""
            return f"[{inner}, {format_operand(Vector(extra))}]" if extra else f"[{inner}]"
        case Vector(items):
            return "{" + ", ".join(map(format_operand, items)) + "}"
        case Pair(first, second):
            return f"{format_operand(first)}|{format_operand(second)}"
        case Inverted(inner):
            return f"!{inner.name}"
        case Selected(inner, part, negated):
            return f"{'-' * negated}{format_operand(inner)}{'.' * bool(part)}{part}"
        case tuple():
            return "(" + ", ".join(map(format_operand, operand)) + ")"
    return str(operand)
