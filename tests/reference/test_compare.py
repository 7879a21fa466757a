"""The comparison must fail whatever is not shown to be right."""

import math

import numpy as np
import pytest

from attn_course.reference.comparison import compare, poisoned
from attn_devtools.agreement import assert_agrees


@pytest.fixture
def expected():
    return np.random.default_rng(0).normal(0.2, 1.0, (4, 5, 6))


def test_agreement_and_errors(expected):
    actual = expected * (1 + 1e-7)
    outcome = compare(actual, expected, name="scores")
    assert outcome.agrees and outcome and outcome.first_bad_index is None
    assert outcome.relative_error == pytest.approx(1e-7, rel=1e-6)
    assert outcome.max_abs_error == pytest.approx(1e-7 * np.abs(expected).max(), rel=1e-6)
    assert "scores" in outcome.message


def test_relative_error_is_the_ratio_of_norms(expected):
    actual = expected + np.random.default_rng(1).normal(0, 1e-3, expected.shape)
    ratio = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    outcome = compare(actual, expected)
    assert not outcome.agrees and outcome.relative_error == pytest.approx(ratio, rel=1e-12)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_bad_element_fails_and_is_named(expected, value):
    actual = expected.copy()
    actual[2, 3, 1] = actual[3, 0, 0] = value
    outcome = compare(actual, expected)
    assert not outcome.agrees and outcome.first_bad_index == (2, 3, 1)
    assert outcome.max_abs_error == math.inf and outcome.relative_error == math.inf
    assert "[2, 3, 1]" in outcome.message and "2 of 120" in outcome.message


def test_one_wrong_element_hidden_in_the_norm():
    expected = np.ones(1_000_000, dtype=np.float32)
    actual = expected.copy()
    actual[1234] += 6e-4
    outcome = compare(actual, expected)
    assert outcome.relative_error < 1e-6 and not outcome.agrees
    assert outcome.first_bad_index == (1234,)


def test_many_small_errors_fail_by_the_norm(expected):
    outcome = compare(expected * (1 + 5e-5), expected, relative=1e-5)
    assert not outcome.agrees and outcome.first_bad_index is not None


def test_nan_in_the_reference_never_passes(expected):
    expected[0, 0, 2] = math.nan
    outcome = compare(expected.copy(), expected)
    assert not outcome.agrees and outcome.first_bad_index == (0, 0, 2)
    assert "reference itself" in outcome.message


def test_infinities_must_be_met_exactly():
    expected = np.array([-np.inf, 1.0, np.inf])
    assert compare(expected.copy(), expected).agrees
    assert compare([-np.inf, 1.0, -np.inf], expected).first_bad_index == (2,)
    assert compare([-1e300, 1.0, np.inf], expected).first_bad_index == (0,)
    assert not compare([math.nan, 1.0, np.inf], expected).agrees


def test_shape_mismatch_is_named(expected):
    outcome = compare(expected[:, :, :1], expected)
    assert not outcome.agrees and outcome.first_bad_index is None
    assert "(4, 5, 1)" in outcome.message and "(4, 5, 6)" in outcome.message


def test_nothing_to_compare_is_no_agreement():
    outcome = compare(np.empty((0, 3)), np.empty((0, 3)))
    assert not outcome.agrees and "nothing was compared" in outcome.message


def test_all_zero_reference():
    zeros = np.zeros((2, 3))
    outcome = compare(zeros, zeros)
    assert outcome.agrees and outcome.relative_error == 0.0
    wrong = zeros.copy()
    wrong[1, 2] = 1e-30
    outcome = compare(wrong, zeros)
    assert not outcome.agrees and outcome.first_bad_index == (1, 2)
    assert outcome.relative_error == math.inf and outcome.max_abs_error == 1e-30
    assert compare(wrong, zeros, absolute=1e-12).agrees


def test_norms_do_not_overflow():
    expected = np.array([1e300, -2e300])
    assert compare(expected * (1 + 1e-9), expected).relative_error == pytest.approx(1e-9, rel=1e-4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.uint8])
def test_poison_never_passes(dtype):
    expected = np.arange(6, dtype=dtype).reshape(2, 3)
    actual = poisoned((2, 3), dtype)
    assert actual.shape == (2, 3) and actual.dtype == dtype
    assert not compare(actual, expected).agrees
    actual[...] = expected
    assert compare(actual, expected).agrees
    actual[1, 1] = poisoned((), dtype)
    assert compare(actual, expected).first_bad_index == (1, 1)


def test_integers_have_to_be_met_exactly():
    expected = np.array([10_000_000, 7], np.int64)
    found = compare(expected + [1, 0], expected)
    assert found.message == (
        "result: 1 of 2 elements are wrong, the first at [0]: 10000001 instead of 10000000; "
        "integers have to be met exactly"
    )
    assert compare(expected + [1, 0], expected, absolute=1).agrees
    assert compare((expected + [1, 0]).astype(float), expected).agrees  # floats are rounded


def test_poison_needs_a_number_type():
    with pytest.raises(TypeError, match="bool"):
        poisoned((2,), np.bool_)


def test_a_device_array_is_fetched(expected):
    class OnDevice:
        def get(self):
            return expected

    assert compare(OnDevice(), expected).agrees


def test_assert_agrees(expected):
    assert assert_agrees(expected, expected).agrees
    with pytest.raises(AssertionError, match="output: 120 of 120"):
        assert_agrees(expected + 1.0, expected, name="output")


def test_a_finite_number_for_an_infinity_is_no_small_error():
    found = compare(np.array([1.0, -3.4e38]), np.array([1.0, -np.inf]))
    assert not found and "-3.4e+38 instead of -inf; an infinity has to be met" in found.message
