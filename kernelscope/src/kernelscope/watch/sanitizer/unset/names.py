"""The variable of the source whose value is in a register."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernelscope.events import CallSite
from kernelscope.ptx.debug_names import (
    LocalVariable,
    source_name,
    unplaced_variables,
    variables,
)
from kernelscope.ptx.registers import reads_and_writes
from kernelscope.ptx.source_module import SourceModule
from kernelscope.ptx.syntax import Function, Instruction, Register, Symbol

from .unassigned import effect

_ZEROS = {"float": "0.0f", "double": "0.0", "bool": "false"}
_INTEGER = r"(unsigned |signed )?(char|short|int|long|long long|long int|long long int)"
_COPIES = ("copy", "select", "shuffle")


@dataclass(frozen=True)
class Named:
    """What a register holds: a variable, its type and the line of its declaration, or "" where no
    name is known; or else the text of what it holds.
    """

    variable: str
    type: str = ""
    line: int = 0
    text: str = ""

    @property
    def name(self) -> str:
        """What a message calls it."""
        return self.text or self.variable or "a local variable"

    @property
    def declaration(self) -> str:
        """The variable declared with a value, "" where no value is obvious."""
        plain = self.type.rsplit("const ", 1)[-1]
        if self.type.endswith("*"):
            return f"{self.type} {self.variable} = nullptr;"
        zero = _ZEROS.get(plain, "0" if re.fullmatch(_INTEGER, plain) else "")
        return f"{plain} {self.variable} = {zero};" if zero else ""


class RegisterNames:
    """Names of the registers of a program, by its debug information."""

    def __init__(self, source: SourceModule):
        self.source = source
        self.placed: dict[str, tuple[LocalVariable, ...]] = {}  # by function
        self.unplaced: dict[str, tuple[LocalVariable, ...]] = {}
        self.found: dict[tuple, Named] = {}

    def find(self, instruction: Instruction, site: CallSite, register: str, line: int) -> Named:
        """Return what a register holds when an instruction, on a line of the source, reads it."""
        key = id(instruction), site, register
        if key not in self.found:
            self.found[key] = self.name(instruction, site, register, line)
        return self.found[key]

    def name(self, instruction: Instruction, site: CallSite, register: str, line: int) -> Named:
        function = site.function
        if function.name not in self.placed:
            self.placed[function.name] = variables(self.source, function.name)
            self.unplaced[function.name] = unplaced_variables(self.source, function.name)
        aliases = [register, *self.copied_from(function, register)]
        held = [self.holding(function, register, instruction.index)]
        held += [self.holding(function, one, None) for one in aliases]
        held.append(self.never_set(function, line))
        variable = next(filter(None, held), None)
        if variable is not None:
            return Named(variable.name, variable.type, variable.line)
        return self.passed(site, aliases, line) or Named("", text=self.result(function, aliases))

    def holding(self, function: Function, register: str, index: int | None) -> LocalVariable | None:
        """The variable in a register when an instruction comes next; at any time without one."""
        for variable in self.placed[function.name]:
            for piece in variable.ranges:
                inside = index is None or piece.first <= index <= piece.last
                if inside and (piece.place.kind, piece.place.name) == ("register", register):
                    return variable
        return None

    @staticmethod
    def copied_from(function: Function, register: str) -> Iterator[str]:
        """The registers that a register is a copy of, the nearest first."""
        queue, seen = [register], {register}
        while queue:
            name = queue.pop(0)
            for instruction in function.body:
                if name in reads_and_writes(instruction)[1]:
                    step = effect(instruction, function)
                    new = [s for s in step.sources if s and s not in seen]
                    if step.kind in _COPIES:
                        seen.update(new)
                        queue += new
                        yield from new

    def never_set(self, function: Function, line: int) -> LocalVariable | None:
        """The variable of which a line uses a value that nothing sets, if there is just one.

        The compiler warns of it; else it is in no place, and the line names it.
        """
        warned = {name for at, name, _ in self.source.unset_uses if at == line}
        nowhere = self.unplaced[function.name]
        known = (*nowhere, *self.placed[function.name])
        there = {one.name: one for one in known if one.name in warned and one.line <= line}
        if not there:
            lines = self.source.source_lines
            words = set(re.findall(r"\w+", lines[line - 1] if 0 < line <= len(lines) else ""))
            there = {one.name: one for one in nowhere if one.name in words}
        return next(iter(there.values())) if len(there) == 1 else None

    def passed(self, site: CallSite, aliases: list[str], line: int) -> Named | None:
        """The argument that a caller gave, for a parameter of a function without names."""
        names = [one.name for one in site.function.parameters]
        loaded = _loaded(site.function, aliases)
        number = next((at for at, name in enumerate(names) if name in loaded), None)
        if site.caller is None or number is None:
            return None
        variable = site.call.operands[-1][number].name
        for one in site.caller.function.body:
            if one.opcode.startswith("st.param") and one.operands[0].base == Symbol(variable):
                value = one.operands[1]
                if isinstance(value, Register):
                    return self.find(one, site.caller, value.name, line)
        return None

    def result(self, function: Function, aliases: list[str]) -> str:
        """Return "the result of f()" for registers that a call has filled."""
        loaded = _loaded(function, aliases)
        for call in function.body:
            if call.opcode.startswith("call") and isinstance(call.operands[0], tuple):
                target = call.operands[1]
                if isinstance(target, Symbol) and loaded & {one.name for one in call.operands[0]}:
                    return f"the result of {source_name(self.source, target.name)}()"
        return ""


def _loaded(function: Function, registers: list[str]) -> set[str]:
    """The parameters and results that some registers are loaded from."""
    return {
        one.operands[1].base.name
        for one in function.body
        if one.opcode.startswith("ld.param")
        and not reads_and_writes(one)[1].isdisjoint(registers)
        and isinstance(one.operands[1].base, Symbol)
    }
