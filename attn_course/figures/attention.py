"""The figures that several lessons use: they take arrays, and know nothing of kernels or backends.

Every function returns a :class:`matplotlib.figure.Figure` that is not registered with pyplot, so a
notebook shows it once, as the value of its cell, and a script saves it with ``figure.savefig``.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .style import (
    BLUE,
    DASHED,
    EMPTY,
    INK,
    ORANGE,
    PALE,
    PALETTE,
    PAPER,
    QUERY,
    RED,
    bare,
    frameless,
    grid_lines,
    headline,
    ink_on,
    new_figure,
    outline,
    require,
    rows_of_bars,
    styled,
    with_source,
    write_values,
)


def _draw_slice(
    axes: Axes, image: np.ndarray, origins: np.ndarray, chosen: int, extent: tuple[int, int]
) -> None:
    """The whole slice with every window outlined and the chosen one in colour."""
    axes.imshow(image, cmap="gray", interpolation="nearest")
    for number, (row, column) in enumerate(origins):
        colour, width = (ORANGE, 2.0) if number == chosen else (PAPER, 1.2)
        outline(axes, row, column, *extent, edgecolor=colour, linewidth=width)
        axes.annotate(
            str(number),
            (column - 0.5, row - 0.5),
            (3, -3),
            textcoords="offset points",
            color=colour,
            fontsize=9,
            fontweight="bold",
            va="top",
            bbox={"facecolor": INK, "edgecolor": "none", "pad": 1.5},
        )
    axes.set_title("the slice and its windows")
    bare(axes)


def _draw_window(axes: Axes, window: np.ndarray, query_at: tuple[int, int], token: int) -> None:
    """The chosen window enlarged, with the query token boxed."""
    axes.imshow(window, cmap="gray", interpolation="nearest")
    row, column = query_at
    outline(axes, row * token, column * token, token, token, edgecolor=RED, linewidth=2)
    axes.set_title(f"window, query ({row}, {column})", fontsize=9.5)
    bare(axes)


def _draw_head(
    axes: Axes,
    window: np.ndarray,
    weights: np.ndarray,
    top: float,
    query_at: tuple[int, int],
    token: int,
    title: str,
):
    """One head's attention of the query over its window; returns the image for a colour bar."""
    overlay = np.kron(weights, np.ones((token, token)))
    axes.imshow(window, cmap="gray", interpolation="nearest")
    # Square-root scale: a softmax row has few large weights, and the small ones tell as much.
    image = axes.imshow(
        overlay, cmap="inferno", alpha=0.8, norm=PowerNorm(0.5, 0, top), interpolation="nearest"
    )
    row, column = query_at
    outline(axes, row * token, column * token, token, token, edgecolor=QUERY, linewidth=1.8)
    axes.set_title(title, fontsize=9.5)
    bare(axes)
    return image


@styled
def attention_over_slice(
    image: np.ndarray,
    origins: np.ndarray,
    weights: np.ndarray,
    *,
    window: int = 0,
    query: int = 0,
    heads: Sequence[int] = (0, 1, 2, 3, 4),
    grid: tuple[int, int] = (14, 14),
    token_pixels: int = 1,
    title: str = "",
) -> Figure:
    """Where one query token looks, head by head, over the slice that its window was cut from.

    Args:
        image: (rows, columns), the slice.
        origins: (windows, 2), top-left pixel (row, column) of each window.
        weights: (heads, tokens, tokens), softmax rows of the chosen window.
        window: which window the weights belong to.
        query: the query token's number, row-major within the window.
        heads: which heads to draw.
        grid: tokens down and across a window.
        token_pixels: pixels a side of one token.

    Raises:
        ValueError: a shape does not fit the grid, or a window, query or head is out of range.
    """
    origins = np.asarray(origins)
    require(0 <= window < len(origins), f"window {window} is not among {len(origins)}")
    _require_maps(weights, grid, query, heads)
    row, column = origins[window]
    extent = (grid[0] * token_pixels, grid[1] * token_pixels)
    cut = image[row : row + extent[0], column : column + extent[1]]
    maps = weights[list(heads), query].reshape(len(heads), *grid)
    at = divmod(query, grid[1])

    across = -(-(len(heads) + 1) // 2)
    figure = new_figure(4.1 + 1.95 * across, 4.2)
    left, right = figure.subfigures(1, 2, width_ratios=(3.7, 1.95 * across + 0.4))
    _draw_slice(left.subplots(), image, origins, window, extent)
    cells = right.subplots(2, across, squeeze=False)
    for axes in cells.flat:
        bare(axes)
    first, *others = cells.flat
    _draw_window(first, cut, at, token_pixels)
    for axes, head, one in zip(others, heads, maps, strict=False):
        drawn = _draw_head(axes, cut, one, maps.max(), at, token_pixels, f"head {head}")
    bar = right.colorbar(drawn, ax=cells, shrink=0.9, pad=0.03)
    bar.set_label("attention weight (square-root scale)", fontsize=9)
    bar.outline.set_visible(False)
    headline(figure, title)
    return figure


def _require_maps(
    weights: np.ndarray, grid: tuple[int, int], query: int, heads: Sequence[int]
) -> None:
    tokens = grid[0] * grid[1]
    require(
        weights.ndim == 3 and weights.shape[1:] == (tokens, tokens),
        f"weights must be (heads, {tokens}, {tokens}) for a grid of {grid}, not {weights.shape}",
    )
    require(0 <= query < tokens, f"query {query} is not among {tokens} tokens")
    require(
        all(0 <= head < len(weights) for head in heads),
        f"heads {tuple(heads)} are not all among {len(weights)}",
    )
    require(len(heads) > 0, "no head is named")


def _label_cells(axes: Axes, values: np.ndarray, written: str, cmap, norm) -> None:
    """The number in every cell, dark on light and light on dark."""
    for (row, column), value in np.ndenumerate(values):
        axes.text(
            column,
            row,
            format(value, written),
            ha="center",
            va="center",
            color=ink_on(cmap(norm(value))),
            fontsize=10,
        )


@styled
def tile_grid(
    values: np.ndarray,
    tile: int,
    *,
    highlight: tuple[int, int] | None = None,
    labels: bool | None = None,
    written: str = "g",
    names: tuple[str, str] = ("key", "query"),
    title: str = "",
    axes: Axes | None = None,
) -> Figure:
    """A matrix with its tile borders, a tile picked out, and what ragged tiles would reach past.

    Args:
        values: (rows, columns), any real dtype.
        tile: rows and columns of a tile; edge tiles may be partly outside, drawn hatched.
        highlight: (tile row, tile column) to outline, e.g. one block's tile.
        labels: write every value in its cell; default: when there are at most 144.
        written: format of the labels.
        names: what columns and rows are.
        axes: draw here instead of on a new figure.

    Raises:
        ValueError: values are not two-dimensional, or the tile or highlight does not fit.
    """
    values = np.asarray(values)
    require(values.ndim == 2, f"values must be two-dimensional, not {values.shape}")
    require(tile >= 1, f"a tile has at least one row, not {tile}")
    rows, columns = values.shape
    down, across = -(-rows // tile), -(-columns // tile)
    require(
        highlight is None or (0 <= highlight[0] < down and 0 <= highlight[1] < across),
        f"tile {highlight} is not among {down} x {across}",
    )
    if axes is None:
        size = max(3.2, min(6.5, 0.55 * max(down, across) * tile))
        axes = new_figure(size * across / max(down, across) + 1.2, size).subplots()
    drawn = axes.imshow(values, cmap="YlGnBu", interpolation="nearest")
    _draw_tile_borders(axes, (rows, columns), (down, across), tile)
    if labels if labels is not None else values.size <= 144:
        _label_cells(axes, values, written, drawn.cmap, drawn.norm)
    if highlight is not None:
        outline(
            axes,
            highlight[0] * tile,
            highlight[1] * tile,
            tile,
            tile,
            edgecolor=RED,
            linewidth=3,
            zorder=5,
        )
    axes.set_xlim(-0.6, across * tile - 0.4)
    axes.set_ylim(down * tile - 0.4, -0.6)
    axes.set(xlabel=names[0], ylabel=names[1], title=title)
    frameless(axes)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    if max(values.shape) <= 16:
        axes.set_xticks(range(columns))
        axes.set_yticks(range(rows))
    return axes.figure


def _draw_tile_borders(
    axes: Axes, shape: tuple[int, int], tiles: tuple[int, int], tile: int
) -> None:
    """Lines between tiles, and hatching over the part of edge tiles that lies outside."""
    (rows, columns), (down, across) = shape, tiles
    for number in range(down + 1):
        axes.plot((-0.5, across * tile - 0.5), (number * tile - 0.5,) * 2, color=INK, lw=1.1)
    for number in range(across + 1):
        axes.plot((number * tile - 0.5,) * 2, (-0.5, down * tile - 0.5), color=INK, lw=1.1)
    outside = {"facecolor": EMPTY, "edgecolor": PALE, "hatch": "////", "linewidth": 0}
    if columns < across * tile:
        axes.add_patch(
            Rectangle(
                (columns - 0.5, -0.5), across * tile - columns, down * tile, zorder=0.5, **outside
            )
        )
    if rows < down * tile:
        axes.add_patch(
            Rectangle((-0.5, rows - 0.5), columns, down * tile - rows, zorder=0.5, **outside)
        )


@styled
def bars(
    labels: Sequence[str],
    values: Sequence[float],
    *,
    unit: str,
    low: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
    log: bool = False,
    emphasis: Sequence[str] = (),
    title: str = "",
    source: str = "",
) -> Figure:
    """Horizontal bars, one a label, with the value written out and an interval where one is given.

    Args:
        labels: one a bar, top to bottom.
        values: the bar lengths, e.g. medians.
        unit: what the values are in; part of the axis label.
        low, high: ends of each interval (e.g. quartiles), same length as values.
        log: a logarithmic axis; every value must be positive.
        emphasis: labels drawn in colour, the others in grey; none given: all in colour.
        source: where the values come from (GPU, date), written under the axis.

    Raises:
        ValueError: lengths differ, one of low and high is missing, an interval does not hold its
            value, or a logarithmic axis gets a value that is not positive.
    """
    values = np.asarray(values, float)
    require(len(labels) == len(values) > 0, f"{len(labels)} labels for {len(values)} values")
    require((low is None) == (high is None), "low and high come together")
    require(not log or bool((values > 0).all()), "a logarithmic axis needs positive values")
    ends = values
    if low is not None:
        low, ends = np.asarray(low, float), np.asarray(high, float)
        require(len(low) == len(ends) == len(values), "low, high and values differ in length")
        require(
            bool(((low <= values) & (values <= ends)).all()), "an interval does not hold its value"
        )
    figure = new_figure(7.2, 0.9 + 0.42 * len(values) + (0.25 if source else 0))
    axes = figure.subplots()
    places = np.arange(len(values))
    colours = [BLUE if not emphasis or name in emphasis else PALE for name in labels]
    axes.barh(places, values, color=colours, height=0.66, zorder=2)
    if low is not None:
        axes.errorbar(
            values,
            places,
            xerr=(values - low, ends - values),
            fmt="none",
            ecolor=INK,
            elinewidth=1.2,
            capsize=3,
            zorder=3,
        )
    write_values(axes, ends, [_written(value) for value in values])
    rows_of_bars(axes, labels)
    if log:
        axes.set_xscale("log")
        axes.set_xlim(right=ends.max() * 2.2)
    else:
        axes.set_xlim(0, ends.max() * 1.2 or 1)
        axes.xaxis.set_major_formatter("{x:,g}")
    axes.set(title=title, xlabel=with_source(unit, source))
    return figure


def _written(value: float) -> str:
    """Four digits, or every digit before the point with separators: 1.234, 16,896."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


# Their number and that of the palette's colours have no common divisor: no two of the first 28
# lines look alike, and lines that coincide show through each other's gaps.
_DASHES = ("-", (0, (5, 2)), (0, (4, 4)), (0, (1.2, 2.6)))


@styled
def error_profile(
    labels: Sequence[str],
    errors: Sequence[np.ndarray],
    *,
    tolerance: float | None = None,
    title: str = "absolute error against float64",
) -> Figure:
    """How the errors of several runs are spread: share of elements below each size.

    Args:
        labels: one a run.
        errors: absolute errors of each run, any shape. The axis begins where one in 200 of some
            run's are smaller; a curve starts there at its share of those, zeros among them.
        tolerance: a vertical line there.

    Raises:
        ValueError: lengths differ, or an error is negative or not finite.
    """
    require(len(labels) == len(errors) > 0, f"{len(labels)} labels for {len(errors)} runs")
    flat = [np.sort(np.asarray(one, float).ravel()) for one in errors]
    require(
        all(len(one) and np.isfinite(one).all() and one[0] >= 0 for one in flat),
        "errors must be finite and not negative",
    )
    positive = np.concatenate([one[one > 0] for one in flat])
    floor = positive.min() if len(positive) else 1e-12
    figure = new_figure(8.4, 4.2)
    axes = figure.subplots()
    for number, (label, one) in enumerate(zip(labels, flat, strict=True)):
        picked = one[np.linspace(0, len(one) - 1, min(len(one), 2000)).astype(int)]
        dash = number % len(_DASHES)  # the more gaps, the nearer to the eye
        axes.plot(
            np.maximum(picked, floor),
            np.linspace(0, 1, len(picked)),
            label=label,
            color=PALETTE[number % len(PALETTE)],
            ls=_DASHES[dash],
            lw=2.4 if dash else 3.2,
            zorder=2 + dash / 10,
            dash_capstyle="butt",
        )
    if tolerance is not None:
        axes.axvline(tolerance, color=INK, lw=1.2, ls=DASHED)
        axes.annotate(
            "tolerance",
            (tolerance, 0.04),
            (-4, 0),
            textcoords="offset points",
            ha="right",
            color=INK,
            fontsize=9,
        )
    axes.set_xscale("log")
    axes.set_xlim(left=max(floor, min(np.quantile(one, 0.005) for one in flat)) * 0.8)
    axes.set(xlabel="absolute error", ylabel="share of elements below", title=title)
    grid_lines(axes)
    axes.legend(
        frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9, handlelength=4
    )  # long enough to tell the dashes apart
    return figure
