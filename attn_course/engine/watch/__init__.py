"""What can watch a simulated launch: counters, the sanitizer and the tracer.

They subscribe to the events of `attn_course.events` and know nothing of the simulator.
"""

from __future__ import annotations

import importlib

_HOMES = {"Counters": "counters", "Sanitizer": "sanitizer", "Tracer": "tracer"}

__all__ = list(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
