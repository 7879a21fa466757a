"""Tables as aligned text."""

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain, zip_longest

COLUMNS = 120  # a wider line is broken by a notebook
LEAST = 60  # columns of the narrowest terminal that tables are laid out for
_NARROWEST = 16  # characters of a column whose cells go over several lines
_width: ContextVar[int] = ContextVar("width", default=COLUMNS)


def width() -> int:
    """Return the characters of a line: COLUMNS, or those of a terminal (see `terminal_wide`)."""
    return _width.get()


@contextmanager
def terminal_wide() -> Iterator[None]:
    """Lay tables out for the terminal, or as wide as the variable COLUMNS says."""
    token = _width.set(max(LEAST, shutil.get_terminal_size((COLUMNS, 24)).columns))
    try:
        yield
    finally:
        _width.reset(token)


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
    whole: Sequence[int] = (),
) -> str:
    """Return rows of cells as aligned text; columns numbered in `right` are flush right.

    Where a line would have more than width() characters, the cells of the widest columns that are
    flush left and not in `whole` go over several lines; columns that still find no room follow in
    further tables, each with the first column.
    """
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    widths = _narrowed(widths, (*right, *whole))
    return "\n\n".join(_text(heads, rows, right, widths, part) for part in parts(widths))


def parts(widths: Sequence[int], first: int = 1) -> Iterator[list[int]]:
    """Yield groups of columns that fit into width() beside the first ones, which each group has."""
    part = list(range(min(first, len(widths))))
    for column in range(first, len(widths)):
        if sum(2 + widths[i] for i in (*part, column)) - 2 > width() and len(part) > first:
            yield part
            part = list(range(first))
        part.append(column)
    yield part


def _text(heads, rows, right, widths: Sequence[int], part: Sequence[int]) -> str:
    """Some columns of a table."""

    def line(cells):
        placed = (
            cell.rjust(widths[i]) if i in right else cell.ljust(widths[i])
            for i, cell in zip(part, cells, strict=True)
        )
        return "  ".join(placed).rstrip()

    def folded(cells):
        """One row of cells as the lines that it takes."""
        shown = [
            [cells[i]] if len(cells[i]) <= widths[i] else textwrap.wrap(cells[i], widths[i]) or [""]
            for i in part
        ]
        return [list(line) for line in zip_longest(*shown, fillvalue="")]

    rule = ["-" * widths[i] for i in part]
    return "\n".join(map(line, [*folded(heads), rule, *chain.from_iterable(map(folded, rows))]))


def _narrowed(widths: list[int], whole: Sequence[int]) -> list[int]:
    """Widths of columns that fit into width(), where columns that may be narrower allow it."""
    widths = list(widths)
    while (excess := sum(widths) + 2 * (len(widths) - 1) - width()) > 0:
        places = [i for i, each in enumerate(widths) if i not in whole and each > _NARROWEST]
        if not places:
            break
        widest = max(places, key=widths.__getitem__)
        widths[widest] = max(_NARROWEST, widths[widest] - excess)
    return widths
