"""The machine code of a kernel: instructions with their lines and schedule, registers, blocks.

ptxas decides how a loop is unrolled, which loads go out together, and what waits for what. It
writes that into each instruction: clocks until the next one, a scoreboard that its result sets, and
those that it waits for.
"""

from .code import NO_SCOREBOARD, Code, MachineCode, Segment, codes
from .cubin import cubin_registers, disassembled, machine_code, numbers_of, nvdisasm
from .flow import NaturalLoop, dominators, loops_of, predecessors, reached, yielding
from .listing import parse

__all__ = [
    "NO_SCOREBOARD",
    "Code",
    "MachineCode",
    "NaturalLoop",
    "Segment",
    "codes",
    "cubin_registers",
    "disassembled",
    "dominators",
    "loops_of",
    "machine_code",
    "numbers_of",
    "nvdisasm",
    "parse",
    "predecessors",
    "reached",
    "yielding",
]
