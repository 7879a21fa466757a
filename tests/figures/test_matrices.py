"""The first lessons' figures show the numbers they were given: read back from the artists."""

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from attn_course import figures
from attn_course.figures import Matrix
from attn_course.figures.style import RED

VALUES = np.array([[1.0, 2.5], [3.0, -4.0], [7.0, 0.0]])


def texts(figure):
    return [text.get_text() for text in figure.get_axes()[0].texts]


def cells(figure):
    return [p for p in figure.get_axes()[0].patches if isinstance(p, Rectangle) and p.get_fill()]


def outlines(figure):
    return [p for p in figure.get_axes()[0].patches if not p.get_fill()]


def test_every_number_stands_in_its_cell():
    figure = figures.matrix_lines([[Matrix(VALUES, "q", "3 tokens")]])
    written = {text.get_text(): text.get_position() for text in figure.get_axes()[0].texts}
    assert {"1", "2.5", "3", "-4", "7", "0", "q", "3 tokens"} == set(written)
    x0, y0 = written["1"]
    for (row, column), value in np.ndenumerate(VALUES):
        assert written[f"{value:g}"] == pytest.approx((x0 + column, y0 + row))
    assert len(cells(figure)) == VALUES.size


def test_what_is_not_a_number_is_hatched():
    values = np.ma.array([[1.0, 2.0, 3.0, np.nan, -np.inf]], mask=[[0, 0, 1, 0, 0]])
    figure = figures.matrix_lines([[Matrix(values)]])
    assert [bool(cell.get_hatch()) for cell in cells(figure)] == [False, False, True, True, True]
    assert [t for t in texts(figure) if t] == ["1", "2", "−∞"]


def test_shades_follow_the_size_of_the_values():
    figure = figures.matrix_lines([[Matrix(VALUES, shaded=True)]])
    darkness = [3 - sum(cell.get_facecolor()[:3]) for cell in cells(figure)]
    order = np.argsort(np.abs(VALUES).ravel())
    assert np.all(np.diff(np.array(darkness)[order]) > 0)
    flat = figures.matrix_lines([[Matrix(VALUES)]])
    assert len({cell.get_facecolor() for cell in cells(flat)}) == 1


def test_the_chosen_part_is_outlined_and_the_rest_paler():
    figure = figures.matrix_lines([[Matrix(VALUES, chosen=(1, 0, 2, 1))]])
    (box,) = outlines(figure)
    first = cells(figure)[0]
    assert (box.get_x() - first.get_x(), box.get_y() - first.get_y()) == (0, 1)
    assert (box.get_width(), box.get_height()) == (1, 2)
    assert box.get_edgecolor() == to_rgba(RED)
    shades = np.array([sum(cell.get_facecolor()[:3]) for cell in cells(figure)]).reshape(3, 2)
    inside = np.zeros((3, 2), bool)
    inside[1:, 0] = True
    assert shades[inside].max() < shades[~inside].min()


def test_the_worked_example_holds_all_six_matrices():
    q, k = np.array([[11.0, 12], [13, 14]]), np.array([[21.0, 22], [23, 24], [25, 26]])
    scores, weights = q @ k.T, np.array([[0.125, 0.25, 0.625], [0.5, 0.375, 0.125]])
    v = np.array([[31.0], [32], [33]])
    figure = figures.worked_example(q, k, scores, weights, v, weights @ v, row=1)
    shown = texts(figure)
    expected = [f"{x:g}" for x in np.concatenate([a.ravel() for a in (q, k, scores, v)])]
    expected += [f"{x:.3f}" for x in weights.ravel()] + [f"{x:.2f}" for x in (weights @ v).ravel()]
    assert sorted(t for t in shown if t in expected) == sorted(expected)
    keys = {t.get_text(): t.get_position() for t in figure.get_axes()[0].texts}
    assert keys["25"][0] > keys["21"][0] and keys["25"][1] == keys["21"][1]  # transposed
    assert len(outlines(figure)) == 4  # the query's row in q, scores, weights and out


def test_tile_steps_outline_what_was_loaded():
    q, k = np.arange(16.0).reshape(4, 4), 100 + np.arange(16.0).reshape(4, 4)
    steps = [
        {
            "tile_query": q[2:, i : i + 2],
            "tile_key": k[:2, i : i + 2].T,
            "score": 200 + np.arange(4.0).reshape(2, 2) + i,
        }
        for i in (0, 2)
    ]
    figure = figures.tile_steps(q, k, steps, row=2, column=0, tile=2)
    boxes = outlines(figure)
    assert len(boxes) == 4
    assert boxes[2].get_x() - boxes[0].get_x() == pytest.approx(2)  # q: two columns further
    assert boxes[3].get_x() - boxes[1].get_x() == pytest.approx(2)
    shown = texts(figure)
    assert shown.count("8") == 3  # in q twice, and in the first step's tile_query
    assert {"step 0\ni = 0..1", "step 1\ni = 2..3", "200", "205"} <= set(shown)


@pytest.mark.parametrize(
    ("lines", "labels"), [([], ()), ([["×"], ["×", "="]], ()), ([[Matrix(VALUES)]], ("a", "b"))]
)
def test_lines_that_do_not_fit(lines, labels):
    with pytest.raises(ValueError):
        figures.matrix_lines(lines, labels=labels)


def test_nothing_lies_outside_of_the_figure():
    steps = [{"tile_query": VALUES[:2], "tile_key": VALUES[:2], "score": VALUES[:2]}]
    figure = figures.tile_steps(VALUES, VALUES, steps, row=0, column=0, tile=2)
    figure.canvas.draw()
    axes = figure.get_axes()[0]
    whole = figure.bbox
    for text in axes.texts:
        box = text.get_window_extent()
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1, text.get_text()
        assert whole.y0 <= box.y0 and box.y1 <= whole.y1, text.get_text()
