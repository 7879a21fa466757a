"""Inputs and comparisons of the Triton tests."""

import numpy as np


def normal(*shape: int, dtype="float32", seed: int = 0) -> np.ndarray:
    """Seeded normal numbers, asymmetric: their mean is 0.3."""
    numbers = np.random.default_rng(seed + 31 * len(shape) + sum(shape)).standard_normal(shape)
    return (numbers + 0.3).astype(dtype)


def poisoned(*shape: int, dtype="float32") -> np.ndarray:
    """An array in which every element that stays unwritten is seen."""
    kind = np.dtype(dtype).kind
    return np.full(shape, np.nan if kind in "fV" else 77, dtype)


def assert_close(found: np.ndarray, expected, bound: float = 2e-6) -> None:
    """Compare with float64 values; `bound` is of the largest value, and NaN never passes."""
    wide, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert wide.shape == expected.shape and np.isfinite(wide).all() and np.isfinite(expected).all()
    error = np.abs(wide - expected)
    worst = np.unravel_index(np.argmax(error), error.shape)
    scale = max(1.0, np.abs(expected).max())
    assert error[worst] <= bound * scale, f"{wide[worst]} for {expected[worst]} at {worst}"


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Softmax in float64."""
    x = x.astype(np.float64)
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def cdiv(a: int, b: int) -> int:
    return -(-a // b)
