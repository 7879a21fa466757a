"""The simulator: runs PTX on the CPU, every thread of a kernel, in NumPy.

Start with launch (one launch and its chunks of blocks) and chunk (the run loop); then lanes
(registers), memory and access, warps, barriers, clusters, scheduler, device_calls, reports.
"""

from kernelscope.translate.program import Program

from ..errors import Hang, KernelAssertion, MemoryFault, SimulatorError, Trap, UnsupportedKernel
