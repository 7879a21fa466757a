"""Run, count, check and trace CUDA kernels, on a GPU through CuPy or on a CPU, thread by thread.

ptx reads PTX, isa knows its operations, translate turns it into NumPy, machine runs it, compile
calls NVRTC, module offers CuPy's RawModule on either backend, watch observes a simulated run.
"""

from .lazy import lazy

__version__ = "0.1.0"

_NAMES = {
    "module": "RawModule RawKernel ArgumentError ArgumentWarning KernelNotFoundError LaunchError",
    "project": "add_arch_comment add_kernel_folder",
    "backend": "BackendError array_module asnumpy resolve_backend xp",
    "compile": "CompileError CompilerMissingError",
    "address_space": "device_address",
    "errors": "hide_frames",
    "events": "Observer observe",
    "watch": "Counters Sanitizer Tracer",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
