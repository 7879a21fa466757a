"""Matrix instructions as lines of Python; each calls a method of Matrices."""

from attn_course.engine.ptx.syntax import Instruction, Register, Vector, format_operand

from ..errors import UnknownInstruction, UnsupportedInstruction
from ..isa.matrix import Layout, multiplication, transfer
from .mbarrier_instructions import MbarrierLines
from .memory_instructions import memory_space

_COUNTS = {"x1": 1, "x2": 2, "x4": 4}
# Kind of an element -> the type in which a register of a fragment is written.
_WRITTEN = {"f32": "f32", "f64": "f64"}


class MatrixLines(MbarrierLines):
    """The lines of mma, wmma, ldmatrix, stmatrix and movmatrix."""

    def _mma(self, instruction: Instruction) -> str:
        form = self.decoded(multiplication, instruction.opcode)
        d, *sources = instruction.operands
        layouts = (form.a, form.b, form.c)
        if len(sources) != 3:
            raise UnsupportedInstruction(f"{len(sources)} fragments beside the result")
        texts = [self.fragment(o, held) for o, held in zip(sources, layouts, strict=True)]
        call = (
            f"c.matrices.multiply({self.object('form', form)}, {', '.join(texts)}, "
            f"{self.object('ins', instruction)})"
        )
        return self.write_fragment(d, form.d, call)

    def _wmma(self, instruction: Instruction) -> str:
        action = instruction.opcode.split(".")[1]
        if action == "mma":
            return self._mma(instruction)
        form = self.decoded(transfer, instruction.opcode)
        operands, loads = list(instruction.operands), action == "load"
        held, address = operands[:2] if loads else operands[1::-1]
        stride = self.stride(form, operands[2:])
        arguments = [
            self.object("form", form),
            repr(memory_space(instruction.opcode)),
            self.address(address),
            stride,
        ]
        name = self.object("ins", instruction)
        if loads:
            call = f"c.matrices.load_fragment({', '.join([*arguments, name])})"
            return self.write_fragment(held, form.layout, call)
        arguments += [self.fragment(held, form.layout), name]
        return f"c.matrices.store_fragment({', '.join(arguments)})"

    def stride(self, form, operands: list) -> str:
        """Elements from one line in memory to the next; without an operand, they are adjacent."""
        if operands:
            return f"{self.read(operands[0], 'u32')}.astype(i8)"
        return str(form.layout.rows if form.across else form.layout.columns)

    def _ldmatrix(self, instruction: Instruction) -> str:
        destination, address = instruction.operands
        count, transposed = self.matrices(instruction)
        call = (
            f"c.matrices.load_rows({memory_space(instruction.opcode)!r}, {self.address(address)}, "
            f"{count}, {transposed}, {self.object('ins', instruction)})"
        )
        items = self.registers(destination, count)
        writes = [self.write(item, "b32", f"t[{i}]") for i, item in enumerate(items)]
        return "; ".join([f"t = {call}", *writes])

    def _stmatrix(self, instruction: Instruction) -> str:
        address, source = instruction.operands
        count, transposed = self.matrices(instruction)
        values = "".join(f"{self.read(item, 'b32')}, " for item in self.registers(source, count))
        return (
            f"c.matrices.store_rows({memory_space(instruction.opcode)!r}, {self.address(address)}, "
            f"({values}), {transposed}, {self.object('ins', instruction)})"
        )

    def _movmatrix(self, instruction: Instruction) -> str:
        destination, source = instruction.operands
        if not instruction.opcode.endswith("m8n8.trans.b16"):
            raise UnsupportedInstruction(f"{instruction.opcode}: only .m8n8.trans.b16")
        call = f"{self.read(source, 'b32')}, {self.object('ins', instruction)}"
        return self.write(destination, "b32", f"c.matrices.transpose({call})")

    # -- operands -------------------------------------------------------------------------------
    @staticmethod
    def decoded(decode, opcode: str):
        """decode(opcode), with errors as the translation has them."""
        try:
            return decode(opcode)
        except UnknownInstruction as error:
            raise UnsupportedInstruction(str(error)) from None

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
        items = self.registers(operand, layout.registers)
        writes = [self.write(item, kind, f"t[{i}]") for i, item in enumerate(items)]
        return "; ".join([f"t = {call}", *writes])
