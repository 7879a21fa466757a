"""Small matrices with their numbers, tiles of a matrix, a kernel's tiles step by step, and which
lane of a warp holds which element."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from . import style

TINTS = {
    "query": style.BLUE,
    "key": style.ORANGE,
    "score": style.GREEN,
    "value": style.PINK,
    "plain": "#9AA5B1",
}
MINUS_INFINITY = "−∞"


@dataclass(frozen=True)
class Matrix:
    """A small matrix to draw.

    values: (rows, columns), real; NaN and masked elements are drawn as empty,
        hatched cells, -inf as a hatched "−∞".
    title: above it.  note: below it, for its shape.  tint: a key of TINTS.
    chosen: (row, column, height, width) of a part to outline; the rest of the matrix is paler.
    shaded: cells are the darker the larger their value; else all alike.
    written: format of the numbers.
    """

    values: np.ndarray
    title: str = ""
    note: str = ""
    tint: str = "plain"
    chosen: tuple[int, int, int, int] | None = None
    shaded: bool = False
    written: str = "g"


def _is_chosen(chosen, row: int, column: int) -> bool:
    if chosen is None:
        return True
    top, left, height, width = chosen
    return top <= row < top + height and left <= column < left + width


def _numbers(matrix: Matrix) -> np.ndarray:
    """The values as float64, NaN where an array is masked."""
    return np.ma.filled(np.ma.asarray(matrix.values, float), np.nan)


def _shares(matrix: Matrix) -> np.ndarray:
    """Return the darkness of each cell, between 0 and 1."""
    values = _numbers(matrix)
    finite = np.isfinite(values)
    if not matrix.shaded:
        return np.full(values.shape, 0.3)
    top = np.max(np.abs(values), where=finite, initial=0.0) or 1.0
    return np.where(finite, 0.07 + 0.7 * np.abs(np.where(finite, values, 0.0)) / top, 0.0)


def _draw_cell(axes: Axes, x: float, y: float, text: str, face, faint: bool, hatched: bool) -> None:
    border = {"edgecolor": style.PAPER, "linewidth": 1.6}
    if hatched:
        border = {"edgecolor": style.PALE, "linewidth": 0, "hatch": "////"}
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=face, zorder=2, **border))
    ink = {"color": "#7B8794" if faint else style.INK, "fontsize": 9.5, "zorder": 4}
    style.centred(axes, x + 0.5, y + 0.5, text, **ink)


def _draw_matrix(axes: Axes, matrix: Matrix, x: float, y: float) -> None:
    """A matrix with its top-left corner at (x, y), one unit a cell, y downwards."""
    values = _numbers(matrix)
    rows, columns = values.shape
    shares = _shares(matrix)
    for (row, column), value in np.ndenumerate(values):
        inside = _is_chosen(matrix.chosen, row, column)
        hatched = not np.isfinite(value)
        text = "" if np.isnan(value) else format(value, matrix.written)
        if np.isneginf(value):
            text = MINUS_INFINITY
        share = shares[row, column] * (1 if inside else 0.35)
        face = style.EMPTY if hatched else style.mixed(TINTS[matrix.tint], share)
        _draw_cell(axes, x + column, y + row, text, face, not inside, hatched)
    if matrix.chosen is not None:
        top, left, height, width = matrix.chosen
        line = {"fill": False, "edgecolor": style.RED, "linewidth": 2.2, "zorder": 5}
        axes.add_patch(Rectangle((x + left, y + top), width, height, **line))
    above = {"va": "bottom", "fontweight": "bold", "fontsize": 10}
    below = {"va": "top", "fontsize": 8.5, "color": style.GREY, "linespacing": 1.25}
    axes.text(x + columns / 2, y - 0.22, matrix.title, ha="center", **above)
    axes.text(x + columns / 2, y + rows + 0.2, matrix.note, ha="center", **below)


def _width(item: Matrix | str) -> float:
    """Units across: a matrix's columns (at least room for its words), or a sign with its words."""
    if isinstance(item, str):
        return max(0.9, 0.2 * max(len(line) for line in item.splitlines()) + 0.35)
    words = max(0.21 * len(item.title), 0.17 * max(map(len, item.note.split("\n"))))
    return max(np.asarray(item.values).shape[1], words)


def _draw_line(
    axes: Axes, items: Sequence[Matrix | str], y: float, height: float, widths: Sequence[float]
) -> None:
    """Matrices and the signs between them, centred on one line of the given height."""
    x = 0.0
    for item, width in zip(items, widths, strict=True):
        if isinstance(item, str):
            big = len(item) <= 1
            ink = {"color": style.INK, "fontsize": 15 if big else 9}
            style.centred(axes, x + width / 2, y + height / 2, item, **ink)
        else:
            rows, columns = np.asarray(item.values).shape
            _draw_matrix(axes, item, x + (width - columns) / 2, y + (height - rows) / 2)
        x += width + 0.35


def _line_tops(lines: Sequence[Sequence[Matrix | str]], heights: Sequence[int]) -> list[float]:
    """Return the top of each line's matrices, below their titles, and the end of the figure."""
    tops, y = [], 0.0
    for line, height in zip(lines, heights, strict=True):
        notes = [item.note for item in line if not isinstance(item, str)]
        rows = max(note.count("\n") + 1 if note else 0 for note in notes)
        tops.append(y + 0.75)
        y += 0.75 + height + 0.25 + 0.38 * rows + 0.15
    return [*tops, y]


@style.styled
def matrix_lines(
    lines: Sequence[Sequence[Matrix | str]],
    *,
    labels: Sequence[str] = (),
    cell_inches: float = 0.46,
) -> Figure:
    """Draw lines of small matrices with their numbers, and signs such as "×" between them.

    Args:
        lines: each a sequence of matrices and signs; the same number in every line.
        labels: one a line, written at its left.
        cell_inches: side of a cell.

    Raises:
        ValueError: no line, lines of different lengths, or labels that do not go with them.
    """
    alike = len({len(line) for line in lines}) == 1
    style.require(alike, "every line needs the same number of matrices and signs")
    style.require(len(labels) in (0, len(lines)), f"{len(labels)} labels for {len(lines)} lines")
    widths = [max(_width(line[i]) for line in lines) for i in range(len(lines[0]))]
    heights = [
        max(1 if isinstance(one, str) else len(one.values) for one in line) for line in lines
    ]
    across = sum(widths) + 0.35 * (len(widths) - 1)
    left = max((0.2 * len(part) for label in labels for part in label.split("\n")), default=0.0)
    *tops, bottom = _line_tops(lines, heights)
    figure = Figure(figsize=((across + left + 0.4) * cell_inches, bottom * cell_inches))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-left - 0.2, across + 0.2), ylim=(bottom, 0), aspect="equal")
    axes.axis("off")
    for line, top, height in zip(lines, tops, heights, strict=True):
        _draw_line(axes, line, top, height, widths)
    for label, top, height in zip(labels, tops, heights, strict=False):
        axes.text(
            -left, top + height / 2, label, ha="left", va="center", fontsize=9.5, linespacing=1.3
        )
    return figure


def worked_example(q, k, scores, weights, v, out, *, row: int) -> Figure:
    """Draw attention of a few tokens as matrices, with one query's row outlined.

    Args:
        q: (n, d).  k: (m, d).  scores: (n, m), unscaled.  weights: (n, m).
        v: (m, d).  out: (n, d).
        row: the query to follow.
    """
    (n, d), m = np.shape(q), len(k)
    first = [
        Matrix(q, "q", f"{n} tokens × {d}", "query", (row, 0, 1, d)),
        "×",
        Matrix(np.transpose(k), "k transposed", f"{d} × {m} tokens", "key"),
        "=",
        Matrix(scores, "scores", f"{n} queries × {m} keys", "score", (row, 0, 1, m), True),
    ]
    second = [
        Matrix(weights, "weights", "each row sums to 1", "score", (row, 0, 1, m), True, ".3f"),
        "×",
        Matrix(v, "v", f"{m} tokens × {np.shape(v)[1]}", "value"),
        "=",
        Matrix(out, "out", "mixed values", "value", (row, 0, 1, np.shape(out)[1]), False, ".2f"),
    ]
    return matrix_lines(
        [first, second], labels=("compare", "scale,\nsoftmax,\nmix"), cell_inches=0.52
    )


def tile_steps(q, k, steps: Sequence[dict], *, row: int, column: int, tile: int) -> Figure:
    """Draw a block's tiles and partial scores, one line a step along the head dimension.

    Args:
        q: (n, d).  k: (m, d).
        steps: one dict a step with tile_query and tile_key (tile, tile) as they stood after the
            first barrier, and score (tile, tile) as it stood after the step's sums.
        row, column: the block's first query and first key.
        tile: threads a side of the block.
    """
    lines, labels = [], []
    for number, step in enumerate(steps):
        start = number * tile
        labels.append(f"step {number}\ni = {start}..{start + tile - 1}")
        lines.append(
            [
                Matrix(q, "q", "", "query", (row, start, tile, tile)),
                Matrix(k, "k", "", "key", (column, start, tile, tile)),
                "→",
                Matrix(step["tile_query"], "tile_query", "shared", "query"),
                "×",
                Matrix(step["tile_key"], "tile_key", "shared", "key"),
                "→",
                Matrix(step["score"], "score", "added on" if number else "registers", "score"),
            ]
        )
    return matrix_lines(lines, labels=labels, cell_inches=0.42)


@style.styled
def tile_grid(
    values: np.ndarray,
    tile: int,
    *,
    highlight: tuple[int, int] | None = None,
    names: tuple[str, str] = ("key", "query"),
    title: str = "",
    unit: str = "",
) -> Figure:
    """Draw a matrix with its tile borders, and one tile outlined; up to 144 values are written, of
    more a colour bar tells them.

    Args:
        values: (rows, columns), any real dtype.
        tile: rows and columns of a tile; edge tiles may be partly outside, drawn hatched.
        highlight: (tile row, tile column) to outline, e.g. one block's tile.
        names: of the columns and of the rows.  unit: of the colour bar.

    Raises:
        ValueError: values are not two-dimensional, or the tile or highlight does not fit.
    """
    values = np.asarray(values)
    style.require(values.ndim == 2, f"values must be two-dimensional, not {values.shape}")
    style.require(tile >= 1, f"a tile has at least one row, not {tile}")
    rows, columns = values.shape
    down, across = -(-rows // tile), -(-columns // tile)
    inside = highlight is None or (0 <= highlight[0] < down and 0 <= highlight[1] < across)
    style.require(inside, f"tile {highlight} is not among {down} x {across}")
    size = max(3.2, min(6.5, 0.55 * max(down, across) * tile))
    figure, axes = style.new_axes(size * across / max(down, across) + 1.2, size)
    drawn = axes.imshow(values, cmap="YlGnBu", interpolation="nearest")
    _draw_tile_borders(axes, (rows, columns), (down, across), tile)
    if values.size <= 144:
        for (row, column), value in np.ndenumerate(values):
            ink = style.ink_on(drawn.cmap(drawn.norm(value)))
            style.centred(axes, column, row, f"{value:g}", color=ink, fontsize=10)
    else:
        figure.colorbar(drawn, ax=axes, shrink=0.8, label=unit).outline.set_visible(False)
    if highlight is not None:
        row, column = highlight[0] * tile, highlight[1] * tile
        style.outline(axes, row, column, tile, tile, edgecolor=style.RED, linewidth=3, zorder=5)
    axes.set_xlim(-0.6, across * tile - 0.4)
    axes.set_ylim(down * tile - 0.4, -0.6)
    axes.set(xlabel=names[0], ylabel=names[1], title=title)
    style.frameless(axes)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    if max(values.shape) <= 16:
        axes.set_xticks(range(columns))
        axes.set_yticks(range(rows))
    return figure


def _draw_tile_borders(
    axes: Axes, shape: tuple[int, int], tiles: tuple[int, int], tile: int
) -> None:
    """Lines between tiles, and hatching over the part of edge tiles that is outside."""
    (rows, columns), (down, across) = shape, tiles
    for number in range(down + 1):
        axes.plot((-0.5, across * tile - 0.5), (number * tile - 0.5,) * 2, color=style.INK, lw=1.1)
    for number in range(across + 1):
        axes.plot((number * tile - 0.5,) * 2, (-0.5, down * tile - 0.5), color=style.INK, lw=1.1)
    outside = {"facecolor": style.EMPTY, "edgecolor": style.PALE, "hatch": "////", "linewidth": 0}
    wide, high = across * tile, down * tile
    for x, y, width, height in (
        (columns, 0, wide - columns, high),
        (0, rows, columns, high - rows),
    ):
        if width and height:
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), width, height, zorder=0.5, **outside))


@style.styled
def fragment_maps(
    maps: Mapping[str, tuple[np.ndarray, np.ndarray]], *, lane: int | None = None, title: str = ""
) -> Figure:
    """Draw which lane of a warp holds each element of a matrix, and in which register.

    Args:
        maps: title -> (lanes (rows, columns), registers (rows, columns)). A cell's number is its
            lane, its colour its register.
        lane: whose elements to outline.

    Raises:
        ValueError: no map, or lanes and registers of different shapes.
    """
    arrays = {name: tuple(map(np.asarray, pair)) for name, pair in maps.items()}
    paired = bool(arrays) and all(a.shape == b.shape and a.ndim == 2 for a, b in arrays.values())
    style.require(paired, "each matrix needs a lane and a register for every element")
    shapes = [lanes.shape for lanes, _ in arrays.values()]
    most = max(int(registers.max()) for _, registers in arrays.values())
    widths = [columns for _, columns in shapes]
    size = 0.6 + 0.24 * sum(widths) + 0.5 * len(shapes), 1.7 + 0.25 * max(shapes)[0]
    figure, panels = style.new_row(*size, len(shapes), width_ratios=widths)
    for axes, (name, (lanes, registers)) in zip(panels, arrays.items(), strict=True):
        _draw_lanes_of(axes, lanes, registers, lane)
        axes.set_title(name, fontsize=9.5)
    panels[0].set_ylabel("row")
    samples = [Rectangle((0, 0), 1, 1, facecolor=_tint_of(number)) for number in range(most + 1)]
    names = [f"register {number}" for number in range(most + 1)]
    figure.legend(samples, names, loc="outside lower left", ncols=4, frameon=False, fontsize=9)
    style.headline(figure, title)
    return figure


def _tint_of(register: int) -> tuple[float, float, float]:
    return style.mixed(style.PALETTE[register % len(style.PALETTE)], 0.45)


def _draw_lanes_of(
    axes: Axes, lanes: np.ndarray, registers: np.ndarray, outlined: int | None
) -> None:
    """A matrix of lane numbers, coloured by register; one lane's elements outlined."""
    for (row, column), number in np.ndenumerate(lanes):
        face = _tint_of(int(registers[row, column]))
        bold = {"fontweight": "bold"} if number == outlined else {}
        style.draw_cell(axes, row, column, face, f"{int(number)}", 0.8, fontsize=9, **bold)
        if number == outlined:
            border = {"fill": False, "edgecolor": style.INK, "lw": 1.8, "zorder": 4}
            axes.add_patch(Rectangle((column, row), 1, 1, **border))
    axes.set_xlabel("column")
    style.cell_axes(axes, lanes.shape, (2, 2))
