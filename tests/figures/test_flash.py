"""Figures of flash attention show the values they were given."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from attn_course import figures

BLOCKS = [
    {"scores": [1, 3], "new_m": 3, "rescale": 0, "old_l": 0, "row_l": 1.1},
    {"scores": [2, 5], "new_m": 5, "rescale": 0.13, "old_l": 1.1, "row_l": 1.2},
]


def test_unrelated_shapes_are_not_joined_and_equal_times_hide_nothing():
    figure = figures.times_by_shape(
        ["x", "y"], {"a": [1.0, None], "b": [1.0, 5.0]}, source="s", title="t"
    )
    (axes,) = figure.axes
    assert not [line for line in axes.lines if len(line.get_xdata()) > 2]
    places = [dots.get_offsets() for dots in axes.collections]
    np.testing.assert_allclose([dots[:, 0] for dots in places], [[1, np.nan], [1, 5]])
    assert places[0][0, 1] != places[1][0, 1]
    assert abs(places[0][0, 1]) < 0.5 and all(abs(places[1][n, 1] - n) < 0.5 for n in (0, 1))
    marks = [
        (tuple(dots.get_facecolor()[0]), len(dots.get_paths()[0].vertices))
        for dots in axes.collections
    ]
    assert len(set(marks)) == 2


def test_times_have_ticks_that_can_be_read():
    figure = figures.times_by_shape(["x"], {"a": [40.0], "b": [5000.0]}, source="s", title="t")
    figure.canvas.draw()
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    ticks = axes.get_xticks()
    shown = {
        label.get_text()
        for label, at in zip(axes.get_xticklabels(), ticks, strict=True)
        if low <= at <= high
    }
    assert {"50", "100", "200", "500", "1,000", "2,000", "5,000"} <= shown
    assert axes.get_title(loc="left") + axes.get_title() == "t (lower is better)"


def test_colours_of_a_window_have_units():
    bias = np.array([[0.5, -np.inf], [0.1, 0.0]])
    figure = figures.window_bias(
        bias, np.eye(2), {"a": np.eye(2) / 2, "b": np.eye(2)}, query=(0, 0)
    )
    labels = [axes.get_ylabel() for axes in figure.axes[4:]]
    assert "score" in labels[0] and "weight" in labels[1] and len(labels) == 2
    first, second = (axes.images[0].norm for axes in figure.axes[2:4])
    assert (first.vmax, second.vmax) == (1.0, 1.0)  # one colour bar holds for both


def test_figures_are_drawn():
    size = {"rows": [1.0, 2.0]}
    drawn = [
        figures.running_softmax(BLOCKS),
        figures.times_by_shape(["x", "y"], {"a": [1.0, None]}, source="s"),
        figures.traffic_by_tile([1, 2], [8, 4], [8, 4], labels=["a", "b"], least=2, scores=9),
        figures.visited_tiles(np.tri(6, dtype=bool), np.tri(3, dtype=bool), (2, 2)),
        figures.flights({"k": ([(0, 5), (2, 9)], np.arange(9), 10)}),
        figures.window_bias(
            np.array([[0.0, -np.inf]]), np.eye(1, 2), {"w": np.eye(1, 2)}, query=(0, 0)
        ),
        figures.shared_budget([64, 128], size, {"sm_90": 1.5}),
    ]
    for figure in drawn:
        assert isinstance(figure, Figure)
        figure.canvas.draw()
    with pytest.raises(ValueError, match="each shape"):
        figures.times_by_shape(["x"], {"a": [1.0, 2.0]}, source="s")
    with pytest.raises(ValueError, match="fit the tiles"):
        figures.visited_tiles(np.tri(6, dtype=bool), np.tri(2, dtype=bool), (2, 2))


def test_ideas_have_a_panel_a_problem_and_pale_bars_where_nothing_is_clear():
    worth = {"lanes": (25, 24, 26), "turn": (-10, -11, -9), "heads": (0, -1, 1)}
    problems = dict.fromkeys(("a", "b", "c"), worth)
    panels = figures.worth_of_ideas(problems, source="s", title="t").axes
    assert [axes.get_title("left") for axes in panels if axes.get_visible()] == ["a", "b", "c"]
    colours = [bar.get_facecolor() for bar in panels[0].patches]
    assert len(colours) == len(set(colours)) == 3  # slower, faster, neither
    with pytest.raises(ValueError, match="each idea"):
        figures.worth_of_ideas({"a": worth, "b": {}}, source="")
