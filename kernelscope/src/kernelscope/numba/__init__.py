"""Numba CUDA kernels on the simulator: run, count, check and trace a `@cuda.jit` function.

Numba and NVIDIA's libNVVM make the PTX, on a machine without a GPU too; the simulator runs it.
The package is numba-cuda, which NVIDIA maintains, an extra: `pip install kernelscope[numba]`. It is
imported at the first call.
"""

from ..lazy import lazy

_NAMES = {"call": "NumbaCall compile run", "compiler": "without_gpu"}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
