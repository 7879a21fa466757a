"""Loops that one lane runs alone, as Python functions on plain numbers.

NumPy needs some 2 us an instruction, for one lane as for a thousand. A serial scan by one thread,
or a table that one thread fills, would wait for that only. So such a loop becomes a function of
Python's own numbers: `forms` has the pure operations, `lines` the instructions, `loop` the function
from the blocks. What it does not know, or what needs care (NaN, subnormals, faults, atomics), it
leaves to the NumPy lines, one instruction at a time.
"""

from .forms import LEAST, Aside
from .lines import ScalarLines, views
from .loop import FUEL, Loop, loop_of
