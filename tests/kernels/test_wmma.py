"""Kernel 13: masks, rescaling, rounding, banks and memory, in tiles so small that many are needed.

Kernels 14 and 15 have tests of their own; how attention() chooses by dtype is in tests/ladder.
"""

import numpy as np
import pytest
from kernelscope.backend import array_module, asnumpy

from attn_course import Counters, Sanitizer, attention, observe, reference
from attn_course.reference.comparison import compare, poisoned
from attn_course.reference.dtypes import DTYPES, TOLERANCES
from attn_course.reference.inputs import seeded_qkv
from attn_devtools.agreement import assert_agrees

pytestmark = pytest.mark.system

xp = array_module()
SMALL = ("-DD=32", "-DROW_TILES=1", "-DKEYS=16", "-DWARPS=2")  # 16 rows a warp
LARGE = ("-DD=32", "-DROW_TILES=2", "-DKEYS=32", "-DWARPS=1")  # 32 rows a warp: a row a lane
MARGIN = 64  # elements before and after an output


def inputs(dtype, shape, keys=None, kv_heads=None, seed=0):
    """q, k and v, rounded to the dtype."""
    q, k, v = seeded_qkv(shape, kv_length=keys, seed=seed)
    return [x.astype(DTYPES[dtype]) for x in (q, k[:, :kv_heads], v[:, :kv_heads])]


def check(q, k, v, *, tile=SMALL, bias=None, **asked):
    """Run into an output between margins; compare it and its log-sum-exp with float64."""
    block = poisoned(q.size + 2 * MARGIN, q.dtype, xp)
    out = block[MARGIN : MARGIN + q.size].reshape(q.shape)
    device = [xp.asarray(np.ascontiguousarray(array)) for array in (q, k, v)]
    given = None if bias is None else xp.asarray(bias)
    how = {"bias": given, "return_lse": True, "out": out, "options": tile}
    _, lse = attention(*device, method="flash_wmma", **how, **asked)
    edges = asnumpy(block).astype(np.float32)
    assert np.isnan(edges[:MARGIN]).all() and np.isnan(edges[-MARGIN:]).all()
    expected, expected_lse = reference.attention(q, k, v, bias=bias, return_lse=True, **asked)
    assert_agrees(out, expected, name="out", relative=TOLERANCES[q.dtype.name])
    assert_agrees(lse, expected_lse, name="lse", relative=2e-6, absolute=2e-6)
    return asnumpy(out).astype(np.float32)


@pytest.mark.turns(17)
@pytest.mark.parametrize("tile", [SMALL, LARGE], ids=str)
def test_ragged_tiles_and_grouped_heads(tile):
    check(*inputs("bfloat16", (2, 4, 37, 24), keys=45, kv_heads=2), tile=tile)
    check(*inputs("bfloat16", (1, 1, 1, 1), seed=1), tile=tile)


@pytest.mark.turns(29)
@pytest.mark.parametrize("tile", [SMALL, LARGE], ids=str)
def test_causal_rows_that_see_no_key(tile):
    for keys in (12, 35, 70):
        arrays = inputs("bfloat16", (1, 2, 35, 24), keys, seed=keys)
        out = check(*arrays, tile=tile, causal=True)
        assert (out[:, :, : max(0, 35 - keys)] == 0).all()


def test_float16():
    check(*inputs("float16", (1, 2, 37, 32), keys=45, seed=2), causal=True)


def test_rows_that_are_not_aligned():
    """9 elements are 18 bytes: no copy of 16 fits, nor one of 4."""
    check(*inputs("bfloat16", (1, 2, 19, 9), keys=35, seed=3), causal=True)


def test_a_bias_and_other_scales():
    q, k, v = inputs("bfloat16", (2, 2, 6, 32), keys=40, seed=4)
    bias = np.random.default_rng(1).normal(0, 2, (2, 6, 40)).astype(np.float32)
    bias[:, 2] = -np.inf
    bias[:, 4, :39] = -np.inf  # only the last key is left
    for scale in (None, -0.8, 0.0):
        out = check(q, k, v, bias=bias, scale=scale)
        assert (out[:, :, 2] == 0).all() and (out[:, :, 4] == v[:, :, 39].astype(np.float32)).all()


@pytest.mark.parametrize("rise", [2.0, 40.0])
def test_scores_that_rise_from_tile_to_tile(rise):
    """Each tile raises the maximum, by little and by much."""
    q, k, v = inputs("bfloat16", (1, 2, 20, 32), keys=90, seed=5)
    k = (k.astype(np.float32) * rise * np.arange(90)[:, None] / 90).astype(k.dtype)
    check(q, k, v)
    check((q.astype(np.float32) * 100).astype(q.dtype), k, v)


@pytest.mark.turns(17)
def test_banks_and_memory():
    """No bank conflicts but of the row numbers, and every access is sound."""
    q, k, v = inputs("bfloat16", (1, 1, 37, 32), keys=50, seed=6)
    how = {"method": "flash_wmma", "causal": True, "backend": "simulator", "options": LARGE}
    with observe(Counters()) as seen:
        attention(q, k, v, **how)
    (kernel,) = seen.by_kernel.values()
    conflicts = {
        kernel.line(number).text: counts["shared_load_conflicts"] + counts["shared_store_conflicts"]
        for number, counts in kernel.lines.items()
    }
    found = [text for text, count in conflicts.items() if count]
    assert all("rows_of_elements" in text for text in found), found
    with observe(Sanitizer()) as report:
        attention(q, k, v, **how)
    assert report.findings == []


def test_the_largest_weight_is_one():
    """128.49 has no bfloat16 near it: under an old maximum the weight would be off by 0.4 %."""
    q, k, v = inputs("bfloat16", (1, 1, 4, 32), keys=32)
    bias = np.full((4, 32), -np.inf, np.float32)
    bias[:, 0], bias[:, 20] = 0.0, np.log(128.49)
    out = check(q * 0, k, v, bias=bias)
    assert compare(out, reference.attention(q * 0, k, v, bias=bias)).relative_error < 2.5e-3
