"""A compiled kernel ready to run: register slots, variable places, and blocks of NumPy lines."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from . import blocks as flow
from .blocks import Block, Key, Terminator
from .decode import STORED, Decoder, UnsupportedInstruction
from .memory import SimulatorError
from .parser import Function, Instruction, Module, Register, Symbol, Variable

LANE, SHARED_BASE, LOCAL_BASE = 0, 1, 2  # slots every kernel has: lane id and slice offsets
_HIDDEN = {"%lane": LANE, "%shared_base": SHARED_BASE, "%local_base": LOCAL_BASE}
MAX_CALL_DEPTH = 64


class UnsupportedKernel(SimulatorError):
    """The kernel uses something the simulator does not do; names the instruction and its line."""


@dataclass(frozen=True)
class Parameter:
    name: str
    type: str
    size: int
    align: int


def parameter_offsets(parameters: list[Variable]) -> list[int]:
    offsets, top = [], 0
    for parameter in parameters:
        top = -(-top // parameter.align) * parameter.align
        offsets.append(top)
        top += parameter.size
    return offsets


class Instance:
    """One function at one call site: its own registers, variables and block keys."""

    def __init__(self, kernel: Executable, function: Function, prefix: Key, bindings, return_key, live_after):
        self.kernel, self.function, self.prefix = kernel, function, prefix
        self.return_key, self.live_after = return_key, live_after
        self.slots: dict[str, int] = {}
        self.places: dict[str, tuple[str, int]] = dict(bindings)
        self._live: dict[int, int] = {}
        for variable in function.variables.values():
            if variable.name not in self.places:
                self.places[variable.name] = kernel.place(variable)

    # -- what the decoder asks ------------------------------------------------------------------
    def register_type(self, name: str) -> str:
        if name in self.function.registers:
            return self.function.registers[name]
        if name == "%carry":
            return "pred"
        if name.startswith("%"):
            return "u64" if name in ("%clock64", "%globaltimer", "%gridid") else "u32"
        raise UnsupportedInstruction(f"register {name} is not declared")

    def slot(self, name: str) -> int:
        if name not in self.function.registers and name != "%carry":
            return self.kernel.special_slot(name)
        if name not in self.slots:
            self.slots[name] = self.kernel.new_slot(STORED[self.register_type(name)])
        return self.slots[name]

    def place_of(self, name: str) -> tuple[str, int]:
        if name in self.places:
            return self.places[name]
        return self.kernel.module_place(name)

    def is_live_after(self, instruction: Instruction, slot: int) -> bool:
        return bool(self._live.get(instruction.index, -1) >> slot & 1)

    # -- blocks ---------------------------------------------------------------------------------
    def key(self, index: int) -> Key:
        return (*self.prefix, index)

    def build(self) -> None:
        """Cut the function into blocks, find what is live, and compile every block's lines."""
        function, body = self.function, self.function.body
        starts = flow.leaders(function)
        built: dict[Key, Block] = {}
        for start, end in zip(starts, [*starts[1:], len(body)], strict=True):
            for block in self.cut(start, end):
                t = block.terminator
                block.successors = tuple(k for k in (t.target, t.fall, *t.targets) if k is not None)
                built[block.key] = block
        uses: dict[Key, int] = {}
        for key, block in built.items():
            uses[key] = self.find_uses(block)
        always = self.live_after | 1 << LANE | 1 << SHARED_BASE | 1 << LOCAL_BASE
        flow.solve_liveness(built, uses, always)
        decoder = Decoder(self)
        text: list[str] = []
        for block in built.values():
            self.emit(decoder, block, flow.live_out(built, block, always), text)
        self.finish(decoder, text, built, uses)

    def finish(self, decoder: Decoder, text: list[str], built, uses) -> None:
        """Compile the text; special registers found meanwhile are live everywhere."""
        source = "\n".join(text)
        namespace = decoder.names
        exec(compile(source, f"<{self.function.name}>", "exec"), namespace)
        self.kernel.text.append(source)
        special = self.kernel.special_mask()
        for key, block in built.items():
            block.operations = [
                namespace[f"op{i.index}"] for i in block.instructions
            ]
            mask = uses[key]
            block.uses = tuple(slot for slot in range(mask.bit_length()) if mask >> slot & 1)
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
        inside, slot = (*key, -1), self.slot(last.guard.name)
        around = Terminator(
            "branch", last, slot, last.guard_negated, inside, self.key(end), counted=False
        )
        return [Block(key, [], around), Block(inside, inner, terminator)]

    def fall(self, end: int) -> Terminator:
        if end >= len(self.function.body):
            return self.return_terminator(None)
        return Terminator("jump", target=self.key(end))

    def return_terminator(self, instruction) -> Terminator:
        if self.return_key is None:
            return Terminator("exit", instruction)
        return Terminator("jump", instruction, target=self.return_key)

    def label(self, operand) -> Key:
        name = operand.name if isinstance(operand, Symbol) else str(operand)
        if name not in self.function.labels:
            raise UnsupportedInstruction(f"branch to unknown label {name}")
        return self.key(self.function.labels[name])

    def terminator(self, last: Instruction, end: int) -> Terminator:
        root = last.opcode.split(".")[0]
        if root == "bra" and last.guard is None:
            return Terminator("jump", last, target=self.label(last.operands[0]))
        if root == "bra":
            target = self.label(last.operands[0])
            slot = self.slot(last.guard.name)
            return Terminator("branch", last, slot, last.guard_negated, target, self.key(end))
        if root == "brx":
            index, table = last.operands[:2]
            targets = tuple(self.label(Symbol(n)) for n in self.function.tables[table.name])
            return Terminator("table", last, self.slot(index.name), targets=targets)
        if root == "ret":
            return self.return_terminator(last)
        if root == "exit":
            return Terminator("exit", last)
        if root == "trap":
            return Terminator("trap", last)
        if root == "call":
            return Terminator("call", last, fall=self.key(end), action=self)
        return Terminator("barrier", last, fall=self.key(end), action=self)

    def find_uses(self, block: Block) -> int:
        """Bit mask of slots read before being written; sets block.definitions."""
        uses = definitions = 0
        sequence = list(block.instructions)
        last = block.terminator.instruction
        if last is not None and block.terminator.counted:
            sequence.append(last)
        for instruction in sequence:
            reads, writes = flow.reads_and_writes(instruction)
            if instruction.guard is not None:
                reads.discard(instruction.guard.name)
            for name in reads:
                uses |= (1 << self.slot(name)) & ~definitions
            for name in writes:
                definitions |= 1 << self.slot(name)
        if block.terminator.kind == "branch":
            uses |= (1 << block.terminator.slot) & ~definitions
        block.definitions = definitions
        return uses

    def emit(self, decoder: Decoder, block: Block, live: int, text: list[str]) -> None:
        """Append one `def` for each instruction; registers no longer needed are let go of."""
        if block.instructions and flow.is_warp_level(block.instructions[0].opcode):
            block.members = self.members(decoder, block.instructions[0])
        last = block.terminator.instruction
        if last is not None:
            for name in flow.reads_and_writes(last)[0]:
                live |= 1 << self.slot(name)
        lines = []
        for instruction in reversed(block.instructions):
            reads, writes = flow.reads_and_writes(instruction)
            self._live[instruction.index] = live
            statement = self.statement(decoder, instruction)
            written = sum(1 << self.slot(name) for name in writes)
            live, dead = live & ~written, []
            for slot in sorted(self.slot(name) for name in reads):
                if not (live | written) >> slot & 1 and slot not in self.kernel.specials:
                    dead.append(f"R[{slot}]")
                live |= 1 << slot
            if dead and not self.kernel.keep_registers:
                statement += "; " + " = ".join(dead) + " = None"
            lines.append(f"def op{instruction.index}(R, c):  # {instruction}\n    {statement}")
        text.extend(reversed(lines))

    def members(self, decoder: Decoder, instruction: Instruction) -> object:
        """Reads the member mask of a warp-level instruction; None for implicit full warps."""
        if not instruction.operands or ".sync" not in instruction.opcode:
            return None
        text = decoder.read(instruction.operands[-1], "b32")
        return eval(f"lambda R, c: {text}", decoder.names)

    def statement(self, decoder: Decoder, instruction: Instruction) -> str:
        if instruction.opcode.startswith("bar.warp"):
            return "pass"
        try:
            return decoder.line(instruction)
        except UnsupportedInstruction as error:
            raise UnsupportedKernel(self.complaint(instruction, str(error))) from None
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise UnsupportedKernel(self.complaint(instruction, repr(error))) from error

    def complaint(self, instruction: Instruction, why: str) -> str:
        where = self.kernel.describe_position(instruction)
        return (
            f"the simulator does not know the PTX instruction `{instruction}` ({why}), "
            f"compiled from {where}; run this kernel on a GPU, or write that line differently"
        )


class Executable:
    """One kernel of a program, decoded on first use and kept."""

    def __init__(self, program, function: Function):
        self.program, self.function, self.module = program, function, program.module
        self.keep_registers = program.keep_registers
        self.blocks: dict[Key, Block] = {}
        self.text: list[str] = []
        self.slot_types: list[str] = ["i8", "u8", "u8"]
        self.specials: dict[int, str] = {slot: name for name, slot in _HIDDEN.items()}
        self.special_names: dict[str, int] = dict(_HIDDEN)
        self.local_bytes = self.shared_bytes = 0
        self.shared_places: dict[str, tuple[int, Variable]] = {}
        self.dynamic_names: list[str] = []
        self.parameters = tuple(Parameter(p.name, p.type, p.size, p.align) for p in function.parameters)
        self.parameter_offsets = parameter_offsets(function.parameters)
        bindings = {
            p.name: ("parameter", offset)
            for p, offset in zip(function.parameters, self.parameter_offsets, strict=True)
        }
        self.place_shared()
        self.instance = Instance(self, function, (), bindings, None, 0)
        self.instances: dict[Key, Instance] = {(): self.instance}
        self.instance.build()

    # -- slots ----------------------------------------------------------------------------------
    def new_slot(self, code: str) -> int:
        self.slot_types.append(code)
        return len(self.slot_types) - 1

    def special_slot(self, name: str) -> int:
        if name not in self.special_names:
            slot = self.new_slot("u4")
            self.special_names[name] = slot
            self.specials[slot] = name
        return self.special_names[name]

    def special_mask(self) -> int:
        return sum(1 << slot for slot in self.specials)

    # -- variables ------------------------------------------------------------------------------
    def place_shared(self) -> None:
        """Static shared arrays: the module's, the kernel's, and those of functions it calls."""
        for variable in shared_variables(self.module, self.function):
            self.place(variable)

    def place(self, variable: Variable) -> tuple[str, int]:
        """Where a variable lives: (space, offset); .param variables of calls are local memory."""
        align = max(variable.align, 1)
        if variable.space == "shared":
            if variable.size == 0:
                self.dynamic_names.append(variable.name)
                return ("dynamic", align)
            if variable.name not in self.shared_places:
                offset = -(-self.shared_bytes // align) * align
                self.shared_places[variable.name] = (offset, variable)
                self.shared_bytes = offset + variable.size
            return ("shared", self.shared_places[variable.name][0])
        offset = -(-self.local_bytes // align) * align
        self.local_bytes = offset + variable.size
        return ("local", offset)

    def module_place(self, name: str) -> tuple[str, object]:
        variable = self.module.variables.get(name)
        if variable is not None and variable.space == "shared":
            return self.place(variable)
        if variable is not None:
            return ("variable", name)
        if name in self.module.functions:
            raise UnsupportedInstruction(f"the address of function {name} is taken; call it by name")
        raise UnsupportedInstruction(f"unknown symbol {name}")

    # -- calls ----------------------------------------------------------------------------------
    def expand_call(self, caller: Instance, block: Block) -> Key:
        """First key of the called function's blocks for this call site, made when first reached."""
        call = block.terminator.instruction
        prefix = (*caller.prefix, call.index)
        if prefix in self.instances:
            return (*prefix, 0)
        returns, callee, arguments = _call_parts(call)
        function = self.module.functions.get(callee)
        if function is None or not function.defined:
            raise UnsupportedKernel(caller.complaint(call, f"function {callee} has no body here"))
        if len(prefix) > MAX_CALL_DEPTH:
            raise SimulatorError(
                f"calls nested deeper than {MAX_CALL_DEPTH} at {self.describe_position(call)}: "
                f"recursion without end in {callee}?"
            )
        bindings = {}
        for formal, actual in zip(function.parameters + function.returns, arguments + returns, strict=True):
            bindings[formal.name] = caller.place_of(actual)
        after = self.blocks[block.terminator.fall].live_in
        instance = Instance(self, function, prefix, bindings, block.terminator.fall, after)
        self.instances[prefix] = instance
        instance.build()
        return (*prefix, 0)

    def describe_position(self, instruction: Instruction | None) -> str:
        position = instruction.position if instruction is not None else None
        if position is None:
            return "no source line"
        name = self.module.files.get(position.file, "?").rsplit("/", 1)[-1]
        line = self.program.source_line(position)
        return f"{name}:{position.line}" + (f" `{line.strip()}`" if line else "")


def _call_parts(call: Instruction) -> tuple[list[str], str, list[str]]:
    """(return variables, function name, argument variables) of a call instruction."""
    returns: list[str] = []
    arguments: list[str] = []
    operands = list(call.operands)
    if operands and isinstance(operands[0], tuple):
        returns = [s.name for s in operands.pop(0)]
    if not operands or isinstance(operands[0], Register):
        raise UnsupportedInstruction("an indirect call (function pointer)")
    name = operands.pop(0).name
    if operands and isinstance(operands[0], tuple):
        arguments = [s.name for s in operands.pop(0)]
    return returns, name, arguments


def shared_variables(module: Module, function: Function) -> list[Variable]:
    """All .shared variables a kernel can touch, its callees' included."""
    reached, queue = {function.name}, [function]
    for current in queue:
        for call in current.body:
            if call.opcode.startswith("call"):
                for operand in call.operands:
                    callee = module.functions.get(getattr(operand, "name", ""))
                    if callee is not None and callee.name not in reached:
                        reached.add(callee.name)
                        queue.append(callee)
    own = [v for f in queue for v in f.variables.values()]
    return [v for v in (*module.variables.values(), *own) if v.space == "shared"]


def demangle(name: str) -> str:
    """`_ZZ5tiledE10tile_query` -> `tile_query`: the last component of an Itanium-mangled name."""
    if not name.startswith("_Z"):
        return name
    place, last = 2, name
    while place < len(name):
        match = re.compile(r"(\d+)").match(name, place)
        if match is None:
            place += 1
            continue
        length = int(match.group())
        start = match.end()
        if start + length <= len(name) and length:
            last, place = name[start : start + length], start + length
        else:
            place = start
    return last


class Program:
    """A PTX module that can be run on the CPU.

    ptx: the module's text. source: the CUDA C text, for messages (and line text in reports).
    build: "optimised" or "debug"; a debug build keeps every register readable to its end.
    """

    def __init__(self, ptx: str, *, source: str = "", source_name: str = "kernel.cu",
                 build: str = "optimised", options: tuple[str, ...] = ()):
        from .parser import parse

        self.options = tuple(options)
        self.ptx, self.source, self.source_name, self.build = ptx, source, source_name, build
        self.module: Module = parse(ptx)
        self.keep_registers = build == "debug"
        self.source_lines = tuple(source.splitlines())
        self._executables: dict[str, Executable] = {}
        self.variables: dict[str, np.ndarray] = {}
        for variable in self.module.variables.values():
            if variable.space in ("global", "const"):
                data = np.zeros(variable.size, np.uint8)
                if variable.initial:
                    data[:] = np.frombuffer(variable.initial, np.uint8)[: variable.size]
                self.variables[variable.name] = data

    @property
    def entries(self) -> dict[str, Entry]:
        return {f.name: Entry.of(self.module, f) for f in self.module.functions.values() if f.is_entry}

    def executable(self, name: str) -> Executable:
        if name not in self._executables:
            self._executables[name] = Executable(self, self.module.functions[name])
        return self._executables[name]

    @property
    def debug(self):
        """The module that reads a debug build's names: variables(program, function), ..."""
        from . import debug

        return debug

    def python(self, name: str) -> str:
        """The NumPy lines that the kernel's instructions became."""
        return "\n".join(self.executable(name).text)

    def global_variable(self, name: str) -> np.ndarray:
        """The bytes of a `__device__` or `__constant__` variable; kept from launch to launch."""
        for full, data in self.variables.items():
            if name in (full, demangle(full)):
                return data
        known = ", ".join(demangle(v) for v in self.variables) or "none"
        raise KeyError(f"no __device__ or __constant__ variable named {name!r}; there are: {known}")

    def source_line(self, position) -> str:
        """The text of a source line, where it belongs to the kernel's own file."""
        if position is None or not self.is_own_file(position.file):
            return ""
        inside = 0 < position.line <= len(self.source_lines)
        return self.source_lines[position.line - 1] if inside else ""

    def is_own_file(self, number: int) -> bool:
        name = self.module.files.get(number, "").rsplit("/", 1)[-1]
        return name == self.source_name.rsplit("/", 1)[-1]

    def own_line(self, instruction: Instruction) -> int:
        """Line in the kernel's own file: that of the call where a header's code was inlined; 0 if none."""
        position = instruction.position
        while position is not None and not self.is_own_file(position.file):
            position = position.inlined_at
        return position.line if position is not None else 0

    def launch(self, name, grid, block, arguments, shared_bytes=0, observers=(), names=(), warp_order=None):
        """Run a kernel over its whole grid. See machine.launch."""
        from .machine import launch

        return launch(
            self, name, grid, block, arguments, shared_bytes=shared_bytes,
            observers=observers, names=names, warp_order=warp_order,
        )  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """What is known of a kernel without decoding it."""

    name: str
    parameters: tuple[Parameter, ...]
    shared_bytes: int
    local_bytes: int
    max_threads: int
    register_count: int

    @classmethod
    def of(cls, module: Module, function: Function) -> Entry:
        shared = 0
        for variable in shared_variables(module, function):
            shared = -(-shared // max(variable.align, 1)) * max(variable.align, 1) + variable.size
        local = sum(v.size for v in function.variables.values() if v.space == "local")
        limit = function.limits.get("maxntid") or function.limits.get("reqntid") or (1024,)
        return cls(
            function.name,
            tuple(Parameter(p.name, p.type, p.size, p.align) for p in function.parameters),
            shared,
            local,
            int(np.prod(limit)),
            len(function.registers),
        )
