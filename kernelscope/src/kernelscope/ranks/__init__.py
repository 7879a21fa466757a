"""Ranks: workers that compute one thing together, each with a GPU or with a share of the simulator.

lines says small values from rank to rank and names a rank that is lost; links moves arrays, by NCCL
or in memory; copies is beside it, for parts of arrays and streams that wait for each other; rank
has what a program uses: Rank, run_ranks() and join_ranks().
"""

from ..lazy import lazy

_NAMES = {
    "copies": "StreamMarks row_copy",
    "lines": "Hub RankLost",
    "links": "Loopback LinkError groupEnd groupStart",
    "rank": "CHANNELS Rank join_ranks nccl_module run_ranks",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
