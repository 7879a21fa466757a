"""Biases at the end of float32's range: masks of its smallest number, as models have them."""

import ml_dtypes
import numpy as np
import pytest
from kernelscope.backend import array_module, asnumpy, resolve_backend

from attn_course import attention
from attn_course.ladder.choose import current_device
from attn_course.ladder.methods import METHODS, dtypes_of, supports

xp = array_module()
LEAST = np.finfo(np.float32).min
SHAPE, KEYS = (1, 2, 9, 40), 75  # more than one tile of keys, the last one ragged
BIASED = [method for method in METHODS if supports(method, "bias")]
EXACT = {"flash_fp32", "flash_async", "flash_split", "rows_split"}  # also beyond 2.3e38


def inputs(method):
    rng = np.random.default_rng(3)
    shapes = (SHAPE, *2 * [(*SHAPE[:2], KEYS, SHAPE[3])])
    name = dtypes_of(method)[0]
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def masks():
    """A bias whose rows are masked in ways that differ; the last row is free."""
    bias = np.random.default_rng(4).standard_normal((SHAPE[2], KEYS)).astype(np.float32)
    bias[0] = LEAST
    bias[1, :70] = LEAST  # a tile of keys and more
    bias[2, :70], bias[2, 70:] = -np.inf, LEAST
    bias[3] = -np.inf
    bias[4, 3:] = LEAST
    bias[5, 1::2], bias[5, ::2] = -np.inf, LEAST
    bias[6], bias[6, 71] = -2.5e38, -2.4e38  # the weight of key 71 is 1
    bias[7], bias[7, 4] = 0, 3e38  # and that of key 4
    return bias


def expected(q, k, v, bias):
    """Attention in float64, of scores to which the bias is added in float32, as PyTorch does."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = (q @ k.swapaxes(-1, -2) / np.sqrt(SHAPE[3])).astype(np.float32) + bias
    top = scores.max(-1, keepdims=True).astype(np.float64)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    return weights @ v / np.where(total > 0, total, 1)


@pytest.mark.turns(79)
@pytest.mark.system
@pytest.mark.parametrize("method", BIASED)
def test_a_row_masked_by_the_least_float_has_the_weights_of_its_scores(method):
    clusters = method in ("flash_split", "rows_split")
    if resolve_backend() == "gpu" and clusters and current_device().capability < (9, 0):
        pytest.skip("clusters need compute capability 9.0")
    q, k, v = inputs(method)
    bias = masks()
    given = [xp.asarray(x) for x in (q, k, v)]
    found = asnumpy(attention(*given, method=method, bias=xp.asarray(bias))).astype(np.float64)
    halves = q.dtype.itemsize == 2
    rows = slice(None) if method in EXACT or method.startswith("rows") else [0, 1, 2, 3, 4, 5, 8]
    error = abs(found - expected(q, k, v, bias))[:, :, rows]
    assert error.max() < (2e-2 if halves else 2e-6), error.max((0, 1, 3))  # NaN fails as well
    assert (found[:, :, 3] == 0).all()
