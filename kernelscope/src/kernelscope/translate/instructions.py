"""Each PTX instruction becomes one line of NumPy, compiled once.

`R` is the register file (slot -> array over the active lanes, or one scalar), `c` the chunk of
blocks that runs. `Program.python(name)` prints the lines:

    fma.rn.ftz.f32 %f14, %f13, %f12, %f29;   ->   R[14] = fma_rn_ftz_f32(R[13], R[12], R[29])
"""

import re

import numpy as np
from kernelscope.ptx.registers import symbols_in
from kernelscope.ptx.syntax import TYPE_BYTES, Instruction, Register, Selected, Vector

from ..addresses import LOCAL_WINDOW, SHARED_WINDOW
from ..errors import UnsupportedInstruction
from ..isa.narrow import VIDEO_ROWS, select_part, select_parts
from ..isa.table import DTYPE, lookup
from .memory_instructions import SPACES, memory_space
from .operands import code_of, type_of
from .warpgroup_instructions import WarpGroupLines

# Nothing is left to do; bar: bar.warp, whose lanes are together here.
NOTHING = """
    membar fence prefetch prefetchu pmevent discard applypriority griddepcontrol brkpt bar
""".split()
# These are the same for signed and unsigned operands, and registers are kept unsigned.
WRAPPING = re.compile(r"^(add|sub|mul\.lo|mad\.lo)\.s(16|32|64)$")
WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}


class Decoder(WarpGroupLines):
    """Translates the instructions of one function instance to lines of Python.

    A method `_name` translates the instructions called `name`; the operation table has the rest.
    """

    def line(self, instruction: Instruction) -> str:
        """The Python statement of one instruction; raises UnsupportedInstruction."""
        root = instruction.opcode.split(".")[0]
        if root in NOTHING:
            for name in symbols_in(instruction.operands):
                self.instance.place_of(name)
            return "pass"
        if root in VIDEO_ROWS:
            return self.video(instruction)
        return getattr(self, f"_{root}", self.pure)(instruction)

    # -- registers only -------------------------------------------------------------------------
    def pure(self, instruction: Instruction) -> str:
        """A call of the operation table's function."""
        opcode = WRAPPING.sub(r"\1.u\2", instruction.opcode)
        operation = self.decoded(lookup, opcode)
        destination, *operands = instruction.operands
        sources = [self.read(o, t) for o, t in zip(operands, operation.sources, strict=True)]
        carry = f"R[{self.instance.slot('%carry')}]" if operation.uses_carry else ""
        if operation.reads_carry:
            sources.append(carry)
        call = f"{self.function(opcode, operation.fn)}({', '.join(sources)})"
        if operation.writes_carry:
            return f"t, {carry} = {call}; {self.write(destination, operation.results[0], 't')}"
        if len(operation.results) == 2:
            return self.write_pair(destination, operation.results, call)
        return self.write(destination, operation.results[0], call)

    def function(self, opcode: str, fn) -> str:
        """A name for the operation table's function, made from the opcode."""
        name = opcode.replace(".", "_")
        assert name.isidentifier() and name.isascii()
        self.names[name] = fn
        return name

    def _mov(self, instruction: Instruction) -> str:
        destination, source = instruction.operands
        kind = type_of(instruction.opcode)
        if "b128" in instruction.opcode.split("."):
            values = ", ".join(self.read(half, "b64") for half in source.items)
            if not isinstance(destination, Vector):  # `_`
                return values
            return self.write_halves(destination, values)
        if isinstance(source, Register) and source.name.startswith(("%clock", "%globaltimer")):
            shift = 32 if source.name.endswith("_hi") else 0
            when = f"{shift}, c.reports.block, {instruction.index}"
            call = f"c.clock.read(u{TYPE_BYTES[kind]}, {when})"
            return self.write(destination, kind, call)
        return self.write(destination, kind, self.read(source, kind))

    def _createpolicy(self, instruction: Instruction) -> str:
        """A cache policy changes no result; its value is opaque."""
        return self.write(instruction.operands[0], "b64", self.constant(np.uint64(0)))

    # -- local memory of a size known at run time -----------------------------------------------
    def _alloca(self, instruction: Instruction) -> str:
        destination, size, *align = instruction.operands
        kind = type_of(instruction.opcode)
        if align and align[0].value.bit_count() != 1:
            raise UnsupportedInstruction(f"an alignment of {align[0].value}")
        text = f"c.calls.allocate({self.read(size, kind)}, {align[0].value if align else 8:d})"
        return self.write(destination, kind, text if kind == "u64" else f"{text}.astype(u4)")

    def _stacksave(self, instruction: Instruction) -> str:
        kind = type_of(instruction.opcode)
        return self.write(instruction.operands[0], kind, f"c.calls.stack_top(u{TYPE_BYTES[kind]})")

    def _stackrestore(self, instruction: Instruction) -> str:
        kind = type_of(instruction.opcode)
        return f"c.calls.restore_stack({self.read(instruction.operands[0], kind)})"

    def _nanosleep(self, instruction: Instruction) -> str:
        return f"c.clock.sleep({self.read(instruction.operands[0], 'u32')})"

    def _cvta(self, instruction: Instruction) -> str:
        """Global addresses are generic ones already; shared and local have a window."""
        destination, source = instruction.operands
        kind = type_of(instruction.opcode)
        window = WINDOWS.get(memory_space(instruction.opcode))
        text = self.read(source, kind)
        if window:
            sign = "-" if ".to." in instruction.opcode else "+"
            text = f"({text} {sign} {self.constant(np.uint64(window))})"
        return self.write(destination, kind, text)

    def _isspacep(self, instruction: Instruction) -> str:
        destination, source = instruction.operands
        space = self.mode(instruction, *SPACES)
        text = f"c.memory.is_in({space!r}, {self.read(source, 'b64')})"
        return self.write(destination, "pred", text)

    # -- clusters -------------------------------------------------------------------------------
    def _barrier(self, instruction: Instruction) -> str:
        if not instruction.opcode.startswith("barrier.cluster.arrive"):
            raise UnsupportedInstruction(instruction.opcode)
        return "c.cluster.arrive()"

    def _mapa(self, instruction: Instruction) -> str:
        destination, address, rank = instruction.operands
        kind = type_of(instruction.opcode)
        text = f"c.cluster.map_address({self.read(address, kind)}, {self.read(rank, 'u32')})"
        return self.write(destination, kind, text)

    def _getctarank(self, instruction: Instruction) -> str:
        destination, address = instruction.operands
        text = f"c.cluster.rank_of_address({self.read(address, type_of(instruction.opcode))})"
        return self.write(destination, "u32", text)

    # -- warp level -----------------------------------------------------------------------------
    @staticmethod
    def mode(instruction: Instruction, *known: str) -> str:
        """Which of the known words the opcode contains; UnsupportedInstruction without one."""
        for part in instruction.opcode.split("."):
            if part.split("::")[0] in known:
                return part.split("::")[0]
        raise UnsupportedInstruction(f"none of .{', .'.join(known)}")

    def target(self) -> int:
        """The number of the module's architecture: 90 of sm_90a."""
        return int("".join(filter(str.isdigit, self.instance.kernel.module.target)) or 0)

    def need(self, least: int) -> None:
        """Refuse an instruction that an older architecture than the module's does not have."""
        if self.target() < least:
            raise UnsupportedInstruction(
                f"sm_{least} and newer have it: compile with the option -arch=sm_{least}"
            )

    def is_masked(self, instruction: Instruction) -> bool:
        """Whether the last operand is a member mask. Without .sync, the lanes that run together
        take part, which GPUs since sm_70 do not have.
        """
        masked = "sync" in instruction.opcode.split(".")
        if not masked and self.target() >= 70:
            raise UnsupportedInstruction("sm_70 and newer have it with .sync and a mask only")
        return masked

    def _shfl(self, instruction: Instruction) -> str:
        destination, *sources = instruction.operands
        mode = self.mode(instruction, "up", "down", "bfly", "idx")
        sources = sources[:-1] if self.is_masked(instruction) else sources
        value, b, c = (self.read(source, "b32") for source in sources)
        call = f"c.warps.shuffle({mode!r}, {value}, {b}, {c})"
        return self.write_pair(destination, ("b32", "pred"), call)

    def _vote(self, instruction: Instruction) -> str:
        destination, predicate, *members = instruction.operands
        mode = self.mode(instruction, "all", "any", "uni", "ballot")
        value, everyone = self.read(predicate, "pred"), self.constant(np.uint32(0xFFFFFFFF))
        mask = self.read(members[0], "b32") if self.is_masked(instruction) else everyone
        call = f"c.warps.vote({mode!r}, {value}, {mask})"
        return self.write(destination, "b32" if mode == "ballot" else "pred", call)

    def _match(self, instruction: Instruction) -> str:
        destination, value, members = instruction.operands
        value = self.read(value, type_of(instruction.opcode))
        arguments = f"{value}, {self.read(members, 'b32')}"
        if self.mode(instruction, "any", "all") == "any":
            return self.write(destination, "b32", f"c.warps.match_any({arguments})")
        return self.write_pair(destination, ("b32", "pred"), f"c.warps.match_all({arguments})")

    def _redux(self, instruction: Instruction) -> str:
        destination, value, members = instruction.operands
        kind = type_of(instruction.opcode)
        if kind == "f32":
            return self.float_redux(instruction)
        if kind not in ("u32", "s32", "b32"):
            raise UnsupportedInstruction(f"redux.sync of type .{kind}")
        mode = self.mode(instruction, "add", "min", "max", "and", "or", "xor")
        call = f"c.warps.redux({mode!r}, {self.read(value, kind)}, {self.read(members, 'b32')})"
        return self.write(destination, kind, call)

    def float_redux(self, instruction: Instruction) -> str:
        """redux.sync.min.f32 and .max, with .abs and .NaN."""
        self.need(100)
        destination, value, members = instruction.operands
        mode = self.mode(instruction, "min", "max")
        words = instruction.opcode.split(".")
        name = f"{mode}.NaN.f32" if "NaN" in words else f"{mode}.f32"
        text = self.read(value, "f32")
        if "abs" in words:
            text = f"{self.function('abs.f32', self.decoded(lookup, 'abs.f32').fn)}({text})"
        function = self.function(name, self.decoded(lookup, name).fn)
        absent = np.float32(np.nan)  # which loses
        if "NaN" in words:
            absent = np.float32(np.inf if mode == "min" else -np.inf)
        members = self.read(members, "b32")
        call = f"c.warps.float_redux({function}, {self.constant(absent)}, {text}, {members})"
        return self.write(destination, "f32", call)

    def _max(self, instruction: Instruction) -> str:
        """With two sources as the operation table has it; with three, in two steps."""
        if len(instruction.operands) == 3:
            return self.pure(instruction)
        self.need(100)
        opcode, destination = instruction.opcode, instruction.operands[0]
        a, b, c = (self.read(source, "f32") for source in instruction.operands[1:])
        function = self.function(opcode, self.decoded(lookup, opcode).fn)
        return self.write(destination, "f32", f"{function}({function}({a}, {b}), {c})")

    _min = _max

    def _elect(self, instruction: Instruction) -> str:
        destination, members = instruction.operands
        call = f"c.warps.elect({self.read(members, 'b32')})"
        return self.write_pair(destination, ("b32", "pred"), call)

    def _activemask(self, instruction: Instruction) -> str:
        return self.write(instruction.operands[0], "b32", "c.warps.active_mask()")

    # -- video instructions ---------------------------------------------------------------------
    def video(self, instruction: Instruction) -> str:
        """A call of the operation table's function on the selected parts."""
        root, *words = instruction.opcode.split(".")
        parts = [o.part if isinstance(o, Selected) else "" for o in instruction.operands]
        signs = [isinstance(o, Selected) and o.negated for o in instruction.operands]
        plain = [o.operand if isinstance(o, Selected) else o for o in instruction.operands]
        simd = root[-1] in "24"
        if parts[0]:
            words.append(f"to{parts[0][1:]}" if simd else parts[0])
        if root == "vmad":
            words += ["negab"] * (signs[1] != signs[2]) + ["negc"] * signs[3]
        elif any(signs):
            raise UnsupportedInstruction(f"{root} takes no sign")
        operation = self.decoded(lookup, ".".join([root, *words]))
        kinds = operation.sources
        if len(plain) != 1 + len(kinds):
            raise UnsupportedInstruction(f"{instruction.opcode} takes {1 + len(kinds)} operands")
        sources = [self.read(o, kind) for o, kind in zip(plain[1:], kinds, strict=True)]
        if simd:
            self.names["select_parts"] = select_parts
            pair = ", ".join(sources[:2])
            for i, part in enumerate(parts[1:3]):
                if part:
                    dtype = code_of(DTYPE[kinds[i]])
                    sources[i] = f"select_parts({pair}, {part!r}).view({dtype})"
        else:
            self.names["select_part"] = select_part
            for i, part in enumerate(parts[1:3]):
                if part:
                    sources[i] = f"select_part({sources[i]}, {part!r})"
        name = self.object("video", operation.fn)
        return self.write(plain[0], operation.results[0], f"{name}({', '.join(sources)})")
