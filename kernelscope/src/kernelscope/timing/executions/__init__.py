"""How often each segment of machine code ran, from what the simulator counted of its PTX.

The two are joined by what both have: loads, stores, multiply-adds, barriers of a source line. The
counts of the segments are the numbers >= 0 that execute these as often as the simulator counted,
by which as many warps enter a segment as leave it, and which need the fewest instructions. Loops
that have none of these run as often as the loop of the PTX that has their lines; others are joined
by integer products, or else by all arithmetic of a line.

kinds says what instructions are in both; counts has the PTX's; loops pairs the loops; anchors and
weak_anchors make equations of what both have; system adds the flow between segments, and solves all
by least_squares. loads is beside it: which load of the PTX a load of machine code is.
"""

from .counts import BlockPlace, PtxCounts, may_fuse, of_several
from .kinds import KINDS, has_slow_path
from .loads import bits_of, bits_of_code, loads_of
from .system import executions
