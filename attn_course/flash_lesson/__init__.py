"""What the lessons on online softmax, flash attention and asynchronous copies count and say.

`runs` runs kernels on the simulator; `traces`, `tiles` and `budgets` say what those runs, kernel
11's tiles and the shared memory of a block come to; `records` speaks of measured times; `windows`
makes the bias and the mask of shifted windows.
"""

from .budgets import (
    BUDGETS,
    budget_table,
    largest_dim,
    placement_table,
    registers_table,
    shared_need,
    tile_fits,
)
from .records import (
    NO_RECORD,
    REPORT,
    against_torch,
    causal_gains,
    experiment_outcome,
    floor_sentence,
    gains,
    outcome_table,
    report_table,
    time_table,
)
from .runs import counts, keys_seen, ptx_counts, run
from .tiles import TileTraffic, tile_extents, tile_traffic, traffic_table, visited
from .traces import block_table, key_blocks, row_states
from .windows import relative_position_bias, shift_mask, shifted_regions

__all__ = [
    "BUDGETS", "NO_RECORD", "REPORT", "TileTraffic", "against_torch", "block_table", "budget_table",
    "causal_gains", "counts", "experiment_outcome", "floor_sentence", "gains", "key_blocks",
    "keys_seen", "largest_dim", "outcome_table", "placement_table", "ptx_counts", "registers_table",
    "relative_position_bias", "report_table", "row_states", "run", "shared_need", "shift_mask",
    "shifted_regions", "tile_extents", "tile_fits", "tile_traffic", "time_table", "traffic_table",
    "visited",
]  # fmt: skip
