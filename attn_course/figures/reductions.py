"""Reductions: a warp's butterfly, and floats ordered by their bits."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import style


@style.styled
def butterfly(
    offsets: Sequence[int],
    values: np.ndarray,
    *,
    lane: int | None = None,
    title: str = "",
) -> Figure:
    """Draw the values of a warp's lanes before an exchange and after each of its steps.

    Args:
        offsets: (steps,) lane l exchanges with lane l ^ offset.
        values: (steps + 1, lanes), as a trace recorded them.
        lane: the lane whose sources are drawn darker; None: the way of the final value, which
            must be the same in all lanes (as after a maximum).

    Raises:
        ValueError: values that do not go with the offsets.
    """
    values = np.asarray(values, float)
    style.require(
        values.ndim == 2 and len(values) == len(offsets) + 1,
        f"{len(offsets)} steps need {len(offsets) + 1} rows of values, not {values.shape}",
    )
    lanes = values.shape[1]
    inside = all(0 < offset < lanes for offset in offsets)
    style.require(inside, f"offsets {offsets}: {lanes} lanes")
    marked = _way_to(lane, offsets, lanes) if lane is not None else values == values[-1]
    figure, axes = style.new_axes(11.2, 0.95 + 0.78 * len(values))
    for row, offset in enumerate(offsets):
        _draw_exchange(axes, row, offset, marked[row : row + 2])
    _draw_lanes(axes, values, marked)
    for row, offset in enumerate(("before", *(f"offset {offset}" for offset in offsets))):
        axes.text(-1.0, row, offset, ha="right", va="center", fontsize=10.5)
        bold = {"fontsize": 10.5, "color": style.RED, "fontweight": "bold"}
        axes.text(lanes, row, f"{int(marked[row].sum())}", ha="left", va="center", **bold)
    axes.text(lanes - 0.2, -0.92, "marked", ha="center", fontsize=10.5, color=style.RED)
    axes.set(xlim=(-3.4, lanes + 0.7), ylim=(len(offsets) + 0.35, -1.1), title=title)
    axes.axis("off")
    for number in range(lanes):
        axes.text(number, -0.62, str(number), ha="center", fontsize=10.5, color=style.GREY)
    axes.text(-1.0, -0.62, "lane", ha="right", fontsize=10.5, color=style.GREY)
    return figure


def _way_to(lane: int, offsets: Sequence[int], lanes: int) -> np.ndarray:
    """(steps + 1, lanes) bool: whose value of that moment goes into the lane's last one."""
    found = np.zeros((len(offsets) + 1, lanes), bool)
    found[-1, lane] = True
    for row in range(len(offsets) - 1, -1, -1):
        sources = np.flatnonzero(found[row + 1])
        found[row, sources] = found[row, sources ^ offsets[row]] = True
    return found


def _draw_exchange(axes: Axes, row: int, offset: int, marked: np.ndarray) -> None:
    """Lines from every lane to itself and to its partner; darker where marks are passed on."""
    for lane in range(marked.shape[1]):
        for target in (lane, lane ^ offset):
            passed = marked[0, lane] and marked[1, target]
            drawn = {"color": "#CBD2D9", "lw": 0.7, "zorder": 1}
            if passed:
                drawn = {"color": style.RED, "lw": 1.5, "zorder": 2}
            axes.plot((lane, target), (row, row + 1), **drawn)


def _draw_lanes(axes: Axes, values: np.ndarray, marked: np.ndarray) -> None:
    finite = values[np.isfinite(values)]
    low, high = finite.min(), finite.max()
    for (row, lane), value in np.ndenumerate(values):
        share = 0.1 + 0.8 * (value - low) / ((high - low) or 1) if np.isfinite(value) else 0.0
        face = colormaps["YlGnBu"](share)
        ink = {"color": style.ink_on(face), "fontsize": 10.5, "zorder": 3}
        text = format(value, ".2g" if abs(value) >= 1 else ".2f")
        text = text[text.startswith("0.") :]  # 0.15 as .15: a lane has room for three letters
        edge = style.RED if marked[row, lane] else "#CBD2D9"
        box = {"boxstyle": "square,pad=0.12", "fc": face, "lw": 1.6, "ec": edge}
        style.centred(axes, lane, row, text, bbox=box, **ink)


@style.styled
def float_orders(values: Sequence[float], keys: Mapping[str, np.ndarray]) -> Figure:
    """Draw floats in their order and in the order of integers made from them, joined by lines.

    Args:
        values: floats, all different.
        keys: what the integers are -> (count,) integers, one a float, all different.

    Raises:
        ValueError: lengths differ, or two are equal.
    """
    values = np.asarray(values, float)
    style.require(np.unique(values).size == values.size, "two floats are equal")
    for name, found in keys.items():
        different = np.unique(found).size == values.size == len(found)
        style.require(different, f"{name}: {values.size} different integers are needed")
    figure, panels = style.new_row(0.4 + 3.7 * len(keys), 0.9 + 0.34 * values.size, len(keys))
    for axes, (name, found) in zip(panels, keys.items(), strict=True):
        _draw_orders(axes, values, np.asarray(found))
        axes.set_title(name, fontsize=10)
    return figure


def _draw_orders(axes: Axes, values: np.ndarray, keys: np.ndarray) -> None:
    """The largest on top on both sides; a float that changes its place is drawn in red."""
    before, after = (np.argsort(np.argsort(order)) for order in (values, keys))
    for value, left, right in zip(values, before, after, strict=True):
        moved = left != right
        axes.plot((0.24, 0.76), (left, right), color=style.RED if moved else style.BLUE, lw=1.8)
        ink = {"color": style.RED if moved else style.INK, "fontsize": 9.5}
        for x, place, side in ((0.22, left, "right"), (0.78, right, "left")):
            axes.text(x, place, f"{value:g}", ha=side, va="center", **ink)
    top = values.size - 0.3
    axes.text(0.22, top, "as floats", ha="right", fontsize=8.5, color=style.GREY)
    axes.text(0.78, top, "as ints", ha="left", fontsize=8.5, color=style.GREY)
    axes.set(xlim=(0, 1), ylim=(-0.6, values.size + 0.1))
    axes.axis("off")
