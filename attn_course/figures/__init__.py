"""Figures and text tables. They take arrays and records, and know nothing of kernels.

A figure function returns a :class:`matplotlib.figure.Figure` that is not registered with pyplot: a
notebook shows it once, as the value of its cell, and a script saves it with ``figure.savefig``.
matplotlib is imported with the first figure, not with :func:`table`.
"""

from __future__ import annotations

from importlib import import_module

_NAMES = {
    "tables": "table",
    "attention_maps": "attention_over_slice",
    "matrices": "Matrix matrix_lines tile_grid tile_steps worked_example",
    "comparisons": "bars error_profile times_by_shape",
    "memory": "bank_maps latency_by_size passes_and_times sector_maps",
    "clinic": "symptoms",
    "timing": "calls_in_order spread under_load",
    "reductions": "butterfly float_orders",
    "pipelines": "amdahl roofline shares time_by_work",
    "flash": """flights running_softmax shared_budget traffic_by_tile visited_tiles window_bias
        worth_of_ideas""",
    "profiles": "counts_against percentages stacked",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = list(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
