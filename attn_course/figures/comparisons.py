"""Kernels and methods side by side: bars, times by shape, spreads of errors."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
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

    A curve that would hide another one is dashed.

    Raises:
        ValueError: no curve, or one of another length than x.
    """
    style.require_rows(by_name, len(x), f"curves need {len(x)} values each")
    figure, axes = style.new_axes(7.2, 3.4)
    drawn = []
    for name, y, colour, _ in style.coloured(by_name):
        hides = any(np.allclose(y, other, rtol=0.01, equal_nan=True) for other in drawn)
        axes.plot(x, y, label=name, color=colour, lw=2, ls=style.DASHED if hides else "-")
        drawn.append(y)
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
    width = 5.6 + style.text_width(shapes)
    figure, axes = style.new_axes(width, 1.2 + 0.16 * len(shapes) * (len(times) + 2))
    for number, (name, row, colour, mark) in enumerate(style.coloured(times)):
        # Candidates stand below each other within a row: equal times would hide one another.
        places = np.arange(len(shapes)) + (number - (len(times) - 1) / 2) / (len(times) + 2)
        ends = [np.nan if value is None else value for value in row]
        axes.scatter(ends, places, s=42, color=colour, marker=mark, label=name, zorder=2)
    style.rows_of_bars(axes, shapes)
    for place in range(1, len(shapes)):
        axes.axhline(place - 0.5, color=style.GRID, lw=1, zorder=0)
    axes.set_ylim(len(shapes) - 0.5, -0.5)
    style.log_axis(axes, [value for row in times.values() for value in row if value is not None])
    axes.set(xlabel="microseconds (median)", ylabel=rows)
    style.legend_beside(axes)
    style.headline(figure, f"{title} (further left is faster)".lstrip())
    style.below(figure, source)
    return figure


@style.styled
def predictions(
    measured: Mapping[str, float],
    predicted: Mapping[str, float],
    *,
    named: Mapping[str, str],
    band: float,
    source: str,
    title: str = "",
) -> Figure:
    """Draw a dot a case, measured time across and predicted time up, in microseconds.

    A dot on the line is right; band: the relative error at the edges of the grey band. named:
    label of a case -> what is written beside its dot.

    Raises:
        ValueError: the cases differ, or there is none, or one to be named is missing.
    """
    style.require(0 < len(measured) and measured.keys() == predicted.keys(), "other cases")
    style.require(named.keys() <= measured.keys(), "a case to be named is missing")
    figure, axes = style.new_axes(7.2, 5.4)
    most = max(*measured.values(), *predicted.values()) * 1.6
    ends = np.array([min(*measured.values(), *predicted.values()) / 1.6, most])
    axes.fill_between(ends, ends * (1 - band), ends * (1 + band), color=style.PALE, lw=0)
    axes.plot(ends, ends, color=style.INK, lw=1)
    dots = [[times[label] for label in measured] for times in (measured, predicted)]
    axes.scatter(*dots, s=22, color=style.BLUE, zorder=2)
    written = []
    for label in sorted(named, key=predicted.get, reverse=True):  # away from the band, downwards
        place = measured[label], predicted[label]
        side = 1 if place[1] < place[0] else -1
        close = [np.abs(np.log10(np.divide(place, one))) < (1, 0.15) for one in written]
        at, how = (7 * side, -12 * sum(map(all, close))), {"ha": "left" if side > 0 else "right"}
        style.note(axes, named[label], place, at, va="center", **how)
        written.append(place)
    labels = "measured, microseconds", "predicted, microseconds"
    style.chart(axes, title, *labels, source=source, log=True)
    axes.set(xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")
    return figure
