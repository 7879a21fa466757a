"""A PTX module that can be run on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kernelscope.ptx.parser import parse
from kernelscope.ptx.source_module import SourceModule

from ..addresses import aligned
from ..budget import no_garbage_collection
from .executable import Executable, reachable, references, shared_variables
from .module_memory import ModuleMemory
from .operands import printable


class Program(SourceModule):
    """A PTX module that can be run on the CPU.

    ptx: the module's text. source: the CUDA C text, for messages (and line text in reports).
    build: "optimised" or "debug"; a debug build keeps every register readable to its end.
    options: the compiler's, which observers may want to know. headers: (name, text) of the headers
    that the source includes, CUDA's own aside. unset_uses, managed_shared: see SourceModule.
    memory: the variables of another build of the same module, which the builds then share.
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
        unset_uses: tuple[tuple[int, str, int], ...] = (),
        memory: ModuleMemory | None = None,
        managed_shared: bool = False,
    ):
        facts = options, headers, unset_uses, managed_shared
        super().__init__(parse(ptx), source, source_name, *facts)
        self.ptx, self.build = ptx, build
        self.keep_registers = build == "debug"
        self._executables: dict[str, Executable] = {}
        self.memory = memory or ModuleMemory()
        named = set().union(*self.references.values())
        self.variables, self.addresses = self.memory.place(self.module, named)

    @cached_property
    def references(self) -> dict[str, set[str]]:
        """Functions and variables by name -> the functions and variables that each names."""
        return references(self.module)

    @cached_property
    def recursive(self) -> set[str]:
        """Functions that may call themselves, directly or through others."""
        graph = self.references
        return {name for name in self.module.functions if name in reachable(graph, name)}

    def resources(self, name: str) -> Resources:
        """What a kernel takes up, known without decoding it."""
        function, shared = self.module.functions[name], 0
        for variable in shared_variables(self, function):
            shared = aligned(shared, max(variable.align, 1)) + variable.size
        local = sum(v.size for v in function.variables.values() if v.space == "local")
        return Resources(shared, local, len(function.registers))

    @no_garbage_collection()
    def executable(self, name: str) -> Executable:
        if name not in self._executables:
            self._executables[name] = Executable(self, self.module.functions[name])
        return self._executables[name]

    def python(self, name: str) -> str:
        """Return the NumPy lines of the kernel's instructions, to be read.

        Each line stands below its instruction, whose text is escaped and is never executed.
        """
        return "\n".join(
            f"def op{i.index}(R, c):  # {printable(i)}\n    {statement}"
            for i, statement in self.executable(name).lines
        )


@dataclass(frozen=True)
class Resources:
    """What a kernel takes up: shared bytes a block, local bytes and PTX registers a thread."""

    shared_bytes: int
    local_bytes: int
    registers: int
