"""The engine: CUDA C on a GPU through CuPy, or on a CPU, thread by thread.

ptx reads PTX, isa knows its operations, translate turns it into NumPy, machine runs it, compile
calls NVRTC, module offers CuPy's RawModule on either backend, watch observes a simulated run. The
engine knows nothing of attention.
"""

from .lazy import lazy

_NAMES = {
    "module": "RawModule RawKernel ArgumentError ArgumentWarning KernelNotFoundError LaunchError",
    "backend": "BackendError array_module asnumpy resolve_backend xp",
    "compile": "CompileError CompilerFailedError CompilerMissingError",
    "address_space": "device_address",
    "events": "Observer observe",
    "watch": "Counters Sanitizer Tracer",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
