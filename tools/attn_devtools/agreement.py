"""A comparison with float64 that stops a test."""

from attn_course.reference import Comparison, compare


def assert_agrees(actual, expected, **options) -> Comparison:
    """Return compare(); AssertionError with its message where the arrays disagree."""
    comparison = compare(actual, expected, **options)
    if not comparison.agrees:
        raise AssertionError(comparison.message)
    return comparison
