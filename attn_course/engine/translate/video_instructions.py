"""Video instructions as lines of Python: parts of operands are selected before the operation."""

from attn_course.engine.ptx.syntax import Instruction, Selected

from ..errors import UnsupportedInstruction
from ..isa import table as isa
from ..isa.narrow import VIDEO_ROWS, select_part, select_parts
from .operands import OperandText, code_of

IS_VIDEO = frozenset(VIDEO_ROWS)


class VideoLines(OperandText):
    """The lines of vadd, vadd2, vadd4 and the like."""

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
        operation = self.decoded(isa.lookup, ".".join([root, *words]))
        kinds = operation.sources
        sources = [self.read(o, kind) for o, kind in zip(plain[1:], kinds, strict=True)]
        if simd:
            self.names["select_parts"] = select_parts
            pair = ", ".join(sources[:2])
            for i, part in enumerate(parts[1:3]):
                if part:
                    dtype = code_of(isa.DTYPE[kinds[i]])
                    sources[i] = f"select_parts({pair}, {part!r}).view({dtype})"
        else:
            self.names["select_part"] = select_part
            for i, part in enumerate(parts[1:3]):
                if part:
                    sources[i] = f"select_part({sources[i]}, {part!r})"
        name = self.object("video", operation.fn)
        return self.write(plain[0], operation.results[0], f"{name}({', '.join(sources)})")
