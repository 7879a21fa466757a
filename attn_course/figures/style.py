"""Style of all figures: colours, fonts, and the set-up of axes, titles and captions.

A figure function is decorated with :data:`styled` and makes its figure with :func:`new_figure`.
"""

import base64
import html
import io
from collections.abc import Iterator, Mapping, Sequence, Sized
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.style import context
from matplotlib.textpath import TextPath

# Colours that stay apart for colour-blind readers and in print (Okabe and Ito).
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#5F6B76"
PINK, SKY, OLIVE = "#CC79A7", "#56B4E9", "#8A7500"
PALETTE = (BLUE, ORANGE, GREEN, PINK, SKY, RED, OLIVE)
MARKS = "os^Dv<>P"
INK, PAPER = "#1F2933", "#FFFFFF"
PALE, GRID, EMPTY = "#B8C2CC", "#E4E7EB", "#EEF1F4"  # not emphasised; grid lines; no data
QUERY = "#7CF5FF"  # the box round a query token, on dark maps of weights
DASHED = (0, (4, 3))

# A decorator: the function draws in the course's style.
styled = context(Path(__file__).with_name("course.mplstyle"))


def require(condition: bool, message: str) -> None:
    """Raise ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


def require_rows(rows: Mapping[str, Sized], count: int, message: str) -> None:
    """Raise ValueError unless there are rows, each of ``count`` values."""
    require(bool(rows) and all(len(row) == count for row in rows.values()), message)


# -- figures and axes ------------------------------------------------------------------------------
def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of the given size in inches, laid out without overlaps."""
    return Figure(figsize=(width, height), layout="constrained")


def new_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure with a single panel, and its axes."""
    figure = new_figure(width, height)
    return figure, figure.subplots()


def new_row(width: float, height: float, panels: int, **how) -> tuple[Figure, np.ndarray]:
    """Return a figure with panels side by side, and their axes. how: of ``Figure.subplots``."""
    figure = new_figure(width, height)
    return figure, figure.subplots(1, panels, squeeze=False, **how)[0]


class Described:
    """A figure with its alternative text; a notebook shows it as an HTML image with this text.

    Attributes: figure; description: what a reader who does not see the figure needs to know.
    """

    def __init__(self, figure: Figure, description: str):
        self.figure = figure
        self.description = " ".join(description.split())

    def __repr__(self) -> str:
        return f"figure: {self.description}"

    def _repr_html_(self) -> str:
        png = io.BytesIO()
        self.figure.savefig(png, dpi=self.figure.dpi, bbox_inches="tight")
        data = base64.b64encode(png.getvalue()).decode()
        text = html.escape(self.description)
        return f'<img alt="{text}" style="max-width:100%" src="data:image/png;base64,{data}">'


described = Described  # the value of a notebook's cell


def headline(figure: Figure, title: str) -> None:
    """Write a title over the figure, none where it is empty."""
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=12)


def below(figure: Figure, source: str) -> None:
    """Write under a figure where and when its numbers were taken; nothing where it is empty."""
    if source:
        figure.supxlabel(source, x=0.01, ha="left", fontsize=9, color=GREY)


def with_source(label: str, source: str) -> str:
    """Return an axis label, with the source of the values (GPU, date) under it if given."""
    return f"{label}\n{source}" if source else label


def text_width(texts: Sequence[str], **font) -> float:
    """Return inches across the longest text. font: of FontProperties; 10 points unless told."""
    font = FontProperties(**{"size": 10} | font)
    lines = (line for text in texts for line in text.split("\n"))
    return max(TextPath((0, 0), line, prop=font).get_extents().width for line in lines) / 72


def grid_lines(axes: Axes, axis: str = "both") -> None:
    """Draw pale grid lines behind the data. axis: "x", "y" or "both"."""
    axes.grid(axis=axis, color=GRID, zorder=0)


# First digits of ticks, from few to many, the roundest first.
_TICKS = (
    (1,),
    (1, 2, 5),
    (1, 2, 5, 1.5, 3, 7),
    (1, 2, 5, 1.2, 1.4, 1.6, 1.8, 2.5, 3, 4, 6, 7, 8, 9),
)


def log_axis(axes: Axes, values: Sequence[float]) -> None:
    """Make x logarithmic, from the least to the largest value, with labels that do not overlap.

    They are of the roundest numbers of which four lie on the axis (of powers of ten three), or of
    all that lie there; where that is one or none, of the least and the largest value.

    Raises:
        ValueError: no value, or one that is not positive.
    """
    require(len(values) > 0 and min(values) > 0, "a logarithmic axis needs positive values")
    low, high = np.log10(min(values)), np.log10(max(values))
    margin = 0.04 * max(high - low, 0.1)
    low, high = low - margin, high + margin
    powers = range(int(np.floor(low)), int(np.ceil(high)) + 1)
    for digits in _TICKS:
        every = [float(f"{digit}e{power}") for digit in digits for power in powers]
        ticks = [tick for tick in every if low <= np.log10(tick) <= high]
        if len(ticks) > 3 or (digits == (1,) and len(ticks) == 3):
            break
    if len(ticks) < 2:
        ticks = [min(values), max(values)]
    widest = max(len(_tick(tick)) for tick in ticks)
    # 0.08 inches a digit, of the 3.6 that the axes have at least.
    gap = 0.08 * (widest + 1) / 3.6 * (high - low)
    kept: list[float] = []
    for tick in ticks:
        if all(abs(np.log10(tick / other)) >= gap for other in kept):
            kept.append(tick)
    axes.set_xscale("log")
    axes.set_xticks(sorted(kept), [_tick(tick) for tick in sorted(kept)])
    axes.minorticks_off()
    axes.set_xlim(10**low, 10**high)


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def frameless(axes: Axes, size: float | None = None) -> None:
    """Remove spines and tick marks; tick labels stay, with `size` points if given."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, **({"labelsize": size} if size else {}))


def bare(axes: Axes) -> None:
    """Remove spines, ticks and tick labels."""
    frameless(axes)
    axes.set_xticks([])
    axes.set_yticks([])


def legend_beside(axes: Axes) -> None:
    """Put the legend to the right of the axes."""
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)


def coloured(series: Mapping[str, object]) -> Iterator[tuple[str, object, str, str]]:
    """Yield each series with its name, a colour and a mark; after the last they start over."""
    for number, (name, values) in enumerate(series.items()):
        yield name, values, PALETTE[number % len(PALETTE)], MARKS[number % len(MARKS)]


def stack_bars(
    axes: Axes, parts: Mapping[str, Sequence[float]], colours: Sequence[str]
) -> np.ndarray:
    """Stack horizontal bars, a part after the other, one value a row; return the rows' ends."""
    left = 0.0
    for number, (name, lengths) in enumerate(parts.items()):
        bar = {"color": colours[number % len(colours)], "height": 0.66, "zorder": 2}
        lengths = np.asarray(lengths, float)
        axes.barh(range(len(lengths)), lengths, left=left, label=name, **bar)
        left = left + lengths
    return left


def chart(
    axes: Axes, title: str, x: str, y: str, *, source: str = "", log: bool = False, legend: str = ""
) -> None:
    """Set up axes of points or curves: title, labels, grid.

    log: both axes logarithmic. legend: its place inside the axes, or "beside"; none where empty.
    """
    scale = {"xscale": "log", "yscale": "log"} if log else {}
    axes.set(title=title, xlabel=with_source(x, source), ylabel=y, **scale)
    grid_lines(axes)
    if legend == "beside":
        legend_beside(axes)
    elif legend:
        axes.legend(frameon=False, loc=legend)


def rows_of_bars(axes: Axes, labels: Sequence[str] | None) -> None:
    """Set up axes of horizontal bars: vertical grid lines, labels from top to bottom.

    labels: None where another panel, with which these axes share the rows, has them.
    """
    if labels is not None:
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    grid_lines(axes, "x")


def write_values(axes: Axes, ends: Sequence[float], texts: Sequence[str]) -> None:
    """Write a text to the right of each horizontal bar. ends: of the bars, top to bottom."""
    for place, (end, text) in enumerate(zip(ends, texts, strict=True)):
        note(axes, text, (end, place), (6, 0), va="center")


def note(axes: Axes, text: str, at: tuple, offset: tuple[float, float] = (0, 4), **style) -> None:
    """Write a text `offset` points away from a place of the data."""
    axes.annotate(text, at, offset, textcoords="offset points", **({"fontsize": 9} | style))


def centred(axes: Axes, x: float, y: float, text: str, **style) -> None:
    """Write a text centred on a place of the data."""
    axes.text(x, y, text, ha="center", va="center", **style)


# -- cells and colours -----------------------------------------------------------------------------
def outline(axes: Axes, row: float, column: float, height: float, width: float, **style) -> None:
    """Outline the cells (row, column) to (row + height, column + width) of an image."""
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), width, height, fill=False, **style))


def draw_cell(axes: Axes, row: float, column: float, face, text: str, lw: float, **ink) -> None:
    """Draw a filled cell whose corner is (row, column), and a text in it."""
    box = {"facecolor": face, "edgecolor": PAPER, "lw": lw}
    axes.add_patch(Rectangle((column, row), 1, 1, **box))
    if text:
        centred(axes, column + 0.5, row + 0.5, text, **ink)


def cell_axes(axes: Axes, shape: tuple[int, int], every: tuple[int, int]) -> None:
    """Set up axes of cells, row 0 on top. every: rows and columns from one tick to the next."""
    (rows, columns), (down, across) = shape, every
    axes.set(xlim=(0, columns), ylim=(rows, 0))
    axes.set_xticks(np.arange(0, columns, across) + 0.5, range(0, columns, across))
    axes.set_yticks(np.arange(0, rows, down) + 0.5, range(0, rows, down))
    frameless(axes, 9)


def mixed(colour: str, share: float) -> tuple[float, float, float]:
    """Return a colour mixed with white: share 0 is white, 1 the colour itself."""
    return tuple(1 - share * (1 - part) for part in to_rgb(colour))


def ink_on(colour) -> str:
    """Return INK or PAPER, whichever has more contrast on a colour (WCAG's measure)."""
    return max((INK, PAPER), key=lambda text: _contrast(text, colour))


def _contrast(one, other) -> float:
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour) -> float:
    part = np.array(to_rgb(colour))
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def bytes_text(count: float) -> str:
    """65536 -> '64 KB'."""
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"
