"""PTX text -> plain data.

The grammar follows NVIDIA's PTX ISA manual as far as NVRTC writes it: module directives, variables,
functions, instructions, and the source positions that `.loc` gives. Nothing is interpreted here.
"""

from __future__ import annotations

import re
import struct

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
    Symbol,
    Variable,
    Vector,
)  # fmt: skip

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<word>[\w.$%~]+(?:::[\w.$]+)*)
      | (?P<mark>[{}();:,\[\]=<>|!@+\-*&])""",
    re.VERBOSE | re.DOTALL,
)


class ParseError(ValueError):
    """The PTX text is not what the ISA manual (or NVRTC) writes."""


def parse(text: str) -> Module:
    """Parse a whole PTX module; raises ParseError naming the line of the text."""
    parser = _Parser(text)
    try:
        return parser.module()
    except IndexError:
        parser.fail("the text ends in the middle of a statement")


class _Parser:
    def __init__(self, text: str):
        self.text = text
        self.tokens: list[str] = []
        self.starts: list[int] = []
        place = 0
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None:
                line = text.count("\n", 0, place) + 1
                raise ParseError(f"PTX line {line}: cannot read {text[place : place + 20]!r}")
            if match.lastgroup != "skip":
                self.add_token(match.group(), place)
            place = match.end()
        self.tokens.append("")
        self.starts.append(len(text))
        self.at = 0
        self.result = Module()
        self.position: Position | None = None
        self.inlined: dict[Position, Position] = {}  # place in a header -> with where it went
        self.scopes: list[dict[str, str]] = []  # inline-asm scopes rename what they declare
        self.scope_starts: list[int] = []
        self.scope_count = 0

    def add_token(self, text: str, place: int) -> None:
        if text[0] == "." and "." in text[1:]:  # `.reg.b32` is two words
            for part in text[1:].split("."):
                self.add_token("." + part, place)
            return
        self.tokens.append(text)
        self.starts.append(place)

    # -- token stream ---------------------------------------------------------------------------
    @property
    def token(self) -> str:
        return self.tokens[self.at]

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def accept(self, text: str) -> bool:
        if self.token == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"expected {text!r}, found {self.token!r}")

    def fail(self, message: str):
        start = self.starts[min(self.at, len(self.starts) - 1)]
        line = self.text.count("\n", 0, start) + 1
        raise ParseError(f"PTX line {line}: {message}")

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        word = self.take()
        try:
            return sign * int(word.rstrip("Uu"), 0 if not re.fullmatch(r"0\d+U?", word) else 8)
        except ValueError:
            self.fail(f"expected an integer, found {word!r}")

    # -- module level ---------------------------------------------------------------------------
    def module(self) -> Module:
        while self.token:
            word = self.take()
            if word == ".version":
                self.result.version = self.take()
            elif word == ".target":
                self.result.target = self.take()
                while self.accept(","):
                    self.take()
            elif word == ".address_size":
                self.take()
            elif word == ".file":
                self.file()
            elif word == ".section":
                self.section()
            elif word == ".pragma":
                self.skip_statement()
            elif word in (".visible", ".extern", ".weak", ".common"):
                continue
            elif word in (".entry", ".func"):
                self.function(word == ".entry")
            elif word in (".global", ".const", ".shared", ".tex"):
                for variable in self.variables(word[1:]):
                    self.result.variables[variable.name] = variable
            elif word == ".alias":
                self.skip_statement()
            elif word == ";":
                continue
            else:
                self.fail(f"unknown directive {word!r}")
        return self.result

    def skip_statement(self) -> None:
        while self.take() != ";":
            pass

    def file(self) -> None:
        number = self.integer()
        self.result.files[number] = self.take().strip('"')
        if self.accept(","):
            self.integer()
            self.expect(",")
            self.integer()

    def section(self) -> None:
        name = self.take()
        self.expect("{")
        start = self.at
        while self.token != "}":
            self.at += 1
        self.result.sections[name] = self.tokens[start : self.at]
        self.expect("}")

    def variables(self, space: str) -> list[Variable]:
        """Everything after `.global`, `.shared`, ... up to and including `;`."""
        align, kind = 0, None
        while self.token.startswith(".") and kind is None:
            word = self.take()[1:]
            if word == "align":
                align = self.integer()
            elif word in TYPE_BYTES:
                kind = word
            elif word in ("v2", "v4"):
                align = align or int(word[1])  # vector variables: only the count matters
                self.fail("vector-typed variables are not supported")
            elif word == "attribute":
                while self.take() != ")":
                    pass
            elif word not in ("ptr", "global", "const", "shared", "local"):
                self.fail(f"unknown variable attribute .{word}")
        if kind is None:
            self.fail("a variable without a type")
        found = []
        while True:
            found.append(self.variable(space, kind, align or TYPE_BYTES[kind]))
            if not self.accept(","):
                break
        self.expect(";")
        return found

    def variable(self, space: str, kind: str, align: int) -> Variable:
        name, count = self.take(), 1
        while self.accept("["):
            count *= 0 if self.token == "]" else self.integer()
            self.expect("]")
        initial, relocations = None, ()
        if self.accept("="):
            initial, relocations = self.initial(kind)
            count = max(count, -(-len(initial) // TYPE_BYTES[kind]))
            initial = initial.ljust(count * TYPE_BYTES[kind], b"\0")
        size = count * TYPE_BYTES[kind]
        return Variable(name, space, kind, size, align, initial, relocations)

    def initial(self, kind: str) -> tuple[bytes, tuple]:
        width, data, relocations = TYPE_BYTES[kind], bytearray(), []
        depth = 0
        while True:
            if self.accept("{"):
                depth += 1
                continue
            if self.token not in ("}", ","):
                value, symbol = self.initial_item()
                if symbol:
                    relocations.append((len(data), symbol))
                data += (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
            while self.accept("}"):
                depth -= 1
            if depth <= 0:
                return bytes(data), tuple(relocations)
            self.accept(",")

    def initial_item(self) -> tuple[int, str | None]:
        if re.match(r"[$%_A-Za-z]", self.token):
            name = self.take()
            if name == "generic" and self.accept("("):
                name = self.take()
                self.expect(")")
            offset = self.integer() if self.accept("+") else 0
            return offset, name
        if re.match(r"0[fFdD][0-9A-Fa-f]+$", self.token):
            return int(self.take()[2:], 16), None
        return self.integer(), None

    # -- functions ------------------------------------------------------------------------------
    def function(self, is_entry: bool) -> None:
        returns = self.parameter_list() if not is_entry and self.token == "(" else []
        name = self.take()
        parameters = self.parameter_list() if self.token == "(" else []
        function = Function(name, is_entry, parameters, returns)
        for variable in parameters + returns:
            function.variables[variable.name] = variable
        while self.token.startswith("."):
            self.performance_directive(function)
        earlier = self.result.functions.get(name)
        if self.accept(";"):
            self.result.functions.setdefault(name, function)
            return
        if earlier is not None and earlier.defined:
            self.fail(f"function {name} is defined twice")
        self.expect("{")
        function.defined = True
        self.position, self.inlined = None, {}
        self.scopes, self.scope_starts = [{}], [0]
        self.body(function)
        self.result.functions[name] = function

    def parameter_list(self) -> list[Variable]:
        self.expect("(")
        found = []
        while not self.accept(")"):
            if self.accept(".reg"):
                self.fail("functions with .reg parameters are not supported")
            self.expect(".param")
            align, kind = 0, ""
            while self.token.startswith("."):
                word = self.take()[1:]
                if word == "align":
                    align = self.integer()
                elif word in TYPE_BYTES:
                    kind = word
            found.append(self.variable("param", kind, align or TYPE_BYTES[kind]))
            self.accept(",")
        return found

    def performance_directive(self, function: Function) -> None:
        word, values = self.take()[1:], []
        while re.match(r"\d", self.token):
            values.append(self.integer())
            if not self.accept(","):
                break
        function.limits[word] = tuple(values)

    def body(self, function: Function) -> None:
        depth = 1
        while depth:
            word = self.take()
            if word == "{":
                depth += 1
                self.scope_count += 1
                self.scopes.append({})
                self.scope_starts.append(len(function.body))
            elif word == "}":
                depth -= 1
                self.close_scope(function)
            elif word in (";", ""):
                if not word:
                    self.fail(f"function {function.name} does not end")
            elif word == ".loc":
                self.location()
            elif word == ".pragma":
                self.skip_statement()
            elif word == ".reg":
                self.registers(function)
            elif word in (".local", ".shared", ".param", ".global", ".const"):
                self.local_variables(function, word[1:])
            elif word == ".file":
                self.file()
            elif word.startswith(".") and word not in (".callprototype",):
                self.fail(f"unknown directive {word!r} in {function.name}")
            elif self.token == ":":
                self.take()
                self.label(function, word)
            else:
                self.at -= 1
                self.instruction(function)

    def declare(self, name: str) -> str:
        """A name declared inside an inner scope gets a suffix of its own."""
        if len(self.scopes) == 1:
            return name
        unique = f"{name}@{self.scope_count}"
        self.scopes[-1][name] = unique
        return unique

    def resolve(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return name

    def close_scope(self, function: Function) -> None:
        """Branches written before their label of the same inline-asm scope now find it."""
        names, start = self.scopes.pop(), self.scope_starts.pop()
        for instruction in function.body[start:] if names else ():
            instruction.operands = tuple(
                Symbol(names.get(o.name, o.name), o.offset) if isinstance(o, Symbol) else o
                for o in instruction.operands
            )
        for table in names.values():
            targets = function.tables.get(table, ())
            if targets:
                function.tables[table] = tuple(names.get(target, target) for target in targets)

    def label(self, function: Function, name: str) -> None:
        if len(self.scopes) > 1:  # a label inside inline asm may be written out many times
            name = self.scopes[-1].get(name) or self.declare(name)
        if self.token == ".branchtargets":
            self.take()
            targets = [self.take()]
            while self.accept(","):
                targets.append(self.take())
            self.expect(";")
            function.tables[name] = tuple(targets)
        elif self.token in (".callprototype", ".calltargets"):
            self.skip_statement()
        else:
            function.labels[name] = len(function.body)

    def registers(self, function: Function) -> None:
        kind = self.take()[1:]
        if kind in ("v2", "v4"):
            self.fail("vector registers are not supported")
        while True:
            name = self.take()
            if self.accept("<"):
                for number in range(self.integer()):
                    function.registers[self.declare(f"{name}{number}")] = kind
                self.expect(">")
            else:
                function.registers[self.declare(name)] = kind
            if not self.accept(","):
                break
        self.expect(";")

    def local_variables(self, function: Function, space: str) -> None:
        for variable in self.variables(space):
            if space == "param":
                name = self.declare(variable.name)
                variable = Variable(name, space, variable.type, variable.size, variable.align)
            function.variables[variable.name] = variable

    def location(self) -> None:
        place = [self.integer() for _ in range(3)]
        outer = None
        if self.accept(","):
            self.take()  # function_name
            self.take()
            if self.accept("+"):
                self.integer()
            self.expect(",")
            self.take()  # inlined_at
            outer = Position(*[self.integer() for _ in range(3)])
            outer = self.inlined.get(outer, outer)  # which may itself be in an inlined function
            self.inlined[Position(*place)] = Position(*place, outer)
        if place[1] != 0:  # line 0: no source line of its own; keep the one before
            self.position = Position(*place, outer)

    def instruction(self, function: Function) -> None:
        guard, negated = None, False
        if self.accept("@"):
            negated = self.accept("!")
            guard = Register(self.resolve(self.take()))
        opcode = self.take()
        operands = []
        while not self.accept(";"):
            operands.append(self.operand(function))
            if not self.accept(","):
                self.expect(";")
                break
        instruction = Instruction(opcode, tuple(operands), guard, negated, self.position)
        instruction.index = len(function.body)
        function.body.append(instruction)

    def operand(self, function: Function):
        operand = self.simple_operand(function)
        if self.accept("|"):
            operand = Pair(operand, self.simple_operand(function))
        return operand

    def simple_operand(self, function: Function):
        if self.accept("{"):
            items = []
            while not self.accept("}"):
                items.append(self.simple_operand(function))
                self.accept(",")
            return Vector(tuple(items))
        if self.accept("("):
            items = []
            while not self.accept(")"):
                items.append(self.simple_operand(function))
                self.accept(",")
            return tuple(items)
        if self.accept("["):
            return self.address(function)
        if self.accept("!"):
            return Inverted(Register(self.resolve(self.take())))
        if self.token == "-" or re.match(r"\d", self.token):
            return self.literal()
        return self.name(function, self.take())

    def literal(self) -> Immediate:
        if re.match(r"0[fFdD][0-9A-Fa-f]+$", self.token):
            word = self.take()
            return Immediate(int(word[2:], 16), 32 if word[1] in "fF" else 64)
        if re.fullmatch(r"-?\d+\.\d*(e\d+)?", self.token, re.IGNORECASE):
            return Immediate(struct.unpack("<Q", struct.pack("<d", float(self.take())))[0], 64)
        return Immediate(self.integer())

    def name(self, function: Function, word: str):
        if word == "WARP_SZ":
            return Immediate(32)
        resolved = self.resolve(word)
        if resolved in function.registers or word.startswith("%") or word == "_":
            return Register(resolved)
        offset = 0
        if self.accept("+"):
            offset = self.integer()
        return Symbol(resolved, offset)

    def address(self, function: Function) -> Address:
        base, offset, extra = None, 0, ()
        if self.token == "-" or re.match(r"\d", self.token):
            offset = self.integer()
        else:
            word = self.take()
            resolved = self.resolve(word)
            is_register = resolved in function.registers or word.startswith("%")
            base = Register(resolved) if is_register else Symbol(resolved)
            if self.accept("+"):
                offset = self.integer()
        if self.accept(","):
            extra = self.operand(function)
            extra = extra.items if isinstance(extra, Vector) else (extra,)
        self.expect("]")
        return Address(base, offset, extra)
