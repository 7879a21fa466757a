"""Runs PTX on the CPU: every thread of a kernel, in NumPy.

Read in this order: syntax and parser (PTX text to data), blocks (control flow), instance and
decode (instructions to lines of NumPy), executable and program; then machine (the run loop),
groups (registers of the lanes that run), barriers, waiting, access (memory), launches.
"""

from .errors import (
    Hang,
    KernelAssertion,
    MemoryFault,
    SimulatorError,
    Trap,
    UnsupportedKernel,
)  # fmt: skip
from .executable import Parameter
from .launches import launch
from .program import Entry, Program

__all__ = [
    "Entry", "Hang", "KernelAssertion", "MemoryFault", "Parameter", "Program", "SimulatorError",
    "Trap", "UnsupportedKernel", "launch",
]  # fmt: skip
