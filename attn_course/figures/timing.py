"""Timing: first calls, the spread of samples, a run under load."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from . import style


@style.styled
def calls_in_order(
    series: Mapping[str, Sequence[Sequence[float]]],
    groups: Sequence[str],
    *,
    source: str = "",
    title: str = "every call of a fresh process, in order",
) -> Figure:
    """Draw each call's time on a logarithmic axis, group by group, the first of a group ringed.

    Args:
        series: name -> for each group, microseconds of its calls in order.
        groups: what the groups are, such as shapes.

    Raises:
        ValueError: a series has another number of groups, a group is empty or not positive.
    """
    for name, calls in series.items():
        found = f"{name} has {len(calls)} groups of {len(groups)}"
        style.require(len(calls) == len(groups) > 0, found)
        timed = all(len(one) and min(one) > 0 for one in calls)
        style.require(timed, f"{name} has a group without calls, or a time that is not positive")
    figure, axes = style.new_axes(8.6, 3.9)
    for colour, (name, calls) in zip(style.PALETTE, series.items(), strict=False):
        starts = np.cumsum([0, *map(len, calls)])
        times = np.concatenate([np.asarray(one, float) for one in calls])
        axes.plot(np.arange(times.size), times, ".", color=colour, ms=5, label=name)
        axes.plot(starts[:-1], times[starts[:-1]], "o", mfc="none", mec=colour, ms=11, mew=1.6)
        for start in starts[1:-1]:
            axes.axvline(start - 0.5, color=style.GRID, zorder=0)
    axes.set_yscale("log")
    axes.set_xticks((starts[:-1] + starts[1:] - 1) / 2, groups, fontsize=8.5)
    axes.tick_params(axis="x", length=0)
    axes.set(ylabel="microseconds, host's clock", title=title, xlabel=source)
    style.grid_lines(axes, "y")
    axes.legend(frameon=False, loc="upper right")
    return figure


@style.styled
def spread(samples: Mapping[str, Sequence[float]], *, source: str = "", title: str = "") -> Figure:
    """Draw histograms of samples around their own median, each on a scale of its own.

    Args:
        samples: name -> positive numbers; each is divided by its own median.

    Raises:
        ValueError: no samples, or one that is not positive.
    """
    sampled = len(samples) > 0 and all(len(one) and min(one) > 0 for one in samples.values())
    style.require(sampled, "every row needs samples, all positive")
    shares = {name: np.asarray(one, float) / np.median(one) for name, one in samples.items()}
    figure = style.new_figure(7.6, 0.9 + 1.45 * len(shares))
    rows = figure.subplots(len(shares), 1, squeeze=False)[:, 0]
    for axes, colour, (name, one) in zip(rows, style.PALETTE, shares.items(), strict=False):
        margin = max(5e-4, 0.05 * (one.max() - one.min()))
        axes.hist(one, np.linspace(one.min() - margin, one.max() + margin, 81), color=colour)
        axes.axvline(1, color=style.INK, lw=1)
        axes.axvline(one.mean(), color=style.RED, lw=1, ls=style.DASHED)
        axes.set_ylabel("samples", fontsize=8.5)
        median, mean, largest = (f"{of(samples[name]):,.4g}" for of in (np.median, np.mean, np.max))
        head = f"{name}: median {median}, mean {mean}, largest {largest}"
        axes.set_title(head, fontsize=9.5, fontweight="normal")
    rows[-1].set_xlabel(style.with_source("sample / median (solid: median, dashed: mean)", source))
    style.headline(figure, title)
    return figure


@style.styled
def under_load(
    at_s: Sequence[float],
    times_us: Sequence[float],
    sm_mhz: Sequence[float],
    power_w: Sequence[float],
    *,
    source: str = "",
) -> Figure:
    """Draw a kernel's time over many calls and the clock, in percent off their medians and at least
    from -1 to 1, and the power meanwhile.

    Args:
        at_s, times_us: seconds since the start and the time of a call there.
        sm_mhz, power_w: readings spread evenly over the same span; may be empty.

    Raises:
        ValueError: lengths differ, or there is nothing to draw.
    """
    style.require(len(at_s) == len(times_us) > 0, f"{len(at_s)} moments for {len(times_us)} times")
    style.require(len(sm_mhz) == len(power_w), "clock and power readings differ in number")
    figure = style.new_figure(7.6, 4.6)
    top, bottom = figure.subplots(2, 1, sharex=True)
    moments, reach = np.linspace(0, at_s[-1], len(sm_mhz)), 1.0
    clock, time = (moments, sm_mhz, "SM clock", "MHz"), (at_s, times_us, "time of a call", "us")
    for colour, (at, values, name, unit) in zip(style.PALETTE, (time, clock), strict=False):
        middle = np.median(values) if len(values) else 1.0
        percent = 100 * (np.asarray(values, float) / middle - 1)
        top.plot(at, percent, color=colour, lw=1.8, label=f"{name}, median {middle:,.4g} {unit}")
        reach = max(reach, *1.1 * np.abs(percent))
    top.set(ylabel="% off the median", ylim=(-reach, 1.5 * reach))
    top.set_title("the same kernel, again and again")
    top.legend(frameon=False, loc="upper left", ncols=2)
    bottom.plot(moments, power_w, color=style.GREY, lw=1.8)
    bottom.set(ylabel="power, W", ylim=(0, max(power_w, default=1) * 1.15))
    for axes in (top, bottom):
        style.grid_lines(axes, "y")
    bottom.set_xlabel(style.with_source("seconds since the start", source))
    return figure
