"""Where the values of a program's registers go: to a branch, to a store, or nowhere else."""

from collections import defaultdict

from kernelscope.ptx.registers import has_result, reads_and_writes, registers_in
from kernelscope.ptx.syntax import Function, Instruction, Module, Vector

_DECIDES = ("setp", "set", "selp", "slct", "call", "atom", "red", "brx")


class Values:
    """The functions of a module by their instructions, and the uses of each register."""

    def __init__(self, module: Module):
        self.functions = {
            id(one): function for function in module.functions.values() for one in function.body
        }
        self.uses: dict[str, dict[str, list[Instruction]]] = {}

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

        A value that leaves the function may.
        """
        return any(
            one.opcode.split(".", 1)[0] in _DECIDES or one.opcode.startswith("st.param")
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
