"""Memory traffic: sectors, banks, counts beside times, latency by size."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from . import style

SECTOR_BYTES, BANKS = 32, 32


@style.styled
def sector_maps(
    maps: Mapping[str, np.ndarray], *, rows: str, columns: str, title: str = ""
) -> Figure:
    """Draw the sectors of an array that one request touches, one panel a layout.

    Args:
        maps: title -> (rows, sectors of a row) bytes that the request uses of each sector, 0 for
            a sector that it does not touch; one shape for all.
        rows, columns: what the axes are.

    Raises:
        ValueError: no map, different shapes, or more bytes than a sector has.
    """
    arrays = {name: np.asarray(one) for name, one in maps.items()}
    style.require(len({one.shape for one in arrays.values()}) == 1, "maps of one shape are needed")
    shape = next(iter(arrays.values())).shape
    style.require(len(shape) == 2, f"a map has two dimensions, not {shape}")
    possible = all(one.min() >= 0 and one.max() <= SECTOR_BYTES for one in arrays.values())
    style.require(possible, f"a sector has {SECTOR_BYTES} bytes")
    size = 0.75 + len(arrays) * (0.26 * shape[1] + 0.5), 1.4 + 0.17 * shape[0]
    figure, panels = style.new_row(*size, len(arrays), sharey=True)
    for axes, (name, used) in zip(panels, arrays.items(), strict=True):
        _draw_sectors(axes, used)
        touched, asked = int((used > 0).sum()), int(used.sum())
        head = f"{name}\n{touched} sectors,\n{asked} of {touched * SECTOR_BYTES} bytes used"
        axes.set_title(head, fontsize=9)
        axes.set_xlabel(columns, fontsize=9)
    panels[0].set_ylabel(rows, fontsize=9)
    style.headline(figure, title)
    return figure


def _draw_sectors(axes: Axes, used: np.ndarray) -> None:
    """A grid of sectors, the darker the more of it is used."""
    for (row, column), count in np.ndenumerate(used):
        full = count == SECTOR_BYTES
        share = 0.25 + 0.75 * count / SECTOR_BYTES
        face = style.EMPTY if count == 0 else style.mixed(style.BLUE if full else style.RED, share)
        text, ink = f"{int(count)}" if count else "", style.ink_on(face)
        style.draw_cell(axes, row, column, face, text, 1, color=ink, fontsize=9)
    style.cell_axes(axes, used.shape, (4, 1))


@style.styled
def bank_maps(
    accesses: Mapping[str, tuple[np.ndarray, np.ndarray, int]], *, title: str = ""
) -> Figure:
    """Draw the words of shared memory that a request asks for, by bank, one panel a layout.

    Args:
        accesses: title -> (lanes (n,), addresses (n,) in bytes, bytes a lane). A cell is a word:
            its column is its bank, its row its place in the bank; the number is the lane that
            asks for it (every fourth, where cells are narrow), the colour how many words its bank
            has to deliver. With a fourth number, bytes from a row of the tile to the next, a bar
            marks where each row begins.

    Raises:
        ValueError: no access, or addresses that are not of whole words.
    """
    style.require(len(accesses) > 0, "no access to draw")
    for lanes, address, size, *_ in accesses.values():
        style.require(len(lanes) == len(address) > 0, "lanes and addresses go together")
        whole = size % 4 == 0 and not (np.asarray(address) % 4).any()
        style.require(whole, "whole words are drawn")
    width = 9.4 / max(2, len(accesses))
    figure, panels = style.new_row(0.4 + width * len(accesses), 4.9, len(accesses))
    for axes, (name, access) in zip(panels, accesses.items(), strict=True):
        worst = _draw_banks(axes, *access)
        words = "one word a bank" if worst == 1 else f"up to {worst} words of one bank"
        axes.set_title(f"{name}\n{words}", fontsize=9.5)
        axes.set_xlabel("bank", fontsize=9)
    panels[0].set_ylabel("row of 32 words", fontsize=9)
    style.headline(figure, title)
    return figure


def _draw_banks(
    axes: Axes, lanes: np.ndarray, address: np.ndarray, size: int, step: int = 0
) -> int:
    """Draw the words asked for; return the number that the busiest bank delivers."""
    words = np.asarray(address, np.int64)[:, None] // 4 + np.arange(size // 4)
    start = int(words.min()) // BANKS * BANKS
    owner = {
        int(word): int(lane) for lane, row in zip(lanes, words, strict=True) for word in row[::-1]
    }
    load = np.bincount([word % BANKS for word in owner], minlength=BANKS)
    rows = (max(owner) - start) // BANKS + 1
    axes.add_patch(Rectangle((0, 0), BANKS, rows, facecolor=style.EMPTY, edgecolor="none"))
    for word, lane in owner.items():
        column, row = word % BANKS, (word - start) // BANKS
        face = style.mixed(style.BLUE if load[column] == 1 else style.RED, 0.55)
        style.draw_cell(axes, row, column, face, "", 0.4)
        if owner.get(word - 1) != lane and (size >= 16 and rows <= 16 or lane % 4 == 0):
            free = size < 16 and word + 1 not in owner  # then the number stands beside the word
            x = column + (size // 8 if not free else -0.9 if column > 28 else 1.9)
            style.centred(axes, x, row + 0.5, str(lane), fontsize=9)
    for word in range(0, rows * BANKS, step // 4) if step else ():
        axes.add_patch(Rectangle((word % BANKS, word // BANKS), 0.4, 1, facecolor=style.INK))
    style.cell_axes(axes, (rows, BANKS), (max(1, rows // 8), 4))
    return int(load.max())


@style.styled
def passes_and_times(
    labels: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    times_us: Sequence[float] | None = None,
    *,
    passes_unit: str,
    source: str = "",
    title: str = "",
) -> Figure:
    """Draw stacked bars of counts, and the measured times beside them.

    Args:
        labels: one a kernel, top to bottom.
        parts: name -> one count a kernel; stacked.
        times_us: one a kernel, microseconds; None leaves the right panel out.
        source: where the times come from, under their axis.

    Raises:
        ValueError: lengths that differ.
    """
    style.require_rows(parts, len(labels), "one count a kernel in every part")
    style.require(times_us is None or len(times_us) == len(labels), "one time a kernel")
    panels = 1 if times_us is None else 2
    figure, axes = style.new_row(2.0 + 3.6 * panels, 1.25 + 0.36 * len(labels), panels, sharey=True)
    colours = (style.BLUE, style.ORANGE, style.GREEN, style.GREY)
    _finish_panel(axes[0], labels, style.stack_bars(axes[0], parts, colours), passes_unit)
    axes[0].legend(frameon=False, fontsize=8.5, loc="lower right")
    if times_us is not None:
        axes[1].barh(range(len(labels)), times_us, color=style.GREY, height=0.66, zorder=2)
        times = np.asarray(times_us, float)
        _finish_panel(axes[1], None, times, style.with_source("time, us", source))
    style.headline(figure, title)
    return figure


def _finish_panel(axes: Axes, labels: Sequence[str] | None, totals: np.ndarray, unit: str) -> None:
    """Rows, scale and totals of a panel of bars."""
    style.rows_of_bars(axes, labels)
    style.write_values(
        axes, totals, [f"{one:,.3g}" if one < 1000 else f"{one:,.0f}" for one in totals]
    )
    axes.set_xlim(0, totals.max() * 1.25 or 1)
    axes.set_xlabel(unit, fontsize=9)


@style.styled
def latency_by_size(
    sizes: Sequence[int],
    clocks: Sequence[float],
    *,
    shared_clocks: float | None = None,
    marks: Mapping[str, int] | None = None,
    source: str = "",
    title: str = "",
) -> Figure:
    """Draw the clocks of a dependent load by the memory that the chain covers.

    Args:
        sizes: bytes of each chain.  clocks: a load, one a size.
        shared_clocks: the same in shared memory, as a line.
        marks: name -> bytes, vertical lines such as the size of L2.

    Raises:
        ValueError: lengths that differ, or a size or clock that is not positive.
    """
    style.require(len(sizes) == len(clocks) > 0, f"{len(sizes)} sizes, {len(clocks)} latencies")
    style.require(min(sizes) > 0 and min(clocks) > 0, "sizes and latencies are positive")
    figure, axes = style.new_axes(7.4, 3.7)
    axes.plot(sizes, clocks, "o-", color=style.BLUE, lw=2, ms=4.5, zorder=3, label="global memory")
    if shared_clocks is not None:
        axes.axhline(shared_clocks, color=style.ORANGE, lw=2, label="shared memory")
    for name, size in (marks or {}).items():
        axes.axvline(size, color=style.GREY, lw=1, ls=style.DASHED)
        upright = {"rotation": 90, "ha": "left", "va": "center", "color": style.GREY}
        style.note(axes, name, (size, 0.5), (4, 0), xycoords=("data", "axes fraction"), **upright)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    ticks = [size for size in sizes if size.bit_length() % 3 == 1]
    axes.set_xticks(ticks or sizes, [style.bytes_text(size) for size in ticks or sizes])
    x = "memory that the chain covers"
    style.chart(axes, title, x, "clocks a load", source=source, legend="center left")
    return figure
