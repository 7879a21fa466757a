"""What a debug build knows of its source: local variables by name, shared arrays by shape.

NVRTC's `-G` writes DWARF 2 into the PTX as `.section` blocks of numbers and labels. Here they become
bytes again, for pyelftools to read, with instruction i of a function at address 16 * (i + 1). Where
a variable lives is a DWARF expression: DW_OP_regx and a ULEB128 that holds the virtual register's
name in big-endian ASCII, or DW_OP_addr and a symbol (the local frame `__local_depot0`, an array).
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from io import BytesIO
from operator import add, floordiv, lshift, mul, sub

import numpy as np
from elftools.common.utils import bytelist2string, struct_parse
from elftools.dwarf.descriptions import describe_form_class
from elftools.dwarf.dwarf_expr import DWARFExprParser
from elftools.dwarf.dwarfinfo import DebugSectionDescriptor, DwarfConfig, DWARFInfo
from elftools.dwarf.locationlists import LocationParser

from .blocks import reads_and_writes
from .parser import Function, Module
from .program import Program, demangle

STEP = 16  # bytes of address an instruction
_SYMBOLS = 1 << 40  # symbols get addresses from here on, _SYMBOL_ROOM apart
_SYMBOL_ROOM = 1 << 32
_SECTIONS = ("debug_info", "debug_abbrev", "debug_loc", "debug_str", "debug_line")
_NUMBER_SIZES = {".b8": 1, ".b16": 2, ".b32": 4, ".b64": 8}
_SCALARS = {
    ("float", 4): "f4", ("float", 8): "f8", ("float", 2): "f2",
    ("signed", 1): "i1", ("signed", 2): "i2", ("signed", 4): "i4", ("signed", 8): "i8",
    ("unsigned", 1): "u1", ("unsigned", 2): "u2", ("unsigned", 4): "u4", ("unsigned", 8): "u8",
    ("bool", 1): "?", ("pointer", 8): "u8",
}  # fmt: skip
_ENCODINGS = {2: "bool", 4: "float", 5: "signed", 6: "signed", 7: "unsigned", 8: "unsigned"}


@dataclass(frozen=True)
class Place:
    """Where a value lives: kind "register" (`name`), "local", "shared" or "global" (`name`, offset).

    For "local", `name` is the PTX variable of the function's frame and `offset` bytes into it.
    """

    kind: str
    name: str
    offset: int = 0


@dataclass(frozen=True)
class Range:
    """A variable is at `place` while the next instruction is `first` to `last`, both included."""

    first: int
    last: int
    place: Place


@dataclass(frozen=True)
class LocalVariable:
    """A variable or parameter of the source.

    type: as C writes it ("float", "const float*", "float[4][2]"); dtype: NumPy's name of one
    element, "" where there is none; shape: () or an array's extents; line: where it is declared;
    depth: how many scopes are around it; function: the inlined function it belongs to, or "".
    """

    name: str
    type: str
    dtype: str
    shape: tuple[int, ...]
    line: int
    ranges: tuple[Range, ...]
    depth: int = 0
    function: str = ""

    @property
    def is_pointer(self) -> bool:
        return self.type.rstrip().endswith(("*", "&"))

    def place_at(self, index: int) -> Place | None:
        """Where it is when instruction `index` comes next; None out of its scope."""
        for piece in self.ranges:
            if piece.first <= index <= piece.last:
                return piece.place
        return None


@dataclass(frozen=True)
class SharedArray:
    """A __shared__ array's element type and extents (-1: the launch decides)."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def variables(program: Program, function_name: str) -> tuple[LocalVariable, ...]:
    """The variables of one PTX function of a debug build; () where there is no debug information."""
    function = program.module.functions[function_name]
    reader = _reader(program)
    die = reader.subprograms.get(function_name) if reader else None
    if die is None:
        return ()
    return tuple(_Scopes(reader, program, function).read(die))


def written_registers(program: Program, function_name: str) -> list[tuple[str, ...]]:
    """For each instruction of a function, the registers it writes that hold a variable."""
    named = {
        piece.place.name
        for variable in variables(program, function_name)
        for piece in variable.ranges
        if piece.place.kind == "register"
    }
    body = program.module.functions[function_name].body
    return [tuple(sorted(reads_and_writes(i)[1] & named)) for i in body]


# -- sections -> bytes ------------------------------------------------------------------------------
class _Reader:
    """The DWARF of a module, read by pyelftools."""

    def __init__(self, module: Module):
        self.module = module
        self.symbols: list[str] = []
        self.labels = {
            name: STEP * (index + 1)
            for function in module.functions.values()
            for name, index in function.labels.items()
        }
        self.files = module.files
        parts = {name: self.section(module.sections.get(f".{name}", [])) for name in _SECTIONS}
        self.info = DWARFInfo(config=DwarfConfig(True, "x64", 8), **_descriptors(parts))
        self.locations = LocationParser(self.info.location_lists())
        self.subprograms, self.shared = {}, {}
        for unit in self.info.iter_CUs():
            self.expressions = DWARFExprParser(unit.structs)
            for die in unit.iter_DIEs():
                if die.tag == "DW_TAG_subprogram" and "DW_AT_low_pc" in die.attributes:
                    self.subprograms[_linkage_name(die)] = die
                elif die.tag == "DW_TAG_variable" and die.get_parent().tag == "DW_TAG_compile_unit":
                    self.shared[_text(die, "DW_AT_name")] = die

    def section(self, tokens: list[str]) -> bytes:
        data, at, size = bytearray(), 0, 1
        while at < len(tokens):
            word = tokens[at]
            at += 1
            if word in _NUMBER_SIZES:
                size = _NUMBER_SIZES[word]
                continue
            if word in (",", ";"):
                continue
            sign = -1 if word == "-" else 1
            if word == "-":
                word, at = tokens[at], at + 1
            value = sign * self.value(word)
            if at < len(tokens) and tokens[at] in "+-":
                offset = self.value(tokens[at + 1])
                value, at = value + (offset if tokens[at] == "+" else -offset), at + 2
            data += (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        return bytes(data)

    def value(self, word: str) -> int:
        if word[0].isdigit():
            return int(word, 0)
        if word in self.labels:
            return self.labels[word]
        if word.startswith(".debug"):
            return 0  # each section is written once and starts at its own beginning
        if word not in self.symbols:
            self.symbols.append(word)
        return _SYMBOLS + _SYMBOL_ROOM * self.symbols.index(word)

    def place(self, expression: list[int]) -> Place | None:
        """The place that a DWARF expression describes; None for what it only computes."""
        operations = self.expressions.parse_expr(expression)
        if not operations:
            return None
        first = operations[0]
        if first.op_name == "DW_OP_regx" and len(operations) == 1:
            name = first.args[0]
            return Place("register", name.to_bytes(-(-name.bit_length() // 8), "big").decode())
        if first.op_name.startswith("DW_OP_addr"):
            symbol, offset = divmod(first.args[0] - _SYMBOLS, _SYMBOL_ROOM)
            for operation in operations[1:]:
                if operation.op_name != "DW_OP_plus_uconst":
                    return None
                offset += operation.args[0]
            name = self.symbols[symbol]
            return Place(self.space(name), name, offset)
        return None

    def space(self, name: str) -> str:
        if name in self.module.variables:
            space = self.module.variables[name].space
            return "global" if space == "const" else space
        return "local"


def _descriptors(parts: dict[str, bytes]) -> dict:
    """Arguments of DWARFInfo: one for each section, None where the PTX has none."""
    keys = (
        "debug_info_sec", "debug_aranges_sec", "debug_abbrev_sec", "debug_frame_sec",
        "eh_frame_sec", "debug_str_sec", "debug_loc_sec", "debug_ranges_sec", "debug_line_sec",
        "debug_pubtypes_sec", "debug_pubnames_sec", "debug_addr_sec", "debug_str_offsets_sec",
        "debug_line_str_sec", "debug_loclists_sec", "debug_rnglists_sec", "debug_sup_sec",
        "gnu_debugaltlink_sec", "debug_types_sec",
    )  # fmt: skip
    found = dict.fromkeys(keys)
    for name, data in parts.items():
        found[f"{name}_sec"] = DebugSectionDescriptor(BytesIO(data), name, 0, len(data), 0)
    return found


