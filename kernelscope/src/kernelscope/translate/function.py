"""A PTX function at one call site: its registers, its frame, its blocks of NumPy lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType, FunctionType

from kernelscope.ptx.demangle import demangle
from kernelscope.ptx.registers import reads_and_writes
from kernelscope.ptx.syntax import (
    Function,
    Immediate,
    Instruction,
    Register,
    Variable,
    format_operand,
)

from ..addresses import aligned
from ..budget import check_budget, no_garbage_collection
from ..errors import UnsupportedInstruction, UnsupportedKernel
from ..isa.special_registers import is_special
from . import control_flow as flow
from .bulk_copies import check_register_count
from .control_flow import LANE, LOCAL_BASE, SHARED_BASE, Block, Key, Terminator
from .instructions import Decoder
from .operand_forms import check_operands
from .operands import STORED, check_words, printable

_TEXTURE = re.compile(r"(tex|tld4|txq|istypep|suld|sust|sured|suq)\b")
TRANSLATED = "<translated PTX>"  # the file that tracebacks name for a line


def lay_out(variables: list[Variable], start: int = 0) -> tuple[list[int], int]:
    """Offsets of variables one after another, each at its alignment, and where they end."""
    offsets = []
    for variable in variables:
        start = aligned(start, max(variable.align, 1))
        offsets.append(start)
        start += variable.size
    return offsets, start


# What differs from one statement to the next of a kind: slots, and names that Decoder makes.
_DIFFERS = re.compile(r"\bR\[(\d+)\]|\b((?:k|ins|atom|video)\d+)\b")
_SLOT = 1 << 100  # no statement has a number as large


@lru_cache(maxsize=1 << 14)
def _code_of_kind(statement: str) -> CodeType:
    """Return the code of a function of (R, c) that runs a statement.

    The statement holds numbers, names that Decoder makes, and nothing of the PTX text.
    """
    module = compile(f"def op(R, c):\n    {statement}", TRANSLATED, "exec")
    return next(one for one in module.co_consts if isinstance(one, CodeType))


def code_of(statement: str, name: str) -> CodeType:
    """Return the code of a function of (R, c) with this name that runs a statement.

    Python compiles one statement of each kind, which takes ten times as long as to give its code
    the slots and the names of another one.
    """
    slots: dict[str, int] = {}
    names: dict[str, str] = {}

    def of_kind(match: re.Match) -> str:
        slot, named = match.groups()
        if slot:
            return f"R[{slots.setdefault(slot, _SLOT + len(slots))}]"
        return names.setdefault(named, f"name{len(names)}")

    code = _code_of_kind(_DIFFERS.sub(of_kind, statement))
    numbers = {kind: int(slot) for slot, kind in slots.items()}
    own = {kind: named for named, kind in names.items()}
    return code.replace(
        co_name=name,
        co_consts=tuple([numbers.get(one, one) for one in code.co_consts]),
        co_names=tuple([own.get(one, one) for one in code.co_names]),
    )


class Instance:
    """One function at one call site.

    A frame is a stretch of the thread's local memory from `base` on: parameters, results, local
    variables; then, from `frame_end` on, what it passes to the functions it calls, which is where
    their frames start. So an argument is written straight into its place in the callee's frame.

    A recursive function's instance is shared by all calls that reach it with the same `base`;
    each call leaves the number of its place in `return_keys` in the slot `return_slot`.
    """

    def __init__(
        self,
        kernel,
        function: Function,
        prefix: Key,
        base: int,
        return_key=None,
        live_after=0,
        called_from: tuple[Instance, Instruction] | None = None,
    ):
        self.kernel, self.function, self.prefix = kernel, function, prefix
        self.order = flow.running_order(function)
        self.called_from = called_from
        self.depth = called_from[0].depth + 1 if called_from else 0
        self.base, self.return_key, self.live_after = base, return_key, live_after
        self.recursion: Key | None = None  # key of the call that started the recursion
        self.return_keys: list[Key] = []
        self.return_slot = -1
        self.slots: dict[str, int] = {}
        self._masks: dict[frozenset[str], int] = {}
        self.places: dict[str, tuple[str, object]] = {}
        self._live: dict[int, int] = {}
        self.check_body()
        self.place_variables()

    def check_body(self) -> None:
        """Raise UnsupportedKernel for an instruction with other operands than its opcode takes."""
        if self.function.name in self.kernel.checked:
            return
        for instruction in self.function.body:
            with self.explaining(instruction):
                check_operands(instruction, self.function.registers)
        self.kernel.checked.add(self.function.name)

    # -- variables ------------------------------------------------------------------------------
    def place_variables(self) -> None:
        """Give every variable its place; sets `frame_end`, where callees' frames start, and
        `local_bytes`, where all that this function itself writes ends.
        """
        function, kernel = self.function, self.kernel
        formals = function.parameters + function.returns
        offsets, end = lay_out(formals, self.base)
        if function.is_entry:
            offsets, end = lay_out(formals)[0], self.base
        space = "parameter" if function.is_entry else "local"
        for formal, offset in zip(formals, offsets, strict=True):
            self.places[formal.name] = (space, offset)
        inner = [v for v in function.variables.values() if v.name not in self.places]
        own = [v for v in inner if v.space == "local"]
        offsets, end = lay_out(own, end)
        for variable, offset in zip(own, offsets, strict=True):
            self.places[variable.name] = ("local", offset)
        for variable in inner:
            if variable.space not in ("local", "param"):
                self.places[variable.name] = kernel.place(variable)
        self.frame_end = max(aligned(end), self.base + 16)
        self.local_bytes = self.frame_end if end else 0
        self.place_outgoing()

    def place_outgoing(self) -> None:
        """The .param variables of calls: in the order in which the callee has its own."""
        variables = self.function.variables
        for call in self.function.body:
            if not call.opcode.startswith("call"):
                continue
            with self.explaining(call):
                returns, _, arguments = call_parts(call)
                for name in (*arguments, *returns):
                    if name not in variables:
                        why = f"{name} is no .param variable, which alone may be passed here"
                        raise UnsupportedInstruction(why)
            passed = [variables[name] for name in (*arguments, *returns)]
            offsets, end = lay_out(passed, self.frame_end)
            for variable, offset in zip(passed, offsets, strict=True):
                if self.places.setdefault(variable.name, ("local", offset)) != ("local", offset):
                    raise UnsupportedKernel(self.complaint(call, "a .param of two calls"))
            self.local_bytes = max(self.local_bytes, end)

    def place_of(self, name: str) -> tuple[str, object]:
        """(space, offset or name) of a variable the function names."""
        if name in self.places:
            return self.places[name]
        return self.kernel.module_place(name)

    # -- registers ------------------------------------------------------------------------------
    def register_type(self, name: str) -> str:
        """PTX type of a register, special ones among them; UnsupportedInstruction without one."""
        if name in self.function.registers:
            return self.function.registers[name]
        if name == "%carry":
            return "pred"
        if name.startswith("%"):
            return "u64" if name in ("%clock64", "%globaltimer") else "u32"
        raise UnsupportedInstruction(f"register {name} is not declared")

    def slot(self, name: str) -> int:
        """A register's slot, which is made where it has none yet."""
        if name not in self.function.registers and name != "%carry":
            if not is_special(name):
                raise UnsupportedInstruction(self.unknown_register(name))
            return self.kernel.special_slot(name)
        if name not in self.slots:
            kind = self.register_type(name)
            if kind not in STORED:
                raise UnsupportedInstruction(f"{name} is a register of type .{kind}")
            self.slots[name] = self.kernel.new_slot(STORED[kind])
        return self.slots[name]

    def unknown_register(self, name: str) -> str:
        """Say why a name means no register here."""
        if is_special(f"{name}.x"):
            return f"{name} is a vector: read one component at a time, such as {name}.x"
        special = name.startswith("%")
        return f"there is no special register {name}" if special else f"no register {name}"

    def mask(self, names: frozenset[str]) -> int:
        """Bit mask of the slots of some registers; new slots come in the order of the names."""
        found = self._masks.get(names)
        if found is None:
            found = sum(1 << slot for slot in {self.slot(name) for name in sorted(names)})
            self._masks[names] = found
        return found

    def is_live_after(self, instruction: Instruction, slot: int) -> bool:
        """Does anything read the slot after this instruction?"""
        return bool(self._live.get(instruction.index, -1) >> slot & 1)

    # -- blocks ---------------------------------------------------------------------------------
    def key(self, index: int) -> Key:
        """The key of the block that starts at an instruction of this function."""
        return (*self.prefix, self.order[index])

    @no_garbage_collection()
    def build(self) -> None:
        """Cut the function into blocks, find what is live, and compile every block's lines."""
        if self.recursion is not None:
            self.return_slot = self.kernel.new_slot("u4")
        body, starts = self.function.body, flow.leaders(self.function)
        built: dict[Key, Block] = {}
        for start, end in zip(starts, [*starts[1:], len(body)], strict=True):
            for block in self.cut(start, end):
                t = block.terminator
                block.instance = self
                block.successors = tuple(k for k in (t.target, t.fall, *t.targets) if k is not None)
                built[block.key] = block
        uses: dict[Key, int] = {}
        for key, block in built.items():
            self.check_budget()
            uses[key] = self.find_uses(block)
        always = self.live_after | 1 << LANE | 1 << SHARED_BASE | 1 << LOCAL_BASE
        if self.recursion is not None:  # any register of any caller may be needed later
            always = ~sum(1 << slot for slot in self.slots.values())
        flow.solve_liveness(built, uses, always, self.check_budget)
        self.kernel.note_unset(built[self.key(0)].live_in & ~always)
        decoder = Decoder(self)
        lines: list[tuple[Instruction, str]] = []
        for block in built.values():
            self.check_budget()
            self.emit(decoder, block, flow.live_out(built, block, always), lines)
        self.finish(decoder, lines, built, uses)

    def check_budget(self) -> None:
        """End the call when the translation has used up its time or its memory."""
        check_budget(demangle(self.function.name), lambda: "its translation to NumPy")

    def finish(self, decoder: Decoder, lines, built, uses) -> None:
        """Compile the lines; special registers found meanwhile are live everywhere."""
        made = {
            i.index: FunctionType(code_of(line, f"op{i.index}"), decoder.names) for i, line in lines
        }
        self.kernel.lines.extend(lines)
        special = sum(1 << slot for slot in self.kernel.specials)
        for key, block in built.items():
            block.operations = [made[i.index] for i in block.instructions]
            block.uses = tuple(slots_of(uses[key]))
            block.live_in |= special
        self.kernel.blocks.update(built)

    def cut(self, start: int, end: int) -> list[Block]:
        """The block of instructions [start, end); a guarded instruction `@p x` gives two blocks:
        a branch, and x in a block of its own that runs where p holds.
        """
        key = self.key(start)
        if end == start:  # a label at the very end
            return [Block(key, [], self.return_terminator(None))]
        body = self.function.body
        last = body[end - 1]
        ends = flow.ends_block(last)
        terminator = self.terminator(last, end) if ends else self.fall(end)
        inner = body[start : end - 1] if ends else body[start:end]
        if last.guard is None or last.opcode.startswith("bra"):
            return [Block(key, inner, terminator)]
        with self.explaining(last):
            inside, slot = (*key, -1), self.slot(last.guard.name)
        around = Terminator(
            "branch", last, slot, last.guard_negated, inside, self.key(end), counted=False
        )
        return [Block(key, [], around), Block(inside, inner, terminator)]

    def fall(self, end: int) -> Terminator:
        """How a block ends that runs on into the next instruction."""
        if end >= len(self.function.body):
            return self.return_terminator(None)
        return Terminator("jump" if end % flow.LONGEST_BLOCK else "pause", target=self.key(end))

    def return_terminator(self, instruction) -> Terminator:
        """How `ret`, or the end of the body, leaves this instance."""
        if self.recursion is not None:
            return Terminator("return", instruction, self.return_slot, action=self)
        if self.return_key is None:
            return Terminator("exit", instruction)
        return Terminator("jump", instruction, target=self.return_key)

    def label(self, name: str) -> Key:
        """The key of the block behind a label."""
        if name not in self.function.labels:
            raise UnsupportedInstruction(f"branch to unknown label {name}")
        return self.key(self.function.labels[name])

    def terminator(self, last: Instruction, end: int) -> Terminator:
        """What the instruction at a block's end does; `end` is the one after it."""
        with self.explaining(last):
            return self.make_terminator(last, end)

    def make_terminator(self, last: Instruction, end: int) -> Terminator:
        root = last.opcode.split(".")[0]
        if root == "bra" and last.guard is None:
            return Terminator("jump", last, target=self.label(last.operands[0].name))
        if root == "bra":
            target, slot = self.label(last.operands[0].name), self.slot(last.guard.name)
            return Terminator("branch", last, slot, last.guard_negated, target, self.key(end))
        if root == "brx":
            index, table = last.operands[:2]
            if table.name not in self.function.tables:
                raise UnsupportedInstruction(f"no table of branch targets {table.name}")
            targets = tuple(self.label(name) for name in self.function.tables[table.name])
            return Terminator("table", last, self.slot(index.name), targets=targets)
        if root == "ret":
            return self.return_terminator(last)
        if root == "exit":
            return Terminator("exit", last)
        if root == "trap":
            return Terminator("trap", last)
        if root == "setmaxnreg":
            check_register_count(last)
            return Terminator("registers", last, fall=self.key(end), action=self)
        parts = last.opcode.split(".")
        kind = "cluster_wait" if "cluster" in parts else "call" if root == "call" else "barrier"
        if "red" in parts and getattr(last.operands[0], "name", "_") == "_":
            raise UnsupportedInstruction("its result goes into no register")
        return Terminator(kind, last, fall=self.key(end), action=self)

    def find_uses(self, block: Block) -> int:
        """Bit mask of slots read before being written; sets block.definitions."""
        uses = definitions = 0
        sequence = list(block.instructions)
        t = block.terminator
        if t.instruction is not None and t.counted:
            sequence.append(t.instruction)
        for instruction in sequence:
            reads, writes = reads_and_writes(instruction, guard=False)
            guards = {instruction.guard.name} if instruction.guard is not None else set()
            with self.explaining(instruction):
                check_words(instruction, reads | writes | guards)
                uses |= self.mask(reads) & ~definitions
                definitions |= self.mask(writes)
        if t.kind in ("branch", "return"):
            uses |= (1 << t.slot) & ~definitions
        block.definitions = definitions
        return uses

    # -- lines ----------------------------------------------------------------------------------
    def emit(self, decoder: Decoder, block: Block, live: int, lines: list) -> None:
        """Append (instruction, statement) for each; clear registers that are not read again."""
        first = block.instructions[0] if block.instructions else None
        if first is not None and flow.is_warp_level(first.opcode):
            with self.explaining(first):
                block.warp_level, block.members = True, self.members(decoder, first)
        block.polls = any(flow.looks_at_others(i.opcode) for i in block.instructions)
        if block.terminator.instruction is not None:
            live |= self.mask(reads_and_writes(block.terminator.instruction)[0])
        found, kept = [], self.kernel.specials.keys() | self.kernel.unset.keys()
        for instruction in reversed(block.instructions):
            reads, writes = reads_and_writes(instruction)
            self._live[instruction.index] = live
            with self.explaining(instruction):
                statement = decoder.line(instruction)
            written = self.mask(writes)
            live, dead = live & ~written, []
            for slot in sorted(self.slot(name) for name in reads):
                if not (live | written) >> slot & 1 and slot not in kept:
                    dead.append(f"R[{slot}]")
                live |= 1 << slot
            if dead and not self.kernel.keep_registers:
                statement += "; " + " = ".join(dead) + " = None"
            found.append((instruction, statement))
        lines.extend(reversed(found))

    def members(self, decoder: Decoder, instruction: Instruction):
        """A function that reads the member mask; None where the whole warp takes part."""
        if not flow.names_members(instruction.opcode):
            return None
        mask = instruction.operands[-1]
        if not isinstance(mask, Register | Immediate):
            raise UnsupportedInstruction(f"member mask {format_operand(mask)}")
        return eval(f"lambda R: {decoder.read(mask, 'b32')}", decoder.names)

    @contextmanager
    def explaining(self, instruction: Instruction):
        """Turns an error about an instruction into one that names it and its source line."""
        try:
            yield
        except UnsupportedInstruction as error:
            raise UnsupportedKernel(self.complaint(instruction, str(error))) from None

    # -- source lines ---------------------------------------------------------------------------
    def own_places(self, instruction: Instruction | None):
        """Yield (instance, instruction): the instruction, then the calls that led there."""
        instance = self
        while instance is not None:
            if instruction is not None:
                yield instance, instruction
            instance, instruction = instance.called_from or (None, None)

    def line(self, instruction: Instruction | None) -> int:
        """Line in the kernel's own file, that of the call for code of headers; 0 for none."""
        program = self.kernel.program
        for instance, at in self.own_places(instruction):
            line = program.own_line(at) or program.call_line(instance.function.name, at)
            if line:
                return line
        return 0

    def call_line(self, line: int) -> int:
        """Line in the kernel's own file of the call that led to code on `line` of this function;
        0 in the kernel itself.
        """
        lines = (one.line(at) for one, at in self.own_places(None))
        return next((one for one in lines if one not in (0, line)), 0)

    def where(self, instruction: Instruction | None) -> str:
        """`file:line` and the line's text."""
        program, kernel = self.kernel.program, self.kernel
        for instance, at in self.own_places(instruction):
            if program.own_line(at):
                return kernel.describe_position(at)
            line = program.call_line(instance.function.name, at)
            if line:
                return f"{kernel.describe_own(line)} (in {kernel.describe_line(at.position)})"
        return kernel.describe_position(instruction)

    def kernel_line(self, instruction: Instruction | None) -> int:
        """The line of line(), or of the call in the kernel itself that led there; 0 for none."""
        program, found = self.kernel.program, 0
        for instance, at in self.own_places(instruction):
            found = program.outermost_line(instance.function.name, at) or found
        return found

    def where_called(self, instruction: Instruction | None) -> str:
        """where(), for code of a function behind the line of the call in the kernel itself."""
        line, text = self.kernel_line(instruction), self.where(instruction)
        if line in (0, self.line(instruction)):
            return text
        return f"{self.kernel.describe_own(line)} (in {text})"

    def complaint(self, instruction: Instruction, why: str) -> str:
        """Why an instruction cannot be simulated, and what to do about it."""
        where = self.where(instruction)
        what = "texture or surface" if _TEXTURE.match(instruction.opcode) else "PTX"
        return (
            f"the simulator does not know the {what} instruction `{printable(instruction)}` "
            f"({why}), compiled from {where}; run this kernel on a GPU, or write that line "
            "differently"
        )


def slots_of(mask: int) -> Iterator[int]:
    """Yield the slots of a bit mask; it is shifted once for each of them, as it may be long."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def call_parts(call: Instruction) -> tuple[list[str], object, list[str]]:
    """(return variables, Symbol of the function or Register of a pointer, argument variables)."""
    operands = list(call.operands)
    returns = operands.pop(0) if operands and isinstance(operands[0], tuple) else ()
    target = operands.pop(0)
    arguments = operands.pop(0) if operands and isinstance(operands[0], tuple) else ()
    return [s.name for s in returns], target, [s.name for s in arguments]
