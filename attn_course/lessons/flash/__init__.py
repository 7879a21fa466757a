"""What the lessons on online softmax, flash attention and asynchronous copies count and say.

`runs` runs kernels on the simulator; `traces`, `tiles`, `budgets` and `clusters` say what those
runs, kernel 11's tiles, the shared memory of a block and the blocks of a cluster come to; `records`
speaks of measured times; `windows` makes the bias and the mask of shifted windows.
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
from .clusters import (
    NO_TILES,
    ClusterUse,
    cluster_use,
    key_parts,
    parts_table,
    rounds_table,
    sectors_and_time,
    sharing,
    sharing_table,
    split_rows,
    tile_record,
    use_table,
)
from .records import (
    NO_RECORD,
    REPORT,
    against_torch,
    causal_gains,
    experiment_outcome,
    floor_sentence,
    gains,
    medians,
    outcome_table,
    report_table,
    time_table,
)
from .runs import counts, keys_seen, ptx_counts, run
from .tiles import TileTraffic, tile_extents, tile_traffic, traffic_table, visited
from .traces import block_table, key_blocks, row_states
from .windows import relative_position_bias, shift_mask, shifted_regions

__all__ = [
    "BUDGETS",
    "NO_RECORD",
    "NO_TILES",
    "REPORT",
    "ClusterUse",
    "TileTraffic",
    "against_torch",
    "block_table",
    "budget_table",
    "causal_gains",
    "cluster_use",
    "counts",
    "experiment_outcome",
    "floor_sentence",
    "gains",
    "key_blocks",
    "key_parts",
    "keys_seen",
    "largest_dim",
    "medians",
    "outcome_table",
    "parts_table",
    "placement_table",
    "ptx_counts",
    "registers_table",
    "relative_position_bias",
    "report_table",
    "rounds_table",
    "row_states",
    "run",
    "shared_need",
    "sectors_and_time",
    "sharing",
    "sharing_table",
    "shift_mask",
    "shifted_regions",
    "split_rows",
    "tile_extents",
    "tile_fits",
    "tile_record",
    "tile_traffic",
    "time_table",
    "traffic_table",
    "use_table",
    "visited",
]
