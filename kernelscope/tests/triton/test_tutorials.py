"""Kernels in the forms that Triton's tutorials teach, against float64."""

import numpy as np
import pytest
import triton
import triton.language as tl
from kernelscope import Sanitizer, observe
from kernelscope.triton import run
from triton_harness import assert_close, cdiv, normal, poisoned, softmax

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("clean")]


# -- elementwise and rows ---------------------------------------------------------------------
@triton.jit
def add_vectors(left, right, total, count, TILE: tl.constexpr):
    at = tl.program_id(axis=0) * TILE + tl.arange(0, TILE)
    inside = at < count
    tl.store(total + at, tl.load(left + at, mask=inside) + tl.load(right + at, mask=inside), inside)


@pytest.mark.parametrize("count", [1, 97, 300])
def test_vector_addition(count):
    x, y, z = normal(count), normal(count, seed=1), poisoned(count)
    run(
        add_vectors,
        lambda meta: (triton.cdiv(meta["count"], meta["TILE"]),),
        x,
        y,
        z,
        count,
        TILE=64,
    )
    assert_close(z, x.astype(np.float64) + y)


@triton.jit
def softmax_rows(out, rows, out_step, row_step, n_rows, n_columns, WIDTH: tl.constexpr):
    first, step = tl.program_id(0), tl.num_programs(0)
    for row in tl.range(first, n_rows, step, num_stages=2):
        column = tl.arange(0, WIDTH)
        inside = column < n_columns
        x = tl.load(rows + row * row_step + column, mask=inside, other=-float("inf"))
        powers = tl.exp(x - tl.max(x, axis=0))
        tl.store(out + row * out_step + column, powers / tl.sum(powers, axis=0), mask=inside)


def test_rows_in_a_loop_with_stages():
    x, out = normal(13, 781 // 6), poisoned(13, 781 // 6)
    width = triton.next_power_of_2(x.shape[1])
    run(softmax_rows, (5,), out, x, out.shape[1], x.shape[1], *x.shape, WIDTH=width, num_warps=2)
    assert_close(out, softmax(x))


# -- products -----------------------------------------------------------------------------------
@triton.jit
def leaky(x):
    return tl.where(x >= 0, x, 0.01 * x)


def configurations():
    return [
        triton.Config({"BM": 32, "BN": 64, "BK": 32, "GROUP": 2}, num_warps=4, num_stages=3),
        triton.Config({"BM": 16, "BN": 16, "BK": 16, "GROUP": 4}, num_warps=2, num_stages=2),
    ]


@triton.autotune(configs=configurations(), key=["M", "N", "K"])
@triton.jit
def product(
    a, b, c, M, N, K, a_row, a_col, b_row, b_col, c_row, c_col,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    ACTIVATION: tl.constexpr = "",
):  # fmt: skip
    pid = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    in_group = GROUP * tiles_n
    first_m = pid // in_group * GROUP
    height = min(tiles_m - first_m, GROUP)
    pid_m = first_m + (pid % in_group) % height
    pid_n = (pid % in_group) // height
    tl.assume(pid_m >= 0)
    tl.assume(pid_n >= 0)
    rows = (pid_m * BM + tl.arange(0, BM)) % M
    columns = (pid_n * BN + tl.arange(0, BN)) % N
    inner = tl.arange(0, BK)
    a_tile = a + rows[:, None] * a_row + inner[None, :] * a_col
    b_tile = b + inner[:, None] * b_row + columns[None, :] * b_col
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        left = tl.load(a_tile, mask=inner[None, :] < K - k * BK, other=0.0)
        right = tl.load(b_tile, mask=inner[:, None] < K - k * BK, other=0.0)
        sums = tl.dot(left, right, sums)
        a_tile += BK * a_col
        b_tile += BK * b_row
    if ACTIVATION == "leaky":
        sums = leaky(sums)
    row = pid_m * BM + tl.arange(0, BM)
    column = pid_n * BN + tl.arange(0, BN)
    place = c + c_row * row[:, None] + c_col * column[None, :]
    tl.store(place, sums.to(c.dtype.element_ty), mask=(row[:, None] < M) & (column[None, :] < N))


def strides(array):
    return [step // array.itemsize for step in array.strides]


def product_arguments(a, b, c):
    return [a, b, c, a.shape[0], b.shape[1], a.shape[1], *strides(a), *strides(b), *strides(c)]


@pytest.mark.turns(23)
@pytest.mark.parametrize("config", [None, 1, {"BM": 16}])
@pytest.mark.parametrize("activation", ["", "leaky"])
def test_matrix_product(config, activation):
    a, b = normal(70, 50, dtype="float16"), normal(50, 45, dtype="float16", seed=3)
    c = poisoned(70, 45, dtype="float16")
    call = run(
        product,
        lambda meta: (cdiv(meta["M"], meta["BM"]) * cdiv(meta["N"], meta["BN"]),),
        *product_arguments(a, b, c),
        ACTIVATION=activation,
        config=config,
    )
    assert call.config["BM"] == (32 if config is None else 16)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    if activation:
        expected = np.where(expected >= 0, expected, 0.01 * expected)
    assert_close(c, expected, 1e-3)


def test_a_transposed_operand_is_passed_by_its_strides():
    a, b = normal(33, 40, dtype="float16"), normal(29, 40, dtype="float16", seed=3).T
    c = poisoned(33, 29, dtype="float32")
    run(
        product,
        lambda m: (cdiv(m["M"], m["BM"]) * cdiv(m["N"], m["BN"]),),
        *product_arguments(a, b, c),
    )
    assert_close(c, a.astype(np.float64) @ b.astype(np.float64), 1e-5)


# -- random numbers -----------------------------------------------------------------------------
@triton.jit
def dropped(x, out, count, share, seed, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = at < count
    value = tl.load(x + at, mask=inside)
    kept = tl.rand(seed, at) > share
    tl.store(out + at, tl.where(kept, value / (1 - share), 0.0), mask=inside)


def philox(seed: int, counter: np.ndarray) -> np.ndarray:
    """The first word of Philox4x32-10, as Salmon et al. (SC 2011) define it."""
    c = [counter.astype(np.uint64)] + [np.zeros_like(counter, np.uint64)] * 3
    key, low = [seed & 0xFFFFFFFF, seed >> 32], np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        thirty_two = np.uint64(32)
        c = [
            (b >> thirty_two) ^ c[1] ^ np.uint64(key[0]),
            b & low,
            (a >> thirty_two) ^ c[3] ^ np.uint64(key[1]),
            a & low,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0].astype(np.uint32)


def test_dropout_by_seed():
    x, out = normal(500), poisoned(500)
    run(dropped, (cdiv(500, 128),), x, out, 500, 0.4, 1234, TILE=128)
    signed = philox(1234, np.arange(500)).view(np.int32).astype(np.int64)
    uniform = np.where(signed < 0, -signed - 1, signed) * 4.6566127342e-10
    assert 150 < (uniform <= 0.4).sum() < 250
    assert_close(out, np.where(uniform > 0.4, x.astype(np.float64) / (1 - 0.4), 0))


# -- layer norm -----------------------------------------------------------------------------------
@triton.jit
def norm_forward(x, y, weight, bias, mean, rstd, step, N, eps, TILE: tl.constexpr):
    row = tl.program_id(0)
    x += row * step
    y += row * step
    total = tl.zeros([TILE], dtype=tl.float32)
    for start in range(0, N, TILE):
        at = start + tl.arange(0, TILE)
        total += tl.load(x + at, mask=at < N, other=0.0).to(tl.float32)
    centre = tl.sum(total, axis=0) / N
    squares = tl.zeros([TILE], dtype=tl.float32)
    for start in range(0, N, TILE):
        at = start + tl.arange(0, TILE)
        apart = tl.load(x + at, mask=at < N, other=0.0).to(tl.float32) - centre
        apart = tl.where(at < N, apart, 0.0)
        squares += apart * apart
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / N + eps)
    tl.store(mean + row, centre)
    tl.store(rstd + row, scale)
    for start in range(0, N, TILE):
        at = start + tl.arange(0, TILE)
        inside = at < N
        value = (tl.load(x + at, mask=inside).to(tl.float32) - centre) * scale
        value = value * tl.load(weight + at, mask=inside) + tl.load(bias + at, mask=inside)
        tl.store(y + at, value, mask=inside)


@triton.jit
def norm_backward_rows(
    dx, dy, dw, db, x, weight, mean, rstd, lock, step, N, GROUPS: tl.constexpr, WIDTH: tl.constexpr
):
    row = tl.program_id(0)
    at = tl.arange(0, WIDTH)
    inside = at < N
    value = tl.load(x + row * step + at, mask=inside, other=0).to(tl.float32)
    slope = tl.load(dy + row * step + at, mask=inside, other=0).to(tl.float32)
    w = tl.load(weight + at, mask=inside, other=0).to(tl.float32)
    scale = tl.load(rstd + row)
    unit = tl.where(inside, (value - tl.load(mean + row)) * scale, 0.0)
    weighted = tl.where(inside, w * slope, 0.0)
    along = tl.sum(unit * weighted, axis=0) / N
    level = tl.sum(weighted, axis=0) / N
    tl.store(dx + row * step + at, (weighted - (unit * along + level)) * scale, mask=inside)
    group = row % GROUPS
    lock += group
    filled = lock + GROUPS
    dw += group * N + at
    db += group * N + at
    part_w = slope * unit
    part_b = slope
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(filled) == 0:
        tl.atomic_xchg(filled, 1)
    else:
        part_w += tl.load(dw, mask=inside)
        part_b += tl.load(db, mask=inside)
    tl.store(dw, part_w, mask=inside)
    tl.store(db, part_b, mask=inside)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def norm_backward_columns(dw, db, final_w, final_b, M, N, BM: tl.constexpr, BN: tl.constexpr):
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    sum_w = tl.zeros((BM, BN), dtype=tl.float32)
    sum_b = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, M, BM):
        rows = start + tl.arange(0, BM)
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        place = rows[:, None] * N + columns[None, :]
        sum_w += tl.load(dw + place, mask=inside, other=0.0)
        sum_b += tl.load(db + place, mask=inside, other=0.0)
    tl.store(final_w + columns, tl.sum(sum_w, axis=0), mask=columns < N)
    tl.store(final_b + columns, tl.sum(sum_b, axis=0), mask=columns < N)


@pytest.mark.turns(11)
def test_layer_norm_forward_and_backward_with_locks():
    rows, width, groups = 11, 83, 4
    x, dy = normal(rows, width), normal(rows, width, seed=5)
    weight, bias = normal(width), normal(width, seed=7)
    y, mean, rstd = poisoned(rows, width), poisoned(rows), poisoned(rows)
    run(norm_forward, (rows,), x, y, weight, bias, mean, rstd, width, width, 1e-5, TILE=32)
    wide = x.astype(np.float64)
    scale = 1 / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    unit = (wide - wide.mean(1, keepdims=True)) * scale
    assert_close(y, unit * weight + bias)

    dx, dw, db = poisoned(rows, width), poisoned(groups, width), poisoned(groups, width)
    locks = np.zeros(2 * groups, np.int32)
    arguments = dx, dy, dw, db, x, weight, mean, rstd, locks, width, width
    with observe(Sanitizer()) as found:
        run(norm_backward_rows, (rows,), *arguments, GROUPS=groups, WIDTH=128, num_warps=2)
    assert not found.errors
    slope = dy.astype(np.float64) * weight
    along = (unit * slope).mean(1, keepdims=True)
    assert_close(dx, (slope - unit * along - slope.mean(1, keepdims=True)) * scale)
    final_w, final_b = poisoned(width), poisoned(width)
    run(
        norm_backward_columns,
        (cdiv(width, 32),),
        dw,
        db,
        final_w,
        final_b,
        groups,
        width,
        BM=8,
        BN=32,
    )
    assert_close(final_w, (dy * unit).sum(0))
    assert_close(final_b, dy.astype(np.float64).sum(0))


# -- attention ------------------------------------------------------------------------------------
@triton.jit
def attention_part(
    sums, level, weight, q, k_tiles, v_tiles, block, LOW, HIGH,
    BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, N,
):  # fmt: skip
    rows = block * BM + tl.arange(0, BM)
    for start in range(LOW, HIGH, BN):
        start = tl.multiple_of(start, BN)
        columns = start + tl.arange(0, BN)
        scores = tl.dot(q, k_tiles.load([start, 0]).T)
        allowed = columns[None, :] < N
        if CAUSAL:
            allowed = allowed & (rows[:, None] >= columns[None, :])
        scores = tl.where(allowed, scores, float("-inf"))
        higher = tl.maximum(level, tl.max(scores, 1))
        powers = tl.math.exp2(scores - higher[:, None])
        shrink = tl.math.exp2(level - higher)
        weight = weight * shrink + tl.sum(powers, 1)
        sums = sums * shrink[:, None]
        values = v_tiles.load([start, 0])
        sums = tl.dot(powers.to(values.dtype), values, sums)
        level = higher
    return sums, level, weight


@triton.jit
def attention(
    q, k, v, out, log_sum, scale, N, D: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    base = head.to(tl.int64) * N * D
    q_tiles = tl.make_tensor_descriptor(q + base, [N, D], [D, 1], [BM, D])
    k_tiles = tl.make_tensor_descriptor(k + base, [N, D], [D, 1], [BN, D])
    v_tiles = tl.make_tensor_descriptor(v + base, [N, D], [D, 1], [BN, D])
    o_tiles = tl.make_tensor_descriptor(out + base, [N, D], [D, 1], [BM, D])
    level = tl.full([BM], float("-inf"), dtype=tl.float32)
    weight = tl.zeros([BM], dtype=tl.float32)
    sums = tl.zeros([BM, D], dtype=tl.float32)
    queries = q_tiles.load([block * BM, 0])
    queries = (queries * (scale * 1.4426950408889634)).to(queries.dtype)
    end = tl.minimum((block + 1) * BM, N) if CAUSAL else N
    sums, level, weight = attention_part(
        sums, level, weight, queries, k_tiles, v_tiles, block, 0, end, BM, BN, CAUSAL, N
    )
    rows = block * BM + tl.arange(0, BM)
    tl.store(log_sum + head * N + rows, level + tl.math.log2(weight), mask=rows < N)
    o_tiles.store([block * BM, 0], (sums / weight[:, None]).to(out.dtype.element_ty))


@pytest.mark.turns(17)
@pytest.mark.parametrize(("causal", "shape"), [(True, (2, 70, 32)), (False, (1, 97, 64))])
def test_fused_attention(causal, shape):
    heads, length, width = shape
    q, k, v = (normal(*shape, dtype="float16", seed=i) for i in range(3))
    out, log_sum = poisoned(*shape, dtype="float16"), poisoned(heads, length)
    grid = cdiv(length, 32), heads
    arguments = q, k, v, out, log_sum, width**-0.5, length, width
    run(attention, grid, *arguments, BM=32, BN=32, CAUSAL=causal, num_warps=4, num_stages=2)
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) * width**-0.5
    if causal:
        scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
    assert_close(out, softmax(scores) @ v.astype(np.float64), 2e-3)
    assert_close(log_sum, np.log2(np.exp(scores).sum(-1)), 2e-3)
