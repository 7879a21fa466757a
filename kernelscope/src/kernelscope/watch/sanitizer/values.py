"""Where the values of a program's registers go: to a branch, to a store, or nowhere else."""

from collections import defaultdict
from functools import cached_property

from kernelscope.events import CallSite
from kernelscope.ptx.registers import has_result, may_start_anew, reads_and_writes, registers_in
from kernelscope.ptx.syntax import Function, Instruction, Module, Symbol, Vector

_DECIDES = ("setp", "set", "selp", "slct", "call", "atom", "red", "brx")
_ENDS = ("ret", "exit", "trap")


class Values:
    """The functions of a module by their instructions, and the uses of each register."""

    def __init__(self, module: Module):
        self.module = module
        self.functions = {
            id(one): function for function in module.functions.values() for one in function.body
        }
        self.uses: dict[str, dict[str, list[Instruction]]] = {}
        self.definitions: dict[str, dict[str, int]] = {}
        self.loops: dict[str, list[set[int]]] = {}

    @cached_property
    def has_volatile_stores(self) -> bool:
        """Is there a volatile store anywhere in the module?"""
        every = {id(one): one for one in self.functions.values()}.values()
        return any(one.opcode.startswith("st.volatile") for f in every for one in f.body)

    def function_of(self, instruction: Instruction) -> Function:
        """Return the function that an instruction of the module belongs to."""
        return self.functions[id(instruction)]

    def uses_in(self, function: Function) -> dict[str, list[Instruction]]:
        """Return the instructions of a function that read each register."""
        if function.name not in self.uses:
            found = defaultdict(list)
            for instruction in function.body:
                for name in reads_and_writes(instruction)[0]:
                    found[name].append(instruction)
            self.uses[function.name] = dict(found)
        return self.uses[function.name]

    def reached(self, instruction: Instruction, name: str) -> list[Instruction]:
        """Return all instructions of the function that use a register or what comes of it."""
        uses = self.uses_in(self.function_of(instruction))
        found, queue, seen = [], [name], {name}
        while queue:
            for one in uses.get(queue.pop(), ()):
                found.append(one)
                if has_result(one.opcode) and not one.opcode.startswith("ld"):
                    new = set(registers_in(one.operands[0])) - seen
                    seen |= new
                    queue.extend(new)
        return found

    def decides(self, load: Instruction) -> bool:
        """May what a load reads decide where the program goes? Not where it is only computed with.

        A value that a function returns or passes on is followed into the other function.
        """
        function = self.function_of(load)
        queue = [(function, name) for name in registers_in(load.operands[0])]
        seen = set()
        while queue:
            function, name = queue.pop()
            if (function.name, name) in seen:
                continue
            seen.add((function.name, name))
            for one in self.uses_in(function).get(name, ()):
                root = one.opcode.split(".", 1)[0]
                if root in _DECIDES:
                    return True
                if one.opcode.startswith("st.param"):
                    beyond = self._beyond(function, one)
                    if beyond is None:
                        return True
                    queue += beyond
                elif has_result(one.opcode) and root != "ld":
                    queue += [(function, other) for other in registers_in(one.operands[0])]
        return False

    def _beyond(self, function: Function, store: Instruction):
        """Return (function, register) of what gets a value that leaves a function by `st.param`.

        None where that is not known.
        """
        name = getattr(store.operands[0].base, "name", "")
        if any(name == one.name for one in function.returns):
            calls = [call for call in self.calls if call[2] in ("", function.name)]
            if any(not callee for _, _, callee in calls):
                return None
            results = [(caller, _names(call.operands[0])) for caller, call, _ in calls]
            return [one for caller, names in results for one in _loads(caller, names)]
        for caller, call, callee in self.calls:
            names = _names(call.operands[-1])
            if caller is function and name in names:
                called = self.module.functions.get(callee)
                if called is None or not called.defined:
                    return None
                return _loads(called, [called.parameters[names.index(name)].name])
        return None

    @cached_property
    def calls(self) -> list[tuple[Function, Instruction, str]]:
        """The calls of the module, each with its function and the callee; "" for a pointer."""
        return [
            (function, one, _callee(one))
            for function in self.module.functions.values()
            for one in function.body
            if one.opcode.startswith("call")
        ]

    def result_is_used(self, atomic: Instruction, site: CallSite | None) -> bool:
        """Is the result of an atomic used? In a function that returns it, by the caller?"""
        uses = self.uses_in(self.function_of(atomic)).get(getattr(atomic.operands[0], "name", ""))
        while uses and all(one.opcode.startswith("st.param") for one in uses):
            if site is None or site.caller is None:
                return True
            body, call, site = site.caller.function.body, site.call, site.caller
            result = next((one for one in body[call.index + 1 :] if _reads_result(one, call)), None)
            if result is None:
                return False
            uses = self.uses_in(site.function).get(result.operands[0].name)
        return bool(uses)

    def waits(self, load: Instruction) -> bool:
        """May what a load reads end the loop that the load is in, or go into an atomic?"""
        reached = [
            one for name in registers_in(load.operands[0]) for one in self.reached(load, name)
        ]
        if any(one.opcode.startswith(("atom.", "red.")) for one in reached):
            return True
        branches = [one for one in reached if one.opcode.startswith("bra")]
        if not branches:
            return False
        function = self.function_of(load)
        return any(
            load.index in loop and one.index in loop and not loop.issuperset(_next(function, one))
            for loop in self.loops_in(function)
            for one in branches
        )

    def loops_in(self, function: Function) -> list[set[int]]:
        """Return the loops of a function, each the indices of its instructions."""
        if function.name not in self.loops:
            before = defaultdict(list)
            for one in function.body:
                for index in _next(function, one):
                    before[index].append(one.index)
            ends = [(i, at) for at, froms in before.items() for i in froms if i >= at]
            self.loops[function.name] = [_between(first, last, before) for last, first in ends]
        return self.loops[function.name]

    def updates_in_place(self, load: Instruction) -> bool:
        """Is what a volatile load reads computed with and stored to the address it came from?"""
        return any(
            one.opcode.startswith("st.volatile") and one.operands[0] == load.operands[1]
            for name in registers_in(load.operands[0])
            for one in self.reached(load, name)
        )

    def returns_to_memory(self, load: Instruction) -> bool:
        """Is what a volatile load reads computed with and stored again, as in `x = x + 1`?"""
        return any(
            one.opcode.startswith("st.") and "volatile" in one.opcode
            for name in registers_in(load.operands[0])
            for one in self.reached(load, name)
        )

    def only_copied(self, load: Instruction, name: str) -> bool:
        """Does a register of a load go to stores alone, as when a struct is copied?"""
        return all(one.opcode.startswith(("st.", "mov.")) for one in self.reached(load, name))

    def only_starts_sums(self, load: Instruction, name: str) -> bool:
        """Does a register of a load go to sums of wgmma alone, which may leave out its value?

        What uses the register behind the wgmma uses its result.
        """
        uses, queue, seen = self.uses_in(self.function_of(load)), [name], {name}
        while queue:
            register = queue.pop()
            for one in uses.get(register, ()):
                if may_start_anew(one) and register not in registers_in(one.operands[1:]):
                    break
                if not one.opcode.startswith("mov."):
                    return False
                new = set(registers_in(one.operands[0])) - seen
                seen |= new
                queue.extend(new)
        return bool(uses.get(name))

    def stores_of(self, load: Instruction) -> list[Instruction]:
        """Return the stores that all of what a load reads goes to; [] where it is used otherwise.

        Registers on the way have one definition each, so a store holds what was loaded last.
        """
        function = self.function_of(load)
        uses, queue, stores = self.uses_in(function), [load], []
        if isinstance(load.operands[0], Vector):
            return []
        while queue:
            one = queue.pop()
            if one.opcode.startswith("st.") and not one.opcode.startswith("st.param"):
                stores.append(one)
            elif one is load or one.opcode.startswith("mov."):
                name = one.operands[0].name
                if self.definitions_in(function)[name] > 1:
                    return []
                readers = uses.get(name, ())
                if any(_is_address(name, reader) for reader in readers):
                    return []
                queue += readers
            else:
                return []
        return stores

    def definitions_in(self, function: Function) -> dict[str, int]:
        """Return how many instructions of a function write each register."""
        if function.name not in self.definitions:
            found = defaultdict(int)
            for instruction in function.body:
                for name in reads_and_writes(instruction)[1]:
                    found[name] += 1
            self.definitions[function.name] = found
        return self.definitions[function.name]

    def sets_bits(self, load: Instruction) -> bool:
        """Is a load the first half of setting some bits: `and`, `or`, store to its address?"""
        if isinstance(load.operands[0], Vector):
            return False
        roots = set()
        for one in self.reached(load, load.operands[0].name):
            root = one.opcode.split(".", 1)[0]
            roots.add(root)
            if root == "st" and one.operands[0] != load.operands[1]:
                return False
        return roots <= {"and", "or", "bfi", "mov", "cvt", "st"} and {"st"} < roots


def _names(symbols) -> list[str]:
    """Return the names of the parameters in parentheses of a call."""
    return [one.name for one in symbols] if isinstance(symbols, tuple) else []


def _callee(call: Instruction) -> str:
    """Return the name of the function that is called, "" where a register holds its address."""
    target = next(one for one in call.operands if not isinstance(one, tuple))
    return target.name if isinstance(target, Symbol) else ""


def _loads(function: Function, names: list[str]) -> list[tuple[Function, str]]:
    """Return the registers that a function loads from parameters of these names."""
    return [
        (function, register)
        for one in function.body
        if one.opcode.startswith("ld.param") and getattr(one.operands[1].base, "name", "") in names
        for register in registers_in(one.operands[0])
    ]


def _is_address(name: str, store: Instruction) -> bool:
    """Is a register the address, or the guard, of a store?"""
    return store.opcode.startswith("st.") and name not in registers_in(store.operands[1])


def _reads_result(load: Instruction, call: Instruction) -> bool:
    """Does a load get what a call has returned?"""
    returned = call.operands[0]
    address = load.operands[1] if load.opcode.startswith("ld.param") else None
    return isinstance(returned, tuple) and address is not None and address.base in returned


def _next(function: Function, instruction: Instruction) -> list[int]:
    """Return the indices of the instructions that may follow one."""
    root = instruction.opcode.split(".", 1)[0]
    following = [instruction.index + 1]
    if root in _ENDS:
        return following if instruction.guard is not None else []
    if root == "bra":
        target = [function.labels[instruction.operands[0].name]]
        return target + following if instruction.guard is not None else target
    if root == "brx":
        return sorted(set(function.labels.values()))
    return following


def _between(first: int, last: int, before: dict[int, list[int]]) -> set[int]:
    """Return the instructions of the loop that begins at `first` and goes back there at `last`."""
    loop, queue = {first, last}, [last]
    while queue:
        one = queue.pop()
        for index in before[one] if one != first else ():
            if index not in loop:
                loop.add(index)
                queue.append(index)
    return loop
