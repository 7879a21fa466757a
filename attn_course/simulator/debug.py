"""What a debug build knows of its source: local variables by name, shared arrays by shape.

NVRTC's `-G` writes DWARF 2 into the PTX as `.section` blocks of numbers and labels. Here they
become bytes again, for pyelftools to read, with instruction i of a function at address
16 * (i + 1). Where a variable lives is a DWARF expression: DW_OP_regx and a ULEB128 that holds the
virtual register's name in big-endian ASCII, or DW_OP_addr and a symbol (the local frame
`__local_depot0`, an array).
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass, replace
from io import BytesIO
from operator import add, floordiv, lshift, mul, sub

import numpy as np
from elftools.dwarf.dwarf_expr import DWARFExprParser
from elftools.dwarf.dwarfinfo import DebugSectionDescriptor, DwarfConfig, DWARFInfo
from elftools.dwarf.locationlists import LocationParser

from .blocks import reads_and_writes
from .names import demangle
from .program import Program
from .syntax import Function, Module

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
    """Where a value lives: in a register, or in "local", "shared" or "global" memory.

    kind: "register" or the memory's name; name: the register, or the PTX variable (for "local"
    the function's frame) into which `offset` counts bytes.
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
    """The variables of one PTX function of a debug build; () without debug information."""
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


def source_name(program: Program, function_name: str) -> str:
    """A function's name as the source writes it."""
    reader = _reader(program)
    die = reader.subprograms.get(function_name) if reader else None
    return _text(die, "DW_AT_name") if die is not None else demangle(function_name)


# -- sections -> bytes -----------------------------------------------------------------------------
class _Reader:
    """The DWARF of a module, read by pyelftools."""

    def __init__(self, module: Module):
        self.module = module
        self.symbols: list[str] = []
        self.labels = {  # a label inside braces carries the parser's suffix
            name.partition("@")[0]: STEP * (index + 1)
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
    """DWARFInfo's section arguments: None for what the PTX does not have."""
    wanted = inspect.signature(DWARFInfo).parameters
    found: dict = {name: None for name in wanted if name != "config"}
    for name, data in parts.items():
        found[f"{name}_sec"] = DebugSectionDescriptor(BytesIO(data), name, 0, len(data), 0)
    return found


def _reader(program: Program) -> _Reader | None:
    """The module's reader, made once; None where it was not compiled with -G."""
    if ".debug_info" not in program.module.sections:
        return None
    reader = getattr(program, "_debug_reader", None)
    if reader is None:
        reader = program._debug_reader = _Reader(program.module)
    return reader


def _text(die, attribute: str) -> str:
    value = _attribute(die, attribute)
    return value.decode() if isinstance(value, bytes) else ""


def _attribute(die, name: str):
    """An attribute's value, or that of the DIE it was inlined from."""
    while True:
        if name in die.attributes:
            return die.attributes[name].value
        if "DW_AT_abstract_origin" not in die.attributes:
            return None
        die = die.get_DIE_from_attribute("DW_AT_abstract_origin")


def _linkage_name(die) -> str:
    """The name in the PTX: mangled for device functions."""
    return _text(die, "DW_AT_MIPS_linkage_name") or _text(die, "DW_AT_name")


# -- types -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Type:
    text: str
    kind: str = ""  # "float", "signed", "unsigned", "bool", "pointer", "struct"; "" unknown
    size: int = 0  # bytes of one element
    shape: tuple[int, ...] = ()
    members: tuple[tuple[str, int, _Type], ...] = ()

    @property
    def dtype(self) -> str:
        return _SCALARS.get((self.kind, self.size), "")


_ADORNED = {
    "DW_TAG_const_type": "const {}", "DW_TAG_volatile_type": "volatile {}",
    "DW_TAG_restrict_type": "{}", "DW_TAG_typedef": "{}", "DW_TAG_enumeration_type": "{}",
}  # fmt: skip


def _type(die) -> _Type:
    """The type that a DIE's DW_AT_type names."""
    while "DW_AT_type" not in die.attributes:
        if "DW_AT_abstract_origin" not in die.attributes:
            return _Type("void")
        die = die.get_DIE_from_attribute("DW_AT_abstract_origin")
    target = die.get_DIE_from_attribute("DW_AT_type")
    size, tag = _attribute(target, "DW_AT_byte_size") or 0, target.tag
    if tag in ("DW_TAG_pointer_type", "DW_TAG_reference_type", "DW_TAG_rvalue_reference_type"):
        mark = "*" if tag == "DW_TAG_pointer_type" else "&"
        return _Type(f"{_type(target).text}{mark}", "pointer", 8)
    if tag == "DW_TAG_base_type":
        kind = _ENCODINGS.get(_attribute(target, "DW_AT_encoding"), "")
        return _Type(_text(target, "DW_AT_name"), kind, size)
    if tag == "DW_TAG_array_type":
        return _array(target)
    if tag in ("DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type"):
        return _Type(_text(target, "DW_AT_name") or "struct", "struct", size, (), _members(target))
    if tag == "DW_TAG_enumeration_type":
        return _Type(_text(target, "DW_AT_name"), "signed", size)
    if tag in _ADORNED:
        inner = _type(target)
        name = _text(target, "DW_AT_name") if tag == "DW_TAG_typedef" else ""
        return replace(inner, text=name or _ADORNED[tag].format(inner.text))
    return _Type(_text(target, "DW_AT_name") or "?")


def _array(die) -> _Type:
    element, extents = _type(die), []
    for child in die.iter_children():
        if child.tag == "DW_TAG_subrange_type":
            top = _attribute(child, "DW_AT_upper_bound")
            count = _attribute(child, "DW_AT_count")
            extents.append(count if count is not None else -1 if top is None else top + 1)
    # `float dyn[]` comes with the bound 0 or none at all: the launch decides.
    extents = [extent if extent > 0 else -1 for extent in extents]
    text = element.text + "".join(f"[{e if e > 0 else ''}]" for e in extents)
    return replace(element, text=text, shape=(*extents, *element.shape))


def _members(die) -> tuple[tuple[str, int, _Type], ...]:
    found = []
    for child in die.iter_children():
        place = _attribute(child, "DW_AT_data_member_location")
        if child.tag != "DW_TAG_member" or place is None:
            continue
        offset = place if isinstance(place, int) else _uleb(place[1:])
        found.append((_text(child, "DW_AT_name"), offset, _type(child)))
    return tuple(found)


def _uleb(data: list[int]) -> int:
    return sum((byte & 127) << 7 * i for i, byte in enumerate(data))


# -- scopes ----------------------------------------------------------------------------------------
class _Scopes:
    """Walks one function's scopes and collects its variables."""

    def __init__(self, reader: _Reader, program: Program, function: Function):
        self.reader, self.program, self.function = reader, program, function

    def read(self, die) -> list[LocalVariable]:
        end = len(self.function.body)
        return self.scope(die, 0, end, 0, "")

    def scope(self, die, first: int, end: int, depth: int, inlined: str) -> list[LocalVariable]:
        """Variables of a scope [first, end) and of all scopes inside it."""
        found: list[LocalVariable] = []
        for child in die.iter_children():
            if child.tag in ("DW_TAG_variable", "DW_TAG_formal_parameter"):
                found += self.variable(child, first, end, depth, inlined)
            elif child.tag in ("DW_TAG_lexical_block", "DW_TAG_inlined_subroutine"):
                name = inlined
                if child.tag == "DW_TAG_inlined_subroutine":
                    name = _text(child, "DW_AT_name")
                low, high = self.extent(child, first, end)
                found += self.scope(child, low, high, depth + 1, name)
        return found

    @staticmethod
    def extent(die, first: int, end: int) -> tuple[int, int]:
        if "DW_AT_low_pc" not in die.attributes:
            return first, end
        low, high = (die.attributes[f"DW_AT_{name}_pc"].value for name in ("low", "high"))
        return max(first, low // STEP - 1), min(end, high // STEP - 1)

    def variable(self, die, first, end, depth, inlined) -> list[LocalVariable]:
        own = self.program.is_own_file(_attribute(die, "DW_AT_decl_file") or 0)
        ranges = self.ranges(die, first, end) if own else ()
        if not ranges:
            return []
        line = _attribute(die, "DW_AT_decl_line") or 0
        kind = _type(die)
        name = _text(die, "DW_AT_name")
        ranges = tuple(self.after_declaration(ranges, line, die.tag == "DW_TAG_formal_parameter"))
        whole = LocalVariable(name, kind.text, kind.dtype, kind.shape, line, ranges, depth, inlined)
        return _members_of(whole, kind)

    def ranges(self, die, first: int, end: int) -> tuple[Range, ...]:
        location = die.attributes.get("DW_AT_location")
        if location is None:
            return ()
        if isinstance(location.value, list):
            pieces = [(first, end, location.value)]
        else:
            pieces = [
                (entry.begin_offset // STEP - 1, entry.end_offset // STEP - 1, entry.loc_expr)
                for entry in self.reader.locations.parse_from_attribute(location, 2, die)
            ]
        found = []
        for low, high, expression in pieces:
            place = self.reader.place(expression)
            low, high = max(low, first), min(high, end)
            if place is not None and low < high:
                found.append(Range(low, high - 1, place))
        return tuple(found)

    def after_declaration(self, ranges, line: int, is_parameter: bool):
        """Cut what lies before the variable's first value: there a loop's last round still shows.

        A register starts with the first instruction of its range that writes it; memory with the
        first instruction that belongs to the declaration's line or to a later one.
        """
        for number, piece in enumerate(ranges):
            start = piece.first
            if piece.place.kind == "register" and number == 0:
                start = self.first_write(piece)
            elif piece.place.kind == "local" and not is_parameter:
                start = self.first_line(piece, line)
            if start <= piece.last:
                yield replace(piece, first=start)

    def first_write(self, piece: Range) -> int:
        body = self.function.body
        for index in range(max(piece.first - 1, 0), piece.last + 1):
            if piece.place.name in reads_and_writes(body[index])[1]:
                return max(index + 1, piece.first)
        return piece.first

    def first_line(self, piece: Range, line: int) -> int:
        for index in range(piece.first, piece.last + 1):
            if self.program.own_line(self.function.body[index]) >= line:
                return index
        return piece.last + 1


def _members_of(variable: LocalVariable, kind: _Type) -> list[LocalVariable]:
    """A struct in memory as one variable a member; anything else as it is."""
    if not kind.members:
        return [variable]
    found = []
    for name, offset, inner in kind.members:
        moved = tuple(
            replace(r, place=replace(r.place, offset=r.place.offset + offset))
            for r in variable.ranges
            if r.place.kind != "register"
        )
        part = replace(
            variable, name=f"{variable.name}.{name}", type=inner.text, dtype=inner.dtype,
            shape=inner.shape, ranges=moved,
        )  # fmt: skip
        if moved and not kind.shape:
            found += _members_of(part, inner)
    return found


# -- shared arrays ---------------------------------------------------------------------------------
_DECLARATION = re.compile(
    r"__shared__\s+(?:(?:__align__|alignas)\s*\([^)]*\)\s*|(?:const|volatile|static|struct)\s+)*"
    r"(?P<type>[A-Za-z_][\w:]*(?:\s+(?:int|char|short|long))*)\s+(?P<names>[^;=]+);"
)
_CONSTANT = re.compile(
    r"^\s*#\s*define\s+(?P<macro>\w+)\s+(?P<value>[^\n]+)$"
    r"|\b(?:constexpr|const)\s+(?:static\s+)?(?:unsigned\s+)?(?:int|size_t|unsigned|long)\s+"
    r"(?P<name>\w+)\s*=\s*(?P<expression>[^;]+);", re.MULTILINE)  # fmt: skip
_ELEMENTS = {
    "float": ("f4", ()), "double": ("f8", ()), "int": ("i4", ()), "unsigned": ("u4", ()),
    "unsigned int": ("u4", ()), "half": ("f2", ()), "__half": ("f2", ()), "char": ("i1", ()),
    "unsigned char": ("u1", ()), "bool": ("?", ()), "float2": ("f4", (2,)), "short": ("i2", ()),
    "float4": ("f4", (4,)), "int4": ("i4", (4,)), "int2": ("i4", (2,)), "long long": ("i8", ()),
    "unsigned short": ("u2", ()), "half2": ("f2", (2,)), "__half2": ("f2", (2,)),
    "uint4": ("u4", (4,)), "uint2": ("u4", (2,)), "uint32_t": ("u4", ()), "int32_t": ("i4", ()),
    "double2": ("f8", (2,)),
}  # fmt: skip


def shared_arrays(program: Program, kernel: str) -> dict[str, SharedArray]:
    """Shared arrays of a kernel by their C names, where extents could be worked out.

    DWARF names only those of file scope. For the others the declaration is read from the source,
    with `#define` and `constexpr` constants and the program's -D options filled in, and kept only
    if it gives as many bytes as the PTX says.
    """
    reader = _reader(program)
    found = {}
    for name, die in (reader.shared if reader else {}).items():
        kind = _type(die)
        if kind.dtype:
            found[name] = SharedArray(name, kind.dtype, kind.shape)
    sizes = {
        demangle(name): variable.size
        for name, (_, variable) in program.executable(kernel).shared_places.items()
    }
    for array in _declared(program):
        size = sizes.get(array.name)
        if size is not None and np.dtype(array.dtype).itemsize * int(np.prod(array.shape)) == size:
            found[array.name] = array
    return found


def _declared(program: Program):
    """What the source's __shared__ declarations say, extents evaluated where they can be."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", program.source, flags=re.DOTALL)
    constants = _constants(text, program.options)
    for match in _DECLARATION.finditer(text):
        dtype, inner = _ELEMENTS.get(match["type"], ("", ()))
        for part in match["names"].split(","):
            name, *extents = re.findall(r"\w+|\[[^\]]*\]", part)
            if name.startswith("[") or not dtype:
                continue
            shape = [_evaluate(extent.strip("[]"), constants) for extent in extents]
            if None not in shape:
                yield SharedArray(name, dtype, (*shape, *inner))


def _constants(text: str, options) -> dict[str, str]:
    found = {}
    for match in _CONSTANT.finditer(text):
        found[match["macro"] or match["name"]] = match["value"] or match["expression"]
    for option in options:
        name, _, value = option.removeprefix("-D").strip().partition("=")
        if option.startswith("-D"):
            found[name] = value or "1"
    return found


_OPERATORS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: floordiv, ast.LShift: lshift}


def _evaluate(text: str, constants: dict[str, str], depth: int = 0) -> int | None:
    """A constant expression of integers, names, + - * / << and parentheses; None for more."""
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, constants, depth)
    except (SyntaxError, KeyError, TypeError, ZeroDivisionError, RecursionError):
        return None


def _value(node, constants: dict[str, str], depth: int):
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name) and depth < 20:
        return _evaluate(constants[node.id], constants, depth + 1)
    if isinstance(node, ast.BinOp):
        left, right = (_value(side, constants, depth) for side in (node.left, node.right))
        return _OPERATORS[type(node.op)](left, right)
    raise KeyError(ast.dump(node))
