"""Kernels and methods side by side: bars, times by shape, spreads of errors."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.ticker import MaxNLocator

from . import style


@style.styled
def bars(
    labels: Sequence[str],
    values: Sequence[float],
    *,
    unit: str,
    emphasis: Sequence[str] = (),
    title: str = "",
) -> Figure:
    """Draw horizontal bars, one a label, top to bottom, with the value written out.

    Args:
        unit: of the values; the axis label.
        emphasis: labels drawn in colour, the others in grey; none given: all in colour.

    Raises:
        ValueError: lengths differ, or there is nothing to draw.
    """
    values = np.asarray(values, float)
    style.require(len(labels) == len(values) > 0, f"{len(labels)} labels for {len(values)} values")
    figure, axes = style.new_axes(7.2, 0.9 + 0.42 * len(values))
    colours = [style.BLUE if not emphasis or name in emphasis else style.PALE for name in labels]
    axes.barh(np.arange(len(values)), values, color=colours, height=0.66, zorder=2)
    style.write_values(axes, values, [_written(value) for value in values])
    style.rows_of_bars(axes, labels)
    axes.set_xlim(0, values.max() * 1.2 or 1)
    axes.xaxis.set_major_formatter("{x:,g}")
    if (values == values.round()).all():
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))  # no half of a claim
    axes.set(title=title, xlabel=unit)
    return figure


def _written(value: float) -> str:
    """Four digits, or every digit before the point with separators: 1.234, 16,896."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@style.styled
def curves(
    x: np.ndarray,
    by_name: Mapping[str, np.ndarray],
    *,
    labels: tuple[str, str],
    title: str = "",
    log: bool = False,
) -> Figure:
    """Draw a curve a name over common x values. labels: of the two axes; log: both logarithmic.

    Raises:
        ValueError: no curve, or one of another length than x.
    """
    style.require_rows(by_name, len(x), f"curves need {len(x)} values each")
    figure, axes = style.new_axes(7.2, 3.4)
    for name, y, colour, _ in style.coloured(by_name):
        axes.plot(x, y, label=name, color=colour, lw=2)
    style.chart(axes, title, *labels, log=log, legend="best" if len(by_name) > 1 else "")
    return figure


@style.styled
def error_profile(
    labels: Sequence[str],
    errors: Sequence[np.ndarray],
    *,
    title: str = "absolute error against float64",
) -> Figure:
    """Draw how large the errors of each run are, a row a run, on a logarithmic axis.

    A dot is the median; the middle half of the elements lies on the thick line. The thin line
    begins where one element in a hundred has a smaller error, and ends at the largest.

    Args:
        labels: one a run.
        errors: absolute errors of each run, any shape. Zero is drawn as the smallest error of all
            runs that is not.

    Raises:
        ValueError: lengths differ, or an error is negative or not finite.
    """
    style.require(len(labels) == len(errors) > 0, f"{len(labels)} labels for {len(errors)} runs")
    flat = [np.sort(np.asarray(one, float).ravel()) for one in errors]
    finite = all(len(one) and np.isfinite(one).all() and one[0] >= 0 for one in flat)
    style.require(finite, "errors must be finite and not negative")
    positive = np.concatenate([one[one > 0] for one in flat])
    floor = positive.min() if len(positive) else 1e-12
    figure, axes = style.new_axes(7.4, 1.3 + 0.3 * len(labels))
    for place, one in enumerate(flat):
        marks = np.maximum(np.quantile(one, (0.01, 0.25, 0.5, 0.75, 1)), floor)
        for ends, width in ((marks[::4], 1.5), (marks[1:4:2], 7)):
            axes.plot(ends, (place, place), color=style.BLUE, lw=width, solid_capstyle="butt")
        axes.plot(marks[2], place, "o", color=style.PAPER, mec=style.INK, ms=7)
    axes.set_xscale("log")
    style.rows_of_bars(axes, labels)
    axes.set(title=title, xlabel="absolute error: 1 % smaller, middle half, median, largest")
    return figure


@style.styled
def times_by_shape(
    shapes: Sequence[str],
    times: Mapping[str, Sequence[float | None]],
    *,
    source: str,
    title: str = "",
    rows: str = "(B, H, L, D)",
) -> Figure:
    """Draw a row of dots a shape, one dot a candidate, time on a logarithmic axis.

    times: candidate -> microseconds, None where it did not run.  rows: what the shapes are of.
    """
    style.require_rows(times, len(shapes), "every candidate needs a time, or None, for each shape")
    width = 5.6 + _text_width(shapes)
    figure, axes = style.new_axes(width, 1.2 + 0.16 * len(shapes) * (len(times) + 2))
    for number, (name, row, colour, mark) in enumerate(style.coloured(times)):
        # Candidates stand below each other within a row: equal times would hide one another.
        places = np.arange(len(shapes)) + (number - (len(times) - 1) / 2) / (len(times) + 2)
        axes.scatter(_numbers(row), places, s=42, color=colour, marker=mark, label=name, zorder=2)
    style.rows_of_bars(axes, shapes)
    for place in range(1, len(shapes)):
        axes.axhline(place - 0.5, color=style.GRID, lw=1, zorder=0)
    axes.set_ylim(len(shapes) - 0.5, -0.5)
    style.log_axis(axes, [value for row in times.values() for value in row if value is not None])
    axes.set(xlabel="microseconds (median)", ylabel=rows)
    style.legend_beside(axes)
    _frame(figure, f"{title} (lower is better)".lstrip(), source)
    return figure


# -- the benchmark book: numbers by shape and candidate -------------------------------------------
Values = Mapping[str, Sequence[float | None]]  # candidate -> a number a shape, None where absent
_CLEAR = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.4}  # behind a number on a line


def _check(shapes: Sequence[str], values: Values) -> None:
    message = "every candidate needs a number, or None, for each shape"
    style.require(bool(shapes), message)
    style.require_rows(values, len(shapes), message)


def _frame(figure: Figure, title: str, source: str) -> None:
    """A title above, and below where and when the numbers were taken."""
    style.headline(figure, title)
    style.below(figure, source)


def _text_width(texts: Sequence[str], **font) -> float:
    """Width in inches of the longest text. font: of FontProperties; 10 points unless told."""
    font = FontProperties(**{"size": 10} | font)
    lines = (line for text in texts for line in text.split("\n"))
    return max(TextPath((0, 0), line, prop=font).get_extents().width for line in lines) / 72


def _numbers(row: Sequence[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in row]


@style.styled
def ratios(
    shapes: Sequence[str], values: Values, *, to: str, source: str, title: str = ""
) -> Figure:
    """Draw the speed of each candidate relative to `to`, a group of bars a shape, with a line at 1.

    values: candidate -> speeds, above 1 where it is faster.

    Raises:
        ValueError: no shape, no candidate, or rows of another length.
    """
    _check(shapes, values)
    width = 6.4 + _text_width(shapes)
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
) -> Figure:
    """Draw rates by shape, a panel a unit: "GFLOP/s", "GB/s". Logarithmic.

    Raises:
        ValueError: no panel, or one whose rows have another length than shapes.
    """
    style.require(bool(panels), "there is no panel to draw")
    for values in panels.values():
        _check(shapes, values)
    width = 3.2 * len(panels) + 1.8 + _text_width(shapes)
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
) -> Figure:
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
def summary(heads: Sequence[str], rows: Sequence[Sequence[str]], *, source: str) -> Figure:
    """Draw a table as a figure: one row a shape.

    Raises:
        ValueError: no rows, or one with another number of cells than heads.
    """
    complete = bool(rows) and all(len(row) == len(heads) for row in rows)
    style.require(complete, f"every row needs {len(heads)} cells")
    columns = zip(heads, *rows, strict=True)
    widths = [_text_width(column, size=9.5, weight="bold") + 0.3 for column in columns]
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
