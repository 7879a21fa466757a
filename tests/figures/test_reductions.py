"""Figures of reductions: a butterfly and the order of floats."""

import numpy as np
import pytest

from attn_course import figures
from attn_course.figures.style import RED

OFFSETS = (16, 8, 4, 2, 1)
COUNTS = ["1", "2", "4", "8", "16", "32"]


def marked(figure):
    """How many lanes are marked, row by row, as the figure writes it."""
    return [text.get_text() for text in figure.axes[0].texts if text.get_color() == RED][:-1]


@pytest.mark.turns(11)
@pytest.mark.system
def test_a_butterfly_marks_the_way_of_the_maximum_and_of_a_lane():
    rows = [np.random.default_rng(0).permutation(32).astype(float)]
    for offset in OFFSETS:
        rows.append(np.maximum(rows[-1], rows[-1][np.arange(32) ^ offset]))
    figure = figures.butterfly(OFFSETS, np.array(rows))
    assert marked(figure) == COUNTS
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert shown.count("31") - 1 == 1 + 2 + 4 + 8 + 16 + 32 and "offset 16" in shown
    assert marked(figures.butterfly(OFFSETS, np.array(rows), lane=5)) == COUNTS[::-1]


def test_figures_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match="need 3 rows"):
        figures.butterfly((16, 8), np.zeros((2, 32)))
    with pytest.raises(ValueError, match="two floats are equal"):
        figures.float_orders([1, 1], {"x": np.array([1, 2])})
    with pytest.raises(ValueError, match="2 different integers"):
        figures.float_orders([1, 2], {"x": np.array([1, 1])})
