"""Figures of flash attention show the values they were given."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from attn_course import figures

BLOCKS = [
    {"scores": [1, 3], "row_m": 3, "rescale": 0, "old_l": 0, "row_l": 1.1},
    {"scores": [2, 5], "row_m": 5, "rescale": 0.13, "old_l": 1.1, "row_l": 1.2},
]


def test_figures_are_drawn():
    size = {"rows": [1.0, 2.0]}
    drawn = [
        figures.running_softmax(BLOCKS),
        figures.times_by_shape(["x", "y"], {"a": [1.0, None]}, source="s"),
        figures.traffic_by_tile([1, 2], [8, 4], [8, 4], labels=["a", "b"], least=2, scores=9),
        figures.visited_tiles(np.tri(6, dtype=bool), np.tri(3, dtype=bool), (2, 2)),
        figures.flights({"k": ([(0, 5), (2, 9)], np.arange(9), 10)}),
        figures.timeline({"one": {"a": {"x": [(0, 5)]}}, "two": {"b": {"x": [], "y": [(2, 2)]}}}),
        figures.window_bias(
            np.array([[0.0, -np.inf]]), np.eye(1, 2), {"w": np.eye(1, 2)}, query=(0, 0)
        ),
        figures.shared_budget([64, 128], size, {"sm_90": 1.5}),
    ]
    for figure in drawn:
        assert isinstance(figure, Figure)
        figure.canvas.draw()
    with pytest.raises(ValueError, match="no row"):
        figures.timeline({})
    with pytest.raises(ValueError, match="each shape"):
        figures.times_by_shape(["x"], {"a": [1.0, 2.0]}, source="s")
    with pytest.raises(ValueError, match="fit the tiles"):
        figures.visited_tiles(np.tri(6, dtype=bool), np.tri(2, dtype=bool), (2, 2))
