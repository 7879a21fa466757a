"""Profiles: predicted against measured counts, speed of light, stall reasons."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from . import style


@style.styled
def count_ratios(
    pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    source: str = "",
    title: str = "",
) -> Figure:
    """Draw measured over predicted counts: a row a counter, a point a launch; equal ones at 1.

    The number at the right of a row is that of its points at exactly 1, and of all.

    Args:
        pairs: counter -> (predicted, measured), positive.
        source: where the measured ones come from.

    Raises:
        ValueError: no counts, lengths that differ, or a count that is not positive.
    """
    filled = {name: two for name, two in pairs.items() if len(two[0]) or len(two[1])}
    style.require(bool(filled), "no counts to draw")
    paired = all(len(a) == len(b) and min(*a, *b) > 0 for a, b in filled.values())
    style.require(paired, "every predicted count needs a measured one, both positive")
    figure, axes = style.new_axes(7.6, 1.2 + 0.34 * len(filled))
    axes.axvline(1, color=style.GREY, lw=1, zorder=1)
    lowest = highest = 1.0
    for place, (predicted, measured) in enumerate(filled.values()):
        ratios = np.array(measured, float) / np.array(predicted, float)
        spread = 0.22 * np.linspace(-1, 1, len(ratios)) if len(ratios) > 1 else 0.0
        colours = [style.BLUE if ratio == 1 else style.RED for ratio in ratios]
        rows = np.full(len(ratios), float(place)) + spread
        axes.scatter(ratios, rows, s=20, c=colours, alpha=0.7, zorder=2, linewidth=0)
        lowest, highest = min(lowest, ratios.min()), max(highest, ratios.max())
        text, right = f"{(ratios == 1).sum()} of {len(ratios)} at 1", axes.get_yaxis_transform()
        style.note(axes, text, (1, place), (4, 0), va="center", xycoords=right)
    style.rows_of_bars(axes, list(filled))
    axes.set(title=title, xscale="log", xlabel=style.with_source("hardware / simulator", source))
    ticks = [2.0**power for power in range(-12, 13, 2 if highest > 16 * lowest else 1)]
    ticks = [tick for tick in ticks if lowest / 1.05 <= tick <= 1.05 * highest]
    axes.set_xticks(ticks, [f"{tick:g}" if tick >= 1 else f"1/{1 / tick:g}" for tick in ticks])
    axes.minorticks_off()
    return figure


@style.styled
def percentages(
    rows: Sequence[str], values: Mapping[str, Sequence[float]], *, title: str = "", source: str = ""
) -> Figure:
    """Draw a table of percentages, dark where a unit is near its peak.

    Args:
        rows: one a kernel.
        values: column -> one percentage a row, NaN where there is none.

    Raises:
        ValueError: a column of another length.
    """
    style.require_rows(values, len(rows), "every column needs one value a row")
    grid = np.array([list(one) for one in values.values()], float).T
    figure, axes = style.new_axes(3.0 + 1.15 * grid.shape[1], 1.3 + 0.36 * grid.shape[0])
    image = axes.imshow(np.nan_to_num(grid), cmap="Blues", vmin=0, vmax=110, aspect="auto")
    for (row, column), value in np.ndenumerate(grid):
        text = "-" if np.isnan(value) else f"{value:.0f}"
        ink = style.ink_on(image.cmap(image.norm(np.nan_to_num(value))))
        style.centred(axes, column, row, text, fontsize=10, color=ink)
    axes.set_xticks(range(grid.shape[1]), values)
    axes.set_yticks(range(len(rows)), rows)
    axes.xaxis.tick_top()
    style.frameless(axes)
    axes.set_xlabel(style.with_source("% of peak", source), fontsize=9)
    style.headline(figure, title)
    return figure


@style.styled
def stacked(
    rows: Sequence[str],
    parts: Sequence[Mapping[str, float]],
    *,
    unit: str,
    title: str = "",
    source: str = "",
    longest_first: bool = True,
) -> Figure:
    """Draw stacked horizontal bars: one row a kernel, one colour a reason.

    Args:
        rows: one a kernel.  parts: reason -> length, one mapping a row; missing ones are 0;
            a reason that is 0 in all rows is not in the legend.  longest_first: the longest reason
            begins each bar; else the first one does.

    Raises:
        ValueError: no parts, or another number of them than rows.
    """
    style.require(len(parts) == len(rows) > 0 and any(parts), "every row needs its parts")
    names = list(dict.fromkeys(name for one in parts for name, length in one.items() if length))
    if longest_first:
        names.sort(key=lambda name: -max(one.get(name, 0) for one in parts))
    figure, axes = style.new_axes(8.4, 1.5 + 0.4 * len(rows))
    lengths = {name: [one.get(name, 0) for one in parts] for name in names}
    ends = style.stack_bars(axes, lengths, (*style.PALETTE, style.PALE))
    style.write_values(axes, ends, [f"{value:.{int(any(ends % 1))}f}" for value in ends])
    style.rows_of_bars(axes, rows)
    axes.set_xlim(0, ends.max() * 1.12 or 1)
    axes.set(title=title, xlabel=style.with_source(unit, source))
    figure.legend(frameon=False, loc="outside right upper", fontsize=9)
    return figure
