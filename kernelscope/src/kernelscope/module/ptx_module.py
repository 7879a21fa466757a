"""PTX that another compiler made, beside the source that it was made of."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from kernelscope.compile import Compiled

from ..ptx.demangle import demangle
from .kernel import SimulatorKernel
from .raw_module import RawModule


class PtxModule(RawModule):
    """PTX text whose `.loc` lines are those of a source in any language; for the simulator.

    Args:
        ptx: the PTX text.
        source, source_name: the text of the source file and its name, for messages and tables.
        headers: (name, text) of other files of the user's that the PTX has code of.
        names: kernel -> a name and a text ("x_ptr: *fp32") for each of its parameters.
        line: where the source declares the kernel, 0 where that is not known.
        managed_shared: whether the compiler, not the source, lays out shared memory. Lanes of a
            warp that write an element of it at once, and threads that write one value to it, are
            then no finding.
        words: what CUDA C's names in a message are in the source's language.
    """

    def __init__(
        self,
        ptx: str,
        source: str,
        source_name: str,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        names: Mapping[str, tuple[tuple[str, str], ...]] | None = None,
        line: int = 0,
        managed_shared: bool = False,
        words: Mapping[str, str] | None = None,
    ):
        super().__init__(code=source, backend="simulator")
        self.name, self.kind = source_name, ".ptx"
        self._ptx, self._headers, self._names, self._line = ptx, headers, names or {}, line
        self.managed_shared = managed_shared
        self.words = words or self.words

    def compiled(self, build: str = "optimised") -> Compiled:
        """The PTX, the same for both builds."""
        return self._described

    @cached_property
    def _described(self) -> Compiled:
        return Compiled(self._ptx)

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """(name, text) of the other files, for messages."""
        return self._headers

    def _make_kernel(self, name: str) -> SimulatorKernel:
        kernel = super()._make_kernel(name)
        parameters, names = kernel.entry.parameters, self._names.get(demangle(name), ())
        named = tuple(
            replace(one, name=given, text=text)
            for one, (given, text) in zip(parameters, names, strict=False)
        )
        given = named + parameters[len(named) :]
        kernel.entry = replace(kernel.entry, parameters=given, line=self._line)
        return kernel
