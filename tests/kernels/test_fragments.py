"""Kernels 14 and 15 on fragments: layouts, masks, rescaling, rounding, banks, memory.

The tiles are made small, so that few keys are several tiles. The ladder's tests run the same
kernels on the tiles of their own.
"""

import ml_dtypes
import numpy as np
import pytest

from attn_course import Counters, RawModule, Sanitizer, observe, reference
from attn_course.ladder.headers import kernel_path
from attn_course.reference.comparison import assert_agrees, compare

BFLOAT16, HALF, SINGLE = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
RELATIVE = {BFLOAT16: 4e-3, HALF: 6e-4, SINGLE: 2e-6}
SMALL = {"WARPS": 2, "BC": 16}


def inputs(dtype, heads, kv_heads, n, m, d, seed=0):
    """q (heads, n, d), k and v (kv_heads, m, d), rounded to the dtype."""
    rng = np.random.default_rng(seed)
    shapes = ((heads, n, d), (kv_heads, m, d), (kv_heads, m, d))
    return [rng.normal(0.1, 1.0, shape).astype(dtype) for shape in shapes]


def run(q, k, v, *, causal=False, scale=None, bias=None, constants=SMALL):
    """Launch 14, or 15 for float32, on the simulator. Returns out in float32, and lse."""
    (heads, n, d), (kv_heads, m, _) = q.shape, k.shape
    file, width = ("15_flash_tf32x3", 32) if q.dtype == SINGLE else ("14_flash_mma", 16)
    c = {"D": -(-d // width) * width, "ROW_TILES": 1} | constants
    rows = 16 * c["ROW_TILES"] * c["WARPS"]
    row_bytes = 4 * c["D"] if q.dtype == SINGLE else -(-c["D"] // 64) * 128
    if q.dtype != SINGLE:
        c["BFLOAT16"] = int(q.dtype == BFLOAT16)
    options = tuple(f"-D{name}={value}" for name, value in c.items())
    module = RawModule(path=kernel_path(file), options=options, backend="simulator")
    kernel = module.get_function(file[3:])
    out, lse = np.full(q.shape, np.nan, q.dtype), np.full((heads, n), np.nan, np.float32)
    numbers = (*map(np.int32, (heads, kv_heads, n, m, d)), np.int64(0), np.int64(0))
    scale = np.float32(d**-0.5 if scale is None else scale)
    arguments = (q, k, v, bias, out, lse, *numbers, scale, np.int32(causal))
    shared = (rows + 4 * c["BC"]) * row_bytes
    kernel((heads, -(-n // rows)), (32 * c["WARPS"],), arguments, shared_mem=shared)
    return out.astype(np.float32), lse


def check(q, k, v, *, relative=None, **how):
    """Run and compare out and lse with float64."""
    out, lse = run(q, k, v, **how)
    how.pop("constants", None)
    exact = [array.astype(np.float64)[None] for array in (q, k, v)]
    expected, expected_lse = reference.attention(*exact, return_lse=True, **how)
    assert_agrees(lse, expected_lse[0], relative=2e-6, name="lse")
    return assert_agrees(out, expected[0], relative=relative or RELATIVE[q.dtype], name="out")


@pytest.mark.parametrize("dtype", [BFLOAT16, HALF, SINGLE], ids=str)
def test_ragged_tiles_and_grouped_heads(dtype):
    """Rows and keys that end inside a tile, a padded head dim, two heads that share K and V."""
    check(*inputs(dtype, 4, 2, 35, 75, 40))


@pytest.mark.parametrize("dtype", [BFLOAT16, SINGLE], ids=str)
def test_causal_rows_that_see_no_key(dtype):
    check(*inputs(dtype, 1, 1, 75, 41, 24), causal=True)


@pytest.mark.parametrize("dtype", [BFLOAT16, SINGLE], ids=str)
def test_rows_that_are_not_aligned(dtype):
    check(*inputs(dtype, 2, 2, 19, 21, 23), causal=True)


@pytest.mark.parametrize("dtype", [BFLOAT16, SINGLE], ids=str)
def test_a_bias_and_a_negative_scale(dtype):
    bias = np.random.default_rng(1).normal(size=(20, 37)).astype(np.float32)
    bias[3] = bias[5, :35] = -np.inf
    check(*inputs(dtype, 2, 2, 20, 37, 32), bias=bias, scale=-0.4)


def test_two_tiles_of_rows_a_warp():
    more = SMALL | {"ROW_TILES": 2}
    check(*inputs(BFLOAT16, 3, 1, 70, 50, 24), causal=True, constants=more | {"Q_IN_REGISTERS": 1})
    check(*inputs(SINGLE, 3, 1, 70, 50, 24), causal=True, constants=more)


@pytest.mark.parametrize("rise", [2.0, 40.0])
@pytest.mark.parametrize("dtype", [HALF, SINGLE], ids=str)
def test_scores_that_rise_from_tile_to_tile(dtype, rise):
    """By less than what is summed under an old maximum, and by more."""
    q, k, v = inputs(dtype, 1, 1, 17, 100, 32)
    q[:, :, 0], k[:, :, 0] = 4.0, np.arange(100) // 16 * rise
    check(q, k, v, relative=1e-5 if dtype == SINGLE else None)


def test_three_products_are_nearly_as_exact_as_fp32():
    """Without the small parts the error is that of 11 bits: the bound can fail."""
    q, k, v = inputs(SINGLE, 1, 1, 16, 200, 64)
    check(q, k, v)
    cut = [(x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (q, k, v)]
    out, _ = run(*cut)
    expected = reference.attention(*(x[None] for x in (q, k, v)))[0]
    assert compare(out, expected).relative_error > 1e-4


@pytest.mark.parametrize("dtype", [BFLOAT16, SINGLE], ids=str)
def test_no_bank_conflicts(dtype):
    with observe(Counters()) as seen:
        run(*inputs(dtype, 1, 1, 16, 32, 96))
    assert seen.totals["shared_load_wavefronts"] > 0
    assert seen.totals["shared_load_conflicts"] == seen.totals["shared_store_conflicts"] == 0


@pytest.mark.parametrize("dtype", [BFLOAT16, SINGLE], ids=str)
def test_memory_is_used_soundly(dtype):
    with observe(Sanitizer()) as report:
        run(*inputs(dtype, 1, 1, 20, 40, 24), causal=True)
    assert report.findings == []
