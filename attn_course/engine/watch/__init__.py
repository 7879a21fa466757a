"""Observers of a simulated launch: counters, the sanitizer, the tracer, and small observers.

They read the events of `engine.events` with their view of the machine, and parsed PTX.
"""

from __future__ import annotations

from importlib import import_module

_HOMES = {
    "Counters": "counters.counters",
    "Lanes": "counters.traffic",
    "count_wavefronts": "counters.traffic",
    "Sanitizer": "sanitizer.sanitizer",
    "Finding": "sanitizer.findings",
    "Tracer": "tracer.tracer",
    "Footprints": "footprints",
    "LineLookups": "footprints",
    "ReadCounts": "reads",
    "InFlight": "warp_streams",
    "WarpWork": "warp_streams",
}

__all__ = list(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
