"""Candidates timed on a GPU in turns, and the spread of their times."""

from ..lazy import lazy

_NAMES = {
    "turns": """
        Timing Ratio Contest Replay TimingError GpuClock GRAPH_CALLS HOW REPLAYS bootstrap_ratio
        require_gpu capture calls_for contest measure first_calls clocks ClockWatch
    """,
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
