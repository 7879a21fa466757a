"""Small kernels, one idea each, against float64; sizes are ragged."""

import numpy as np
import pytest
import triton
import triton.language as tl
from kernelscope.triton import run
from triton_harness import assert_close, cdiv, normal, poisoned, softmax

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("clean")]


@triton.jit
def add_ten(x, out, N, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.load(x + at, at < N) + 10, at < N)


def test_a_constant_is_added():
    x, out = normal(77), poisoned(77)
    run(add_ten, (cdiv(77, 32),), x, out, 77, B=32, num_warps=1)
    assert_close(out, x.astype(np.float64) + 10)


@triton.jit
def outer(x, y, out, N, M, ADD: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr):
    i = tl.program_id(0) * BN + tl.arange(0, BN)
    j = tl.program_id(1) * BM + tl.arange(0, BM)
    a = tl.load(x + i, i < N)[:, None]
    b = tl.load(y + j, j < M)[None, :]
    inside = (i < N)[:, None] & (j < M)[None, :]
    tl.store(out + i[:, None] * M + j[None, :], a + b if ADD else a * b, inside)


def test_outer_sum_and_product():
    x, y = normal(37), normal(21, seed=2)
    for add, expected in ((True, np.add.outer), (False, np.multiply.outer)):
        out = poisoned(37, 21)
        run(outer, (3, 2), x, y, out, 37, 21, ADD=add, BN=16, BM=16)
        assert_close(out, expected(x.astype(np.float64), y.astype(np.float64)))


@triton.jit
def scaled_relu(x, y, out, N, M, BN: tl.constexpr, BM: tl.constexpr):
    i = tl.program_id(0) * BN + tl.arange(0, BN)
    j = tl.program_id(1) * BM + tl.arange(0, BM)
    inside = (i[:, None] < N) & (j[None, :] < M)
    place = i[:, None] * M + j[None, :]
    value = tl.load(x + place, inside) * tl.load(y + i, i < N)[:, None]
    tl.store(out + place, tl.maximum(value, 0), inside)


@triton.jit
def scaled_relu_backward(x, y, slope, dx, N, M, BN: tl.constexpr, BM: tl.constexpr):
    i = tl.program_id(0) * BN + tl.arange(0, BN)
    j = tl.program_id(1) * BM + tl.arange(0, BM)
    inside = (i[:, None] < N) & (j[None, :] < M)
    place = i[:, None] * M + j[None, :]
    factor = tl.load(y + i, i < N)[:, None]
    passed = tl.load(x + place, inside) * factor > 0
    tl.store(dx + place, tl.where(passed, factor * tl.load(slope + place, inside), 0.0), inside)


def test_fused_product_and_relu_with_its_backward():
    x, y, slope = normal(30, 45), normal(30, seed=3), normal(30, 45, seed=4)
    out, dx = poisoned(30, 45), poisoned(30, 45)
    run(scaled_relu, (2, 3), x, y, out, 30, 45, BN=16, BM=16)
    wide = x.astype(np.float64) * y[:, None]
    assert_close(out, np.maximum(wide, 0))
    run(scaled_relu_backward, (2, 3), x, y, slope, dx, 30, 45, BN=16, BM=16)
    assert_close(dx, np.where(wide > 0, y[:, None] * slope.astype(np.float64), 0))


@triton.jit
def row_sums(x, out, N, T, BN: tl.constexpr, BT: tl.constexpr):
    i = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros((BN,), tl.float32)
    for start in range(0, T, BT):
        j = start + tl.arange(0, BT)
        inside = (i[:, None] < N) & (j[None, :] < T)
        total += tl.sum(tl.load(x + i[:, None] * T + j[None, :], inside, 0.0), 1)
    tl.store(out + i, total, i < N)


def test_sums_of_long_rows():
    x, out = normal(5, 203), poisoned(5)
    run(row_sums, (3,), x, out, 5, 203, BN=2, BT=64)
    assert_close(out, x.astype(np.float64).sum(1))


@triton.jit
def online_softmax(x, out, T, BT: tl.constexpr):
    row = tl.program_id(0) * T
    level = -float("inf")
    weight = 0.0
    for start in tl.range(0, T, BT):
        j = start + tl.arange(0, BT)
        value = tl.load(x + row + j, j < T, -float("inf"))
        higher = tl.maximum(level, tl.max(value, 0))
        weight = weight * tl.exp2(1.44269504 * (level - higher))
        weight += tl.sum(tl.exp2(1.44269504 * (value - higher)), 0)
        level = higher
    for start in tl.range(0, T, BT):
        j = start + tl.arange(0, BT)
        value = tl.load(x + row + j, j < T)
        tl.store(out + row + j, tl.exp2(1.44269504 * (value - level)) / weight, j < T)


def test_softmax_of_long_rows():
    x, out = 4 * normal(4, 301), poisoned(4, 301)
    run(online_softmax, (4,), x, out, 301, BT=64)
    assert_close(out, softmax(x), 1e-5)


@triton.jit
def scalar_attention(q, k, v, out, N, T, BN: tl.constexpr, BT: tl.constexpr):
    i = tl.program_id(0) * BN + tl.arange(0, BN)
    query = tl.load(q + i, i < N, 0.0)
    level = tl.full((BN,), -float("inf"), tl.float32)
    weight = tl.zeros((BN,), tl.float32)
    total = tl.zeros((BN,), tl.float32)
    for start in range(0, T, BT):
        j = start + tl.arange(0, BT)
        score = query[:, None] * tl.load(k + j, j < T, 0.0)[None, :]
        score = tl.where((j < T)[None, :], score, -float("inf"))
        higher = tl.maximum(level, tl.max(score, 1))
        power = tl.exp(score - higher[:, None])
        shrink = tl.exp(level - higher)
        weight = weight * shrink + tl.sum(power, 1)
        total = total * shrink + tl.sum(power * tl.load(v + j, j < T, 0.0)[None, :], 1)
        level = higher
    tl.store(out + i, total / weight, i < N)


def test_flash_attention_of_scalars():
    q, k, v, out = normal(50), normal(67, seed=1), normal(67, seed=2), poisoned(50)
    run(scalar_attention, (2,), q, k, v, out, 50, 67, BN=32, BT=16)
    scores = np.multiply.outer(q.astype(np.float64), k)
    assert_close(out, softmax(scores) @ v.astype(np.float64), 1e-5)


@triton.jit
def convolution(
    x, kernel, out, H, W, KH: tl.constexpr, KW: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr
):
    image = tl.program_id(2)
    i = tl.program_id(0) * BH + tl.arange(0, BH)
    j = tl.program_id(1) * BW + tl.arange(0, BW)
    total = tl.zeros((BH, BW), tl.float32)
    for a in tl.static_range(KH):
        for b in tl.static_range(KW):
            row, column = i + a - KH // 2, j + b - KW // 2
            inside = ((row >= 0) & (row < H))[:, None] & ((column >= 0) & (column < W))[None, :]
            place = image * H * W + row[:, None] * W + column[None, :]
            total += tl.load(kernel + a * KW + b) * tl.load(x + place, inside, 0.0)
    place = image * H * W + i[:, None] * W + j[None, :]
    tl.store(out + place, total, (i < H)[:, None] & (j < W)[None, :])


@pytest.mark.turns(11)
def test_convolution_of_images():
    x, kernel, out = normal(2, 13, 19), normal(3, 5, seed=1), poisoned(2, 13, 19)
    run(convolution, (2, 3, 2), x, kernel, out, 13, 19, KH=3, KW=5, BH=8, BW=8)
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (2, 2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 5), (1, 2))
    assert_close(out, (windows * kernel).sum((-1, -2)), 1e-5)


@triton.jit
def batched_product(x, y, out, N, K, M, BN: tl.constexpr, BK: tl.constexpr, BM: tl.constexpr):
    batch = tl.program_id(2)
    i = tl.program_id(0) * BN + tl.arange(0, BN)
    j = tl.program_id(1) * BM + tl.arange(0, BM)
    total = tl.zeros((BN, BM), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(
            x + batch * N * K + i[:, None] * K + k[None, :],
            (i[:, None] < N) & (k[None, :] < K),
            0.0,
        )
        b = tl.load(
            y + batch * K * M + k[:, None] * M + j[None, :],
            (k[:, None] < K) & (j[None, :] < M),
            0.0,
        )
        total = tl.dot(a, b, total, input_precision="ieee")
    place = batch * N * M + i[:, None] * M + j[None, :]
    tl.store(out + place, total, (i[:, None] < N) & (j[None, :] < M))


def test_batched_product_in_float32():
    x, y, out = normal(2, 21, 35), normal(2, 35, 18, seed=1), poisoned(2, 21, 18)
    run(batched_product, (2, 2, 2), x, y, out, 21, 35, 18, BN=16, BK=16, BM=16)
    assert_close(out, x.astype(np.float64) @ y.astype(np.float64))


@triton.jit
def quantised_product(
    scale, zero, weight, x, out, N, K, M, GROUP: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr
):
    PACKED: tl.constexpr = 8
    i = tl.program_id(0) * BN + tl.arange(0, BN)
    j = tl.program_id(1) * BM + tl.arange(0, BM)
    total = tl.zeros((BN, BM), tl.float32)
    for group in range(0, K // GROUP):
        k = group * GROUP + tl.arange(0, GROUP)
        word = tl.load(
            weight + i[:, None] * (K // PACKED) + (k // PACKED)[None, :], (i < N)[:, None], 0
        )
        shift = (k % PACKED) * 4
        level = (word >> shift[None, :]) & 15
        origin = tl.load(zero + i * (K // GROUP) + group, i < N, 0)
        step = tl.load(scale + i * (K // GROUP) + group, i < N, 0.0)
        value = step[:, None] * (level - origin[:, None])
        other = tl.load(x + k[:, None] * M + j[None, :], (j < M)[None, :], 0.0)
        total += tl.dot(value.to(tl.float16), other)
    tl.store(out + i[:, None] * M + j[None, :], total, (i < N)[:, None] & (j < M)[None, :])


def test_product_with_weights_of_four_bits():
    rng = np.random.default_rng(5)
    rows, inner, columns, group = 20, 64, 27, 32
    levels = rng.integers(0, 16, (rows, inner))
    packed = (levels.reshape(rows, -1, 8) << (4 * np.arange(8))).sum(-1).astype(np.uint32)
    scale, zero = normal(rows, 2), rng.integers(0, 16, (rows, 2)).astype(np.int32)
    x, out = normal(inner, columns, dtype="float16"), poisoned(rows, columns)
    arguments = scale, zero, packed.view(np.int32), x, out, rows, inner, columns
    run(quantised_product, (2, 2), *arguments, GROUP=group, BN=16, BM=16)
    spread = [np.repeat(one, group, 1) for one in (scale, zero)]
    weights = (spread[0] * (levels - spread[1])).astype(np.float16)
    assert_close(out, weights.astype(np.float64) @ x.astype(np.float64), 1e-5)
