"""PTX function bodies: labels, registers, local variables, source positions, instructions."""

import re
import struct
from dataclasses import dataclass, field, replace

from ..budget import check_budget
from ..errors import ParseError
from .syntax import (
    TYPE_BYTES,
    Address,
    Function,
    Immediate,
    Instruction,
    Inverted,
    Module,
    Pair,
    Position,
    Register,
    Selected,
    Symbol,
    Vector,
)
from .tokens import Tokens
from .variables import read_variables

_PART = re.compile(r"[bh][0-7]{1,4}")  # of a register, in video instructions
_HALVES = ("~low", "~high")  # of a .b128 register
MOST_SCOPES = 256
MOST_REGISTERS = 1 << 20
_VARIABLES = (".local", ".shared", ".param", ".global", ".const")
_MOVES = ("ld.", "st.")  # ptxas takes `{%r1}` for `%r1` there


def read_file(tokens: Tokens, module: Module) -> None:
    """What follows `.file`: a number, the name, and perhaps a time and a size."""
    number = tokens.integer()
    module.files[number] = tokens.take_any().strip('"')
    if tokens.accept(","):
        tokens.integer()
        tokens.expect(",")
        tokens.integer()


def _bare(operand):
    """The only part of a vector of one, any other operand as it is."""
    single = isinstance(operand, Vector) and len(operand.items) == 1
    return operand.items[0] if single else operand


@dataclass
class _Scope:
    """The names that inline assembly declares between its braces."""

    number: int
    start: int  # place in the function of its first instruction
    names: dict[str, str] = field(default_factory=dict)  # as written -> unique in the function


class FunctionBody:
    """Reads a body, behind its `{`, into a function.

    What is declared in an inner scope gets a name of its own, so that the same inline assembly can
    stand in a function many times.
    """

    def __init__(self, tokens: Tokens, module: Module, function: Function):
        self.tokens, self.module, self.function = tokens, module, function
        self.position: Position | None = None
        self.inlined: dict[Position, Position] = {}  # place in a header -> with where it went
        self.scopes = [_Scope(0, 0)]
        self.scope_count = 1

    def read(self) -> None:
        """Everything up to and including the `}` that ends the body; raises ParseError."""
        start = self.tokens.at
        try:
            while self.scopes:
                check_budget(self.function.name, lambda: "the reading of its PTX")
                start = self.tokens.at
                self.statement(self.tokens.take())
        except ParseError as error:
            message = f"{error} in `{self.tokens.statement(start)}`"
            if self.position is not None:
                file = self.tokens.file_name(self.position.file)
                message = f"{message} (compiled from {file}:{self.position.line})"
            raise ParseError(message) from None

    def statement(self, word: str) -> None:
        """One directive, label, scope or instruction; `word` is its first."""
        if word == "{":
            self.open_scope()
        elif word == "}":
            self.close_scope()
        elif not word:
            self.tokens.fail(f"function {self.function.name} does not end")
        elif word.startswith("."):
            self.directive(word)
        elif self.tokens.accept(":"):
            self.label(word)
        elif word != ";":
            self.tokens.put_back()
            self.instruction()

    def directive(self, word: str) -> None:
        """A statement in the body that is no instruction; `word` is its first."""
        if word == ".loc":
            self.location()
        elif word == ".pragma":
            self.tokens.skip_statement()
        elif word == ".reg":
            self.registers()
        elif word in _VARIABLES:
            self.local_variables(word[1:])
        elif word == ".file":
            read_file(self.tokens, self.module)
        else:
            self.tokens.fail(f"unknown directive {word!r} in {self.function.name}")

    # -- scopes ---------------------------------------------------------------------------------
    def open_scope(self) -> None:
        if len(self.scopes) > MOST_SCOPES:
            self.tokens.fail(f"more than {MOST_SCOPES} scopes, one in the other")
        self.scopes.append(_Scope(self.scope_count, len(self.function.body)))
        self.scope_count += 1

    def close_scope(self) -> None:
        """Branches written before their label of the same scope now find it."""
        scope = self.scopes.pop()
        names = scope.names
        for instruction in self.function.body[scope.start :] if names else ():
            instruction.operands = tuple(
                Symbol(names.get(o.name, o.name), o.offset) if isinstance(o, Symbol) else o
                for o in instruction.operands
            )
        tables = self.function.tables
        for table in names.values():
            if table in tables:
                tables[table] = tuple(names.get(target, target) for target in tables[table])

    def declare(self, name: str) -> str:
        """A name declared inside an inner scope gets a suffix of its own."""
        if len(self.scopes) == 1:
            return name
        scope = self.scopes[-1]
        scope.names[name] = f"{name}@{scope.number}"
        return scope.names[name]

    def resolve(self, name: str) -> str:
        """The function's name for what the text calls `name` here."""
        for scope in reversed(self.scopes):
            if name in scope.names:
                return scope.names[name]
        return name

    # -- declarations ---------------------------------------------------------------------------
    def label(self, name: str) -> None:
        """What follows `name:`, a table of branch targets or the next instruction."""
        if len(self.scopes) > 1:  # a label inside inline asm may be written out many times
            name = self.scopes[-1].names.get(name) or self.declare(name)
        if self.tokens.next == ".branchtargets":
            self.tokens.take()
            targets = [self.tokens.take()]
            while self.tokens.accept(","):
                targets.append(self.tokens.take())
            self.tokens.expect(";")
            self.function.tables[name] = tuple(targets)
        elif self.tokens.next in (".callprototype", ".calltargets"):
            self.tokens.skip_statement()
        else:
            self.function.labels[name] = len(self.function.body)

    def registers(self) -> None:
        """`.reg .b32 %r<9>, t;`: nine numbered registers and one by its name."""
        kind = self.tokens.take()[1:]
        if kind in ("v2", "v4"):
            self.tokens.fail("vector registers are not supported: declare one for each component")
        if kind not in TYPE_BYTES:
            self.tokens.fail(f"unknown register type .{kind}")
        while True:
            name = self.tokens.take()
            if self.tokens.accept("<"):
                count = self.tokens.integer()
                if count > MOST_REGISTERS:
                    self.tokens.fail(f"{count} registers; at most {MOST_REGISTERS} can be declared")
                for number in range(count):
                    self.declare_register(f"{name}{number}", kind)
                self.tokens.expect(">")
            else:
                self.declare_register(name, kind)
            if not self.tokens.accept(","):
                break
        self.tokens.expect(";")

    def declare_register(self, name: str, kind: str) -> None:
        """A .b128 register becomes two halves, which stand in its place wherever it is named."""
        names = [name + half for half in _HALVES] if kind == "b128" else [name]
        for one in names:
            self.function.registers[self.declare(one)] = "b64" if kind == "b128" else kind

    def local_variables(self, space: str) -> None:
        """Variables of the function; .param ones belong to the scope of a call.

        Global and constant ones live as long as the module, under a name that is no other's.
        """
        for variable in read_variables(self.tokens, space):
            if space in ("global", "const"):
                name = f"{self.function.name}.{self.declare(variable.name)}"
                self.scopes[-1].names[variable.name] = name
                self.module.variables[name] = replace(variable, name=name)
                continue
            if space == "param":
                variable = replace(variable, name=self.declare(variable.name))
            self.function.variables[variable.name] = variable

    def location(self) -> None:
        """`.loc file line column`, perhaps with the call that the line was inlined at."""
        place = [self.tokens.integer() for _ in range(3)]
        outer = None
        if self.tokens.accept(","):
            self.tokens.take()  # function_name
            self.tokens.take()
            if self.tokens.accept("+"):
                self.tokens.integer()
            self.tokens.expect(",")
            self.tokens.take()  # inlined_at
            outer = Position(*[self.tokens.integer() for _ in range(3)])
            outer = self.inlined.get(outer, outer)  # which may itself be in an inlined function
            self.inlined[Position(*place)] = Position(*place, outer)
        if place[1] != 0:  # line 0: no source line of its own; keep the one before
            self.position = Position(*place, outer)

    # -- instructions ---------------------------------------------------------------------------
    def instruction(self) -> None:
        """`@p opcode operand, ...;`."""
        guard, negated, start = None, False, self.tokens.starts[self.tokens.at]
        if self.tokens.accept("@"):
            negated = self.tokens.accept("!")
            guard = Register(self.resolve(self.tokens.take()))
        opcode = self.tokens.take()
        operands = []
        while not self.tokens.accept(";"):
            operands.append(self.operand())
            if not self.tokens.accept(","):
                self.tokens.expect(";")
                break
        if opcode.startswith(_MOVES):
            operands = [_bare(operand) for operand in operands]
        instruction = Instruction(opcode, tuple(operands), guard, negated, self.position)
        instruction.index, instruction.start = len(self.function.body), start
        self.function.body.append(instruction)

    def operand(self):
        """An operand, or a pair `p|q` of them."""
        operand = self.simple_operand()
        if self.tokens.accept("|"):
            operand = Pair(operand, self.simple_operand())
        return operand

    def simple_operand(self):
        """A register, literal, symbol, address, `!p`, `{...}` or `(...)`."""
        match word := self.tokens.take():
            case "{":
                return Vector(self.items("}"))
            case "(":
                return self.items(")")
            case "[":
                return self.address()
            case "!":
                return Inverted(Register(self.resolve(self.tokens.take())))
        if word == "-" and self.is_register(self.tokens.next):
            return Selected(self.simple_operand(), negated=True)
        if word == "-" or word[:1].isdigit():
            self.tokens.put_back()
            return self.literal()
        return self.name(word)

    def items(self, end: str) -> tuple:
        """Operands between commas, up to and including the mark that ends them."""
        found = []
        while not self.tokens.accept(end):
            found.append(self.simple_operand())
            self.tokens.accept(",")
        return tuple(found)

    def literal(self) -> Immediate:
        """An integer, or a float as its bits."""
        if re.match(r"0[fFdD][0-9A-Fa-f]+$", self.tokens.next):
            word = self.tokens.take()
            return Immediate(int(word[2:], 16), 32 if word[1] in "fF" else 64)
        if re.fullmatch(r"-?\d+\.\d*(e\d+)?", self.tokens.next, re.IGNORECASE):
            bits = struct.pack("<d", float(self.tokens.take()))
            return Immediate(int.from_bytes(bits, "little"), 64)
        return Immediate(self.tokens.integer())

    def name(self, word: str):
        """A register, or the symbol of a variable, function or label with an offset."""
        if word == "WARP_SZ":
            return Immediate(32)
        if self.resolve(word + _HALVES[0]) in self.function.registers:
            return Vector(tuple(Register(self.resolve(word + half)) for half in _HALVES))
        base, _, part = word.partition(".")
        if _PART.fullmatch(part) and self.resolve(base) in self.function.registers:
            return Selected(Register(self.resolve(base)), part)
        if word == "_" or self.is_register(word):
            return Register(self.resolve(word))
        return Symbol(self.resolve(word), self.offset())

    def is_register(self, word: str) -> bool:
        return word.startswith("%") or self.resolve(word) in self.function.registers

    def offset(self) -> int:
        """`+ 8` behind a name; 0 where there is none."""
        if not self.tokens.accept("+"):
            return 0
        if self.is_register(self.tokens.next):
            self.tokens.fail("an offset is a number: add the two registers first")
        return self.tokens.integer()

    def address(self) -> Address:
        """`[base + offset]` behind its bracket; a tensor's coordinates follow a comma."""
        base, extra = None, ()
        if self.tokens.next == "-" or re.match(r"\d", self.tokens.next):
            offset = self.tokens.integer()
        else:
            word = self.tokens.take()
            kind = Register if self.is_register(word) else Symbol
            base, offset = kind(self.resolve(word)), self.offset()
        if self.tokens.accept(","):
            extra = self.operand()
            extra = extra.items if isinstance(extra, Vector) else (extra,)
        self.tokens.expect("]")
        return Address(base, offset, extra)
