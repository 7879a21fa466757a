"""Local variables in registers that are used before they have a value."""

import numpy as np
from kernelscope.events import Access, CallSite, InstructionEvent, MachineView

from ..elements import Element
from ..findings import Naming
from ..local_memory import LocalMemory
from .names import Named, RegisterNames
from .unassigned import Effect, RegisterPlan

_ANYWHERE = "give the variable a value where it is declared"


class Registers:
    """Which lanes of one chunk have given a value to each register that `unassigned` tracks.

    A copy of a missing value is missing too, also through a shuffle, a parameter or local memory.
    The use of one is reported: in arithmetic, a comparison, an address, or a store to memory that
    others may read. Later uses of the same variable are not reported again.
    """

    def __init__(self, machine: MachineView, lanes: int, naming: Naming, plan: RegisterPlan, local):
        self.machine, self.naming, self.plan, self.lanes = machine, naming, plan, lanes
        self.local: LocalMemory = local
        self.names = RegisterNames(naming.launch.source)
        self.written: dict[tuple[CallSite, str], np.ndarray] = {}  # (lanes,) bool each
        self.told: dict[object, np.ndarray] = {}  # (lanes,) bool: whose use was reported
        self.missing: dict[int, np.ndarray] = {}  # the same of parameters, by their first byte

    def use(self, event: InstructionEvent, line: int) -> None:
        """Report the values that an instruction of the plan, at a line of the source, needs."""
        folded = self.plan.folded.get(id(event.instruction))
        for name, type_, declared, used in folded or ():
            named = Named(name, type_, declared)
            self.report(event, named, named, event.lanes, used)
        step = self.plan.steps.get(id(event.instruction))
        if step is None or not (step.uses or step.forgets):
            return
        site = self.site(event)
        for name in step.forgets:
            if (site, name) in self.written:
                self.written[site, name][event.lanes] = False
        for name in step.uses if site else ():
            self.need(event, site, name, event.lanes, line)

    def follow(self, event: InstructionEvent, line: int) -> None:
        """Note which registers an instruction of the plan has given a value."""
        step, site = self.plan.steps.get(id(event.instruction)), self.site(event)
        if step is None or site is None:
            return
        if step.kind == "load":
            self.load(event, site, step)
        elif step.kind == "pass":
            self.pass_on(event, site, step)
        elif step.kind == "store":
            self.store(event, site, step, line)
        elif step.results:
            value = self.known(event, site, step)
            for name in step.results:
                self.of(site, name)[event.lanes] = value

    def site(self, event: InstructionEvent) -> CallSite | None:
        """The call site that runs an instruction."""
        return next(iter(self.machine.running(event.instruction, event.lanes.size)), None)

    def of(self, site: CallSite, name: str | None) -> np.ndarray:
        """(lane ids,) bool: who has given a register a value?"""
        found = self.written.get((site, name))
        if found is None:
            found = self.written[site, name] = np.zeros(self.lanes, bool)
        return found

    def known(self, event: InstructionEvent, site: CallSite, step: Effect):
        """(lanes,) bool or one: does the result of an instruction have a value?"""
        lanes = event.lanes
        if step.kind == "plain":
            return True
        parts = [True if name is None else self.of(site, name) for name in step.sources]
        if step.kind == "shuffle":
            senders = self.machine.shuffle_sources
            if senders is None or senders.size != lanes.size or parts[0] is True:
                return True
            return parts[0][lanes & ~31 | senders]
        values = [part if part is True else part[lanes] for part in parts]
        if step.kind == "select":
            chosen = self.machine.operand(
                event.instruction, event.instruction.operands[3], lanes.size
            )
            if chosen is not None:
                return np.where(chosen, *values)
        return np.logical_or.reduce(np.broadcast_arrays(*values))

    # -- uses -----------------------------------------------------------------------------------
    def need(self, event: InstructionEvent, site: CallSite, name: str, lanes, line: int) -> None:
        """Some lanes need the value of a register."""
        known = self.of(site, name)[lanes]
        if np.count_nonzero(known) < known.size:
            named = self.names.find(event.instruction, site, name, line)
            key = named if named.variable else (site, name)
            self.report(event, named, key, lanes[~known], line)

    def report(self, event, named: Named, key, lanes: np.ndarray, line: int) -> None:
        """Report a value that some lanes lack, once for each lane and `key`."""
        others = event.lanes.size - lanes.size
        told = self.told.setdefault(key, np.zeros(self.lanes, bool))
        lanes = lanes[~told[lanes]]
        if not lanes.size:
            return
        told[lanes] = True
        every = lanes + self.machine.first_lane
        said = f"{self.naming.who(every[0])} reads {named.name}, which it has not set"
        said += f"; {others} other threads have" if others else ""
        remedy = f"{_ANYWHERE}, such as `{named.declaration}`" if named.declaration else _ANYWHERE
        remedy += ", or on every path that leads here"
        where = Element(named.variable, None, named.name, "")
        self.naming.report("uninitialised-read", line, said, every, where, remedy=remedy)

    # -- memory ---------------------------------------------------------------------------------
    def store(self, event: InstructionEvent, site: CallSite, step: Effect, line: int) -> None:
        """A store: a copy where it goes to local memory, a use elsewhere."""
        for number, name in enumerate(step.sources):
            if name is None:
                continue
            written = self.of(site, name)
            for access in event.accesses:
                lanes = access.lanes
                if np.count_nonzero(written[lanes]) == lanes.size:
                    continue
                if access.space == "local":
                    self.local.lose(access, number, len(step.sources), ~written[lanes])
                else:
                    self.need(event, site, name, lanes, line)

    def pass_on(self, event: InstructionEvent, site: CallSite, step: Effect) -> None:
        """Arguments of a call, or the result of a function."""
        for (first, lanes), name in zip(_places(event, step.sources), step.sources, strict=True):
            if name is not None:
                unknown = ~self.of(site, name)[lanes]
            else:
                unknown = np.zeros(lanes.size, bool)
            if first not in self.missing:
                if not unknown.any():
                    continue
                self.missing[first] = np.zeros(self.lanes, bool)
            self.missing[first][lanes] = unknown

    def load(self, event: InstructionEvent, site: CallSite, step: Effect) -> None:
        """The parameters of a function, or what one has returned."""
        for (first, lanes), name in zip(_places(event, step.results), step.results, strict=True):
            if name:
                missing = self.missing.get(first)
                self.of(site, name)[lanes] = True if missing is None else ~missing[lanes]


def _places(event: InstructionEvent, parts: tuple) -> list[tuple[int, np.ndarray]]:
    """(first byte, lanes) of each part of an access to a parameter, which all lanes have alike."""
    access: Access = event.accesses[0]
    start, width = int(access.address[0]), access.size // len(parts)
    return [(start + width * number, access.lanes) for number in range(len(parts))]
