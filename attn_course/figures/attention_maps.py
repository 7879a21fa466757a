"""Attention weights of a query, drawn over the image slice that its window was cut from."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from . import style


def _draw_slice(
    axes: Axes, image: np.ndarray, origins: np.ndarray, chosen: int, extent: tuple[int, int]
) -> None:
    """Draw the slice with every window outlined, the chosen one in colour."""
    axes.imshow(image, cmap="gray", interpolation="nearest")
    for number, (row, column) in enumerate(origins):
        colour, width = (style.ORANGE, 2.0) if number == chosen else (style.PAPER, 1.2)
        style.outline(axes, row, column, *extent, edgecolor=colour, linewidth=width)
        box = {"facecolor": style.INK, "edgecolor": "none", "pad": 1.5}
        how = {"color": colour, "fontweight": "bold", "va": "top", "bbox": box}
        style.note(axes, str(number), (column - 0.5, row - 0.5), (3, -3), **how)
    axes.set_title("the slice and its windows")
    style.bare(axes)


def _draw_window(axes: Axes, window: np.ndarray, query_at: tuple[int, int], token: int) -> None:
    """Draw the chosen window enlarged, with the query token outlined."""
    axes.imshow(window, cmap="gray", interpolation="nearest")
    row, column = query_at
    style.outline(axes, row * token, column * token, token, token, edgecolor=style.RED, linewidth=2)
    axes.set_title(f"query ({row}, {column})", fontsize=9.5)
    style.bare(axes)


def _draw_head(
    axes: Axes,
    window: np.ndarray,
    weights: np.ndarray,
    top: float,
    query_at: tuple[int, int],
    token: int,
    title: str,
):
    """Draw one head's weights of the query over its window; return the image for a colour bar."""
    overlay = np.kron(weights, np.ones((token, token)))
    axes.imshow(window, cmap="gray", interpolation="nearest")
    # Square-root scale: a softmax row has few large weights, and the small ones tell as much.
    image = axes.imshow(
        overlay, cmap="inferno", alpha=0.8, norm=PowerNorm(0.5, 0, top), interpolation="nearest"
    )
    row, column = query_at
    style.outline(
        axes, row * token, column * token, token, token, edgecolor=style.QUERY, linewidth=1.8
    )
    axes.set_title(title, fontsize=9.5)
    style.bare(axes)
    return image


@style.styled
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
    """Draw the weights of one query token, head by head, over the slice of its window.

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
    style.require(0 <= window < len(origins), f"window {window} is not among {len(origins)}")
    _require_maps(weights, grid, query, heads)
    row, column = origins[window]
    extent = (grid[0] * token_pixels, grid[1] * token_pixels)
    cut = image[row : row + extent[0], column : column + extent[1]]
    maps = weights[list(heads), query].reshape(len(heads), *grid)
    at = divmod(query, grid[1])

    across = -(-(len(heads) + 1) // 2)
    figure = style.new_figure(3.9 + 1.95 * across, 4.2)
    left, right = figure.subfigures(1, 2, width_ratios=(3.7, 1.95 * across + 0.4))
    _draw_slice(left.subplots(), image, origins, window, extent)
    cells = right.subplots(2, across, squeeze=False)
    for axes in cells.flat:
        style.bare(axes)
    first, *others = cells.flat
    _draw_window(first, cut, at, token_pixels)
    for axes, head, one in zip(others, heads, maps, strict=False):
        drawn = _draw_head(axes, cut, one, maps.max(), at, token_pixels, f"head {head}")
    bar = right.colorbar(drawn, ax=cells, shrink=0.9, pad=0.03)
    bar.set_label("attention weight (square-root scale)", fontsize=9)
    bar.outline.set_visible(False)
    style.headline(figure, title)
    return figure


def _require_maps(
    weights: np.ndarray, grid: tuple[int, int], query: int, heads: Sequence[int]
) -> None:
    tokens = grid[0] * grid[1]
    style.require(
        weights.ndim == 3 and weights.shape[1:] == (tokens, tokens),
        f"weights must be (heads, {tokens}, {tokens}) for a grid of {grid}, not {weights.shape}",
    )
    style.require(0 <= query < tokens, f"query {query} is not among {tokens} tokens")
    inside = all(0 <= head < len(weights) for head in heads)
    style.require(inside, f"heads {tuple(heads)} are not all among {len(weights)}")
    style.require(len(heads) > 0, "no head is named")
