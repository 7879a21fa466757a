"""How often each segment of machine code ran, from what the simulator counted of its PTX.

A cubin says of which PTX instruction each machine instruction is made. The counts of the segments
are the numbers >= 0 that execute loads and stores as often as the simulator counted them, by which
as many warps enter a segment as leave it, and which need the fewest instructions. Arithmetic joins
them too, with less weight: ptxas leaves out, moves and repeats some.

kinds has the kinds of instructions in both, counts those of the PTX, copies what each segment has
of them, anchors the equations of both; system adds those of the flow between segments and has them
solved by least_squares.
"""

from .counts import NOWHERE, BlockPlace, PtxCounts, loads_of, of_one_kind, with_spaces
from .kinds import KINDS, bits_of, bits_of_code, has_slow_path, is_swap
from .places import Places, places_of, steps_that_yield
from .system import executions
