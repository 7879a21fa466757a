"""How fast: timing, contests, records, and models of what the hardware allows."""

from __future__ import annotations

from importlib import import_module

_NAMES = {
    "timing": "Replay Timing TimingError bootstrap_ratio contest require_gpu",
    "first_calls": "measured",
    "records": "caption measured_or_recorded newest_record",
    "roofline": "attention_work method_work step_work tflops",
    "hardware.devices": "MULTIPROCESSORS peak_of",
    "hardware.occupancy": "compiled_registers occupancy",
    "pipeline_times": "CHAINS KERNELS NO_RECORD by_size times",
    "experiments": "REPORT_SHAPES",
    "hardware.nsight": "COUNTER_METRICS",
    "hardware": "memory_levels",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = list(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "memory_levels":  # a module, not a name inside one
        return import_module(f"{__name__}.hardware.memory_levels")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
