"""Where the time goes: Amdahl's curve, shares, a roofline, time by work."""

import textwrap
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import style


@style.styled
def amdahl(
    shares: Mapping[str, float],
    points: Mapping[str, tuple[float, float]] | None = None,
    *,
    title: str = "",
) -> Figure:
    """Draw Amdahl's law: the gain of the pipeline by the gain of a part, a curve a share.

    Args:
        shares: name -> the part's share of the time, 0 to 1, below 1.
        points: name -> (factor of the part, factor of the whole) that somebody measured.

    Raises:
        ValueError: no share, or one that is out of range.
    """
    possible = len(shares) > 0 and all(0 <= one < 1 for one in shares.values())
    style.require(possible, "shares must be at least 0 and below 1")
    most = 100.0  # the largest factor of the part
    factors = np.geomspace(1, most, 200)
    figure, axes = style.new_axes(7.6, 4.0)
    for name, share, colour, _ in style.coloured(shares):
        limit, label = 1 / (1 - share), f"{name}: {100 * share:.1f} % of the time"
        axes.plot(factors, 1 / (1 - share + share / factors), color=colour, lw=2.2, label=label)
        axes.axhline(limit, color=colour, lw=1, ls=style.DASHED)
        how = {"ha": "right", "va": "bottom", "color": colour}
        style.note(axes, f"limit {limit:.3g}", (most, limit), (-2, 3), **how)
    for (name, at), mark in zip((points or {}).items(), "osD^v", strict=False):
        axes.plot(*at, mark, color=style.INK, ms=7, zorder=4, label=name)
    axes.set(xscale="log", yscale="log")
    _plain_ticks(axes.xaxis, (1, 2, 5, 10, 20, 50, 100))
    _plain_ticks(axes.yaxis, (1, 1.5, 2, 3, 5, 10, 20, 50))
    axes.set_ylim(0.97, 1.25 * max(1 / (1 - one) for one in shares.values()))
    style.chart(axes, title, "the part, times faster", "the pipeline, times faster")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 0.88), fontsize=9)
    return figure


def _plain_ticks(axis, places: Sequence[float]) -> None:
    axis.set_ticks(places, [f"{place:g}×" for place in places])
    axis.set_ticks([], minor=True)


@style.styled
def shares(
    chains: Mapping[str, Mapping[str, float]], *, title: str = "", source: str = ""
) -> Figure:
    """Draw the shares of each pipeline's time, a bar of full width a pipeline.

    Args:
        chains: pipeline -> part -> its time; a part keeps its colour.

    Raises:
        ValueError: no pipeline, or one without time.
    """
    totals = {name: sum(parts.values()) for name, parts in chains.items()}
    style.require(min(totals.values(), default=0) > 0, "every pipeline needs parts with time")
    names = list(dict.fromkeys(part for parts in chains.values() for part in parts))
    colours = dict(zip(names, style.PALETTE, strict=False))
    figure, axes = style.new_axes(8.6, 1.5 + 0.52 * len(chains))
    for place, (name, parts) in enumerate(chains.items()):
        _draw_shares(axes, place, parts, colours)
        digits = 0 if totals[name] >= 100 else 1
        axes.text(101, place, f"{totals[name]:,.{digits}f} us", va="center", fontsize=10)
    style.rows_of_bars(axes, list(chains))
    axes.set_xlim(0, 118)
    axes.set_xticks(range(0, 101, 25))
    axes.spines["bottom"].set_visible(False)
    axes.set(xlabel=style.with_source("percent of the pipeline's kernel time", source))
    axes.set_title(title, pad=30)
    handles, labels = axes.get_legend_handles_labels()
    found = dict(zip(labels, handles, strict=True))
    where = {"loc": "lower left", "bbox_to_anchor": (-0.01, 0.98), "borderaxespad": 0.2}
    axes.legend(found.values(), found, frameon=False, fontsize=8.5, ncols=3, **where)
    return figure


def _draw_shares(
    axes: Axes, place: int, parts: Mapping[str, float], colours: Mapping[str, str]
) -> None:
    """One full bar at height `place`; parts of more than 5 % have their share written in them."""
    left, total = 0.0, sum(parts.values())
    for part, value in parts.items():
        width, colour = 100 * value / total, colours.get(part, style.GREY)
        bar = {"color": colour, "edgecolor": style.PAPER, "label": part}
        axes.barh(place, width, left=left, height=0.66, zorder=2, **bar)
        if width > 5:
            ink = {"color": style.ink_on(colour), "fontsize": 9.5}
            style.centred(axes, left + width / 2, place, f"{width:.0f} %", **ink)
        left += width


@style.styled
def roofline(
    points: Mapping[str, tuple[float, float]],
    *,
    tflops: float,
    gbps: Mapping[str, float],
    others: Mapping[str, tuple[float, Sequence[str]]] | None = None,
    title: str = "",
    source: str = "",
) -> Figure:
    """Draw the rates of kernels under a GPU's roofs.

    Args:
        points: name -> (operations a byte, 10^12 operations a second), all positive.
        tflops: 10^12 float32 operations a second that the GPU can do without tensor cores.
        gbps: level of memory -> 10^9 bytes a second that it gives. The points' shares are of the
            first one's roof; the others are dashed.
        others: another way to compute -> (its 10^12 operations a second, the names of the points
            whose roof that is).

    Raises:
        ValueError: no point or no level, a roof of a point that there is not, or a number that is
            not positive.
    """
    positive = min((min(point) for point in points.values()), default=0) > 0
    style.require(positive, "every point needs a positive intensity and rate")
    first, least = next(iter(gbps.values()), 0), min(gbps.values(), default=0)
    style.require(least > 0, "every level of memory needs a positive rate")
    others = others or {}
    own = {name: rate for rate, names in others.values() for name in names}
    drawn = own.keys() <= points.keys() and all(rate > 0 for rate, _ in others.values())
    style.require(drawn, "every other roof needs a positive rate and points that are drawn")
    highest = max([tflops, *(rate for rate, _ in others.values())])
    xs = [x for x, _ in points.values()]
    low, high = min(0.5, min(xs) / 2), max(1e4 * highest / least, 20 * max(xs))  # room for names
    bottom, top = min(y for _, y in points.values()) / 3, 3 * highest
    height, shares = max(4.6, 2 + 0.24 * len(points)), {}
    figure, axes = style.new_axes(9.6, height)
    x = np.geomspace(low, high, 300)
    for (name, rate), dash in zip(gbps.items(), ("-", style.DASHED, ":"), strict=False):
        line = {"color": style.INK, "lw": 2, "ls": dash, "label": f"{name}: {rate:,.0f} GB/s"}
        axes.plot(x, np.minimum(highest, x * rate / 1e3), **line)
    for name, (rate, _) in ({"float32": (tflops, ())} | others).items():
        if rate < highest:
            axes.plot((rate * 1e3 / first, high), (rate, rate), color=style.INK, lw=1.4)
        ridge, down = rate * 1e3 / least, -11 if rate < highest else 4
        style.note(axes, f"{name}: {rate:,.3g} TFLOP/s", (ridge, rate), (6, down))
    for number, (name, (at, rate)) in enumerate(points.items()):
        roof = min(own.get(name, tflops), at * first / 1e3)
        colour = style.PALETTE[number % len(style.PALETTE)]
        axes.plot((at, at), (rate, roof), color=colour, lw=1, ls=(0, (2, 2)))
        axes.plot(at, rate, "o", color=colour, mec=style.PAPER, ms=9, zorder=3)
        shares[f"{name}: {100 * rate / roof:.2g} %"] = at, rate, colour
    x = "operations a byte, each array moved once; %: of the roof above"
    style.chart(axes, title, x, "TFLOP/s", log=True)
    axes.legend(frameon=False, loc="lower right", fontsize=9)
    axes.set(xlim=(low, high), ylim=(bottom, top))
    _name_points(axes, shares, 0.19 / (height - 1.6) * np.log(top / bottom))
    style.below(figure, source)
    return figure


def _name_points(axes: Axes, points: Mapping[str, tuple], gap: float) -> None:
    """Write the names of points (x, y, colour) to their right, in columns of those that are near
    each other across, at least `gap` (of the logarithm) above each other."""
    columns: list[list] = []
    points = {textwrap.fill(name, 24): point for name, point in points.items()}
    for name, (x, y, colour) in sorted(points.items(), key=lambda point: point[1]):
        if not columns or x > 4 * columns[-1][0][1]:
            columns.append([])
        columns[-1].append((y, x, name, colour))
    for column in map(sorted, columns):
        own, sizes = np.log([y for y, *_ in column]), [1 + one[2].count("\n") for one in column]
        steps = gap * (np.cumsum(sizes) - np.divide(sizes, 2))
        places = np.maximum.accumulate(own - steps) + steps
        places -= (places - own).max() / 2  # pushed down as far as up
        right = 1.25 * max(x for _, x, *_ in column)
        for (y, x, name, colour), place in zip(column, np.exp(places), strict=True):
            axes.plot((x, right), (y, place), color=colour, lw=0.8)
            axes.text(right * 1.04, place, name, va="center", fontsize=9)
        axes.set_ylim(bottom=min(axes.get_ylim()[0], np.exp(places[0] - gap)))


@style.styled
def time_by_work(
    series: Mapping[str, Collection[tuple[float, float]]],
    *,
    floors: Mapping[str, float],
    launches: Mapping[str, float] | None = None,
    title: str = "",
    source: str = "",
) -> Figure:
    """Draw times against work, with the floors of arithmetic and of a launch.

    Args:
        series: name -> pairs of 10^6 operations and microseconds.
        floors: name of a rate -> microseconds for 10^6 operations at that rate.
        launches: name -> microseconds of kernels that do nothing, a horizontal line each.

    Raises:
        ValueError: no series, or one that is not positive.
    """
    every = [pair for one in series.values() for pair in one]
    positive = min(map(min, every), default=0) > 0
    style.require(positive, "every series needs positive work and time")
    least, most = min(every)[0], max(every)[0]
    figure, axes = style.new_axes(7.8, 4.4)
    for colour, mark, (name, one) in zip(style.PALETTE, "os^Dv", series.items(), strict=False):
        axes.plot(*zip(*sorted(one), strict=True), mark, color=colour, ms=7, label=name)
    reach = np.array([least / 1.6, most * 1.6])
    for (name, each), dash in zip(floors.items(), ((4, 3), (1, 2)), strict=False):
        axes.plot(reach, reach * each, color=style.INK, lw=1.3, ls=(0, dash), label=name)
    for (name, us), dash in zip((launches or {}).items(), ("-", "--", ":"), strict=False):
        axes.axhline(us, color=style.RED, lw=1.3, ls=dash, label=name)
    x = "millions of operations"
    style.chart(axes, title, x, "microseconds", source=source, log=True, legend="beside")
    axes.set_xlim(*reach)
    return figure
