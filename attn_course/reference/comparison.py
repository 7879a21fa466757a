"""Strict comparison of a result with its reference.

The usual ``abs(a - b) > tolerance`` calls NaN a success, because every comparison with NaN is
false. Here a result passes only where each element is shown to be close.
"""

import math
from dataclasses import dataclass

import numpy as np

from .dtypes import DTYPES, TOLERANCES

# Sums of some thousand terms in float32 stay well below.
DEFAULT_RELATIVE = TOLERANCES["float32"]
BFLOAT16_NAN = 0x7FFF
ELEMENT_SLACK = 10.0  # one element may stray this many times further than the whole


@dataclass(frozen=True)
class Comparison:
    """Outcome of :func:`compare`.

    relative_error is ||actual - expected|| / ||expected|| (Euclidean norms over the elements
    where the reference is finite); inf when it is not a number. first_bad_index is None when
    the arrays agree or their shapes differ.
    """

    agrees: bool
    max_abs_error: float
    relative_error: float
    first_bad_index: tuple[int, ...] | None
    message: str

    def __bool__(self) -> bool:
        return self.agrees


def poisoned(shape, dtype=np.float32, xp=np):
    """An array for a kernel's output in which every element that stays unwritten is a mistake.

    Filled with NaN, or for integers with the largest value of the type. ``xp`` is ``numpy`` or
    ``cupy``.
    """
    dtype = np.dtype(dtype)
    if dtype == DTYPES["bfloat16"]:  # whose NaN not every library of arrays can fill in
        return xp.full(shape, BFLOAT16_NAN, np.uint16).view(dtype)
    if dtype.kind in "fc":
        return xp.full(shape, math.nan, dtype=dtype)
    if dtype.kind in "iu":
        return xp.full(shape, np.iinfo(dtype).max, dtype=dtype)
    raise TypeError(f"dtype {dtype} has no poison; use a float or integer type")


def _on_host(array) -> np.ndarray:
    """NumPy array of a NumPy or CuPy array (CuPy's ``get`` copies from the device)."""
    return np.asarray(array.get() if hasattr(array, "get") else array)


def _failure(name: str, message: str) -> Comparison:
    return Comparison(False, math.inf, math.inf, None, f"{name}: {message}")


def _norm(values: np.ndarray) -> float:
    """Euclidean norm that neither overflows nor underflows on the way."""
    largest = float(np.max(np.abs(values), initial=0.0))
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    return largest * float(np.linalg.norm((values / largest).ravel()))


def _bad_elements(actual, expected, finite, error, relative, absolute):
    """Bool array of the elements that are not close, written so that NaN counts as bad."""
    rms = _norm(expected[finite]) / math.sqrt(max(int(finite.sum()), 1))
    bound = ELEMENT_SLACK * relative * np.maximum(np.abs(expected), rms) + absolute
    # Where the reference is infinite only the same infinity will do; NaN equals nothing.
    good = np.where(finite, error <= bound, actual == expected)
    return ~good


def compare(actual, expected, *, relative=DEFAULT_RELATIVE, absolute=0.0, name="result"):
    """Hold ``actual`` against ``expected``, element by element and as a whole.

    Agreement needs all of: the same shape; relative_error <= ``relative`` (or an error norm
    within that of ``absolute``); every single element within 10 * ``relative`` of the larger of its
    reference and the reference's root mean square. NaN never passes, in either array. An expected
    infinity must be met exactly, and so must integers by integers, and an all-zero reference by
    exact zeros, unless ``absolute``, a number for all elements or one for each, allows more.

    Args:
        actual, expected: NumPy or CuPy arrays of real numbers, of equal shape.
        name: what the message calls the result.

    Returns:
        Comparison; it is true when the arrays agree.
    """
    actual, expected = _on_host(actual), _on_host(expected)
    if actual.shape != expected.shape:
        return _failure(name, f"has shape {actual.shape}, the reference {expected.shape}")
    if actual.size == 0:
        return _failure(name, f"has shape {actual.shape}: with no elements, nothing was compared")
    exact = "integers have to be met exactly" if _are_integers(actual, expected) else ""
    relative = 0.0 if exact else relative
    with np.errstate(invalid="ignore", over="ignore"):
        actual, expected = actual.astype(np.float64), expected.astype(np.float64)
        finite = np.isfinite(expected)
        error = np.where(actual == expected, 0.0, np.abs(actual - expected))
        bad = _bad_elements(actual, expected, finite, error, relative, absolute)
        error_norm, expected_norm = _norm(error[finite]), _norm(expected[finite])
    ratio = 0.0 if error_norm == 0.0 else math.inf
    if expected_norm > 0.0 and error_norm > 0.0:
        ratio = error_norm / expected_norm
    largest = float(np.max(error))
    ratio, largest = (math.inf if math.isnan(x) else x for x in (ratio, largest))

    close = ratio <= relative or error_norm <= _norm(np.broadcast_to(absolute, actual.shape))
    if close and not bad.any():
        text = f"{name}: agrees, relative error {ratio:.2e}, largest error {largest:.2e}"
        return Comparison(True, largest, ratio, None, text)
    if not bad.any():  # each element is within its slack, but too many are near the end of it
        bad = error >= np.max(error)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
    error = exact or f"relative error {ratio:.2e}, allowed {relative:.1e}"
    text = _describe(name, actual, expected, bad, index, error)
    return Comparison(False, largest, ratio, index, text)


def _are_integers(*arrays: np.ndarray) -> bool:
    return all(array.dtype.kind in "iu" for array in arrays)


def _describe(name, actual, expected, bad, index, error) -> str:
    place = ", ".join(map(str, index))
    text = f"{name}: {int(bad.sum())} of {bad.size} elements are wrong, the first at [{place}]: "
    text += f"{actual[index]:.9g} instead of {expected[index]:.9g}; "
    exact = "an infinity has to be met exactly"  # whatever the error of the others is
    text += exact if np.isinf(expected[index]) else error
    if count := int(np.isnan(expected).sum()):
        return text + f"; {count} elements of the reference itself are NaN"
    if count := int(np.isnan(actual).sum()):
        text += f"; {count} are NaN: never written, or from another NaN, inf - inf or 0 * inf"
    return text
