"""How often each segment of machine code ran, from what the simulator counted of its PTX.

The two are joined by what both have: loads, stores, multiply-adds, barriers of a source line. The
counts of the segments are the numbers >= 0 that execute these as often as the simulator counted,
by which as many warps enter a segment as leave it, and which need the fewest instructions. Loops
that have none of these run as often as the loop of the PTX that has their lines; others are joined
by integer products, or else by all arithmetic of a line.

kinds has the kinds of instructions in both, counts those of the PTX; loops pairs the loops. anchors
and weak_anchors make the equations of both; system adds those of the flow between segments and has
them solved by least_squares. loads, beside it, pairs single loads.
"""

from .counts import BlockPlace, PtxCounts, may_fuse, of_several
from .kinds import KINDS, has_slow_path
from .loads import bits_of, bits_of_code, loads_of
from .system import executions
