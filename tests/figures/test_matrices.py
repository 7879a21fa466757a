"""The first lessons' figures show the numbers they were given: read back from the artists."""

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from attn_course import figures
from attn_course.figures import Matrix

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


@pytest.mark.parametrize(
    ("lines", "labels"), [([], ()), ([["×"], ["×", "="]], ()), ([[Matrix(VALUES)]], ("a", "b"))]
)
def test_lines_that_do_not_fit(lines, labels):
    with pytest.raises(ValueError):
        figures.matrix_lines(lines, labels=labels)


def test_a_fragment_map_writes_lanes_and_colours_registers():
    lanes, registers = np.array([[0, 1, 2], [4, 5, 5]]), np.array([[0, 0, 1], [1, 1, 0]])
    figure = figures.fragment_maps({"A": (lanes, registers)}, lane=5)
    (axes,) = figure.get_axes()
    written = {t.get_position(): t.get_text() for t in axes.texts}
    assert written == {(c + 0.5, r + 0.5): str(lane) for (r, c), lane in np.ndenumerate(lanes)}
    faces = {p.get_xy(): p.get_facecolor() for p in cells(figure)}
    for (r, c), register in np.ndenumerate(registers):
        assert (faces[c, r] == faces[0, 0]) == (register == 0)
    assert {p.get_xy() for p in outlines(figure)} == {(1, 1), (2, 1)}
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["register 0", "register 1"]


def test_a_fragment_map_needs_a_register_for_every_element():
    with pytest.raises(ValueError):
        figures.fragment_maps({"A": (np.zeros((2, 3)), np.zeros((2, 2)))})
