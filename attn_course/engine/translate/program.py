"""A PTX module that can be run on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_course.engine.ptx.demangle import demangle
from attn_course.engine.ptx.parser import parse
from attn_course.engine.ptx.source_module import SourceModule
from attn_course.engine.ptx.syntax import Function, Module

from ..machine.launch import launch
from ..machine.memory import aligned
from .executable import Executable, Parameter, parameters_of, shared_variables


class Program(SourceModule):
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
        super().__init__(parse(ptx), source, source_name, options)
        self.ptx, self.build = ptx, build
        self.keep_registers = build == "debug"
        self._executables: dict[str, Executable] = {}
        self.variables: dict[str, np.ndarray] = {}
        for variable in self.module.variables.values():
            if variable.space in ("global", "const"):
                data = np.zeros(variable.size, np.uint8)
                if variable.initial:
                    data[:] = np.frombuffer(variable.initial, np.uint8)[: variable.size]
                self.variables[variable.name] = data

    @property
    def entries(self) -> dict[str, Entry]:
        """The kernels by name."""
        kernels = (f for f in self.module.functions.values() if f.is_entry)
        return {f.name: Entry.of(self.module, f) for f in kernels}

    def executable(self, name: str) -> Executable:
        if name not in self._executables:
            self._executables[name] = Executable(self, self.module.functions[name])
        return self._executables[name]

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
class Entry:
    """What is known of a kernel without decoding it."""

    name: str
    parameters: tuple[Parameter, ...]
    shared_bytes: int
    local_bytes: int
    max_threads: int
    register_count: int

    @classmethod
    def of(cls, module: Module, function: Function) -> Entry:
        shared = 0
        for variable in shared_variables(module, function):
            shared = aligned(shared, max(variable.align, 1)) + variable.size
        local = sum(v.size for v in function.variables.values() if v.space == "local")
        limit = function.limits.get("maxntid") or function.limits.get("reqntid") or (1024,)
        return cls(
            function.name,
            parameters_of(function),
            shared,
            local,
            int(np.prod(limit)),
            len(function.registers),
        )
