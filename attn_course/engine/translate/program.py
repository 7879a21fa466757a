"""A PTX module that can be run on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import numpy as np

from attn_course.engine.ptx.demangle import demangle
from attn_course.engine.ptx.parser import parse
from attn_course.engine.ptx.syntax import Instruction, Module, Position

from ..addresses import aligned
from .executable import Executable, shared_variables
from .operands import printable


class Program:
    """A PTX module that can be run on the CPU.

    ptx: the module's text. source: the CUDA C text, for messages (and line text in reports).
    build: "optimised" or "debug"; a debug build keeps every register readable to its end.
    options: the compiler's, which observers may want to know. headers: (name, text) of the headers
    that the source includes, CUDA's own aside.
    """

    def __init__(
        self,
        ptx: str,
        *,
        source: str = "",
        source_name: str = "kernel.cu",
        build: str = "optimised",
        options: tuple[str, ...] = (),
        headers: tuple[tuple[str, str], ...] = (),
    ):
        self.options = tuple(options)
        self.ptx, self.source, self.source_name, self.build = ptx, source, source_name, build
        self.module: Module = parse(ptx)
        self.keep_registers = build == "debug"
        self.source_lines = tuple(source.splitlines())
        self.headers = {name: tuple(text.splitlines()) for name, text in headers}
        self._executables: dict[str, Executable] = {}
        self.variables: dict[str, np.ndarray] = {}
        for variable in self.module.variables.values():
            if variable.space in ("global", "const"):
                data = np.zeros(variable.size, np.uint8)
                if variable.initial:
                    data[:] = np.frombuffer(variable.initial, np.uint8)[: variable.size]
                self.variables[variable.name] = data

    def resources(self, name: str) -> Resources:
        """What a kernel takes up, known without decoding it."""
        function, shared = self.module.functions[name], 0
        for variable in shared_variables(self.module, function):
            shared = aligned(shared, max(variable.align, 1)) + variable.size
        local = sum(v.size for v in function.variables.values() if v.space == "local")
        return Resources(shared, local, len(function.registers))

    def executable(self, name: str) -> Executable:
        if name not in self._executables:
            self._executables[name] = Executable(self, self.module.functions[name])
        return self._executables[name]

    @property
    def debug(self):
        """The module that reads a debug build's names: variables(program, function), ..."""
        # only when asked for: it takes a while
        return import_module("..ptx.debug_names", __package__)

    def python(self, name: str) -> str:
        """Return the NumPy lines of the kernel's instructions, to be read.

        Each line stands below its instruction, whose text is escaped and is never executed.
        """
        return "\n".join(
            f"def op{i.index}(R, c):  # {printable(i)}\n    {statement}"
            for i, statement in self.executable(name).lines
        )

    def global_variable(self, name: str) -> np.ndarray:
        """The bytes of a `__device__` or `__constant__` variable; kept from launch to launch."""
        if name in self.variables:
            return self.variables[name]
        short = {demangle(full): data for full, data in self.variables.items()}
        if name in short:
            return short[name]
        known = ", ".join(short) or "none"
        raise KeyError(f"no __device__ or __constant__ variable named {name!r}; there are: {known}")

    def source_line(self, position) -> str:
        """The text of a source line of the kernel's own file or of a header that it includes."""
        if position is None:
            return ""
        own = self.is_own_file(position.file)
        lines = self.source_lines if own else self.headers.get(self.header_of(position.file), ())
        return lines[position.line - 1] if 0 < position.line <= len(lines) else ""

    def header_of(self, number: int) -> str:
        """The name of the included header that a file number stands for; "" for other files."""
        path = "/" + self.module.files.get(number, "").replace("\\", "/")
        return next(
            (name for name in self.headers if path.endswith("/" + name.rpartition("../")[2])), ""
        )

    def place_in_header(self, position: Position | None) -> str:
        """ "name:line `text`" of a position in a header that the kernel includes, else "".

        For code of CUDA's own headers that was inlined into such a header: the call there.
        """
        while position is not None and not self.is_own_file(position.file):
            if name := self.header_of(position.file):
                return f"{name}:{position.line} `{self.source_line(position).strip()}`"
            position = position.inlined_at
        return ""

    def text_of(self, name: str, line: int) -> str:
        """ " `text`" of a line of the kernel's own file, for messages; "" for other files."""
        inside = name == self.source_name.rsplit("/", 1)[-1] and 0 < line <= len(self.source_lines)
        return f" `{self.source_lines[line - 1].strip()}`" if inside else ""

    def is_own_file(self, number: int) -> bool:
        name = self.module.files.get(number, "").rsplit("/", 1)[-1]
        return name == self.source_name.rsplit("/", 1)[-1]

    def own_position(self, position: Position | None) -> Position | None:
        """Where in the kernel's own file: the call, for a header's code that was inlined there."""
        while position is not None and not self.is_own_file(position.file):
            position = position.inlined_at
        return position

    def own_line(self, instruction: Instruction) -> int:
        """Line in the kernel's own file; 0 if none."""
        position = self.own_position(instruction.position)
        return position.line if position is not None else 0


@dataclass(frozen=True)
class Resources:
    """What a kernel takes up: shared bytes a block, local bytes and PTX registers a thread."""

    shared_bytes: int
    local_bytes: int
    registers: int
