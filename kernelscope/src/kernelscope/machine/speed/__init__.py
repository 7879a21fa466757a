"""What makes a run faster and changes no result: loops that one lane runs alone, loops of
compare-and-swap under contention, and the blocks of a launch on all cores.
"""

from .single import FEW, Single
from .swaps import Swaps
from .workers import shared_out
