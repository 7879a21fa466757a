"""CuPy's `RawModule` and `RawKernel`, on a GPU or on the simulator."""

from ..errors import ArgumentError, ArgumentWarning, KernelNotFoundError, LaunchError
from .arguments import bind
from .graphs import GraphLaunch, capture_graph
from .interop import (
    Interchange,
    in_library,
    is_foreign,
    stream_address,
    takes_foreign,
    tensor_library,
)
from .kernel import Kernel, SimulatorKernel, allow_shared
from .limits import DEFAULT_SHARED_BYTES, OPT_IN_SHARED_KIB
from .ptx_module import PtxModule
from .raw_kernel import RawKernel
from .raw_module import RawModule

__all__ = [
    "ArgumentError",
    "ArgumentWarning",
    "DEFAULT_SHARED_BYTES",
    "Interchange",
    "GraphLaunch",
    "Kernel",
    "KernelNotFoundError",
    "LaunchError",
    "OPT_IN_SHARED_KIB",
    "PtxModule",
    "RawKernel",
    "RawModule",
    "SimulatorKernel",
    "allow_shared",
    "bind",
    "capture_graph",
    "in_library",
    "is_foreign",
    "stream_address",
    "takes_foreign",
    "tensor_library",
]
