"""Attention kernels on a GPU and on a CPU, one CUDA C source for both.

The public names are looked up when first used, so importing the package costs nothing.
"""

from __future__ import annotations

import importlib
import sys
import types

__version__ = "0.1.0"

# Public name -> the module that has it.
_HOMES = {
    "RawModule": "module",
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
    "attention": "attention",
    "observe": "events",
    "Observer": "events",
    "Counters": "observers",
    "Sanitizer": "observers",
    "Tracer": "observers",
}

__all__ = list(_HOMES)


class _Package(types.ModuleType):
    """The package as a module object, with two rules of its own.

    A public name is imported from its home when it is first asked for. `attention` is both a
    function and the module it lives in: `attn_course.attention` is always the function, also
    after somebody has imported from the module.
    """

    def __getattr__(self, name: str):
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{self.__name__}.{home}"), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value) -> None:
        is_home = isinstance(value, types.ModuleType) and _HOMES.get(name) == name
        super().__setattr__(name, getattr(value, name) if is_home else value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_HOMES})


sys.modules[__name__].__class__ = _Package
