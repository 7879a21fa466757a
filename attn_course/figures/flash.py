"""Online softmax, tiles, windows, copies under way, shared memory and ablations."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure

from . import style


# -- online softmax --------------------------------------------------------------------------------
@style.styled
def running_softmax(blocks: Sequence[Mapping]) -> Figure:
    """Draw scores with the running maximum m above, and the parts of the running sum l below.

    blocks: one a block of keys: scores, row_m, rescale, old_l and row_l, as the kernel had them.
    """
    style.require(len(blocks) > 0, "there is no block of keys")
    figure = style.new_figure(7.4, 5.2)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(1.25, 1))
    start = 0
    for number, block in enumerate(blocks):
        stop = start + len(block["scores"])
        for axes in (top, bottom):
            axes.axvspan(start, stop, color="#F3F5F7" if number % 2 else "white", zorder=0)
        _draw_scores(top, block, start, stop)
        _draw_sum(bottom, block, (start + stop) / 2)
        start = stop
    top.set(title="scores, and the running maximum row_m", ylabel="score")
    bottom.set(title="the running sum row_l", ylabel="sum of exponentials", xlabel="key")
    bottom.set_xticks(np.arange(start) + 0.5, range(start))
    bottom.set_xlim(0, start)
    bottom.set_ylim(top=1.55 * max(block["row_l"] for block in blocks))
    top.margins(y=0.22)
    handles = [bottom.bar(0, 0, color=colour) for colour in (style.GREY, style.GREEN)]
    names = ("kept from before, rescaled", "of this block of keys")
    bottom.legend(handles, names, frameon=False, ncols=2, loc="upper left", fontsize=9)
    return figure


def _draw_scores(axes: Axes, block: Mapping, start: int, stop: int) -> None:
    places = np.arange(start, stop) + 0.5
    axes.scatter(places, block["scores"], color=style.BLUE, zorder=3, s=34)
    axes.hlines(block["row_m"], start, stop, color=style.RED, lw=2.2, zorder=2)
    at = (start + stop) / 2, block["row_m"]
    style.note(axes, f"row_m = {block['row_m']:g}", at, (0, 5), ha="center", color=style.RED)


def _draw_sum(axes: Axes, block: Mapping, middle: float) -> None:
    kept = block["old_l"] * block["rescale"]
    axes.bar(middle, kept, width=1.3, color=style.GREY, zorder=2)
    axes.bar(middle, block["row_l"] - kept, width=1.3, bottom=kept, color=style.GREEN, zorder=2)
    text = f"row_l = {block['row_l']:.3f}\nrescale = {block['rescale']:.3g}"
    style.note(axes, text, (middle, block["row_l"]), (0, 4), ha="center")


# -- flash attention -------------------------------------------------------------------------------
@style.styled
def traffic_by_tile(
    on_chip: Sequence[float],
    counted: Sequence[float],
    formula: Sequence[float],
    *,
    labels: Sequence[str],
    least: float,
    scores: float,
) -> Figure:
    """Draw the bytes loaded against the bytes of a tile that stay on chip, both logarithmic.

    Args:
        on_chip: bytes of a block's resident tile, ascending.
        counted, formula: bytes loaded, by the simulator and by the formula.
        labels: one a point.
        least: bytes of q, k and v, each once.
        scores: bytes loaded by separate kernels that store all scores.
    """
    style.require(len(on_chip) == len(counted) == len(formula) == len(labels), "lengths differ")
    figure, axes = style.new_axes(7.4, 4.4)
    axes.plot(on_chip, formula, color=style.ORANGE, lw=2, label="formula", zorder=2)
    axes.scatter(on_chip, counted, color=style.BLUE, s=46, label="counted", zorder=3)
    for x, y, label in zip(on_chip, counted, labels, strict=True):
        style.note(axes, label, (x, y), (6, 5))
    for value, words, colour in (
        (least, "q, k and v once", style.GREEN),
        (scores, "kernels 02, 05, 06: scores in memory", style.RED),
    ):
        axes.axhline(value, color=colour, lw=1.4, ls=style.DASHED, zorder=1)
        place, side = (on_chip[0], "left") if value == least else (on_chip[-1], "right")
        style.note(axes, words, (place, value), (0, 4), ha=side, color=colour)
    axes.loglog(base=2)
    axes.set_xlim(right=2 * on_chip[-1])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: style.bytes_text(value))
    x = "bytes of q and of the output that stay on chip"
    style.chart(axes, "bytes loaded, by tile", x, "bytes loaded", legend="upper right")
    return figure


@style.styled
def visited_tiles(visible: np.ndarray, visited: np.ndarray, tile: tuple[int, int]) -> Figure:
    """Draw the tiles of the scores that a causal kernel computes.

    visible: (n, m) bool, what the mask leaves.  visited: (row tiles, key tiles) bool, computed.
    tile: query rows and keys of a tile.
    """
    rows, keys = tile
    n, m = visible.shape
    style.require(visited.shape == (-(-n // rows), -(-m // keys)), "visited does not fit the tiles")
    whole = np.kron(visited, np.ones((rows, keys), bool))[:n, :m]
    figure, axes = style.new_axes(5.6, 4.2)
    shade = np.where(whole & visible, 2, np.where(whole, 1, 0))
    axes.imshow(
        shade, cmap=_three_shades(), vmin=0, vmax=2, interpolation="nearest", extent=(0, m, n, 0)
    )
    axes.set_xticks(range(0, m + 1, keys))
    axes.set_yticks(range(0, n + 1, rows))
    axes.grid(color=style.INK, lw=0.6)
    axes.tick_params(length=0, labelsize=8)
    names = ("skipped", "computed and masked", "computed and used")
    handles = [axes.bar(0, 0, color=_three_shades()(shade)) for shade in range(3)]
    figure.legend(handles, names, frameon=False, loc="outside right center", fontsize=9)
    axes.set(xlim=(0, m), ylim=(n, 0), xlabel="key", ylabel="query", title="causal: tiles computed")
    return figure


def _three_shades():
    return ListedColormap(["#F3F5F7", style.ORANGE, style.BLUE])


@style.styled
def window_bias(
    bias: np.ndarray,
    regions: np.ndarray,
    weights: Mapping[str, np.ndarray],
    *,
    query: tuple[int, int],
) -> Figure:
    """Draw a window's regions, one query's bias, and its weights without and with the bias.

    bias: (rows, columns), -inf where masked.  regions: (rows, columns) of region numbers.
    weights: title -> (rows, columns); masked elements are grey, as in the bias.
    query: (row, column) of the query token.
    """
    figure = style.new_figure(2.25 * (2 + len(weights)) + 0.7, 2.8)
    axes = figure.subplots(1, 2 + len(weights))
    axes[0].imshow(regions, cmap="Set2", vmin=0, vmax=7, interpolation="nearest")
    for number in np.unique(regions):
        row, column = (place.mean() for place in np.nonzero(regions == number))
        style.centred(axes[0], column, row, f"{number}", fontsize=11)
    axes[0].set_title("regions that met\nin a shifted window", fontsize=9.5)
    drawn = axes[1].imshow(np.ma.masked_invalid(bias), cmap="viridis", interpolation="nearest")
    axes[1].set_facecolor(style.PALE)
    axes[1].set_title("bias of the boxed query\n(grey: masked)", fontsize=9.5)
    _colour_bar(figure, drawn, axes[1], "added to the scaled score")
    # Square-root scale: a softmax row has few large weights, and the small ones tell as much.
    norm = PowerNorm(0.5, 0, max(one.max() for one in weights.values()))
    for place, (name, one) in zip(axes[2:], weights.items(), strict=True):
        drawn = place.imshow(one, cmap="inferno", norm=norm, interpolation="nearest")
        place.set_facecolor(style.PALE)
        place.set_title(name, fontsize=9.5)
    _colour_bar(figure, drawn, axes[2:], "attention weight\n(square-root scale)")
    for place in axes:
        style.bare(place)
        colour = style.RED if place in axes[:2] else style.QUERY
        style.outline(place, *query, 1, 1, edgecolor=colour, linewidth=2)
    return figure


def _colour_bar(figure: Figure, drawn, places, unit: str) -> None:
    """Draw the colour bar of a picture beside all axes that share its colours."""
    bar = figure.colorbar(drawn, ax=places, shrink=0.75, pad=0.02)
    bar.set_label(unit, fontsize=9)
    bar.ax.tick_params(labelsize=9)
    bar.outline.set_visible(False)


# -- asynchronous copies ---------------------------------------------------------------------------
@style.styled
def flights(runs: Mapping[str, tuple[Sequence[tuple[int, int]], np.ndarray, int]]) -> Figure:
    """Draw a warp's loads under way above its multiply-adds, a pair of lines a kernel.

    runs: kernel -> (begin, end) of each load's travel, instruction counts of the multiply-adds,
        instructions in all.
    """
    style.require(len(runs) > 0, "there is no run")
    figure, axes = style.new_axes(8.2, 1.6 + 1.25 * len(runs))
    ticks, names = [], []
    for number, (name, (travel, products, _)) in enumerate(runs.items()):
        y = 3 * number
        lanes = _lanes(travel)
        for (begin, end), lane in zip(travel, lanes, strict=True):
            bar = {"left": begin, "height": 0.36, "color": style.ORANGE, "zorder": 2}
            axes.barh(y + 0.42 * lane, max(end - begin, 6), **bar)
        axes.vlines(products, y + 1.0, y + 1.7, color=style.BLUE, lw=0.5, zorder=2)
        ticks += [y + 0.2, y + 1.35]
        names += [f"{name}: loads under way", f"{name}: multiply-adds"]
    style.rows_of_bars(axes, names)
    axes.set_yticks(ticks, names)
    axes.set_xlim(0, max(length for *_, length in runs.values()))
    title = "one warp: what may be computed while data travels?"
    axes.set(xlabel="instructions that the warp has executed", title=title)
    return figure


def _lanes(travel: Sequence[tuple[int, int]]) -> list[int]:
    """0 or 1 for each interval, so that two that overlap do not hide each other."""
    found, last = [], {0: -1, 1: -1}
    for begin, end in travel:
        lane = 0 if begin >= last[0] else 1
        last[lane] = max(last[lane], end)
        found.append(lane)
    return found


@style.styled
def timeline(
    panels: Mapping[str, Mapping[str, Mapping[str, Sequence[tuple[int, int]]]]],
    *,
    unit: str = "instructions",
) -> Figure:
    """Draw who does what along one block's run: title -> row -> kind -> (begin, end) in units."""
    kinds = dict.fromkeys(k for rows in panels.values() for row in rows.values() for k in row)
    style.require(bool(kinds), "there is no row")
    colours = dict(zip(kinds, (style.ORANGE, style.BLUE, style.GREEN), strict=False))
    heights = [0.6 + 0.36 * len(rows) for rows in panels.values()]
    figure = style.new_figure(8.2, 0.8 + sum(heights))
    places = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, rows) in zip(places, panels.items(), strict=True):
        for y, row in enumerate(rows.values()):
            for kind, spans in row.items():
                bars = [(begin, max(end - begin, 1)) for begin, end in spans]
                axes.broken_barh(bars, (y - 0.35, 0.7), color=colours[kind], zorder=2)
        style.rows_of_bars(axes, list(rows))
        axes.set_title(title)
        axes.set_xlim(left=0)
    axes.set_xlabel(f"{unit} of the block, in the order in which the simulator ran them")
    handles = [axes.bar(0, 0, color=colour) for colour in colours.values()]
    figure.legend(handles, list(kinds), frameon=False, ncols=3, loc="outside upper right")
    return figure


@style.styled
def shared_budget(
    dims: Sequence[int], needs: Mapping[str, Sequence[float]], limits: Mapping[str, float]
) -> Figure:
    """Draw the shared memory of kernels' blocks by head dim, and the limits of architectures.

    needs: kernel -> bytes, one for each of dims.  limits: architecture -> bytes.
    """
    style.require(all(len(one) == len(dims) for one in needs.values()), "lengths differ")
    figure, axes = style.new_axes(7.6, 4.4)
    for name, values, colour, _ in style.coloured(needs):
        axes.plot(dims, values, marker="o", ms=4, lw=2, label=name, color=colour)
    for name, value in limits.items():
        axes.axhline(value, color=style.INK, lw=1, ls=style.DASHED)
        how = {"fontsize": 8.5, "va": "center", "transform": axes.get_yaxis_transform()}
        axes.text(1.01, value, f"{name}: {style.bytes_text(value)}", **how)
    axes.loglog(base=2)
    axes.set_xticks(dims, dims)
    axes.yaxis.set_major_formatter(lambda value, _: style.bytes_text(value))
    y = "shared memory of a block"
    style.chart(axes, "shared memory: needed and granted", "head dim", y, legend="upper left")
    return figure


# -- ablations -------------------------------------------------------------------------------------
@style.styled
def worth_of_ideas(
    found: Mapping[str, Mapping[str, tuple[float, float, float]]], *, source: str, title: str = ""
) -> Figure:
    """Draw the percent of time that each missing idea adds to a kernel, a panel a problem.

    found: problem -> idea -> (value, low and high end of its interval); every problem has the same
        ideas. Bars whose interval holds 0 are pale.
    """
    ideas = list(next(iter(found.values()), {}))
    complete = bool(ideas) and all(list(one) == ideas for one in found.values())
    style.require(complete, "every problem needs a value for each idea")
    rows = -(-len(found) // 2)
    figure = style.new_figure(8.2, 0.8 + rows * (0.6 + 0.26 * len(ideas)))
    panels = figure.subplots(rows, 2, sharex=True, sharey=True, squeeze=False)
    for axes, (problem, worth) in zip(panels.flat, found.items(), strict=False):
        _draw_worth(axes, list(worth.values()))
        axes.set_title(problem, fontsize=9.5)
    for axes in panels.flat[len(found) :]:
        axes.set_visible(False)
    for axes in panels.flat:
        style.rows_of_bars(axes, None)
        axes.tick_params(labelbottom=True)
    panels[0, 0].set_yticks(range(len(ideas)), [f"without {idea}" for idea in ideas])
    panels[0, 0].invert_yaxis()
    panels[0, 0].margins(x=0.2)
    figure.supxlabel(style.with_source("more time than the whole kernel, %", source), fontsize=10)
    style.headline(figure, title)
    return figure


def _draw_worth(axes: Axes, values: Sequence[tuple[float, float, float]]) -> None:
    for place, (value, low, high) in enumerate(values):
        clear = not low <= 0 <= high
        colour = style.PALE if not clear else style.BLUE if value > 0 else style.RED
        axes.barh(place, value, height=0.7, color=colour, zorder=2)
        axes.plot((low, high), (place, place), color=style.INK, lw=1.2, zorder=3)
    texts = [f"{round(value, 1) + 0.0:+.1f}" for value, *_ in values]  # no -0.0
    style.write_values(axes, [max(0.0, high) for *_, high in values], texts)
    axes.axvline(0, color=style.INK, lw=0.8, zorder=3)
