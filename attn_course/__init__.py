"""Attention kernels on a GPU and on a CPU: one CUDA C source for both."""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

_ENGINE = """RawModule RawKernel observe Observer Counters Sanitizer Tracer array_module asnumpy xp
    resolve_backend ArgumentError BackendError CompileError CompilerMissingError
    KernelNotFoundError LaunchError"""
_HOMES = dict.fromkeys(_ENGINE.split(), "engine") | {"attention": "ladder"}
__all__ = list(_HOMES)


def __getattr__(name: str):
    """Import a public name when it is first used: importing the package costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
