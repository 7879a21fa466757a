"""Instructions on mbarrier objects as lines of Python; each calls a method of Mbarriers."""

import numpy as np

from attn_course.engine.ptx.syntax import Address, Instruction

from ..errors import UnsupportedInstruction
from .memory_instructions import MemoryLines, memory_space


class MbarrierLines(MemoryLines):
    """The lines of mbarrier instructions."""

    def _mbarrier(self, instruction: Instruction) -> str:
        _, name, *parts = instruction.opcode.split(".")
        operands = instruction.operands
        if name == "init":
            return self.mbarrier(instruction, "init", operands[0], self.read(operands[1], "u32"))
        if name == "inval":
            return self.mbarrier(instruction, "inval", operands[0])
        if name in ("expect_tx", "complete_tx"):
            count, sign = self.read(operands[1], "u32"), 1 if name == "expect_tx" else -1
            return self.mbarrier(instruction, "expect", operands[0], count, str(sign))
        if name == "pending_count":
            state = self.read(operands[1], "b64")
            return self.write(operands[0], "b32", f"c.mbarriers.pending_count({state})")
        if name in ("arrive", "arrive_drop"):
            return self.write(operands[0], "b64", self.arrival(instruction, name, parts))
        if name in ("test_wait", "try_wait"):
            by_parity = "parity" in parts
            phase = self.read(operands[2], "u32" if by_parity else "b64")
            call = self.mbarrier(instruction, "wait", operands[1], phase, str(by_parity))
            return self.write(operands[0], "pred", call)
        raise UnsupportedInstruction(instruction.opcode)

    def arrival(self, instruction: Instruction, name: str, parts: list[str]) -> str:
        """The call of an arrival: by a count, by one with bytes to expect, or by one."""
        _, address, *value = instruction.operands
        count, added = self.constant(np.uint32(1)), self.constant(np.uint32(0))
        if "expect_tx" in parts:
            added = self.read(value[0], "u32")
        elif value:
            count = self.read(value[0], "u32")
        drops = str(name == "arrive_drop")
        return self.mbarrier(instruction, "arrive", address, count, drops, added)

    def _cp(self, instruction: Instruction) -> str:
        if not instruction.opcode.startswith("cp.async.mbarrier.arrive"):
            return super()._cp(instruction)
        counted = str("noinc" in instruction.opcode.split("."))
        return self.mbarrier(instruction, "follow_copies", instruction.operands[0], counted)

    def mbarrier(self, instruction: Instruction, method: str, address: Address, *values: str):
        """The call of a method of Mbarriers for the mbarrier at an address."""
        where = repr(memory_space(instruction.opcode)), self.address(address)
        return self.call(f"mbarriers.{method}", instruction, *where, *values)
