"""PTX variable declarations: spaces, types, extents, initial values, parameter lists."""

import re

from .syntax import TYPE_BYTES, Variable
from .tokens import Tokens

_ADDRESS_BYTES = 8


def read_variables(tokens: Tokens, space: str) -> list[Variable]:
    """Everything after `.global`, `.shared`, ... up to and including `;`."""
    align, kind = 0, None
    while tokens.next.startswith(".") and kind is None:
        word = tokens.take()[1:]
        if word == "align":
            align = _natural(tokens)
        elif word in TYPE_BYTES:
            kind = word
        elif word in ("v2", "v4"):
            tokens.fail("vector-typed variables are not supported")
        elif word == "attribute":
            while tokens.take() != ")":
                pass
        elif word not in ("ptr", "global", "const", "shared", "local"):
            tokens.fail(f"unknown variable attribute .{word}")
    if kind is None:
        tokens.fail("a variable without a type")
    found = [_variable(tokens, space, kind, align)]
    while tokens.accept(","):
        found.append(_variable(tokens, space, kind, align))
    tokens.expect(";")
    return found


def read_parameters(tokens: Tokens) -> list[Variable]:
    """`(.param .u64 a, .param .align 4 .b8 b[12])`."""
    tokens.expect("(")
    found = []
    while not tokens.accept(")"):
        if tokens.accept(".reg"):
            tokens.fail("functions with .reg parameters are not supported: declare .param ones")
        tokens.expect(".param")
        align, kind = 0, ""
        while tokens.next.startswith("."):
            word = tokens.take()[1:]
            if word == "align":
                align = _natural(tokens)
            elif word in TYPE_BYTES:
                kind = word
        if not kind:
            tokens.fail("a parameter without a type")
        found.append(_variable(tokens, "param", kind, align))
        tokens.accept(",")
    return found


def _natural(tokens: Tokens) -> int:
    """A number of at least 0."""
    number = tokens.integer()
    if number < 0:
        tokens.put_back()
        tokens.fail("a negative size")
    return number


def _variable(tokens: Tokens, space: str, kind: str, align: int) -> Variable:
    """`name[extent] = {...}`; align 0 is that of the type."""
    width, name, count = TYPE_BYTES[kind], tokens.take(), 1
    while tokens.accept("["):
        count *= 0 if tokens.next == "]" else _natural(tokens)
        tokens.expect("]")
    initial, relocations = None, ()
    if tokens.accept("="):
        initial, relocations = _initial(tokens, width)
        count = max(count, -(-len(initial) // width))
    return Variable(name, space, kind, count * width, align or width, initial, relocations)


def _initial(tokens: Tokens, width: int) -> tuple[bytes, tuple]:
    """The bytes of an initial value, and (byte offset, symbol) where an address belongs."""
    data, relocations, depth = bytearray(), [], 0
    while True:
        if tokens.accept("{"):
            depth += 1
            continue
        if tokens.next not in ("}", ","):
            value, symbol = _initial_item(tokens)
            if symbol and width != _ADDRESS_BYTES:
                tokens.put_back()
                tokens.fail(f"an address in {width} bytes: it takes {_ADDRESS_BYTES}")
            if symbol:
                relocations.append((len(data), symbol))
            data += (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        while tokens.accept("}"):
            depth -= 1
        if depth <= 0:
            return bytes(data), tuple(relocations)
        tokens.accept(",")


def _initial_item(tokens: Tokens) -> tuple[int, str | None]:
    """A number; or an offset and the symbol that it is from."""
    if re.match(r"[$%_A-Za-z]", tokens.next):
        name = tokens.take()
        if name == "generic" and tokens.accept("("):
            name = tokens.take()
            tokens.expect(")")
        offset = tokens.integer() if tokens.accept("+") else 0
        return offset, name
    if re.match(r"0[fFdD][0-9A-Fa-f]+$", tokens.next):
        return int(tokens.take()[2:], 16), None
    return tokens.integer(), None
