"""Figures of memory traffic: sectors, banks, counts beside times, latency by size.

Like `plots`, they take arrays and records and return figures that pyplot does not know of.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .plots import BLUE, GREEN, GREY, INK, ORANGE, PAPER, RED, STYLE

SECTOR_BYTES, BANKS = 32, 32
EMPTY, LINE = "#EEF1F4", "#FFFFFF"


def _figure(width: float, height: float) -> Figure:
    with rc_context(STYLE):
        return Figure(figsize=(width, height), layout="constrained")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _tint(colour: str, share: float) -> tuple[float, ...]:
    return tuple(1 - share * (1 - part) for part in to_rgb(colour))


def _bare(axes: Axes) -> None:
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8)


def sector_maps(maps: Mapping[str, np.ndarray], *, rows: str, columns: str,
                title: str = "") -> Figure:
    """What one request touches of an array, sector by sector, one panel a layout.

    Args:
        maps: title -> (rows, sectors of a row) bytes that the request uses of each sector, 0 for
            a sector that it does not touch; one shape for all.
        rows, columns: what the axes are.

    Raises:
        ValueError: no map, different shapes, or more bytes than a sector has.
    """
    arrays = {name: np.asarray(one) for name, one in maps.items()}
    _require(len({one.shape for one in arrays.values()}) == 1, "maps of one shape are needed")
    shape = next(iter(arrays.values())).shape
    _require(len(shape) == 2, f"a map has two dimensions, not {shape}")
    _require(all(one.min() >= 0 and one.max() <= SECTOR_BYTES for one in arrays.values()),
             f"a sector has {SECTOR_BYTES} bytes")
    with rc_context(STYLE):
        figure = _figure(0.75 + len(arrays) * (0.38 * shape[1] + 0.45), 1.2 + 0.17 * shape[0])
        panels = figure.subplots(1, len(arrays), squeeze=False, sharey=True)[0]
        for axes, (name, used) in zip(panels, arrays.items(), strict=True):
            _draw_sectors(axes, used)
            touched, asked = int((used > 0).sum()), int(used.sum())
            axes.set_title(f"{name}\n{touched} sectors, {asked} of {touched * SECTOR_BYTES} "
                           "bytes used", fontsize=9)
            axes.set_xlabel(columns, fontsize=9)
        panels[0].set_ylabel(rows, fontsize=9)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=12)
    return figure


def _draw_sectors(axes: Axes, used: np.ndarray) -> None:
    """A grid of sectors, the darker the more of it is used."""
    for (row, column), count in np.ndenumerate(used):
        full = count == SECTOR_BYTES
        share = 0.25 + 0.75 * count / SECTOR_BYTES
        face = EMPTY if count == 0 else _tint(BLUE if full else RED, share)
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor=face, edgecolor=LINE, lw=1))
        if count:
            axes.text(column + 0.5, row + 0.5, f"{int(count)}", ha="center", va="center",
                      fontsize=6.5, color=PAPER if full else INK)
    rows, columns = used.shape
    axes.set(xlim=(0, columns), ylim=(rows, 0))
    axes.set_xticks(np.arange(columns) + 0.5, range(columns))
    axes.set_yticks(np.arange(0, rows, 4) + 0.5, range(0, rows, 4))
    _bare(axes)


def bank_maps(accesses: Mapping[str, tuple[np.ndarray, np.ndarray, int]], *,
              title: str = "") -> Figure:
    """Which words of shared memory a request asks for, by bank, one panel a layout.

    Args:
        accesses: title -> (lanes (n,), addresses (n,) in bytes, bytes a lane). A cell is a word:
            its column is its bank, its row its place in the bank; the number is the lane that
            asks for it, the colour how many words its bank has to deliver.

    Raises:
        ValueError: no access, or addresses that are not of whole words.
    """
    _require(len(accesses) > 0, "no access to draw")
    for lanes, address, size in accesses.values():
        _require(len(lanes) == len(address) > 0, "lanes and addresses go together")
        _require(size % 4 == 0 and not (np.asarray(address) % 4).any(), "whole words are drawn")
    with rc_context(STYLE):
        figure = _figure(0.5 + 4.6 * len(accesses), 4.9)
        panels = figure.subplots(1, len(accesses), squeeze=False)[0]
        for axes, (name, access) in zip(panels, accesses.items(), strict=True):
            worst = _draw_banks(axes, *access)
            words = "one word a bank" if worst == 1 else f"up to {worst} words from one bank"
            axes.set_title(f"{name}\n{words}", fontsize=9.5)
            axes.set_xlabel("bank", fontsize=9)
        panels[0].set_ylabel("row of 32 words", fontsize=9)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=12)
    return figure


def _draw_banks(axes: Axes, lanes: np.ndarray, address: np.ndarray, size: int) -> int:
    """Draws the words asked for; returns how many the busiest bank delivers."""
    words = np.asarray(address, np.int64)[:, None] // 4 + np.arange(size // 4)
    start = int(words.min()) // BANKS * BANKS
    owner = {int(word): int(lane) for lane, row in zip(lanes, words, strict=True)
             for word in row[::-1]}
    load = np.bincount([word % BANKS for word in owner], minlength=BANKS)
    rows = (max(owner) - start) // BANKS + 1
    axes.add_patch(Rectangle((0, 0), BANKS, rows, facecolor=EMPTY, edgecolor="none"))
    for word, lane in owner.items():
        column, row = word % BANKS, (word - start) // BANKS
        face = _tint(BLUE if load[column] == 1 else RED, 0.55)
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor=face, edgecolor=LINE, lw=0.4))
        axes.text(column + 0.5, row + 0.5, str(lane), ha="center", va="center", fontsize=4.6)
    axes.set(xlim=(0, BANKS), ylim=(rows, 0))
    axes.set_xticks(np.arange(0, BANKS, 4) + 0.5, range(0, BANKS, 4))
    step = max(1, rows // 8)
    axes.set_yticks(np.arange(0, rows, step) + 0.5, range(0, rows, step))
    _bare(axes)
    return int(load.max())


def passes_and_times(labels: Sequence[str], parts: Mapping[str, Sequence[float]],
                     times_us: Sequence[float] | None = None, *, passes_unit: str,
                     source: str = "", title: str = "") -> Figure:
    """Stacked bars of what was counted, and beside them the times that were measured.

    Args:
        labels: one a kernel, top to bottom.
        parts: name -> one count a kernel; stacked.
        times_us: one a kernel, microseconds; None leaves the right panel out.
        source: where the times come from, under their axis.

    Raises:
        ValueError: lengths that differ.
    """
    counts = {name: np.asarray(values, float) for name, values in parts.items()}
    _require(all(len(values) == len(labels) for values in counts.values()) and bool(counts),
             "one count a kernel in every part")
    _require(times_us is None or len(times_us) == len(labels), "one time a kernel")
    panels = 1 if times_us is None else 2
    with rc_context(STYLE):
        figure = _figure(2.0 + 3.6 * panels, 1.25 + 0.36 * len(labels))
        axes = figure.subplots(1, panels, sharey=True, squeeze=False)[0]
        places, left = np.arange(len(labels)), np.zeros(len(labels))
        colours = (BLUE, ORANGE, GREEN, GREY)
        for (name, values), colour in zip(counts.items(), colours, strict=False):
            axes[0].barh(places, values, left=left, color=colour, label=name, height=0.66, zorder=2)
            left = left + values
        _write_totals(axes[0], left, passes_unit)
        axes[0].legend(frameon=False, fontsize=8.5, loc="lower right")
        if times_us is not None:
            axes[1].barh(places, times_us, color=GREY, height=0.66, zorder=2)
            _write_totals(axes[1], np.asarray(times_us, float), "time, us\n" + source)
        axes[0].set_yticks(places, labels)
        axes[0].invert_yaxis()
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=12)
    return figure


def _write_totals(axes: Axes, values: np.ndarray, unit: str) -> None:
    for place, value in enumerate(values):
        axes.annotate(f"{value:,.3g}" if value < 1000 else f"{value:,.0f}", (value, place), (5, 0),
                      textcoords="offset points", va="center", fontsize=9)
    axes.set_xlim(0, values.max() * 1.25 or 1)
    axes.set_xlabel(unit, fontsize=9)
    axes.grid(axis="x", color="#E4E7EB", zorder=0)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def latency_by_size(sizes: Sequence[int], clocks: Sequence[float], *,
                    shared_clocks: float | None = None, marks: Mapping[str, int] | None = None,
                    source: str = "", title: str = "") -> Figure:
    """Clocks of a dependent load by the memory that the chain covers: a stair with a step a level.

    Args:
        sizes: bytes of each chain.  clocks: a load, one a size.
        shared_clocks: the same in shared memory, as a line.
        marks: name -> bytes, vertical lines such as the size of L2.

    Raises:
        ValueError: lengths that differ, or a size or clock that is not positive.
    """
    _require(len(sizes) == len(clocks) > 0, f"{len(sizes)} sizes, {len(clocks)} latencies")
    _require(min(sizes) > 0 and min(clocks) > 0, "sizes and latencies are positive")
    with rc_context(STYLE):
        figure = _figure(7.4, 3.7)
        axes = figure.subplots()
        axes.plot(sizes, clocks, "o-", color=BLUE, lw=2, ms=4.5, zorder=3, label="global memory")
        if shared_clocks is not None:
            axes.axhline(shared_clocks, color=ORANGE, lw=2, label="shared memory")
        for name, size in (marks or {}).items():
            axes.axvline(size, color=GREY, lw=1, ls=(0, (4, 3)))
            axes.annotate(name, (size, 1), (-4, -4), xycoords=("data", "axes fraction"),
                          textcoords="offset points", rotation=90, ha="right", va="top",
                          fontsize=8.5, color=GREY)
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        ticks = [size for size in sizes if size.bit_length() % 3 == 1]
        axes.set_xticks(ticks or sizes, [_bytes(size) for size in ticks or sizes])
        axes.set(xlabel=f"memory that the chain covers\n{source}".rstrip(),
                 ylabel="clocks a load", title=title)
        axes.grid(color="#E4E7EB")
        axes.legend(frameon=False, loc="center left")
    return figure


def _bytes(size: int) -> str:
    for unit in ("B", "KB", "MB"):
        if size < 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} GB"
