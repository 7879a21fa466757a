"""wgmma as lines of Python; each calls a method of WarpGroups."""

from kernelscope.ptx.syntax import Instruction, Vector

from ..errors import UnsupportedInstruction
from ..isa.matrix import GroupMultiplication, GroupProduct, group_multiplication
from .matrix_instructions import MatrixLines

_TARGET = "sm_90a"


class WarpGroupLines(MatrixLines):
    """The lines of wgmma."""

    def _wgmma(self, instruction: Instruction) -> str:
        self.need_target()
        action = instruction.opcode.split(".")[1]
        if action == "mma_async":
            return self.group_product(instruction)
        if not instruction.opcode.endswith(".sync.aligned"):
            raise UnsupportedInstruction(f"{instruction.opcode}: wgmma is .sync.aligned")
        if action == "fence":  # products run in order, and see the registers as they are
            return "pass"
        if action == "commit_group":
            return "c.groups.commit()"
        return f"c.groups.wait({instruction.operands[0].value:d})"

    def need_target(self) -> None:
        """Refuse a module for another architecture than the only one that has wgmma."""
        target = self.instance.kernel.module.target
        if target.split(",")[0].strip() != _TARGET:
            raise UnsupportedInstruction(
                f"{_TARGET} alone has wgmma, and this is compiled for {target}: give the option "
                f"-arch={_TARGET}"
            )

    def group_product(self, instruction: Instruction) -> str:
        form = self.decoded(group_multiplication, instruction.opcode)
        d, a, b, keeps, *rest = instruction.operands
        held = isinstance(a, Vector)
        product = GroupProduct(form, *self.choices(form, held, [one.value for one in rest]))
        left = self.fragment(a, form.held_a) if held else self.read(a, "b64")
        arguments = (
            self.object("product", product),
            self.fragment(d, form.held_d),
            left,
            self.read(b, "b64"),
            self.read(keeps, "pred"),
        )
        call = self.call("groups.multiply", instruction, *arguments)
        return self.write_fragment(d, form.held_d, call)

    @staticmethod
    def choices(form: GroupMultiplication, held: bool, rest: list[int]) -> tuple:
        """((is A negated, B), (is A K-major, B)) by the literals behind scale-d.

        held: does A come from registers? Then it is not transposed.
        """
        transposes = form.transposes * (2 - held)
        if len(rest) != 2 * form.scales + transposes:
            count = 4 + 2 * form.scales + transposes
            where = "from registers" if held else "by descriptor"
            raise UnsupportedInstruction(
                f"{form.opcode} takes {count} operands with A {where}, got {4 + len(rest)}"
            )
        negated = tuple(sign < 0 for sign in rest[:2]) if form.scales else (False, False)
        transposed = rest[2:] if transposes else []
        a, b = (False,) * (2 - len(transposed)) + tuple(map(bool, transposed))
        return negated, (not a, not b)
