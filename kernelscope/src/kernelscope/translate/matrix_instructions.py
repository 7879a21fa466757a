"""Matrix instructions as lines of Python; each calls a method of Matrices."""

from kernelscope.ptx.syntax import Instruction, Register, Vector, format_operand

from ..errors import UnsupportedInstruction
from ..isa.matrix import Layout, multiplication, transfer
from .memory_instructions import MemoryLines, memory_space

_COUNTS = {"x1": 1, "x2": 2, "x4": 4}
# Kind of an element -> the type in which a register of a fragment is written.
_WRITTEN = {"f32": "f32", "f64": "f64"}


class MatrixLines(MemoryLines):
    """The lines of mma, wmma, ldmatrix, stmatrix and movmatrix."""

    def _mma(self, instruction: Instruction) -> str:
        form = self.decoded(multiplication, instruction.opcode)
        d, *sources = instruction.operands
        layouts = (form.a, form.b, form.c)
        if len(sources) != 3:
            raise UnsupportedInstruction(f"{len(sources)} fragments beside the result")
        texts = [self.fragment(o, held) for o, held in zip(sources, layouts, strict=True)]
        form_name = self.object("form", form)
        call = self.call("matrices.multiply", instruction, form_name, *texts)
        return self.write_fragment(d, form.d, call)

    def _wmma(self, instruction: Instruction) -> str:
        action = instruction.opcode.split(".")[1]
        if action == "mma":
            return self._mma(instruction)
        form = self.decoded(transfer, instruction.opcode)
        operands, loads = list(instruction.operands), action == "load"
        held, address = operands[:2] if loads else operands[1::-1]
        # Elements from one line in memory to the next; without an operand, they are adjacent.
        stride = form.layout.rows if form.across else form.layout.columns
        if len(operands) > 2:
            stride = f"{self.read(operands[2], 'u32')}.astype(i8)"
        space = memory_space(instruction.opcode)
        arguments = (self.object("form", form), repr(space), self.address(address), stride)
        if loads:
            call = self.call("matrices.load_fragment", instruction, *arguments)
            return self.write_fragment(held, form.layout, call)
        texts = self.fragment(held, form.layout)
        return self.call("matrices.store_fragment", instruction, *arguments, texts)

    def _ldmatrix(self, instruction: Instruction) -> str:
        destination, address = instruction.operands
        count, transposed = self.matrices(instruction)
        where = repr(memory_space(instruction.opcode)), self.address(address)
        call = self.call("matrices.load_rows", instruction, *where, count, transposed)
        return self.write_items(self.registers(destination, count), "b32", call)

    def _stmatrix(self, instruction: Instruction) -> str:
        address, source = instruction.operands
        count, transposed = self.matrices(instruction)
        values = "".join(f"{self.read(item, 'b32')}, " for item in self.registers(source, count))
        where = repr(memory_space(instruction.opcode)), self.address(address)
        return self.call("matrices.store_rows", instruction, *where, f"({values})", transposed)

    def _movmatrix(self, instruction: Instruction) -> str:
        destination, source = instruction.operands
        if not instruction.opcode.endswith("m8n8.trans.b16"):
            raise UnsupportedInstruction(f"{instruction.opcode}: only .m8n8.trans.b16")
        call = self.call("matrices.transpose", instruction, self.read(source, "b32"))
        return self.write(destination, "b32", call)

    # -- operands -------------------------------------------------------------------------------
    @staticmethod
    def matrices(instruction: Instruction) -> tuple[int, bool]:
        """(number of matrices, are they transposed) of ldmatrix and stmatrix."""
        parts = instruction.opcode.split(".")
        count = next((n for word, n in _COUNTS.items() if word in parts), 0)
        if not count or "m8n8" not in parts or parts[-1] != "b16":
            raise UnsupportedInstruction(f"{instruction.opcode}: only .m8n8, .x1 to .x4, .b16")
        return count, "trans" in parts

    @staticmethod
    def registers(operand, count: int) -> tuple:
        """The registers of an operand, {a, b} or one; there must be `count`."""
        items = operand.items if isinstance(operand, Vector) else (operand,)
        if len(items) != count:
            raise UnsupportedInstruction(f"{len(items)} registers instead of {count}")
        return items

    def fragment(self, operand, layout: Layout) -> str:
        """A tuple of a fragment's registers as they are stored: 4 or 8 bytes each."""
        texts = []
        for item in self.registers(operand, layout.registers):
            if not isinstance(item, Register):
                texts.append(self.read(item, f"b{8 * layout.register_bytes}"))
                continue
            if self.stored_dtype(item.name).itemsize != layout.register_bytes:
                kind = self.instance.register_type(item.name)
                raise UnsupportedInstruction(f"{format_operand(item)} is a register of .{kind}")
            texts.append(f"R[{self.instance.slot(item.name)}]")
        return f"({', '.join(texts)},)"

    def write_fragment(self, operand, layout: Layout, call: str) -> str:
        """Statements that put the registers that `call` returns into an operand."""
        kind = _WRITTEN.get(layout.kind, f"b{8 * layout.register_bytes}")
        return self.write_items(self.registers(operand, layout.registers), kind, call)
