"""Numba kernels of many kinds, each with its arguments, its geometry and its result in float64.

A case is a function that returns (kernel, grid, block, arguments, expected, shared memory in
bytes); `expected` gives the array that the argument of its number shall hold.
"""

import math
from collections import namedtuple

import numpy as np
from kernelscope.numba import without_gpu
from numba import cuda, float32, float64, int32, int64, uint32
from numba.cuda.random import xoroshiro128p_dtype, xoroshiro128p_uniform_float32

TILE, PADDED = 8, 9
WEIGHTS = np.array([0.25, -0.5, 1.5, 0.125], np.float32)
CASES = []
rng = np.random.default_rng(7)


def case(function):
    CASES.append(function)
    return function


def normal(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def poisoned(*shape, dtype=np.float32, order="C"):
    return np.full(shape, np.nan, dtype, order)


def blocks(n, size):
    return -(-n // size)


@cuda.jit(device=True)
def scaled(value, factor):
    return value * factor


@cuda.jit
def vector_add(x, y, z):
    i = cuda.grid(1)
    if i < z.size:
        z[i] = x[i] + y[i]


@case
def case_vector_add():
    x, y = normal(101), normal(101)
    return vector_add, 4, 32, (x, y, poisoned(101)), {2: x.astype(float) + y}, 0


@cuda.jit
def add_2d(x, y, z):
    i, j = cuda.grid(2)
    if i < z.shape[0] and j < z.shape[1]:
        z[i, j] = x[i, j] + 2 * y[i, j]


@case
def case_add_2d_of_mixed_layouts():
    """A Fortran array, every other column of an array, and a transposed output."""
    x, y, z = np.asfortranarray(normal(13, 21)), normal(13, 42)[:, ::2], poisoned(21, 13).T
    return add_2d, (2, 3), (8, 8), (x, y, z), {2: x.astype(float) + 2 * y.astype(float)}, 0


@case
def case_add_2d_of_reversed_views():
    x, y, z = normal(13, 21)[::-1], normal(26, 21)[::-2, ::-1], poisoned(13, 21)
    return add_2d, (2, 3), (8, 8), (x, y, z), {2: x.astype(float) + 2 * y.astype(float)}, 0


@cuda.jit
def matmul_tiled(a, b, c):
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    column, row = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for start in range(0, a.shape[1], TILE):
        tile_a[ty, tx] = 0
        tile_b[ty, tx] = 0
        if row < a.shape[0] and start + tx < a.shape[1]:
            tile_a[ty, tx] = a[row, start + tx]
        if column < b.shape[1] and start + ty < b.shape[0]:
            tile_b[ty, tx] = b[start + ty, column]
        cuda.syncthreads()
        for k in range(TILE):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


@case
def case_matmul_tiled():
    a, b = normal(19, 27), normal(27, 14)
    grid = (blocks(14, TILE), blocks(19, TILE))
    return matmul_tiled, grid, (TILE, TILE), (a, b, poisoned(19, 14)), {2: a.astype(float) @ b}, 0


@cuda.jit
def sum_by_shuffles(x, total):
    i = cuda.grid(1)
    value = float64(x[i]) if i < x.size else float64(0)
    step = 16
    while step:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)
        step //= 2
    if cuda.laneid == 0:
        cuda.atomic.add(total, 0, value)


@case
def case_sum_by_shuffles():
    x = normal(150)
    return sum_by_shuffles, 3, 64, (x, np.zeros(1)), {1: x.astype(float).sum(keepdims=True)}, 0


@cuda.jit
def histogram(values, counts):
    local = cuda.shared.array(7, int32)
    t = cuda.threadIdx.x
    if t < local.size:
        local[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        cuda.atomic.add(local, values[i], 1)
    cuda.syncthreads()
    if t < local.size:
        cuda.atomic.add(counts, t, local[t])


@case
def case_histogram():
    values = rng.integers(0, 7, 333).astype(np.int32)
    expected = np.bincount(values, minlength=7)
    return histogram, 3, 40, (values, np.zeros(7, np.int32)), {1: expected}, 0


@cuda.jit
def stencil(x, y):
    i = cuda.grid(1)
    if 0 < i < x.size - 1:
        y[i] = (x[i - 1] + x[i] + x[i + 1]) / 3
    elif i < x.size:
        y[i] = x[i]


@case
def case_stencil():
    x = normal(77, dtype=np.float64)
    y = x.copy()
    y[1:-1] = (x[:-2] + x[1:-1] + x[2:]) / 3
    return stencil, 3, 32, (x, poisoned(77, dtype=np.float64)), {1: y}, 0


@cuda.jit
def prefix_sums(x, y):
    sums = cuda.shared.array(0, float64)  # the launch gives its size
    t = cuda.threadIdx.x
    sums[t] = x[t]
    cuda.syncthreads()
    step = 1
    while step < x.size:
        value = sums[t - step] if t >= step else float64(0)
        cuda.syncthreads()
        sums[t] += value
        cuda.syncthreads()
        step *= 2
    y[t] = sums[t]


@case
def case_prefix_sums():
    x = normal(83, dtype=np.float64)
    return prefix_sums, 1, 83, (x, poisoned(83, dtype=np.float64)), {1: np.cumsum(x)}, 8 * 83


@cuda.jit
def transpose(x, y):
    tile = cuda.shared.array((TILE, PADDED), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        tile[ty, tx] = x[row, column]
    cuda.syncthreads()
    row, column = cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE + tx
    if row < y.shape[0] and column < y.shape[1]:
        y[row, column] = tile[tx, ty]


@case
def case_transpose():
    x = normal(18, 29)
    return transpose, (4, 3), (TILE, TILE), (x, poisoned(29, 18)), {1: x.astype(float).T}, 0


@cuda.jit
def grid_barrier(x, y):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    x[i] = 2 * x[i]
    grid.sync()
    y[i] = x[x.size - 1 - i]


@case
def case_grid_barrier():
    x = normal(96)
    expected = 2 * x.astype(float)[::-1]
    return grid_barrier, 3, 32, (x.copy(), poisoned(96)), {1: expected}, 0


@cuda.jit
def local_window(x, y):
    window = cuda.local.array(4, float32)
    i = cuda.grid(1)
    if i < y.size:
        for j in range(4):
            window[j] = x[i + j]
        y[i] = window[i % 4] - window[(i + 1) % 4]


@case
def case_local_window():
    x, i = normal(40), np.arange(37)
    expected = x[i + i % 4].astype(float) - x[i + (i + 1) % 4]
    return local_window, 2, 32, (x, poisoned(37)), {1: expected}, 0


@cuda.jit
def weighted(x, y):
    weights = cuda.const.array_like(WEIGHTS)
    i = cuda.grid(1)
    if i < y.size:
        y[i] = scaled(x[i], weights[i % 4])


@case
def case_constant_array_and_device_function():
    x = normal(45)
    expected = x.astype(float) * np.resize(WEIGHTS, 45)
    return weighted, 2, 32, (x, poisoned(45)), {1: expected}, 0


@cuda.jit
def halves(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i] * x[i] + x[i]


@case
def case_float16():
    x = normal(45, dtype=np.float16)
    exact = x.astype(float) ** 2 + x.astype(float)
    return halves, 2, 32, (x, poisoned(45, dtype=np.float16)), {1: exact.astype(np.float16)}, 0


@case
def case_complex():
    x = (normal(45) + 1j * normal(45)).astype(np.complex64)
    y = np.full(45, np.nan, np.complex64)
    return halves, 2, 32, (x, y), {1: x.astype(complex) ** 2 + x}, 0


Scale = namedtuple("Scale", "factor offsets")


@cuda.jit
def of_tuples(x, y, scale, flag, z):
    i = cuda.grid(1)
    if i < y.size and flag:
        y[i] = x[i] * scale.factor + scale.offsets[0] - scale.offsets[1] + z.imag


@case
def case_tuples_and_scalars():
    x, scale = normal(33), Scale(np.float32(1.5), (2, 0.25))
    expected = x.astype(float) * 1.5 + 2 - 0.25 - 3
    return of_tuples, 2, 32, (x, poisoned(33), scale, True, 1 - 3j), {1: expected}, 0


@cuda.jit
def negated(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = not x[i]


@case
def case_bool():
    x = rng.integers(0, 2, 50).astype(bool)
    return negated, 2, 32, (x, np.zeros(50, bool)), {1: ~x}, 0


PARTICLE = np.dtype(
    [("mass", np.float32), ("position", np.float64, 3), ("kind", np.int8)], align=True
)


@cuda.jit
def move(particles, speed):
    i = cuda.grid(1)
    if i < particles.size and particles[i].kind == 1:
        for axis in range(3):
            particles[i].position[axis] += speed[axis] / particles[i].mass


@case
def case_records():
    particles = np.zeros(20, PARTICLE)
    particles["mass"], particles["kind"] = rng.uniform(1, 2, 20), np.arange(20) % 2
    speed, expected = normal(3, dtype=np.float64), particles.copy()
    moves = expected["kind"] == 1
    expected["position"][moves] += speed / expected["mass"][moves, None]
    return move, 1, 32, (particles, speed), {0: expected}, 0


@cuda.jit
def functions(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = (
            (math.sin(x[i]) + math.exp(-x[i]) + math.sqrt(math.fabs(x[i])) + math.atan2(x[i], 2.0))
            * math.pow(1.5, x[i])
            + math.erf(x[i])
            + math.floor(x[i])
            + math.log1p(x[i] * x[i])
        )


def functions_of(x):
    erf = np.array([math.erf(value) for value in x])
    ratio = np.sin(x) + np.exp(-x) + np.sqrt(np.abs(x)) + np.arctan2(x, 2.0)
    return ratio * 1.5**x + erf + np.floor(x) + np.log1p(x * x)


@case
def case_math_functions():
    x = normal(45, dtype=np.float64)
    return functions, 2, 32, (x, poisoned(45, dtype=np.float64)), {1: functions_of(x)}, 0


@cuda.jit(fastmath=True)
def fast_functions(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = math.sin(x[i]) / math.sqrt(x[i]) + math.exp(x[i])


@case
def case_fastmath():
    x = rng.uniform(0.5, 2, 45).astype(np.float32)
    exact = x.astype(float)
    expected = np.sin(exact) / np.sqrt(exact) + np.exp(exact)
    return fast_functions, 2, 32, (x, poisoned(45)), {1: expected}, 0


@cuda.jit
def votes(x, y):
    i = cuda.grid(1)
    positive = int32(x[i] > 0)
    ballot = cuda.ballot_sync(0xFFFFFFFF, positive)
    cuda.syncwarp()
    y[i, 0] = cuda.popc(ballot)
    y[i, 1] = cuda.any_sync(0xFFFFFFFF, positive) + 2 * cuda.all_sync(0xFFFFFFFF, positive)
    y[i, 2] = cuda.syncthreads_count(positive)
    y[i, 3] = cuda.syncthreads_and(positive) + 2 * cuda.syncthreads_or(positive)
    y[i, 4] = cuda.ffs(ballot) + 100 * cuda.clz(uint32(i))
    y[i, 5] = cuda.shfl_xor_sync(0xFFFFFFFF, i, 1) + 1000 * cuda.shfl_sync(0xFFFFFFFF, i, 3)


@case
def case_votes_and_barriers():
    x = normal(64)
    positive = (x > 0).reshape(2, 32)
    y, i = np.zeros((64, 6), np.int64), np.arange(64)
    y[:, 0] = np.repeat(positive.sum(1), 32)
    y[:, 1] = np.repeat(positive.any(1) + 2 * positive.all(1), 32)
    y[:, 2], y[:, 3] = positive.sum(), positive.all() + 2 * positive.any()
    y[:, 4] = np.repeat(positive.argmax(1) + 1, 32)
    y[:, 4] += 100 * np.array([32 - int(n).bit_length() for n in i])
    y[:, 5] = (i ^ 1) + 1000 * (i // 32 * 32 + 3)
    return votes, 1, 64, (x, np.full((64, 6), -1)), {1: y}, 0


@cuda.jit
def atomics(x, whole, real):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.max(real, 0, x[i])
        cuda.atomic.min(real, 1, x[i])
        cuda.atomic.sub(real, 2, x[i])
        cuda.atomic.nanmax(real, 3, x[i])
        cuda.atomic.add(whole, (0, i % 3), 2)
        cuda.atomic.or_(whole, (1, 0), 1 << (i % 5))
        cuda.atomic.xor(whole, (1, 1), i)
        cuda.atomic.inc(whole, (1, 2), 6)
        if i == 11:
            whole[2, 0] = cuda.atomic.exch(whole, (2, 1), 5)
            whole[2, 2] = cuda.atomic.cas(whole, (2, 1), 5, 9)


@case
def case_atomics():
    x = normal(45, dtype=np.float64)
    i = np.arange(45)
    whole = [2 * np.bincount(i % 3), [31, np.bitwise_xor.reduce(i), 45 % 7], [8, 9, 5]]
    given = np.array([[0, 0, 0], [0, 0, 0], [0, 8, 0]], np.uint32)
    real = np.array([x.max(), min(x.min(), 0), -x.sum(), x.max()])
    return atomics, 2, 32, (x, given, np.zeros(4)), {1: np.array(whole), 2: real}, 0


@cuda.jit
def random_points(states, inside):
    i = cuda.grid(1)
    x, y = xoroshiro128p_uniform_float32(states, i), xoroshiro128p_uniform_float32(states, i)
    inside[i] = x * x + y * y < 1


@case
def case_random_numbers():
    """xoroshiro128+ of Blackman and Vigna; its state is two words of 64 bits."""
    words = rng.integers(0, 2**63, (64, 2), dtype=np.uint64)
    states = np.zeros(64, xoroshiro128p_dtype)
    states["s0"], states["s1"] = words.T
    points = np.array([[_uniform(word), _uniform(word)] for word in words.astype(object).tolist()])
    return random_points, 2, 32, (states, np.zeros(64, bool)), {1: (points**2).sum(1) < 1}, 0


def _uniform(state: list) -> float:
    """The next number of a state, which is changed."""
    mask = 2**64 - 1
    first, second = state
    drawn = (first + second) & mask
    second ^= first
    state[0] = ((first << 55 | first >> 9) & mask) ^ second ^ (second << 14) & mask
    state[1] = (second << 36 | second >> 28) & mask
    return float(np.float32(drawn >> 11) * np.float32(2.0**-53))


with without_gpu():  # a decorator with a signature compiles at once

    @cuda.jit("void(float32[:], float32[:], float64)")
    def typed(x, y, factor):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = x[i] * factor


@case
def case_explicit_signature():
    """The signature takes the integer for a float64."""
    x = normal(45)
    return typed, 2, 32, (x, poisoned(45), 3), {1: 3 * x.astype(float)}, 0


@cuda.jit
def sums_of_planes(x, y):
    i, j, k = cuda.grid(3)
    if i < x.shape[0] and j < x.shape[1] and k < x.shape[2]:
        cuda.atomic.add(y, i, x[i, j, k])


@case
def case_three_dimensions():
    x = normal(3, 5, 7, dtype=np.float64)
    return sums_of_planes, (1, 2, 3), (4, 3, 3), (x, np.zeros(3)), {1: x.sum((1, 2))}, 0


@cuda.jit
def rows_of(x, y):
    row = x[cuda.blockIdx.x]
    total = int64(0)
    for value in row:
        total += value
    y[cuda.blockIdx.x] = total


@case
def case_slices():
    x = rng.integers(-9, 9, (5, 11)).astype(np.int16)
    return rows_of, 5, 1, (x, np.full(5, -1)), {1: x.sum(1)}, 0


@cuda.jit
def matrix_by_libdevice(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = (
            cuda.libdevice.rsqrtf(x[i])
            + cuda.fma(x[i], x[i], float32(1))
            + cuda.selp(x[i] > 1, float32(2), float32(3))
        )


@case
def case_libdevice():
    x = rng.uniform(0.5, 2, 45).astype(np.float32)
    exact = x.astype(float)
    expected = exact**-0.5 + exact**2 + 1 + np.where(exact > 1, 2, 3)
    return matrix_by_libdevice, 2, 32, (x, poisoned(45)), {1: expected}, 0
