"""The table of pure PTX operations: name -> its rows, one an instruction form.

A name holds the parts of the text that change an instruction's meaning, as in "mul.wide"; a `Row`
says which types it takes, the modifiers it understands, its operands, and what builds its function.
"""

from attn_course.simulator.arithmetic_rows import ARITHMETIC_ROWS
from attn_course.simulator.bit_rows import BIT_ROWS
from attn_course.simulator.comparison_rows import COMPARISON_ROWS
from attn_course.simulator.conversion_rows import CONVERSION_ROWS
from attn_course.simulator.row import Row

ROWS: dict[str, tuple[Row, ...]] = {
    **ARITHMETIC_ROWS, **BIT_ROWS, **COMPARISON_ROWS, **CONVERSION_ROWS,
}  # fmt: skip
