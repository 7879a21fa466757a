"""Runs PTX on the CPU: every thread of a kernel, in NumPy.

Read in this order: syntax and parser (PTX text to data), blocks (control flow), instance and
decode (instructions to lines of NumPy), executable and program; then machine (the run loop),
groups (registers of the lanes that run), barriers, waiting, access (memory), launches.
"""

from attn_course.engine.translate.program import Program

from .errors import (
    Hang,
    KernelAssertion,
    MemoryFault,
    SimulatorError,
    Trap,
    UnsupportedKernel,
)

__all__ = [
    "Hang",
    "KernelAssertion",
    "MemoryFault",
    "Program",
    "SimulatorError",
    "Trap",
    "UnsupportedKernel",
]
