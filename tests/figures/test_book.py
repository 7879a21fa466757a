"""The book's figures hold the numbers that they were given."""

import numpy as np
import pytest

from attn_course import figures

SHAPES = ("1,1,128,64", "4,1,512,64")


def test_ratios_are_bars_with_their_numbers():
    figure = figures.ratios(
        SHAPES, {"tiled": (1.4, None), "auto": (4.91, 2.24)}, to="the best", source="a record"
    )
    (axes,) = figure.get_axes()
    widths = [bar.get_width() for bars in axes.containers for bar in bars]
    np.testing.assert_allclose(widths, (1.4, np.nan, 4.91, 2.24))
    assert [text.get_text() for text in axes.texts] == ["1.40", "4.91", "2.24"]
    assert axes.get_xlabel() == "times faster than the best"
    assert figure.get_supxlabel() == "a record"


def test_rates_have_a_panel_a_unit():
    panels = {"GFLOP/s": {"auto": (10.0, 20.0)}, "GB/s": {"auto": (1.0, None)}}
    first, second = figures.rates(SHAPES, panels, source="").get_axes()
    assert (first.get_xlabel(), second.get_xlabel()) == ("GFLOP/s", "GB/s")
    np.testing.assert_array_equal(first.get_lines()[0].get_xdata(), (10, 20))
    np.testing.assert_array_equal(second.get_lines()[0].get_xdata(), (1, np.nan))


def test_growth_has_a_panel_a_size():
    panels = {"batch": ((1, 4, 8), {"auto": (3.0, 4.0, 5.0)}), "tokens": ((128,), {"auto": (3.0,)})}
    first, second = figures.scaling(panels, source="").get_axes()
    np.testing.assert_array_equal(first.get_lines()[0].get_xydata(), [(1, 3), (4, 4), (8, 5)])
    assert [label.get_text() for label in second.get_xticklabels()] == ["128"]


def test_a_summary_is_a_table_of_its_cells():
    figure = figures.summary(("shape", "us"), [("1,1,128,64", "3.24")], source="")
    (axes,) = figure.get_axes()
    (drawn,) = axes.tables
    cells = {place: cell.get_text().get_text() for place, cell in drawn.get_celld().items()}
    assert cells == {(0, 0): "shape", (0, 1): "us", (1, 0): "1,1,128,64", (1, 1): "3.24"}


@pytest.mark.parametrize(
    "draw",
    (
        lambda: figures.ratios(SHAPES, {"auto": (1.0,)}, to="", source=""),
        lambda: figures.rates(SHAPES, {}, source=""),
        lambda: figures.rates(SHAPES, {"GB/s": {}}, source=""),
        lambda: figures.scaling({}, source=""),
        lambda: figures.summary(("a", "b"), [("1",)], source=""),
    ),
)
def test_rows_of_another_length_are_refused(draw):
    with pytest.raises(ValueError):
        draw()
