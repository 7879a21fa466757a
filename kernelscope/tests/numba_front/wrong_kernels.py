"""Numba kernels with one defect each; the line with the defect ends in a comment that names it."""

import numpy as np
from numba import cuda, float32, int32

N = 48  # threads of a block: a whole warp and half of one
REVERSED = 32


@cuda.jit(device=True)
def neighbour(values, i):
    return values[(i + 40) % N]  # race


@cuda.jit
def reads_too_far(x, y):
    i = cuda.grid(1)
    y[i] = x[i + 1]  # out-of-bounds


@cuda.jit
def writes_too_far(x, y):
    i = cuda.grid(1)
    y[2 * i] = x[i]  # out-of-bounds


@cuda.jit
def shared_overrun(x, y):
    tile = cuda.shared.array(N, float32)
    other = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    other[t] = 0
    tile[t + 1] = x[t]  # out-of-bounds
    cuda.syncthreads()
    y[t] = other[t]


@cuda.jit
def local_overrun(x, y):
    window = cuda.local.array(4, float32)
    t = cuda.threadIdx.x
    for j in range(x.size // 12 + 1):
        window[j] = x[t]  # out-of-bounds
    y[t] = window[t % 4]


@cuda.jit
def no_barrier(x, y):
    tile = cuda.shared.array(shape=N, dtype=float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    y[t] = tile[N - 1 - t]  # race


@cuda.jit
def no_second_barrier(x, y):
    tile = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for k in range(3):
        tile[t] = x[t] + k  # race
        cuda.syncthreads()
        total += tile[N - 1 - t]
    y[t] = total


@cuda.jit
def race_in_function(x, y):
    tile = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    y[t] = neighbour(tile, t)


@cuda.jit
def counts_without_atomics(x, y):
    t = cuda.grid(1)
    y[int32(x[t]) % 4] += 1  # race


@cuda.jit
def barrier_in_branch(x, y):
    tile = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    if t < REVERSED:
        tile[t] = x[t]
        cuda.syncthreads()  # divergent-barrier
        y[t] = tile[REVERSED - 1 - t]


@cuda.jit
def reads_unset_shared(x, y):
    tile = cuda.shared.array((2, N), float32)
    t = cuda.threadIdx.x
    tile[0, t] = x[t]
    cuda.syncthreads()
    y[t] = tile[0, t] + tile[1, t]  # uninitialised-read


@cuda.jit
def half_of_the_warp(x, y):
    values = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    values[t] = x[t]
    cuda.syncwarp()
    y[t] = values[t ^ 1] + values[(t + 32) % N]  # race


# kernel -> kind of finding, its array, the element of the first thread that does it.
WRONG = {
    reads_too_far: ("out-of-bounds", "x", N),
    writes_too_far: ("out-of-bounds", "y", N),
    shared_overrun: ("out-of-bounds", "tile", N),
    local_overrun: ("out-of-bounds", "window", 4),
    no_barrier: ("race", "tile", 47),
    no_second_barrier: ("race", "tile", 0),
    race_in_function: ("race", "tile", 40),
    counts_without_atomics: ("race", "y", 0),
    barrier_in_branch: ("divergent-barrier", "", None),
    reads_unset_shared: ("uninitialised-read", "tile", (1, 0)),
    half_of_the_warp: ("race", "values", 32),
}


def arguments() -> tuple[np.ndarray, np.ndarray]:
    return np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
