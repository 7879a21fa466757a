"""The wrong elements of a broken kernel's result."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from .style import GREEN, PAPER, RED, frameless, new_figure, require, styled

RIGHT, WRONG, NOTHING = "#DDEFE8", RED, "#3E4C59"  # of an element; NOTHING is NaN
TICKS = 8  # elements from one tick to the next
TOLERANCE = 1e-4  # of the larger of an element and the root mean square: far above rounding


def wrong_elements(result: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return a bool array of the elements that differ from float64; NaN is always wrong.

    Raises:
        ValueError: arrays of different shapes.
    """
    result, expected = np.asarray(result, np.float64), np.asarray(expected, np.float64)
    require(result.shape == expected.shape, f"shapes {result.shape} and {expected.shape} differ")
    size = np.maximum(np.abs(expected), np.sqrt(np.mean(expected**2)))
    with np.errstate(invalid="ignore", over="ignore"):
        return ~(np.abs(result - expected) <= TOLERANCE * size)


@styled
def symptoms(patients: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """Draw the wrong elements of each patient's result, the patients side by side, strips below
    each other.

    Args:
        patients: label -> (result, expected), both (heads, rows, columns) or (rows, columns),
            real. Heads are drawn below each other with a line between them; NaN is dark.

    Raises:
        ValueError: no patient, arrays of other dimensions, or of different shapes.
    """
    require(bool(patients), "there is no patient to draw")
    message = "arrays need rows and columns, or heads, rows and columns"
    require(all(np.ndim(one) in (2, 3) for two in patients.values() for one in two), message)
    wrong = {label: wrong_elements(*arrays) for label, arrays in patients.items()}
    heights, count = [_height(found) for found in wrong.values()], len(patients)
    strips = max(heights) < 1  # of a few rows
    wide, high = min(4.3, 9.6 / count) * count, max(heights) + 0.95
    figure = new_figure(*((7.0, sum(heights) + 0.8 * count) if strips else (wide, high)))
    shape = {"nrows": count, "height_ratios": heights} if strips else {"ncols": count}
    panels = figure.subplots(**shape, squeeze=False).flat
    for axes, (label, found) in zip(panels, wrong.items(), strict=True):
        _draw_patient(axes, label, np.isnan(patients[label][0]), found)
    return figure


def _height(array: np.ndarray) -> float:
    """Inches: square cells where a panel is not too flat or too tall for that."""
    columns = array.shape[-1]
    return min(max(4.0 * array.size / columns / columns, 0.4), 4.0)


def _draw_patient(axes: Axes, label: str, unwritten: np.ndarray, wrong: np.ndarray) -> None:
    values = np.where(unwritten, np.nan, wrong)
    heads = values if values.ndim == 3 else values[None]
    rows, columns = heads.shape[1:]
    colours = ListedColormap([RIGHT, WRONG]).with_extremes(bad=NOTHING)
    below = heads.reshape(-1, columns)
    axes.imshow(below, cmap=colours, vmin=0, vmax=1, interpolation="nearest")
    for head in range(1, len(heads)):
        axes.axhline(head * rows - 0.5, color=PAPER, linewidth=2.5)
    axes.set_xticks(range(0, columns, TICKS))
    if len(heads) > 1:
        middles = [(head + 0.5) * rows - 0.5 for head in range(len(heads))]
        axes.set_yticks(middles, [f"head {head}" for head in range(len(heads))])
    else:
        axes.set_yticks(range(0, rows, TICKS))
        axes.set_ylabel("row")
    frameless(axes, 9)
    count = int(wrong.sum())
    title = f"{label}: {count:,} of {wrong.size:,} wrong"
    axes.set_title(title, color=RED if count else GREEN)
    dark = f" (dark: {int(unwritten.sum()):,} NaN)" if unwritten.any() else ""
    axes.set_xlabel(f"column{dark}")
