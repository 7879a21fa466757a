"""The registers that may be read before they are written, and the instructions that matter to them.

In a debug build each local scalar of the source is in registers, and the compiler keeps a register
that no statement sets on some path: `float s; if (t < 16) s = x[t]; o[t] = s;` becomes

    @%p2 bra JOIN; ld.f32 %f1, [%rd5]; mov.f32 %f5, %f1; JOIN: mov.f32 %f2, %f5; st.f32 [%rd8], %f2;

where %f5 has no value in half of the threads. Liveness finds such registers: what is live at the
beginning of a function may be read before it is written. Copies of it are followed, through calls
too, for a copy alone is no use of a value. Programs without such a register cost nothing more.
Code of CUDA's headers is not searched for them; values of the kernel's own code are followed there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from kernelscope.ptx.debug_names import unplaced_variables, variables
from kernelscope.ptx.registers import (
    followers,
    live_at_entry,
    may_start_anew,
    reads_and_writes,
    registers_in,
    symbols_in,
)
from kernelscope.ptx.source_module import SourceModule
from kernelscope.ptx.syntax import (
    Address,
    Function,
    Instruction,
    Pair,
    Register,
    Symbol,
    Vector,
)

from .source_text import is_operand, uses_without_value

_INTEGERS = {f"{sign}{width}" for sign in "sub" for width in (8, 16, 32, 64)}

Formal = tuple[str, str]  # a function and one of its parameters or results
_UNKNOWN: Formal = ("", "")  # of a function that is called through a pointer


@dataclass(frozen=True)
class Effect:
    """The effect of one instruction on the tracked registers of its function.

    kind: "plain", which gives its results a value; "copy", "select" (of two) or "shuffle", whose
    results have one where their sources do; "load" from and "pass" to a parameter or result of a
    function; "store" to memory. results, sources: in operand order; a source that is no tracked
    register is None. uses: registers whose values are needed. forgets: registers of variables that
    begin to exist here, in a function that is called again or in a loop's next round.
    """

    function: Function
    kind: str
    results: tuple[str, ...] = ()
    sources: tuple[str | None, ...] = ()
    uses: tuple[str, ...] = ()
    forgets: tuple[str, ...] = ()


@dataclass
class RegisterPlan:
    """What to watch in a kernel: steps by the id of their instruction.

    folded: id of an instruction -> (name, type, line of the declaration, line of the use) of
    variables without any value, where the compiler may have put a constant.
    """

    steps: dict[int, Effect] = field(default_factory=dict)
    folded: dict[int, list[tuple[str, str, int, int]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.steps or self.folded)

    def has(self, instruction: Instruction) -> bool:
        """Is this an instruction to watch?"""
        return id(instruction) in self.steps or id(instruction) in self.folded


# -- one instruction -------------------------------------------------------------------------------
def _names(operand) -> tuple[str | None, ...]:
    """The register of each part of an operand, None for a literal or a symbol."""
    items = operand.items if isinstance(operand, Vector) else (operand,)
    return tuple(one.name if isinstance(one, Register) else None for one in items)


def effect(instruction: Instruction, function: Function) -> Effect:
    """Return the Effect of an instruction, all registers taken for tracked."""
    operands, parts = instruction.operands, instruction.opcode.split(".")
    guard = (instruction.guard.name,) if instruction.guard is not None else ()
    kind = _kind(parts, operands, function)
    if kind == "plain":
        reads, writes = reads_and_writes(instruction)
        used = operands[1:] if may_start_anew(instruction) else operands
        in_order = dict.fromkeys((*_used(used), *guard))
        return Effect(function, kind, tuple(writes), (), tuple(n for n in in_order if n in reads))
    if kind in ("store", "pass"):
        uses = tuple(registers_in(operands[0]))
        return Effect(function, kind, (), _names(operands[1]), uses + guard)
    if kind == "shuffle":
        first = operands[0].first if isinstance(operands[0], Pair) else operands[0]
        results = tuple(registers_in(first))
        return Effect(function, kind, results, _names(operands[1]), _used(operands[2:]) + guard)
    sources = () if kind == "load" else tuple(name for o in operands[1:3] for name in _names(o))
    uses = _used(operands[3:]) + guard if kind == "select" else guard
    return Effect(function, kind, _names(operands[0]), sources, uses)


def _used(operands: tuple) -> tuple[str, ...]:
    return tuple(registers_in(operands))


def _kind(parts: list[str], operands: tuple, function: Function) -> str:
    root = parts[0]
    if len(operands) < 2:
        return "plain"
    if root in ("mov", "cvta") or root == "cvt" and set(parts[-2:]) <= _INTEGERS:
        return "copy"
    if root == "selp" and len(operands) == 4:
        return "select"
    if root == "shfl":
        return "shuffle"
    if root == "ld" and "param" in parts:
        own = function.is_entry and _base(operands[1]) in _formals(function)
        return "plain" if own else "load"
    if root == "st":
        return "pass" if "param" in parts else "store"
    return "plain"


def _base(address) -> str:
    """The variable that an address names, "" for one in a register."""
    named = isinstance(address, Address) and isinstance(address.base, Symbol)
    return address.base.name if named else ""


def _formals(function: Function) -> set[str]:
    return {one.name for one in (*function.parameters, *function.returns)}


# -- all functions of a kernel ---------------------------------------------------------------------
class Unassigned:
    """The plans of a module's kernels, each made when it is first needed."""

    def __init__(self, source: SourceModule):
        self.module = source.module
        self.plans: dict[str, RegisterPlan] = {}
        self.roots: dict[str, set[str]] = {}  # by function

    def plan(self, source: SourceModule, kernel: str) -> RegisterPlan:
        """Return what to watch in a kernel; nothing in a build without debug information.

        An optimised build reads registers without a value where the source does not: it moves
        arithmetic out of branches.
        """
        if kernel not in self.plans:
            debug = source.dwarf is not None and source.module.debug
            self.plans[kernel] = self.make(source, kernel) if debug else RegisterPlan()
        return self.plans[kernel]

    def make(self, source: SourceModule, kernel: str) -> RegisterPlan:
        functions = self.reached(kernel)
        for function in functions:
            if function.name not in self.roots:
                self.roots[function.name] = self.own_roots(source, function)
        plan = RegisterPlan()
        if any(self.roots[function.name] for function in functions):
            _Tracking(source, functions, self.roots, plan).run()
        for function in functions:
            self.find_folded(source, function, plan)
        return plan

    def reached(self, kernel: str) -> list[Function]:
        """The functions with a body that a kernel may run, by a name or by a pointer."""
        found, functions = {}, self.module.functions
        pointed = {name for v in self.module.variables.values() for _, name in v.relocations}
        queue = [kernel, *sorted(pointed & functions.keys())]
        while queue:
            function = functions[queue.pop()]
            if function.name in found or not function.defined:
                continue
            found[function.name] = function
            for instruction in function.body:
                if instruction.opcode.startswith(("call", "mov")):
                    queue += [n for n in symbols_in(instruction.operands) if n in functions]
        return list(found.values())

    def own_roots(self, source: SourceModule, function: Function) -> set[str]:
        """The registers that the kernel's own code, or a header of its own, may read too early."""
        live = live_at_entry(function)
        return {
            name
            for instruction in (function.body if live else ())
            for name in reads_and_writes(instruction)[0] & live
            if source.own_line(instruction) or source.place_in_header(instruction.position)
        }

    def find_folded(self, source: SourceModule, function: Function, plan: RegisterPlan) -> None:
        """Uses that the compiler has replaced by a constant: `float s; o[t] = s + 1;` stores a NaN.

        It warns of them where no loop is around, or no statement sets the variable at all; and by
        the debug information the variable is nowhere yet. The first instruction of the line stands
        for the use; of a later one where none is left of it.
        """
        end = source.own_line(function.body[-1]) if function.body else 0
        lost = unplaced_variables(source, function.name) if end else ()
        uses = {
            (line, name)
            for line, name, column in source.unset_uses
            if line <= end and is_operand(source.source_lines[line - 1], name, column)
        }
        for one in lost:
            uses |= set(uses_without_value(source.source_lines, one.name, one.line, end))
        declared = (*lost, *variables(source, function.name)) if uses else ()
        for line, name in sorted(uses):
            named = [one for one in declared if one.name == name and one.line <= line <= end]
            after = [one for one in function.body if source.own_line(one) >= line]
            if not (named and after):
                continue
            first = min(after, key=lambda one: (source.own_line(one), one.index))
            here = [one for one in after if source.own_line(one) == source.own_line(first)]
            if not any(one.place_at(other.index) for one in named for other in here):
                found = (name, named[0].type, named[0].line, line)
                plan.folded.setdefault(id(first), []).append(found)


class _Tracking:
    """Follows values that may be missing through copies and calls, until nothing new is found."""

    def __init__(
        self,
        source: SourceModule,
        functions: list[Function],
        roots: dict[str, set[str]],
        plan: RegisterPlan,
    ):
        self.source, self.functions, self.plan = source, functions, plan
        self.tracked = {one.name: set(roots[one.name]) for one in functions}
        self.formals: set[Formal] = set()  # those that may be passed without a value
        self.passed = {one.name: self.variables(one) for one in functions}
        self.effects = {f.name: [(one, effect(one, f)) for one in f.body] for f in functions}

    @staticmethod
    def variables(function: Function) -> dict[str, Formal]:
        """The parameter or result that each .param variable of a function is, its own and those
        of the functions that it calls by name.
        """
        found = {name: (function.name, name) for name in _formals(function)}
        for call in function.body:
            if call.opcode.startswith("call") and call.operands:
                operands = list(call.operands)
                results = operands.pop(0) if isinstance(operands[0], tuple) else ()
                target = operands.pop(0) if operands else None
                arguments = operands[0] if operands and isinstance(operands[0], tuple) else ()
                if isinstance(target, Symbol):
                    for at, one in enumerate(results):
                        found[one.name] = (target.name, f"result {at}")
                    for at, one in enumerate(arguments):
                        found[one.name] = (target.name, f"argument {at}")
        if not function.is_entry:
            for what, formals in (("argument", function.parameters), ("result", function.returns)):
                for at, one in enumerate(formals):
                    found[one.name] = (function.name, f"{what} {at}")
        return found

    def run(self) -> None:
        """Fill in the plan."""
        known = {function.name for function in self.functions}
        changed = True
        while changed:
            changed = False
            for function in self.functions:
                changed |= self.follow(function, known)
        for function in self.functions:
            forgets = self.beginnings(function)
            for instruction, step in self.effects[function.name]:
                self.add(instruction, step, known, forgets.get(instruction.index, ()))

    def formal(self, instruction: Instruction, step: Effect) -> Formal:
        """The parameter or result that an instruction loads or passes."""
        place = _base(instruction.operands[1 if step.kind == "load" else 0])
        return self.passed[step.function.name].get(place, _UNKNOWN)

    def follow(self, function: Function, known: set[str]) -> bool:
        """One round over a function; return whether anything new is tracked."""
        tracked = self.tracked[function.name]
        before = len(tracked), len(self.formals)
        for instruction, step in self.effects[function.name]:
            if step.kind == "load":
                if self.formal(instruction, step) in self.formals:
                    tracked.update(filter(None, step.results))
            elif step.kind in ("copy", "select", "shuffle"):
                if not tracked.isdisjoint(step.sources):
                    tracked.update(filter(None, step.results))
            elif step.kind == "pass" and not tracked.isdisjoint(step.sources):
                formal = self.formal(instruction, step)
                if formal[0] in known:
                    self.formals.add(formal)
        return before != (len(tracked), len(self.formals))

    def beginnings(self, function: Function) -> dict[int, tuple[str, ...]]:
        """The tracked registers of the variables that begin to exist with each instruction.

        A variable of a loop's body begins again in each round, although its registers hold the
        value of the last one.
        """
        tracked = self.tracked[function.name]
        if not tracked:
            return {}
        owners: dict[str, set] = {}
        for variable in variables(self.source, function.name):
            for piece in variable.ranges:
                if piece.place.name in tracked and piece.place.kind == "register":
                    owners.setdefault(piece.place.name, set()).add(variable)
        found: dict[int, set[str]] = {}
        for name, holders in owners.items():
            scope = next(iter(holders)).scope
            if len(holders) == 1 and scope[0] > 0 and _begins_once(function, *scope):
                found.setdefault(scope[0], set()).add(name)
        if not function.is_entry and _begins_once(function, 0, len(function.body)):
            found[0] = tracked
        return {index: tuple(sorted(names)) for index, names in found.items()}

    def add(self, instruction: Instruction, step: Effect, known: set[str], forgets) -> None:
        """Add an instruction's step to the plan, if it matters."""
        tracked, kind = self.tracked[step.function.name], step.kind
        results = tuple(name for name in step.results if name in tracked)
        sources = tuple(name if name in tracked else None for name in step.sources)
        uses = tuple(dict.fromkeys(name for name in step.uses if name in tracked))
        if kind == "pass":
            formal = self.formal(instruction, step)
            if formal[0] and formal[0] not in known:  # a function of the device: a use
                kind, uses = "plain", uses + tuple(filter(None, sources))
            elif formal not in self.formals and not (self.formals and formal == _UNKNOWN):
                sources = ()
        elif kind == "load" and self.formal(instruction, step) not in self.formals:
            kind = "plain"
        elif kind == "load":
            results = tuple(name if name in tracked else "" for name in step.results)
        elif kind in ("copy", "select", "shuffle") and not any(sources):
            kind = "plain"
        elif kind == "store" and not any(sources):
            sources = ()
        passes = kind == "pass" and sources
        if results or uses or forgets or passes or kind == "store" and sources:
            found = Effect(step.function, kind, results, sources, uses, forgets)
            self.plan.steps[id(instruction)] = found


def _begins_once(function: Function, first: int, end: int) -> bool:
    """Does each run of a scope's first instruction begin the scope?

    Not where a branch inside leads back to it. One to an earlier place leaves the scope, if a
    condition stands between there and the scope, as that of a `while` around it.
    """
    body = function.body
    for instruction in body[first:end]:
        if instruction.opcode.split(".", 1)[0] in ("bra", "brx"):
            for target in followers(instruction, end, function):
                between = body[target:first]
                if target <= first and not any(o.guard and o.opcode[:3] == "bra" for o in between):
                    return False
    return True


_KNOWN: WeakKeyDictionary[SourceModule, Unassigned] = WeakKeyDictionary()


def plan_of(source: SourceModule, kernel: str) -> RegisterPlan:
    """Return the RegisterPlan of a kernel, which its launches share."""
    if source not in _KNOWN:
        _KNOWN[source] = Unassigned(source)
    return _KNOWN[source].plan(source, kernel)
