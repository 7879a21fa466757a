"""Kernels for sm_90: products of warp groups, and tensor maps that the kernel makes for TMA."""

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from kernelscope import Counters, observe
from kernelscope.triton import run
from test_tutorials import attention
from triton_harness import assert_close, cdiv, normal, poisoned, softmax

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("clean")]


@triton.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a_tiles = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    b_tiles = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
    c_tiles = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    sums = tl.zeros([BM, BN], dtype=tl.float32)
    for k in range(0, K, BK):
        sums = tl.dot(a_tiles.load([row, k]), b_tiles.load([k, column]), sums)
    c_tiles.store([row, column], sums)


@triton.jit
def increased(x, out, N, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [N], [1], [B])
    target = tl.make_tensor_descriptor(out, [N], [1], [B])
    at = tl.program_id(0) * B
    target.store([at], source.load([at]) + 1)


def uses_hopper(totals) -> bool:
    """Have products of warp groups and copies by TMA been counted?"""
    return totals["wgmma_shared_bytes"] > 0 and totals["bulk_copy_requests"] > 0


@pytest.mark.turns(23)
@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
@pytest.mark.parametrize("width", [64, 32, 16])  # elements of a row of a tile: the swizzles
def test_product_of_tiles_by_tensor_maps(dtype, width):
    sizes = m, n, k = 104, 72, 88
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=1)
    c = poisoned(m, n)
    with observe(Counters()) as seen:
        grid = cdiv(m, 64), cdiv(n, width)
        run(product, grid, a, b, c, *sizes, BM=64, BN=width, BK=width, target="sm_90")
    assert_close(c, a.astype(np.float64) @ b.astype(np.float64))
    assert uses_hopper(seen.totals)


@pytest.mark.turns(13)
def test_bytes_along_one_axis():
    """Triton leaves both fields, rank and type, at the zeros that the map starts with."""
    x, out = np.arange(100, dtype=np.int8), poisoned(100, dtype="int8")
    run(increased, (2,), x, out, 100, B=64, target="sm_90")
    assert (out == x + 1).all()


@pytest.mark.turns(17)
@pytest.mark.parametrize(
    ("rows", "causal", "shape"), [(64, True, (2, 130, 64)), (128, False, (1, 97, 32))]
)
def test_chained_products_by_tensor_maps(rows, causal, shape):
    heads, length, width = shape
    q, k, v = (normal(*shape, dtype="float16", seed=i) for i in range(3))
    out, log_sum = poisoned(*shape, dtype="float16"), poisoned(heads, length)
    arguments = q, k, v, out, log_sum, width**-0.5, length, width
    options = {"num_stages": 2, "target": "sm_90"}
    with observe(Counters()) as seen:
        grid = cdiv(length, rows), heads
        run(attention, grid, *arguments, BM=rows, BN=64, CAUSAL=causal, **options)
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) * width**-0.5
    if causal:
        scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
    assert_close(out, softmax(scores) @ v.astype(np.float64), 2e-3)
    assert_close(log_sum, np.log2(np.exp(scores).sum(-1)), 2e-3)
    assert uses_hopper(seen.totals)
