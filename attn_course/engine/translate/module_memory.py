"""The variables and the functions of a module: one address each, for all launches and builds."""

import numpy as np

from attn_course.engine.ptx.demangle import demangle
from attn_course.engine.ptx.syntax import Module, Variable

from ..address_space import SPACE
from ..addresses import FUNCTION_WINDOW
from ..budget import call_budget


class ModuleMemory:
    """Variables and function numbers that the builds of one module share.

    A variable that two builds declare alike is one variable; it lives as long as the module, or as
    an array of its bytes. A function has one number in all builds.
    """

    def __init__(self):
        self.functions: list[str] = []  # a function's address is its number here
        self._placed: dict[tuple, tuple[int, np.ndarray]] = {}

    def place(self, module: Module) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        """Return the bytes, (size,) uint8, and the addresses of a build's variables, by name."""
        self.functions += [name for name in module.functions if name not in self.functions]
        data, addresses, new, placed = {}, {}, [], dict(self._placed)
        for variable in module.variables.values():
            if variable.space not in ("global", "const"):
                continue
            key = _declaration(variable)
            if key not in placed:
                placed[key] = self._allocated(variable)
                new.append(variable)
            addresses[variable.name], data[variable.name] = placed[key]
        for variable in new:  # fill in its addresses of variables and functions
            for offset, symbol in variable.relocations:
                added = int.from_bytes(variable.initial[offset : offset + 8], "little")
                known = addresses.get(symbol)
                address = self.function_address(symbol) if known is None else known
                data[variable.name][offset : offset + 8].view(np.uint64)[:] = address + added
        self._placed = placed  # only now: a build that failed leaves nothing half made
        return data, addresses

    @staticmethod
    def _allocated(variable: Variable) -> tuple[int, np.ndarray]:
        constant = variable.space == "const"
        name, item = demangle(variable.name), max(variable.align, 1)
        with call_budget() as budget:
            budget.charge(variable.size, name, "a __device__ or __constant__ variable")
        address, data = SPACE.new_bytes(name, variable.size, item, constant)
        initial = np.frombuffer(variable.initial or b"", np.uint8)[: variable.size]
        data[: initial.size] = initial
        return address, data

    def function_address(self, name: str) -> int:
        """Return the address of a function; KeyError if the module has none of this name."""
        if name not in self.functions:
            raise KeyError(name)
        return FUNCTION_WINDOW + self.functions.index(name)


def _declaration(variable: Variable) -> tuple:
    """Return the key of a variable in all builds, which may differ in its type and alignment."""
    initial = (variable.initial or b"").rstrip(b"\0")
    return variable.name, variable.space, variable.size, initial, variable.relocations
