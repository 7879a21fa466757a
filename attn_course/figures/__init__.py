"""Figures and text tables. They take arrays and records, and know nothing of kernels.

A figure function returns a :class:`matplotlib.figure.Figure` that is not registered with pyplot: a
notebook shows it once, as the value of its cell, and a script saves it with ``figure.savefig``.
matplotlib is imported with the first figure, not with :func:`table`.
"""

from kernelscope.lazy import lazy

_NAMES = {
    "style": "described",
    "attention_maps": "attention_over_slice",
    "matrices": "Matrix fragment_maps matrix_lines tile_grid tile_steps worked_example",
    "comparisons": "bars curves error_profile predictions times_by_shape",
    "memory": "bank_maps latency_by_size passes_and_times sector_maps",
    "clinic": "symptoms wrong_elements",
    "timing": "calls_in_order spread under_load",
    "reductions": "butterfly float_orders",
    "pipelines": "amdahl roofline shares time_by_work",
    "flash": """flights running_softmax shared_budget timeline traffic_by_tile visited_tiles
        window_bias worth_of_ideas""",
    "profiles": "count_ratios percentages stacked",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES, {"kernelscope.cli.tables": "table"})
