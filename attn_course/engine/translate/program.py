"""A PTX module that can be run on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import numpy as np

from attn_course.engine.ptx.demangle import demangle
from attn_course.engine.ptx.parser import parse
from attn_course.engine.ptx.syntax import Instruction, Module, Position

from ..machine.launch import launch
from ..machine.memory import aligned
from .executable import Executable, shared_variables


class Program:
    """A PTX module that can be run on the CPU.

    ptx: the module's text. source: the CUDA C text, for messages (and line text in reports).
    build: "optimised" or "debug"; a debug build keeps every register readable to its end.
    options: the compiler's, which observers may want to know.
    """

    def __init__(
        self,
        ptx: str,
        *,
        source: str = "",
        source_name: str = "kernel.cu",
        build: str = "optimised",
        options: tuple[str, ...] = (),
    ):
        self.options = tuple(options)
        self.ptx, self.source, self.source_name, self.build = ptx, source, source_name, build
        self.module: Module = parse(ptx)
        self.keep_registers = build == "debug"
        self.source_lines = tuple(source.splitlines())
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
        """The NumPy lines that the kernel's instructions became."""
        return "\n".join(self.executable(name).text)

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
        """The text of a source line, where it belongs to the kernel's own file."""
        if position is None or not self.is_own_file(position.file):
            return ""
        inside = 0 < position.line <= len(self.source_lines)
        return self.source_lines[position.line - 1] if inside else ""

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

    def launch(
        self, name, grid, block, arguments, shared_bytes=0, observers=(), names=(), warp_order=None
    ):
        """Run a kernel over its whole grid. See launches.launch."""
        return launch(
            self,
            name,
            grid,
            block,
            arguments,
            shared_bytes=shared_bytes,
            observers=observers,
            names=names,
            warp_order=warp_order,
        )


@dataclass(frozen=True)
class Resources:
    """What a kernel takes up: shared bytes a block, local bytes and PTX registers a thread."""

    shared_bytes: int
    local_bytes: int
    registers: int
