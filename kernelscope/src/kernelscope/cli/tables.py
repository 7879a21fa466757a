"""Tables as aligned text."""

import textwrap
from collections.abc import Sequence
from itertools import chain, zip_longest

COLUMNS = 120  # a wider line is broken by a notebook or a terminal
_NARROWEST = 16  # characters of a column whose cells go over several lines


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return rows of cells as aligned text; columns numbered in `right` are flush right.

    A table of more than 120 characters a line has the cells of its widest columns that are flush
    left over several lines.
    """
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    widths = _narrowed(widths, right)

    def line(cells):
        placed = (
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(placed).rstrip()

    def folded(cells):
        """One row of cells as the lines that it takes."""
        parts = [
            [cell] if len(cell) <= width else textwrap.wrap(cell, width) or [""]
            for cell, width in zip(cells, widths, strict=True)
        ]
        return [list(line) for line in zip_longest(*parts, fillvalue="")]

    rule = ["-" * width for width in widths]
    return "\n".join(map(line, [*folded(heads), rule, *chain.from_iterable(map(folded, rows))]))


def _narrowed(widths: list[int], right: Sequence[int]) -> list[int]:
    """Widths of columns that fit into COLUMNS, where columns that are flush left allow it."""
    widths = list(widths)
    while (excess := sum(widths) + 2 * (len(widths) - 1) - COLUMNS) > 0:
        places = [i for i, width in enumerate(widths) if i not in right and width > _NARROWEST]
        if not places:
            break
        widest = max(places, key=widths.__getitem__)
        widths[widest] = max(_NARROWEST, widths[widest] - excess)
    return widths
