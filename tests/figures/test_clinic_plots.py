"""Figures of the bug clinic count and mark exactly the wrong elements."""

import numpy as np
import pytest

from attn_course.figures.clinic import symptoms, wrong_elements

EXPECTED = np.arange(1.0, 25.0).reshape(2, 3, 4)


def sick(*places, value=99.0):
    result = EXPECTED.astype(np.float32)
    for place in places:
        result[place] = value
    return result


def test_wrong_elements_are_those_that_differ():
    wrong = wrong_elements(sick((0, 1, 2), (1, 2, 3)), EXPECTED)
    assert np.argwhere(wrong).tolist() == [[0, 1, 2], [1, 2, 3]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_wrong(value):
    assert wrong_elements(sick((1, 0, 0), value=value), EXPECTED).sum() == 1


def test_rounding_is_not_wrong_and_a_thousandth_is():
    assert not wrong_elements(EXPECTED * (1 + 1e-6), EXPECTED).any()
    assert wrong_elements(EXPECTED * 1.001, EXPECTED).sum() > EXPECTED.size // 2


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match="shape"):
        wrong_elements(EXPECTED, EXPECTED[:1])


def test_a_figure_has_one_panel_a_patient_and_says_how_many_are_wrong():
    figure = symptoms(
        {"A": (sick((0, 0, 0), value=np.nan), EXPECTED), "B": (EXPECTED[0], EXPECTED[0])}
    )
    panels = figure.get_axes()
    assert [axes.get_title(loc="left") for axes in panels] == [
        "A: 1 of 24 wrong",
        "B: 0 of 12 wrong",
    ]
    assert [axes.get_xlabel() for axes in panels] == ["column (dark: 1 NaN)", "column"]
    assert [text.get_text() for text in panels[0].get_yticklabels()] == ["head 0", "head 1"]


@pytest.mark.parametrize(
    "patients", [{}, {"A": (EXPECTED[0, 0], EXPECTED[0, 0])}, {"A": (EXPECTED, EXPECTED[:1])}]
)
def test_what_can_not_be_drawn(patients):
    with pytest.raises(ValueError):
        symptoms(patients)


def test_strips_stand_below_each_other_with_axes():
    one = np.arange(24.0)[None]
    figure = symptoms({"A": (one, one), "B": (one + 1, one)})
    top, bottom = figure.get_axes()
    assert top.get_position().y0 > bottom.get_position().y1
    for axes in (top, bottom):
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("column", "row")
