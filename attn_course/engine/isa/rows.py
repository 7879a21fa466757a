"""The table of pure PTX operations: name -> its rows, one an instruction form.

A name holds the parts of the text that change an instruction's meaning, as in "mul.wide"; a `Row`
says which types it takes, the modifiers it understands, its operands, and what builds its function.
"""

from .arithmetic import ARITHMETIC_ROWS
from .bit_rows import BIT_ROWS
from .comparison_rows import COMPARISON_ROWS
from .conversion_rows import CONVERSION_ROWS
from .row import Row

ROWS: dict[str, tuple[Row, ...]] = {
    **ARITHMETIC_ROWS,
    **BIT_ROWS,
    **COMPARISON_ROWS,
    **CONVERSION_ROWS,
}
