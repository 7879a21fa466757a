"""The book's figures hold the numbers that they were given."""

import itertools

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from attn_course import figures
from attn_devtools.book import drawing

SHAPES = ("1,1,128,64", "4,1,512,64")


def test_ratios_are_bars_with_their_numbers_and_the_faster_one_is_longer():
    figure = drawing.ratios(
        SHAPES, {"tiled": (0.7, None), "auto": (4.91, 2.24)}, to="the best", source="a record"
    )
    (axes,) = figure.get_axes()
    drawn = [bar for bars in axes.containers for bar in bars]
    assert {bar.get_x() for bar in drawn} == {0}
    np.testing.assert_allclose([bar.get_width() for bar in drawn], (0.7, np.nan, 4.91, 2.24))
    assert axes.get_xscale() == "linear" and axes.get_xlim()[0] == 0
    assert [text.get_text() for text in axes.texts] == ["0.70", "4.91", "2.24"]
    assert axes.get_xlabel() == "speed, the best = 1"
    assert figure.get_supxlabel() == "a record"


@pytest.mark.parametrize("values", [(1.02, 0.97), (1.0, 1.43), (0.1, 0.86), (0.9, 40.0)])
def test_numbers_of_ratios_are_above_the_line_at_1_which_is_in_view(values):
    figure = drawing.ratios(SHAPES, {"auto": values}, to="the best", source="a record")
    (axes,) = figure.get_axes()
    renderer = drawn_fully(figure)
    (line,) = axes.lines
    assert list(line.get_xdata()) == [1, 1] and axes.get_xlim()[1] > 1
    for text in axes.texts:
        assert text.get_zorder() > line.get_zorder() and text.get_bbox_patch().get_fill()
        assert text.get_window_extent(renderer).x1 <= axes.bbox.x1
    assert len(shown_ticks(axes)) > 1


@pytest.mark.turns(11)
@pytest.mark.system
@pytest.mark.parametrize(
    "values", [(141.0, 311.0), (3.0, 732.0), (20_000.0, 71_000.0), (5.12, 5.12), (5.1, 5.3)]
)
def test_labels_of_a_logarithmic_axis_do_not_overlap(values):
    times = figures.times_by_shape(SHAPES, {"auto": values}, source="a record")
    rates = drawing.rates(SHAPES, {"GB/s": {"auto": values}}, source="a record")
    for figure in (times, rates):
        (axes,) = figure.get_axes()
        renderer = drawn_fully(figure)
        extents = [label.get_window_extent(renderer) for label in axes.get_xticklabels()]
        for left, right in itertools.pairwise(extents):
            assert left.x1 < right.x0, shown_ticks(axes)
        assert shown_ticks(axes)


def test_a_logarithmic_axis_refuses_what_is_not_positive():
    with pytest.raises(ValueError, match="positive"):
        figures.times_by_shape(SHAPES, {"auto": (0.0, 1.0)}, source="")


def test_cells_of_a_summary_hold_their_texts():
    words = "1,56,56,96 heads 3 hidden 384 windows of 14, 2 blocks"
    figure = drawing.summary(
        ("shape", "us"), [(words, "3.24"), ("1", "torch_efficient")], source=""
    )
    (axes,) = figure.get_axes()
    renderer = drawn_fully(figure)
    for cell in axes.tables[0].get_celld().values():
        outer, inner = (one.get_window_extent(renderer) for one in (cell, cell.get_text()))
        assert outer.x0 <= inner.x0 and inner.x1 <= outer.x1


def drawn_fully(figure):
    """Draw a figure; return its renderer, of which texts ask where they are."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


def shown_ticks(axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


def test_rates_have_a_panel_a_unit():
    panels = {"GFLOP/s": {"auto": (10.0, 20.0)}, "GB/s": {"auto": (1.0, None)}}
    first, second = drawing.rates(SHAPES, panels, source="").get_axes()
    assert (first.get_xlabel(), second.get_xlabel()) == ("GFLOP/s", "GB/s")
    np.testing.assert_array_equal(first.get_lines()[0].get_xdata(), (10, 20))
    np.testing.assert_array_equal(second.get_lines()[0].get_xdata(), (1, np.nan))


def test_growth_has_a_panel_a_size():
    panels = {"batch": ((1, 4, 8), {"auto": (3.0, 4.0, 5.0)}), "tokens": ((128,), {"auto": (3.0,)})}
    first, second = drawing.scaling(panels, source="").get_axes()
    np.testing.assert_array_equal(first.get_lines()[0].get_xydata(), [(1, 3), (4, 4), (8, 5)])
    assert [label.get_text() for label in second.get_xticklabels()] == ["128"]


def test_a_summary_is_a_table_of_its_cells():
    figure = drawing.summary(("shape", "us"), [("1,1,128,64", "3.24")], source="")
    (axes,) = figure.get_axes()
    (drawn,) = axes.tables
    cells = {place: cell.get_text().get_text() for place, cell in drawn.get_celld().items()}
    assert cells == {(0, 0): "shape", (0, 1): "us", (1, 0): "1,1,128,64", (1, 1): "3.24"}


@pytest.mark.parametrize(
    "draw",
    (
        lambda: drawing.ratios(SHAPES, {"auto": (1.0,)}, to="", source=""),
        lambda: drawing.rates(SHAPES, {}, source=""),
        lambda: drawing.rates(SHAPES, {"GB/s": {}}, source=""),
        lambda: drawing.scaling({}, source=""),
        lambda: drawing.summary(("a", "b"), [("1",)], source=""),
    ),
)
def test_rows_of_another_length_are_refused(draw):
    with pytest.raises(ValueError):
        draw()
