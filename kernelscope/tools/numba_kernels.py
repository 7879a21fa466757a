"""The kernels that time_numba_simulator.py launches on both simulators."""

import numpy as np
from numba import cuda, float32, int32


@cuda.jit
def scores_tiled(query, key, scores, width):
    """scores (n, n) = query (n, width) key^T, the tiles of tests/kernels/scores_tiled.cu."""
    tile_query = cuda.shared.array((16, 16), dtype=float32)
    tile_key = cuda.shared.array((16, 16), dtype=float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * 16 + ty, cuda.blockIdx.x * 16
    total = float32(0.0)
    for start in range(0, width, 16):
        tile_query[ty, tx] = query[row, start + tx]
        tile_key[ty, tx] = key[column + ty, start + tx]
        cuda.syncthreads()
        for i in range(16):
            total += tile_query[ty, i] * tile_key[tx, i]
        cuda.syncthreads()
    scores[row, column + tx] = total


@cuda.jit
def vector_add(x, y, z):
    i = cuda.grid(1)
    if i < z.size:
        z[i] = x[i] + y[i]


@cuda.jit
def stencil(x, y):
    i, j = cuda.grid(2)
    if 0 < i < x.shape[0] - 1 and 0 < j < x.shape[1] - 1:
        y[i, j] = (x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]) / 4


@cuda.jit
def histogram(values, counts):
    local = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    if t < 32:
        local[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        cuda.atomic.add(local, values[i], 1)
    cuda.syncthreads()
    if t < 32:
        cuda.atomic.add(counts, t, local[t])


def cases() -> dict:
    """Name -> (kernel, grid, block, arguments, number of the output, what it shall hold)."""
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 128, 64)).astype(np.float32)
    x, y = rng.standard_normal((2, 10_000)).astype(np.float32)
    field = rng.standard_normal((90, 110)).astype(np.float32)
    values = rng.integers(0, 32, 10_000).astype(np.int32)
    ends, mean = field.copy(), field[1:-1, 1:-1].copy()
    mean[...] = (field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:]) / 4
    ends[1:-1, 1:-1] = mean
    zeros, counts = np.zeros_like(x), np.zeros(32, np.int32)
    tiled = (query, key, np.full((128, 128), np.nan, np.float32), 64)
    return {
        "scores_tiled": (scores_tiled, (8, 8), (16, 16), tiled, 2, query @ key.T),
        "vector_add": (vector_add, 40, 256, (x, y, zeros), 2, x + y),
        "stencil": (stencil, (12, 14), (8, 8), (field, field.copy()), 1, ends),
        "histogram": (histogram, 8, 64, (values, counts), 1, np.bincount(values, minlength=32)),
    }
