"""The engine: CUDA C on a GPU through CuPy, or on a CPU, thread by thread.

ptx reads PTX, isa knows its operations, translate turns it into NumPy, machine runs it, compile
calls NVRTC, module offers CuPy's RawModule on either backend, watch observes a simulated run. The
engine knows nothing of attention.
"""

from __future__ import annotations

from importlib import import_module

_HOMES = {
    "RawModule": "module",
    "RawKernel": "module",
    "ArgumentError": "module",
    "KernelNotFoundError": "module",
    "LaunchError": "module",
    "BackendError": "backend",
    "array_module": "backend",
    "asnumpy": "backend",
    "resolve_backend": "backend",
    "xp": "backend",
    "CompileError": "compile",
    "CompilerMissingError": "compile",
    "Observer": "events",
    "observe": "events",
    "Counters": "watch",
    "Sanitizer": "watch",
    "Tracer": "watch",
}

__all__ = list(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
