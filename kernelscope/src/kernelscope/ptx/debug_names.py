"""The names of a debug build: local variables and their places, shared arrays and shapes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from .demangle import demangle
from .dwarf import STEP, CType, Place, attribute_of, bounded, text_of, type_of
from .registers import reads_and_writes
from .shared_shapes import SharedArray
from .source_module import SourceModule
from .syntax import Function, Register, Symbol


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
    struct: (first byte, bytes) of the struct that it is a member of, counted in its place's
    memory as an offset is; (0, 0) for what is no member. scope: the first instruction of the scope
    that declares it, and the one after its last.
    """

    name: str
    type: str
    dtype: str
    shape: tuple[int, ...]
    line: int
    ranges: tuple[Range, ...]
    depth: int = 0
    function: str = ""
    struct: tuple[int, int] = (0, 0)
    scope: tuple[int, int] = (0, 0)

    @property
    def is_pointer(self) -> bool:
        return self.type.rstrip().endswith(("*", "&"))

    @property
    def size(self) -> int:
        """Bytes of it; 0 where its type is not known."""
        if not self.dtype or min(self.shape, default=0) < 0:
            return 0
        return np.dtype(self.dtype).itemsize * prod(self.shape)

    def place_at(self, index: int) -> Place | None:
        """Where it is when instruction `index` comes next; None out of its scope."""
        for piece in self.ranges:
            if piece.first <= index <= piece.last:
                return piece.place
        return None


def variables(source: SourceModule, function_name: str) -> tuple[LocalVariable, ...]:
    """Return the variables of one PTX function of a debug build; () without debug information."""
    die, function = _subprogram(source, function_name), source.module.functions[function_name]
    if die is None:
        return _only_array(source.local_arrays.get(function_name), function)
    return tuple(_Scopes(source, function).scope(die, 0, len(function.body), 0, ""))


def _only_array(array: SharedArray | None, function: Function) -> tuple[LocalVariable, ...]:
    """A local array that fills its function's frame."""
    frames = [one for one in function.variables.values() if one.space == "local"]
    if array is None or len(frames) != 1 or frames[0].size != array.size:
        return ()
    piece = Range(0, len(function.body), Place("local", frames[0].name))
    return (LocalVariable(array.name, array.dtype, array.dtype, array.shape, 0, (piece,)),)


def unplaced_variables(source: SourceModule, function_name: str) -> tuple[LocalVariable, ...]:
    """Return the variables that a function declares and that never have a place.

    Their value is never set; or the compiler has put a constant in place of the variable.
    """
    die = _subprogram(source, function_name)
    return tuple(_unplaced(source, die)) if die is not None else ()


def _unplaced(source: SourceModule, die) -> Iterator[LocalVariable]:
    for child in bounded(die.iter_children()):
        if child.tag == "DW_TAG_lexical_block":
            yield from _unplaced(source, child)
        placed = {"DW_AT_location", "DW_AT_const_value"} & child.attributes.keys()
        if child.tag != "DW_TAG_variable" or placed:
            continue
        if source.is_own_file(attribute_of(child, "DW_AT_decl_file") or 0):
            kind, line = type_of(child), attribute_of(child, "DW_AT_decl_line") or 0
            name = text_of(child, "DW_AT_name")
            yield LocalVariable(name, kind.text, kind.dtype, kind.shape, line, ())


def written_registers(source: SourceModule, function_name: str) -> list[tuple[str, ...]]:
    """Return, for each instruction of a function, the registers it writes that hold a variable."""
    named = {
        piece.place.name
        for variable in variables(source, function_name)
        for piece in variable.ranges
        if piece.place.kind == "register"
    }
    body = source.module.functions[function_name].body
    return [tuple(sorted(reads_and_writes(i)[1] & named)) for i in body]


def source_name(source: SourceModule, function_name: str) -> str:
    """Return a function's name as the source writes it."""
    die = _subprogram(source, function_name)
    return text_of(die, "DW_AT_name") if die is not None else demangle(function_name)


def _subprogram(source: SourceModule, function_name: str):
    return source.dwarf.subprograms.get(function_name) if source.dwarf else None


def shared_arrays(source: SourceModule, sizes: Mapping[str, int]) -> dict[str, SharedArray]:
    """Return shared arrays by their C names, where their extents could be worked out.

    sizes: C name -> bytes of the shared arrays of the kernel. DWARF names only arrays of file scope
    (`__device__` and `__constant__` variables, which are given too). For the others the declaration
    is read from the source, with `#define` and `constexpr` constants and the compiler's -D options
    filled in, and kept only if it gives as many bytes as `sizes` says, and no other declaration of
    that name gives as many.
    """
    found = {}
    for name, die in (source.dwarf.shared if source.dwarf else {}).items():
        kind = type_of(die)
        if kind.dtype:
            found[name] = SharedArray(name, kind.dtype, kind.shape)
    fitting: dict[str, set[SharedArray]] = {}
    for array in source.declared_arrays(sizes):
        size = sizes.get(array.name)
        if size is not None and np.dtype(array.dtype).itemsize * int(np.prod(array.shape)) == size:
            fitting.setdefault(array.name, set()).add(array)
    return found | {name: arrays.pop() for name, arrays in fitting.items() if len(arrays) == 1}


# -- scopes ----------------------------------------------------------------------------------------
class _Scopes:
    """Walks one function's scopes and collects its variables."""

    def __init__(self, source: SourceModule, function: Function):
        self.reader, self.source, self.function = source.dwarf, source, function

    def scope(self, die, first: int, end: int, depth: int, inlined: str) -> list[LocalVariable]:
        """Variables of a scope [first, end) and of all scopes inside it."""
        found: list[LocalVariable] = []
        for child in bounded(die.iter_children()):
            if child.tag in ("DW_TAG_variable", "DW_TAG_formal_parameter"):
                found += self.variable(child, first, end, depth, inlined)
            elif child.tag in ("DW_TAG_lexical_block", "DW_TAG_inlined_subroutine"):
                name = inlined
                if child.tag == "DW_TAG_inlined_subroutine":
                    name = text_of(child, "DW_AT_name")
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
        own = self.source.is_own_file(attribute_of(die, "DW_AT_decl_file") or 0)
        ranges = self.ranges(die, first, end) if own else ()
        kind = type_of(die)
        hidden = self.source.hidden_types
        if not ranges or hidden and kind.text.startswith(hidden):
            return []
        line = attribute_of(die, "DW_AT_decl_line") or 0
        name = text_of(die, "DW_AT_name")
        ranges = tuple(self.after_declaration(ranges, line, die.tag == "DW_TAG_formal_parameter"))
        whole = LocalVariable(
            name,
            kind.text,
            kind.dtype,
            kind.shape,
            line,
            ranges,
            depth,
            inlined,
            scope=(first, end),
        )
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
            if place is not None and place.kind == "pointed at":
                place = self.parameter(place)
            low, high = max(low, first), min(high, end)
            if place is not None and low < high:
                found.append(Range(low, high - 1, place))
        return tuple(found)

    def parameter(self, pointer: Place) -> Place | None:
        """The place of a device function's parameter that a register points to."""
        copies = {
            i.operands[0].name: i.operands[1]
            for i in self.function.body
            if i.opcode.startswith(("mov.", "cvta.")) and isinstance(i.operands[0], Register)
        }
        found = Register(pointer.name)
        while isinstance(found, Register):
            found = copies.pop(found.name, None)
        mine = {} if self.function.is_entry else {p.name for p in self.function.parameters}
        if isinstance(found, Symbol) and found.name in mine:
            return Place("local", found.name, found.offset + pointer.offset)
        return None

    def after_declaration(self, ranges, line: int, is_parameter: bool):
        """Cut the part before the variable's first value: there a loop's last round still shows.

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
            if self.source.own_line(self.function.body[index]) >= line:
                return index
        return piece.last + 1


def _members_of(variable: LocalVariable, kind: CType) -> list[LocalVariable]:
    """A struct in memory as one variable a member; anything else as it is."""
    if not kind.members:
        return [variable]
    if kind.shape:
        return [_flattened(variable, kind)]
    found = []
    struct = variable.struct
    if not struct[1] and variable.ranges:
        struct = (variable.ranges[0].place.offset, kind.size)
    for name, offset, inner in kind.members:
        moved = tuple(
            replace(r, place=replace(r.place, offset=r.place.offset + offset))
            for r in variable.ranges
            if r.place.kind != "register"
        )
        part = replace(
            variable,
            name=f"{variable.name}.{name}",
            type=inner.text,
            dtype=inner.dtype,
            shape=inner.shape,
            ranges=moved,
            struct=struct,
        )
        if moved:
            found += _members_of(part, inner)
    return found


def _flattened(variable: LocalVariable, kind: CType) -> LocalVariable:
    """An array of structs such as float4, all of one type, with the members as its last axis."""
    inner = {(member.dtype, member.shape) for _, _, member in kind.members}
    dtype = kind.members[0][2].dtype
    alike = inner == {(dtype, ())} and dtype
    if not alike or np.dtype(dtype).itemsize * len(kind.members) != kind.size:
        return variable
    return replace(variable, dtype=dtype, shape=(*variable.shape, len(kind.members)))
