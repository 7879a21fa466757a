"""Tables as aligned text."""

from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return rows of cells as aligned text; columns numbered in `right` are flush right."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]

    def line(cells):
        placed = (
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(placed).rstrip()

    return "\n".join([line(heads), line(["-" * width for width in widths]), *map(line, rows)])
