"""The wrong elements of a broken kernel's result."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from .style import GREEN, INK, PAPER, RED, frameless, new_figure, styled

RIGHT, WRONG, NOTHING = "#DDEFE8", RED, "#3E4C59"  # of an element; NOTHING is NaN
TICKS = 8  # elements from one tick to the next
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
    """Draw the wrong elements of each patient's result, the patients side by side.

    Args:
        patients: label -> (result, expected), both (heads, rows, columns) or (rows, columns),
            real. Heads are drawn below each other with a line between them; NaN is dark.

    Raises:
        ValueError: no patient, arrays of other dimensions, or of different shapes.
    """
    if not patients:
        raise ValueError("there is no patient to draw")
    for label, arrays in patients.items():
        if any(np.ndim(array) not in (2, 3) for array in arrays):
            raise ValueError(f"{label}: arrays need rows and columns, or heads, rows and columns")
    wrong = {label: wrong_elements(*arrays) for label, arrays in patients.items()}
    figure = new_figure(4.3 * len(patients), max(map(_height, wrong.values())) + 0.75)
    panels = figure.subplots(1, len(patients), squeeze=False)[0]
    for axes, (label, found) in zip(panels, wrong.items(), strict=True):
        _draw_patient(axes, label, np.isnan(patients[label][0]), found)
    return figure


def _height(array: np.ndarray) -> float:
    """Inches: square cells where a panel is not too flat or too tall for that."""
    columns = array.shape[-1]
    return min(max(4.0 * array.size / columns / columns, 1.1), 4.0)


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
    frameless(axes, 8.5)
    count = int(wrong.sum())
    title = f"{label}: {count:,} of {wrong.size:,} wrong"
    axes.set_title(title, color=RED if count else GREEN)
    if unwritten.any():
        axes.set_xlabel(f"dark: {int(unwritten.sum()):,} NaN", fontsize=9, color=INK)
