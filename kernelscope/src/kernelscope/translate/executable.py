"""A compiled kernel ready to run: register slots, variable places, and blocks of NumPy lines."""

from functools import cached_property

from kernelscope.ptx.demangle import demangle
from kernelscope.ptx.registers import symbols_in
from kernelscope.ptx.syntax import Function, Instruction, Module, Position, Symbol, Variable

from ..addresses import aligned
from ..errors import SimulatorError, UnsupportedInstruction, UnsupportedKernel
from .control_flow import LANE, LOCAL_BASE, SHARED_BASE, Block, Key
from .function import Instance, call_parts, lay_out

_HIDDEN = {"%lane": LANE, "%shared_base": SHARED_BASE, "%local_base": LOCAL_BASE}
MAX_CALL_DEPTH = 256
SHARED_RED_ZONE = 512  # bytes between the shared variables of a debug build; a multiple of 32 banks


class Executable:
    """One kernel of a program, decoded on first use and kept."""

    def __init__(self, program, function: Function):
        self.program, self.function, self.module = program, function, program.module
        self.name = demangle(function.name)  # as messages show it
        self.keep_registers = program.keep_registers
        self.blocks: dict[Key, Block] = {}
        self.lines: list[tuple[Instruction, str]] = []  # with its Python statement
        self.checked: set[str] = set()  # functions whose instructions have the operands they take
        self.slot_types: list[str] = ["i8", "u8", "u8"]
        self.specials: dict[int, str] = {slot: name for name, slot in _HIDDEN.items()}
        self.special_names: dict[str, int] = dict(_HIDDEN)
        self.unset: dict[int, str] = {}  # slots that may be read before they are written -> dtype
        self.loops: dict[tuple, object] = {}  # of single lanes, see the room `scalar`
        # What launches have shown: time of the processor, names of the arrays that it both reads
        # and writes, and whether its blocks must run in one process.
        self.seconds_a_lane, self.both, self.alone = 0.0, set(), False
        self.shared_bytes = 0
        self.shared_places: dict[str, tuple[int, Variable]] = {}
        self.dynamic_names: list[str] = []
        self.dynamic_alignment = 16  # of the shared memory whose size a launch gives
        self.parameters = function.parameters
        self.parameter_offsets, self.parameter_bytes = lay_out(function.parameters)
        self.functions = program.memory.functions  # a function's address is its number here
        self.recursive = program.recursive
        # Groups of several warps meet in shared memory that CUDA reserves.
        self.reserves = "%reserved_smem" in program.ptx
        self.allocates = "malloc" in reachable(program.references, function.name)
        self.variables = [  # in global memory: __device__ and __constant__
            v.name for v in variables_used(program, function) if v.space != "shared"
        ]
        for variable in shared_variables(program, function):
            self.place(variable)
        self.instance = Instance(self, function, (), 0)
        self.instances: dict[Key, Instance] = {(): self.instance}
        self.instance.build()

    # -- slots ----------------------------------------------------------------------------------
    def new_slot(self, code: str) -> int:
        self.slot_types.append(code)
        return len(self.slot_types) - 1

    def special_slot(self, name: str) -> int:
        if name not in self.special_names:
            slot = self.special_names[name] = self.new_slot("u4")
            self.specials[slot] = name
        return self.special_names[name]

    @cached_property
    def callee_bytes(self) -> int:
        """Bytes of local memory for the frames of all functions that may be called, once each."""
        names = reachable(self.program.references, self.function.name)
        functions = [f for name, f in self.module.functions.items() if name in names]
        variables = [
            v for f in functions for v in (*f.variables.values(), *f.parameters, *f.returns)
        ]
        sizes = [aligned(v.size, max(v.align, 16)) for v in variables if v.space != "shared"]
        return sum(sizes) + 32 * len(functions)

    def learn(self, seconds_a_lane: float, both: set[str]) -> None:
        """Keep what some blocks of a launch have shown."""
        self.seconds_a_lane = seconds_a_lane
        self.both |= both

    @cached_property
    def reads_clock(self) -> bool:
        """May it read a clock, whose value depends on how many blocks have run?"""
        return "%clock" in self.program.ptx or "%globaltimer" in self.program.ptx

    def note_unset(self, live: int) -> None:
        """Registers that some path reads before any write: they start as zero."""
        for slot in range(live.bit_length()):
            if live >> slot & 1 and slot not in self.specials:
                self.unset[slot] = self.slot_types[slot]

    # -- variables ------------------------------------------------------------------------------
    def place(self, variable: Variable) -> tuple[str, object]:
        """(space, offset or name) of a shared, global or constant variable."""
        if variable.space != "shared":
            return ("variable", variable.name)
        align = max(variable.align, 1)
        if variable.size == 0:
            if variable.name not in self.dynamic_names:
                self.dynamic_names.append(variable.name)
            self.dynamic_alignment = max(self.dynamic_alignment, align)
            return ("dynamic", align)
        if variable.name not in self.shared_places:
            gap = SHARED_RED_ZONE if self.program.build == "debug" and self.shared_bytes else 0
            offset = aligned(self.shared_bytes + gap, align)
            self.shared_places[variable.name] = (offset, variable)
            self.shared_bytes = offset + variable.size
        return ("shared", self.shared_places[variable.name][0])

    def module_place(self, name: str) -> tuple[str, object]:
        if name in self.module.variables:
            return self.place(self.module.variables[name])
        if name in self.module.functions:
            return ("function", self.program.memory.function_address(name))
        raise UnsupportedInstruction(f"unknown symbol {name}")

    # -- calls ----------------------------------------------------------------------------------
    def recursing(self, caller: Instance, callee: str) -> str:
        """The name of the innermost function that calls itself, of those that run."""
        while callee not in self.recursive and caller is not None:
            callee, caller = caller.function.name, (caller.called_from or (None, None))[0]
        return demangle(callee)

    def expand_call(self, caller: Instance, block: Block, callee: str) -> tuple[Key, Instance, int]:
        """(first key, instance, number of the call site) of a call; made when first reached."""
        call, fall = block.terminator.instruction, block.terminator.fall
        function = self.module.functions.get(callee)
        if function is None or not function.defined:
            why = (
                f"function {demangle(callee)} has no body in this module, which is linked with no "
                "other: define it in this source, or #include the file that does"
            )
            if "cudaCDP" in callee:
                why = "kernels that launch kernels are not simulated: launch them from the host"
            raise UnsupportedKernel(caller.complaint(call, why))
        prefix = caller.key(call.index)
        recursion = (caller.recursion or prefix) if callee in self.recursive else None
        if recursion is not None:  # the deeper a frame, the lower its keys: it runs first
            prefix = (*recursion, -caller.frame_end, self.functions.index(callee))
        elif not isinstance(call_parts(call)[1], Symbol):  # a pointer: any function at one site
            # Odd numbers: the frames of a recursion, multiples of 16, are told apart from them.
            prefix = (*prefix, -1 - 2 * self.functions.index(callee))
        if prefix not in self.instances:
            if caller.depth >= MAX_CALL_DEPTH:
                raise SimulatorError(
                    f"{MAX_CALL_DEPTH} nested calls at {caller.where(call)}: does the recursion "
                    f"of {self.recursing(caller, callee)} end? A GPU's stack of 1 KB a thread "
                    "holds far fewer"
                )
            live = self.blocks[fall].live_in
            instance = Instance(
                self, function, prefix, caller.frame_end, fall, live, (caller, call)
            )
            instance.recursion = recursion
            instance.build()  # may raise: then the next call builds another one
            self.instances[prefix] = instance
        instance = self.instances[prefix]
        if fall not in instance.return_keys:
            instance.return_keys.append(fall)
        return instance.key(0), instance, instance.return_keys.index(fall)

    def describe_position(self, instruction: Instruction | None) -> str:
        """`file:line` and the line's text, of where an instruction comes from; without debug
        information, the line of the PTX.
        """
        position = instruction.position if instruction is not None else None
        if position is None and instruction is not None:
            return f"PTX line {self.program.ptx.count(chr(10), 0, instruction.start) + 1}"
        own = self.program.own_position(position)
        if own is None or own is position:
            return self.describe_line(position)
        return f"{self.describe_line(own)} (in {self.describe_line(position)})"  # inlined there

    def describe_own(self, line: int) -> str:
        """`file:line` and the line's text, of the kernel's own source."""
        name = self.program.source_name.rsplit("/", 1)[-1]
        return f"{name}:{line}{self.program.text_of(name, line)}"

    def describe_line(self, position: Position | None) -> str:
        if position is None:
            return "no source line"
        name = self.module.files.get(position.file, "?").rsplit("/", 1)[-1]
        line = self.program.source_line(position).strip()
        return f"{name}:{position.line}" + (f" `{line}`" if line else "")


def references(module: Module) -> dict[str, set[str]]:
    """Functions and variables by name -> the functions and variables that each of them names."""
    graph = {
        name: {symbol for _, symbol in variable.relocations}
        for name, variable in module.variables.items()
    }
    for name, function in module.functions.items():
        graph[name] = {symbol for i in function.body for symbol in symbols_in(i.operands)}
    return {name: {n for n in named if n in graph} for name, named in graph.items()}


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """What a function may use, directly or not; itself only if it recurs."""
    found, queue = set(), [start]
    while queue:
        new = graph[queue.pop()] - found
        found |= new
        queue.extend(new)
    return found


def variables_used(program, function: Function) -> list[Variable]:
    """The module's variables that a kernel or what it calls may touch."""
    used = reachable(program.references, function.name)
    return [variable for name, variable in program.module.variables.items() if name in used]


def shared_variables(program, function: Function) -> list[Variable]:
    """All .shared variables a kernel can touch, its callees' included."""
    used = reachable(program.references, function.name) - {function.name}
    callees = [f for name, f in program.module.functions.items() if name in used]
    own = [v for f in (function, *callees) for v in f.variables.values()]
    return [v for v in (*variables_used(program, function), *own) if v.space == "shared"]
