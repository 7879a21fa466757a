"""How fast: timing, contests, records, and models of what the hardware allows."""

from __future__ import annotations

from importlib import import_module

_NAMES = {
    "timing": "Replay Timing TimingError bootstrap_ratio contest require_gpu",
    "first_calls": "measured",
    "records": "caption",
    "roofline": "attention_work method_work peak_of step_work tflops",
    "occupancy": "MULTIPROCESSORS compiled_registers",
    "pipeline_times": "CHAINS KERNELS NO_RECORD by_size times",
    "experiments": "REPORT_SHAPES",
    "nsight": "COUNTER_METRICS",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = list(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
