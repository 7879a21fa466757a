"""Figures of the benchmark book: rows of a suite's record, as numbers by shape and contestant."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from . import style

Values = Mapping[str, Sequence[float | None]]  # contestant -> a number a shape, None where absent
_MARKS = "os^Dv<>P"


def _check(shapes: Sequence[str], values: Values) -> None:
    style.require(
        bool(shapes) and bool(values) and all(len(one) == len(shapes) for one in values.values()),
        "every contestant needs a number, or None, for each shape",
    )


def _frame(figure: Figure, title: str, source: str) -> None:
    """A title above, and below where and when the numbers were taken."""
    style.headline(figure, title)
    figure.supxlabel(source, x=0.01, ha="left", fontsize=8.5, color=style.GREY)


def _numbers(row: Sequence[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in row]


@style.styled
def ratios(
    shapes: Sequence[str], values: Values, *, to: str, source: str, title: str = ""
) -> Figure:
    """Draw how many times faster each contestant is than `to`, a group of bars a shape.

    values: contestant -> ratios, above 1 where it is faster.

    Raises:
        ValueError: no shape, no contestant, or rows of another length.
    """
    _check(shapes, values)
    figure = style.new_figure(8.2, 1.4 + 0.17 * len(shapes) * (len(values) + 1))
    axes = figure.subplots()
    height = 0.8 / len(values)
    for number, (name, row) in enumerate(values.items()):
        places = np.arange(len(shapes)) + (number - (len(values) - 1) / 2) * height
        ends = _numbers(row)
        colour = style.PALETTE[number % len(style.PALETTE)]
        axes.barh(places, ends, height * 0.9, color=colour, label=name, zorder=2)
        for place, end in zip(places, ends, strict=True):
            if np.isfinite(end):
                axes.annotate(
                    f"{end:.2f}",
                    (end, place),
                    xytext=(3, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                )
    axes.axvline(1, color=style.INK, lw=1.2, zorder=3)
    style.rows_of_bars(axes, shapes)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set(xlabel=f"times faster than {to}")
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
    figure = style.new_figure(4.4 * len(panels) + 1.4, 1.6 + 0.34 * len(shapes))
    every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (unit, values) in zip(every, panels.items(), strict=True):
        for number, (name, row) in enumerate(values.items()):
            axes.plot(
                _numbers(row),
                range(len(shapes)),
                _MARKS[number % len(_MARKS)],
                color=style.PALETTE[number % len(style.PALETTE)],
                ms=7,
                label=name,
            )
        axes.set_xscale("log")
        axes.set(xlabel=unit)
        style.grid_lines(axes)
    every[0].set_yticks(range(len(shapes)), shapes)
    every[0].invert_yaxis()
    style.legend_beside(every[-1])
    _frame(figure, title, source)
    return figure


@style.styled
def scaling(
    panels: Mapping[str, tuple[Sequence[int], Values]], *, source: str, title: str = ""
) -> Figure:
    """Draw time against the size of a problem, a panel a size; both axes logarithmic.

    panels: name of the size -> (its values in order, contestant -> microseconds).

    Raises:
        ValueError: no panel, or rows of another length than its sizes.
    """
    style.require(bool(panels), "there is no panel to draw")
    figure = style.new_figure(4.2 * len(panels) + 1.6, 3.6)
    every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (what, (sizes, values)) in zip(every, panels.items(), strict=True):
        _check([str(size) for size in sizes], values)
        for number, (name, row) in enumerate(values.items()):
            colour = style.PALETTE[number % len(style.PALETTE)]
            mark = _MARKS[number % len(_MARKS)]
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
    style.require(
        bool(rows) and all(len(row) == len(heads) for row in rows),
        f"every row needs {len(heads)} cells",
    )
    figure = style.new_figure(1.35 * len(heads) + 1, 0.34 * len(rows) + 0.9)
    axes = figure.subplots()
    axes.axis("off")
    drawn = axes.table(cellText=[list(row) for row in rows], colLabels=list(heads), loc="center")
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
