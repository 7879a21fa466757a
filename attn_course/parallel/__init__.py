"""Attention over several GPUs: sequences in shards, a ring of keys and values, or heads in turn."""

from kernelscope.lazy import lazy

_NAMES = {
    "shards": "Shards",
    "ring": "RingPlan ring_attention",
    "heads": "HeadsPlan heads_attention",
    "form": "ParallelPlan",
}
_ENGINE = {"kernelscope.ranks": "Rank RankLost join_ranks run_ranks"}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES, _ENGINE)
