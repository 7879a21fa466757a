"""Figures of the book alone: ratios, rates, growth and a summary, by shape and candidate."""

from collections.abc import Mapping, Sequence

import numpy as np

from attn_course.figures import style

Values = Mapping[str, Sequence[float | None]]  # candidate -> a number a shape, None where absent
_CLEAR = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.4}  # behind a number on a line


def _check(shapes: Sequence[str], values: Values) -> None:
    message = "every candidate needs a number, or None, for each shape"
    style.require(bool(shapes), message)
    style.require_rows(values, len(shapes), message)


def _frame(figure: style.Figure, title: str, source: str) -> None:
    """Write a title above a figure, and below it where and when its numbers were taken."""
    style.headline(figure, title)
    style.below(figure, source)


def _numbers(row: Sequence[float | None]) -> list[float]:
    """Return numbers for an axis, NaN where there is none."""
    return [np.nan if value is None else value for value in row]


@style.styled
def ratios(
    shapes: Sequence[str], values: Values, *, to: str, source: str, title: str = ""
) -> style.Figure:
    """Draw the speed of each candidate relative to `to`, a group of bars a shape, with a line at 1.

    values: candidate -> speeds, above 1 where it is faster.

    Raises:
        ValueError: no shape, no candidate, or rows of another length.
    """
    _check(shapes, values)
    width = 6.4 + style.text_width(shapes)
    figure, axes = style.new_axes(width, 1.4 + 0.18 * len(shapes) * (len(values) + 1))
    height = 0.8 / len(values)
    for number, (name, row, colour, _) in enumerate(style.coloured(values)):
        places = np.arange(len(shapes)) + (number - (len(values) - 1) / 2) * height
        ends = np.array(_numbers(row))
        axes.barh(places, ends, height * 0.9, color=colour, label=name, zorder=2)
        for place, end in zip(places, ends, strict=True):
            if np.isfinite(end):
                style.note(axes, f"{end:.2f}", (end, place), (3, 0), va="center", bbox=_CLEAR)
    axes.axvline(1, color=style.INK, lw=1.2, zorder=2.5)  # under the numbers
    style.rows_of_bars(axes, shapes)
    axes.set_ylim(len(shapes) - 0.5, -0.5)
    found = (value for row in values.values() for value in row if value is not None)
    axes.set_xlim(0, 1.12 * max(1, *found))  # room for the number behind the longest bar
    axes.set(xlabel=f"speed, {to} = 1")
    style.legend_beside(axes)
    _frame(figure, title, source)
    return figure


@style.styled
def rates(
    shapes: Sequence[str], panels: Mapping[str, Values], *, source: str, title: str = ""
) -> style.Figure:
    """Draw rates by shape, a panel a unit: "GFLOP/s", "GB/s". Logarithmic.

    Raises:
        ValueError: no panel, or one whose rows have another length than shapes.
    """
    style.require(bool(panels), "there is no panel to draw")
    for values in panels.values():
        _check(shapes, values)
    width = 3.25 * len(panels) + 1.8 + style.text_width(shapes)
    height = 1.6 + 0.17 * len(shapes) * (2 + max(shape.count("\n") for shape in shapes))
    figure, every = style.new_row(width, height, len(panels), sharey=True)
    for axes, (unit, values) in zip(every, panels.items(), strict=True):
        for name, row, colour, mark in style.coloured(values):
            axes.plot(_numbers(row), range(len(shapes)), mark, color=colour, ms=7, label=name)
        found = [value for row in values.values() for value in row if value is not None]
        style.log_axis(axes, found)
        axes.set(xlabel=unit)
        style.grid_lines(axes)
    every[0].set_yticks(range(len(shapes)), shapes)
    every[0].set_ylim(len(shapes) - 0.5, -0.5)
    style.legend_beside(every[-1])
    _frame(figure, title, source)
    return figure


@style.styled
def scaling(
    panels: Mapping[str, tuple[Sequence[int], Values]], *, source: str, title: str = ""
) -> style.Figure:
    """Draw time against the size of a problem, a panel a size; both axes logarithmic.

    panels: name of the size -> (its values in order, candidate -> microseconds).

    Raises:
        ValueError: no panel, or rows of another length than its sizes.
    """
    style.require(bool(panels), "there is no panel to draw")
    figure, every = style.new_row(3.6 * len(panels) + 1.6, 3.6, len(panels), sharey=True)
    for axes, (what, (sizes, values)) in zip(every, panels.items(), strict=True):
        _check([str(size) for size in sizes], values)
        for name, row, colour, mark in style.coloured(values):
            axes.plot(sizes, _numbers(row), f"{mark}-", color=colour, label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(list(sizes), [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.set(xlabel=what)
        style.grid_lines(axes)
    every[0].set_ylabel("microseconds")
    every[0].yaxis.set_major_formatter("{x:,g}")
    style.legend_beside(every[-1])
    _frame(figure, title, source)
    return figure


@style.styled
def summary(heads: Sequence[str], rows: Sequence[Sequence[str]], *, source: str) -> style.Figure:
    """Draw a table as a figure: one row a shape.

    Raises:
        ValueError: no rows, or one with another number of cells than heads.
    """
    complete = bool(rows) and all(len(row) == len(heads) for row in rows)
    style.require(complete, f"every row needs {len(heads)} cells")
    columns = zip(heads, *rows, strict=True)
    widths = [style.text_width(column, size=9.5, weight="bold") + 0.3 for column in columns]
    figure, axes = style.new_axes(sum(widths) + 0.2, 0.235 * len(rows) + 0.8)
    axes.axis("off")
    shares = [width / sum(widths) for width in widths]
    cells = {"cellText": [list(row) for row in rows], "colLabels": list(heads)}
    drawn = axes.table(**cells, colWidths=shares, loc="center")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(9.5)
    drawn.scale(1, 1.35)
    for (row, _), cell in drawn.get_celld().items():
        cell.set_edgecolor(style.GRID)
        if row == 0:
            cell.set_facecolor(style.EMPTY)
            cell.set_text_props(fontweight="bold")
    _frame(figure, "", source)
    return figure
