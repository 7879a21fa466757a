"""The DWARF of a debug build: its sections as bytes, and the types and places that it names.

NVRTC's `-G` writes DWARF 2 into the PTX as `.section` blocks of numbers and labels. Here they
become bytes again, for pyelftools to read, with instruction i of a function at address
STEP * (i + 1). Where a variable lives is a DWARF expression: DW_OP_regx and a ULEB128 that holds
the virtual register's name in big-endian ASCII, or DW_OP_addr and a symbol (the local frame
`__local_depot0`, an array).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO

from ..budget import check_budget, no_garbage_collection
from ..errors import ParseError, SimulatorError
from .demangle import demangle
from .syntax import Module
from .tokens import words_of

STEP = 16  # bytes of address an instruction
_SYMBOLS = 1 << 40  # symbols get addresses from here on, _SYMBOL_ROOM apart
_SYMBOL_ROOM = 1 << 32
_SECTIONS = ("debug_info", "debug_abbrev", "debug_loc", "debug_str", "debug_line")
_SCOPES = ("DW_TAG_lexical_block", "DW_TAG_inlined_subroutine")
_CALL = ("low_pc", "high_pc", "call_file", "call_line")
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
# The whole is greedy, not possessive: Python 3.11.2 ends a possessive run within a line that fails.
_BYTES = re.compile(rf"(?:\.b8\s++{_BYTE}(?:,{_BYTE})*+(?:\s++|\Z))+", re.ASCII)
_NUMBER_SIZES = {".b8": 1, ".b16": 2, ".b32": 4, ".b64": 8}
_SCALARS = {
    ("float", 4): "f4",
    ("float", 8): "f8",
    ("float", 2): "f2",
    ("signed", 1): "i1",
    ("signed", 2): "i2",
    ("signed", 4): "i4",
    ("signed", 8): "i8",
    ("unsigned", 1): "u1",
    ("unsigned", 2): "u2",
    ("unsigned", 4): "u4",
    ("unsigned", 8): "u8",
    ("bool", 1): "?",
    ("pointer", 8): "u8",
}
_ENCODINGS = {2: "bool", 4: "float", 5: "signed", 6: "signed", 7: "unsigned", 8: "unsigned"}


@dataclass(frozen=True)
class Place:
    """Where a value lives: in a register, or in "local", "shared" or "global" memory.

    kind: "register" or the memory's name; name: the register, or the PTX variable (for "local"
    the function's frame or a parameter) into which `offset` counts bytes. Only inside this package
    also "pointed at": memory at the address that the register holds.
    """

    kind: str
    name: str
    offset: int = 0


MOST_ORIGINS = 64  # steps from an inlined DIE to the one that it comes from


@contextmanager
def readable() -> Iterator[None]:
    """Turn what goes wrong with malformed debug information into a ParseError."""
    try:
        yield
    except (ParseError, SimulatorError):
        raise
    except Exception as error:  # pyelftools trusts what it reads: any error may arise
        message = f"the debug information of the PTX is malformed: {repr(error)[:200]}"
        raise ParseError(message) from error


def bounded(dies: Iterable) -> Iterator:
    """DIEs one after another, as long as the call's budget lasts: links may lead in circles."""
    for die in dies:
        check_budget("a kernel", lambda: "the debug information of its PTX")
        yield die


# -- sections -> bytes -----------------------------------------------------------------------------
class Reader:
    """The DWARF of a module, read by pyelftools."""

    def __init__(self, module: Module):
        with readable(), no_garbage_collection():
            self.read(module)

    def read(self, module: Module) -> None:
        """Find the functions and the shared variables."""
        from elftools.dwarf.dwarf_expr import DWARFExprParser  # only here: importing it takes time
        from elftools.dwarf.dwarfinfo import DwarfConfig, DWARFInfo
        from elftools.dwarf.locationlists import LocationParser

        self.module = module
        self.symbols: dict[str, int] = {}  # name -> its number
        self.labels = {  # a label inside braces carries the parser's suffix
            name.partition("@")[0]: STEP * (index + 1)
            for function in module.functions.values()
            for name, index in function.labels.items()
        }
        self.files = module.files
        parts = {name: self.section(module.sections.get(f".{name}", "")) for name in _SECTIONS}
        self.info = DWARFInfo(config=DwarfConfig(True, "x64", 8), **_sections(parts))
        self.locations = LocationParser(self.info.location_lists())
        self.subprograms, self.shared = {}, {}
        for unit in self.info.iter_CUs():
            self.expressions = DWARFExprParser(unit.structs)
            for die in bounded(unit.iter_DIEs()):
                if die.tag == "DW_TAG_subprogram" and "DW_AT_low_pc" in die.attributes:
                    mangled = text_of(die, "DW_AT_MIPS_linkage_name")  # of device functions
                    known = mangled in module.functions
                    self.subprograms[mangled if known else text_of(die, "DW_AT_name")] = die
                elif die.tag == "DW_TAG_variable" and die.get_parent().tag == "DW_TAG_compile_unit":
                    self.shared[text_of(die, "DW_AT_name")] = die

    def inlined_calls(self, function_name: str) -> list[tuple[int, int, int, int]]:
        """Return (first instruction, end, file, line) of the calls inlined into a function.

        file and line are those of the call; an outer call comes before the calls inside it.
        """
        found: list[tuple[int, int, int, int]] = []
        scopes = [self.subprograms[function_name]] if function_name in self.subprograms else []
        while scopes:
            die = scopes.pop(0)
            scopes += [c for c in die.iter_children() if c.tag in _SCOPES]
            attributes = die.attributes
            if "DW_AT_call_line" in attributes and "DW_AT_low_pc" in attributes:
                low, high, file, line = (attributes[f"DW_AT_{name}"].value for name in _CALL)
                found.append((low // STEP - 1, high // STEP - 1, file, line))
        return found

    def section(self, text: str) -> bytes:
        data, at = bytearray(), 0
        for run in _BYTES.finditer(text):  # most of a section
            data += self.mixed(words_of(text[at : run.start()]))
            data += bytes(map(int, run[0].replace(".b8", "").replace(",", " ").split()))
            at = run.end()
        return bytes(data + self.mixed(words_of(text[at:])))

    def mixed(self, tokens: list[str]) -> bytes:
        """The bytes of numbers of any size, names and sums; `.b8` where none is given first."""
        data, at, size = bytearray(), 0, 1
        while at < len(tokens):
            word = tokens[at]
            at += 1
            if word in _NUMBER_SIZES:
                size = _NUMBER_SIZES[word]
                continue
            if word in (",", ";"):
                continue
            if size == 1 and word.isdigit():
                data.append(int(word) & 255)
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
        number = self.symbols.setdefault(word, len(self.symbols))
        return _SYMBOLS + _SYMBOL_ROOM * number

    def place(self, expression: list[int]) -> Place | None:
        """The place that a DWARF expression describes; None for what it only computes."""
        operations = self.expressions.parse_expr(expression)
        if not operations:
            return None
        first = operations[0]
        if first.op_name == "DW_OP_regx" and len(operations) == 1:
            return Place("register", _register_of(first.args[0]))
        if first.op_name == "DW_OP_bregx" and len(operations) == 1:
            return Place("pointed at", _register_of(first.args[0]), first.args[1])
        if first.op_name.startswith("DW_OP_addr"):
            symbol, offset = divmod(first.args[0] - _SYMBOLS, _SYMBOL_ROOM)
            for operation in operations[1:]:
                if operation.op_name != "DW_OP_plus_uconst":
                    return None
                offset += operation.args[0]
            name = list(self.symbols)[symbol]
            return Place(self.space(name), name, offset)
        return None

    def space(self, name: str) -> str:
        if name in self.module.variables:
            space = self.module.variables[name].space
            return "global" if space == "const" else space
        return "local"


def _register_of(number: int) -> str:
    """The name that a register's number holds."""
    return number.to_bytes(-(-number.bit_length() // 8), "big").decode()


def _sections(parts: dict[str, bytes]) -> dict:
    """DWARFInfo's section arguments: None for what the PTX does not have."""
    from elftools.dwarf.dwarfinfo import DebugSectionDescriptor, DWARFInfo

    wanted = inspect.signature(DWARFInfo).parameters
    found: dict = {name: None for name in wanted if name != "config"}
    for name, data in parts.items():
        found[f"{name}_sec"] = DebugSectionDescriptor(BytesIO(data), name, 0, len(data), 0)
    return found


def text_of(die, attribute: str) -> str:
    value = attribute_of(die, attribute)
    return value.decode() if isinstance(value, bytes) else ""


def attribute_of(die, name: str):
    """An attribute's value, or that of the DIE it was inlined from."""
    for _ in range(MOST_ORIGINS):
        if name in die.attributes:
            return die.attributes[name].value
        if "DW_AT_abstract_origin" not in die.attributes:
            break
        die = die.get_DIE_from_attribute("DW_AT_abstract_origin")
    return None


# -- types -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CType:
    """A C type as the compiler describes it.

    text: as the source writes it ("const real*"); name: that of the base type or struct behind
    all typedefs ("float", "__half"), "" for others; members: (name, first byte, type) of a struct.
    """

    text: str
    kind: str = ""  # "float", "signed", "unsigned", "bool", "pointer", "struct"; "" unknown
    size: int = 0  # bytes of one element
    shape: tuple[int, ...] = ()
    members: tuple[tuple[str, int, CType], ...] = ()
    name: str = ""
    const: bool = False
    target: CType | None = None  # of a pointer or reference

    @property
    def dtype(self) -> str:
        return _SCALARS.get((self.kind, self.size), "")


_ADORNED = {  # how the name of the type itself and the text of the inner one make a text
    "DW_TAG_const_type": "const {1}",
    "DW_TAG_volatile_type": "volatile {1}",
    "DW_TAG_restrict_type": "{1}",
    "DW_TAG_typedef": "{0}",
}


def type_of(die, members: bool = True) -> CType:
    """Return the type that a DIE's DW_AT_type names.

    members: whether to read those of a struct; never of a pointer's target, which may point back.
    """
    origins = 0
    while "DW_AT_type" not in die.attributes:
        if "DW_AT_abstract_origin" not in die.attributes or origins == MOST_ORIGINS:
            return CType("void")
        origins += 1
        die = die.get_DIE_from_attribute("DW_AT_abstract_origin")
    target = die.get_DIE_from_attribute("DW_AT_type")
    size, tag = attribute_of(target, "DW_AT_byte_size") or 0, target.tag
    name = text_of(target, "DW_AT_name")
    if tag in ("DW_TAG_pointer_type", "DW_TAG_reference_type", "DW_TAG_rvalue_reference_type"):
        mark = "*" if tag == "DW_TAG_pointer_type" else "&"
        inner = type_of(target, members=False)
        return CType(f"{inner.text}{mark}", "pointer", 8, target=inner)
    if tag == "DW_TAG_base_type":
        kind = _ENCODINGS.get(attribute_of(target, "DW_AT_encoding"), "")
        return CType(name, kind, size, name=name)
    if tag == "DW_TAG_array_type":
        return _array(target, members)
    if tag in ("DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type"):
        found = _members(target) if members else ()
        return CType(demangle(name) or "struct", "struct", size, members=found, name=name)
    if tag == "DW_TAG_enumeration_type":
        return CType(name, "signed", size)
    if tag in _ADORNED:
        inner = type_of(target, members)
        form = "{1} const" if tag == "DW_TAG_const_type" and inner.target else _ADORNED[tag]
        text = form.format(name, inner.text)
        return replace(inner, text=text, const=inner.const or tag == "DW_TAG_const_type")
    return CType(name or "?")


def _array(die, members: bool) -> CType:
    element, extents = type_of(die, members), []
    for child in bounded(die.iter_children()):
        if child.tag == "DW_TAG_subrange_type":
            top = attribute_of(child, "DW_AT_upper_bound")
            count = attribute_of(child, "DW_AT_count")
            extents.append(count if count is not None else -1 if top is None else top + 1)
    # `float dyn[]` comes with the bound 0 or none at all: the launch decides.
    extents = [extent if extent > 0 else -1 for extent in extents]
    text = element.text + "".join(f"[{e if e > 0 else ''}]" for e in extents)
    return replace(element, text=text, shape=(*extents, *element.shape))


def _members(die) -> tuple[tuple[str, int, CType], ...]:
    found = []
    for child in bounded(die.iter_children()):
        place = attribute_of(child, "DW_AT_data_member_location")
        if child.tag != "DW_TAG_member" or place is None:
            continue
        offset = place if isinstance(place, int) else _uleb(place[1:])
        found.append((text_of(child, "DW_AT_name"), offset, type_of(child)))
    return tuple(found)


def _uleb(data: list[int]) -> int:
    return sum((byte & 127) << 7 * i for i, byte in enumerate(data))
