"""A PTX module beside the CUDA C file that it was compiled from."""

import re
from collections.abc import Iterable, Mapping
from functools import cached_property

from ..errors import in_words
from .dwarf import Reader
from .shared_shapes import SharedArray, declared_arrays
from .syntax import Instruction, Module, Position

_LINE = re.compile(r'\s*#line\s+(\d+)\s*(?:"([^"]*)"\s*)?$')
_MOST_LINES = 1 << 16  # whose numbers are believed


def lines_of(text: str) -> list[str]:
    """Return the lines of a source as the compiler counts them.

    Only a line feed ends a line. `str.splitlines` would also end one at a form feed, a vertical tab
    or U+2028 in a comment, and all numbers after it would be wrong.
    """
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def numbered(lines: list[str], name: str) -> tuple[str, ...]:
    """Return the lines of a file by the numbers that `#line` gives them; "" where two have one."""
    if not any(map(_LINE.match, lines)):
        return tuple(lines)
    found: dict[int, set[str]] = {}
    number, own = 1, True
    for text in lines:
        if directive := _LINE.match(text):
            number = int(directive[1])
            own = own if directive[2] is None else directive[2].rpartition("/")[2] == name
            continue
        if own and number <= _MOST_LINES:
            found.setdefault(number, set()).add(text)
        number += 1
    numbers = range(1, max(found, default=0) + 1)
    return tuple(found[n].pop() if len(found.get(n, ())) == 1 else "" for n in numbers)


class SourceModule:
    """A parsed PTX module and its source: which instruction belongs to which source line.

    module: the parsed PTX; source: the CUDA C text; source_name: its file, as the compiler was
    given it; options: the compiler's; headers: (name, text) of the headers that the source
    includes, CUDA's own aside; unset_uses: (line, variable, column) of the places where the
    compiler warned that a variable is used before its value is set; managed_shared: whether the
    compiler, not the source, lays out shared memory, as Triton's does.

    A front for another language sets: arrays, the shared arrays that the source declares (None: its
    CUDA C is read); local_arrays, PTX function -> its local array, where it has one alone, for
    builds without debug information; words, what CUDA C's names in a message are in that language;
    hidden_types, how the names of types begin whose variables the source does not have.
    """

    arrays: Iterable[SharedArray] | None = None
    local_arrays: Mapping[str, SharedArray] = {}
    words: Mapping[str, str] = {}
    hidden_types: tuple[str, ...] = ()

    def __init__(
        self,
        module: Module,
        source: str,
        source_name: str,
        options=(),
        headers=(),
        unset_uses: tuple[tuple[int, str, int], ...] = (),
        managed_shared: bool = False,
    ):
        self.module, self.source, self.source_name = module, source, source_name
        self.options: tuple[str, ...] = tuple(options)
        self.unset_uses, self.managed_shared = unset_uses, managed_shared
        self.headers = {name: tuple(lines_of(text)) for name, text in headers}
        self._own_lines: dict[int, tuple[Instruction, int]] = {}  # by id of the instruction
        self._inlined: dict[str, list[tuple[int, int, int, int]]] = {}  # by function
        self._file = source_name.rsplit("/", 1)[-1]
        self.source_lines = numbered(lines_of(source), self._file)

    def declared_arrays(self, sizes: Mapping[str, int]) -> Iterable[SharedArray]:
        """The shared arrays that the source declares; sizes: name -> bytes, of those that run."""
        if self.arrays is not None:
            return self.arrays
        return declared_arrays(self.source, self.options, sizes)

    def in_words(self, text: str) -> str:
        """Return a message with the names of the source's language."""
        return in_words(text, self.words)

    @cached_property
    def dwarf(self) -> Reader | None:
        """The debug information, read on first use; None where it was not compiled with -G."""
        return Reader(self.module) if ".debug_info" in self.module.sections else None

    def is_own_file(self, number: int) -> bool:
        """Is this number of a file, as positions give it, that of the source?"""
        return self.module.files.get(number, "").rsplit("/", 1)[-1] == self._file

    def own_position(self, position: Position | None) -> Position | None:
        """Return the place in the source; for code inlined from a header, the place of the call."""
        while position is not None and not self.is_own_file(position.file):
            position = position.inlined_at
        return position

    def own_line(self, instruction: Instruction) -> int:
        """Return the line of the source that an instruction belongs to; 0 if none."""
        known = self._own_lines.get(id(instruction))
        if known is None:
            position = self.own_position(instruction.position)
            known = (instruction, position.line if position is not None else 0)
            self._own_lines[id(instruction)] = known
        return known[1]

    def call_line(self, function: str, instruction: Instruction) -> int:
        """Return the line of the source at which the code of a header was inlined; 0 if unknown.

        Debug builds do not say so at the instruction, but in their debug information.
        """
        return next(iter(self._inlined_at(function, instruction)[::-1]), 0)

    def outermost_line(self, function: str, instruction: Instruction) -> int:
        """Return the line of the source at which the outermost call was inlined that led to an
        instruction; that of the instruction itself where it is in no such call, 0 if unknown.
        """
        position, found = instruction.position, 0
        while position is not None:
            found = position.line if self.is_own_file(position.file) else found
            position = position.inlined_at
        return next(iter(self._inlined_at(function, instruction)), found)

    def _inlined_at(self, function: str, instruction: Instruction) -> list[int]:
        """The lines of the source of the calls that debug information has, the outermost first."""
        if instruction.position is None or self.dwarf is None:
            return []
        if function not in self._inlined:
            self._inlined[function] = self.dwarf.inlined_calls(function)
        return [
            line
            for first, end, file, line in self._inlined[function]
            if first <= instruction.index < end and self.is_own_file(file)
        ]

    def source_line(self, position: Position | None) -> str:
        """Return the text of a line of the source or of a header that it includes, else ""."""
        if position is None:
            return ""
        own = self.is_own_file(position.file)
        lines = self.source_lines if own else self.headers.get(self.header_of(position.file), ())
        return lines[position.line - 1] if 0 < position.line <= len(lines) else ""

    def header_of(self, number: int) -> str:
        """Return the name of the included header of a file number; "" for other files."""
        path = "/" + self.module.files.get(number, "").replace("\\", "/")
        return next(
            (name for name in self.headers if path.endswith("/" + name.rpartition("../")[2])), ""
        )

    def place_in_header(self, position: Position | None) -> str:
        """Return "name:line `text`" of a position in a header that the source includes, else "".

        For code of CUDA's own headers that was inlined into such a header: the call there.
        """
        while position is not None and not self.is_own_file(position.file):
            if name := self.header_of(position.file):
                return f"{name}:{position.line} `{self.source_line(position).strip()}`"
            position = position.inlined_at
        return ""

    def text_of(self, name: str, line: int) -> str:
        """Return " `text`" of a line of the source, for messages; "" for other files."""
        inside = name == self._file and 0 < line <= len(self.source_lines)
        return f" `{self.source_lines[line - 1].strip()}`" if inside else ""
