"""Runs PTX on the CPU: every thread of a kernel, in NumPy."""

from .machine import Hang, Trap, launch
from .memory import MemoryFault, SimulatorError
from .program import Entry, Parameter, Program, UnsupportedKernel
from .system import KernelAssertion

__all__ = [
    "Entry", "Hang", "KernelAssertion", "MemoryFault", "Parameter", "Program", "SimulatorError",
    "Trap", "UnsupportedKernel", "launch",
]  # fmt: skip
