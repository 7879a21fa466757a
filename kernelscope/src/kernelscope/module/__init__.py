"""CuPy's `RawModule` and `RawKernel`, on a GPU or on the simulator."""

from ..errors import ArgumentError, ArgumentWarning, KernelNotFoundError, LaunchError
from .kernel import Kernel, allow_shared
from .raw_kernel import RawKernel
from .raw_module import RawModule
