"""Triton kernels on the simulator: run, count, check and trace a `@triton.jit` function.

Triton's own compiler makes the PTX, on a machine without a GPU too; the simulator runs it. Triton
is an extra, `pip install kernelscope[triton]`, and is imported at the first call.
"""

from ..lazy import lazy

_NAMES = {"call": "TritonCall compile run", "text": "TextKernel"}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
