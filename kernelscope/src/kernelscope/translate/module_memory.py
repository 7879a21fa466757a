"""The variables and the functions of a module: one address each, for all launches and builds."""

import re
from collections.abc import Container

import numpy as np
from kernelscope.ptx.demangle import demangle
from kernelscope.ptx.syntax import Module, Variable

from ..address_space import ALIGNMENT, SPACE
from ..addresses import FUNCTION_WINDOW, aligned
from ..budget import call_budget
from ..errors import ParseError

# Names in the namespaces of CUDA's C++ library, also where a file has a copy of its own.
_LIBRARY = re.compile(r"_ZN(\d+_INTERNAL_\w+?)?(4cuda|18cooperative_groups)\d")


class ModuleMemory:
    """Variables and function numbers that the builds of one module share.

    A variable that two builds declare alike is one variable; it lives as long as the module, or as
    an array of its bytes. A function has one number in all builds.
    """

    def __init__(self):
        self.functions: list[str] = []  # a function's address is its number here
        self._placed: dict[tuple, tuple[int, np.ndarray]] = {}

    def place(
        self, module: Module, named: Container[str]
    ) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        """Return the bytes, (size,) uint8, and the addresses of a build's variables, by name.

        named: the variables that functions or other variables name. Debug builds with CUDA's C++
        library have a thousand of its constants that nothing names. These share a stretch of
        addresses: a gap around each would fill the address space.
        """
        self.functions += [name for name in module.functions if name not in self.functions]
        data, addresses, placed = {}, {}, dict(self._placed)
        every = [one for one in module.variables.values() if one.space in ("global", "const")]
        new = [variable for variable in every if _declaration(variable) not in placed]
        for space in ("global", "const"):
            here = [one for one in new if one.space == space and _LIBRARY.match(one.name)]
            idle = [variable for variable in here if variable.name not in named]
            if idle:
                placed |= self._together(idle)
        for variable in every:
            key = _declaration(variable)
            if key not in placed:
                placed[key] = self._allocated(variable)
            addresses[variable.name], data[variable.name] = placed[key]
        for variable in new:  # fill in its addresses of variables and functions
            for offset, symbol in variable.relocations:
                added = int.from_bytes(variable.initial[offset : offset + 8], "little")
                if symbol not in addresses and symbol not in self.functions:
                    where = f"the initial value of {demangle(variable.name)}"
                    raise ParseError(f"{where} names {symbol}, which the module does not declare")
                known = addresses.get(symbol)
                address = self.function_address(symbol) if known is None else known
                data[variable.name][offset : offset + 8].view(np.uint64)[:] = address + added
        self._placed = placed  # only now: a build that failed leaves nothing half made
        return data, addresses

    @staticmethod
    def _together(variables: list[Variable]) -> dict[tuple, tuple[int, np.ndarray]]:
        """Address and bytes of variables of one space, one behind the other."""
        places, size = [], 0
        for variable in variables:
            places.append(size)
            size += aligned(variable.size, ALIGNMENT)
        name = "constants of CUDA's C++ library"
        with call_budget() as budget:
            budget.charge(size, name, "__device__ or __constant__ variables")
        start, data = SPACE.new_bytes(name, size, 1, variables[0].space == "const")
        found = {}
        for variable, place in zip(variables, places, strict=True):
            part = data[place : place + variable.size]
            _initialise(part, variable)
            found[_declaration(variable)] = start + place, part
        return found

    @staticmethod
    def _allocated(variable: Variable) -> tuple[int, np.ndarray]:
        constant = variable.space == "const"
        name, item = demangle(variable.name), max(variable.align, 1)
        with call_budget() as budget:
            budget.charge(variable.size, name, "a __device__ or __constant__ variable")
        address, data = SPACE.new_bytes(name, variable.size, item, constant)
        _initialise(data, variable)
        return address, data

    def function_address(self, name: str) -> int:
        """Return the address of a function of the module."""
        return FUNCTION_WINDOW + self.functions.index(name)


def _initialise(data: np.ndarray, variable: Variable) -> None:
    """Give (size,) uint8 the values that a variable begins with."""
    initial = np.frombuffer(variable.initial or b"", np.uint8)[: variable.size]
    data[: initial.size] = initial


def _declaration(variable: Variable) -> tuple:
    """Return the key of a variable in all builds, which may differ in its type and alignment."""
    initial = (variable.initial or b"").rstrip(b"\0")
    return variable.name, variable.space, variable.size, initial, variable.relocations
