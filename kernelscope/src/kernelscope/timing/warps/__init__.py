"""Warps and blocks that are not alike: lanes that run apart, and work that is unequal.

apart has the lanes of a warp that run the same code one after another, uneven the warps of a block
and the blocks of a grid that others wait for, sample the blocks that stand for all.
"""

from .apart import TURNS, Apart
from .sample import GROUPS, MORE, sampled_blocks
from .uneven import LongestWarps, Unevenness, WarpShares, unevenness

__all__ = [
    "GROUPS",
    "MORE",
    "TURNS",
    "Apart",
    "LongestWarps",
    "Unevenness",
    "WarpShares",
    "sampled_blocks",
    "unevenness",
]
