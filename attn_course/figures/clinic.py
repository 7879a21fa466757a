"""Results of broken kernels beside float64, with the wrong elements marked."""

from collections.abc import Mapping

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure

from .style import GREEN, INK, PAPER, RED, frameless, new_figure, styled

RIGHT, WRONG, NOTHING = "#DDEFE8", RED, "#3E4C59"  # of the last panel; NOTHING is NaN
TOLERANCE = 1e-4  # of the larger of an element and the root mean square: far above rounding


def wrong_elements(result: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return a bool array of the elements that differ from float64; NaN is always wrong.

    Raises:
        ValueError: arrays of different shapes.
    """
    result, expected = np.asarray(result, np.float64), np.asarray(expected, np.float64)
    if result.shape != expected.shape:
        raise ValueError(f"a result of shape {result.shape} has no place for {expected.shape}")
    size = np.maximum(np.abs(expected), np.sqrt(np.mean(expected**2)))
    with np.errstate(invalid="ignore", over="ignore"):
        return ~(np.abs(result - expected) <= TOLERANCE * size)


@styled
def symptoms(patients: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """Draw a line a patient: the kernel's result, float64, and the wrong elements.

    Args:
        patients: label -> (result, expected), both (heads, rows, columns), real. Heads are drawn
            below each other with a line between them; NaN is dark.

    Raises:
        ValueError: no patient, arrays that are not three-dimensional, or of different shapes.
    """
    if not patients:
        raise ValueError("there is no patient to draw")
    for label, arrays in patients.items():
        if any(np.ndim(array) != 3 for array in arrays):
            raise ValueError(f"{label}: arrays need three dimensions, heads, rows and columns")
    wrong = {label: wrong_elements(*arrays) for label, arrays in patients.items()}
    heights = [_height(one) for one in wrong.values()]
    figure = new_figure(8.6, sum(heights) + 0.75 * len(heights))
    figure.get_layout_engine().set(hspace=0.06, wspace=0.04)
    panels = figure.subplots(len(heights), 3, squeeze=False, gridspec_kw={"height_ratios": heights})
    for line, (label, (result, expected)) in zip(panels, patients.items(), strict=True):
        _draw_patient(line, label, np.asarray(result), np.asarray(expected), wrong[label])
    return figure


def _height(array: np.ndarray) -> float:
    """Inches: square cells where a panel is not too flat or too tall for that."""
    heads, rows, columns = array.shape
    return min(max(2.6 * heads * rows / columns, 1.1), 3.2)


def _draw_patient(line, label: str, result, expected, wrong) -> None:
    low, high = float(expected.min()), float(expected.max())
    for axes, values, title in (
        (line[0], result, f"{label}: result"),
        (line[1], expected, "float64"),
    ):
        _draw_heads(axes, values, colormaps["viridis"], low, high)
        axes.set_title(title)
    unwritten = np.isnan(result)
    for axes in line[1:]:
        axes.tick_params(labelleft=False)
    _draw_heads(line[2], np.where(unwritten, np.nan, wrong), ListedColormap([RIGHT, WRONG]), 0, 1)
    count = int(wrong.sum())
    line[2].set_title(f"wrong: {count:,} of {wrong.size:,}", color=RED if count else GREEN)
    if unwritten.any():
        line[2].set_xlabel(f"dark: {int(unwritten.sum()):,} NaN", fontsize=9, color=INK)


def _draw_heads(axes: Axes, values: np.ndarray, colours: Colormap, low: float, high: float) -> None:
    heads, rows, columns = values.shape
    axes.imshow(
        values.reshape(heads * rows, columns),
        cmap=colours.with_extremes(bad=NOTHING),
        vmin=low,
        vmax=high,
        aspect="auto",
        interpolation="nearest",
    )
    for head in range(1, heads):
        axes.axhline(head * rows - 0.5, color=PAPER, linewidth=2.5)
    axes.set_xticks([])
    axes.set_yticks(
        [(head + 0.5) * rows - 0.5 for head in range(heads)],
        [f"head {head}" for head in range(heads)] if heads > 1 else [""] * heads,
    )
    frameless(axes, 8.5)
