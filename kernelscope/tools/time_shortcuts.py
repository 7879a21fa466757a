"""Print what the shortcuts of the machine bring: a Markdown table, in seconds of the processor.

    python kernelscope/tools/time_shortcuts.py

Loops of one lane and loops of compare-and-swap run with and without their shortcut, one after the
other, the best of three. Launches of several processes are given by the process that takes
longest, which is what they take on as many idle cores.
"""

import os
import resource

import numpy as np
from kernelscope import RawModule
from kernelscope.machine.speed import Single, Swaps, workers

CODE = r"""
extern "C" __global__ void scan(const float* x, float* y, int n) {
    float s = 0;
    for (int i = 0; i < n; i++) y[i] = s += x[i];
}
extern "C" __global__ void common(const int* a, const int* b, int* t, int n) {
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= n; j++) {
            int* here = t + i * (n + 1) + j;
            *here = a[i - 1] == b[j - 1] ? here[-n - 2] + 1 : max(here[-1], here[-n - 1]);
        }
}
extern "C" __global__ void busy(unsigned* y, int n) {
    unsigned s = 1;
    for (int i = 0; i < n; i++) s = (s * 1664525u + 1013904223u) ^ s >> 7;
    y[0] = s;
}
extern "C" __global__ void turns(const double* p, int* y, int n) {  // a step of Delaunay's
    int left = 0;
    for (const double* q = p; q < p + 2 * n - 4; q += 2)
        left += (q[2] - q[0]) * (q[5] - q[1]) - (q[3] - q[1]) * (q[4] - q[0]) > 0;
    y[0] = left;
}
extern "C" __global__ void add(float* sums, const float* x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, *p = (int*)sums + i % 4, old, found = *p;
    do {
        old = found;
        found = atomicCAS(p, old, __float_as_int(__int_as_float(old) + x[i]));
    } while (old != found);
}
extern "C" __global__ void tile(const float* a, const float* b, float* c, int n) {
    __shared__ float s[16][16], t[16][16];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        s[y][x] = a[row * n + k + x];
        t[y][x] = b[(k + y) * n + column];
        __syncthreads();
        for (int i = 0; i < 16; i++) sum += s[y][i] * t[i][x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
#include <cuda_bf16.h>
extern "C" __global__ void pairs(__nv_bfloat162* sums, const float* x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(sums + i % 4, __floats2bfloat162_rn(x[i], 1.0f));
}
"""
N, LANES, SIDE = 20_000, 4096, 512


def cases() -> list[tuple]:
    """(what, kernel, grid, block, arguments, the method that is the shortcut)."""
    rng = np.random.default_rng(0)
    floats, words = rng.standard_normal(N, dtype=np.float32), rng.integers(0, 4, 100, np.int32)
    points, squares = rng.standard_normal(2 * N), np.zeros((3, SIDE, SIDE), np.float32)
    one, go_on, settle = ((1,), (1,)), (Single, "go_on"), (Swaps, "settle")
    many, tiles = ((LANES // 256,), (256,)), ((SIDE // 16, SIDE // 16), (16, 16))
    table, sums = np.zeros(101 * 101, np.int32), np.zeros(8, np.uint16)
    return [
        ("a serial scan", "scan", *one, (floats, floats.copy(), np.int32(N)), go_on),
        ("a table of 100 x 100", "common", *one, (words, words, table, np.int32(100)), go_on),
        ("a busy loop", "busy", *one, (np.zeros(1, np.uint32), np.int32(N)), go_on),
        ("turns of points, .f64", "turns", *one, (points, table, np.int32(N)), go_on),
        ("float atomicCAS, 4 places", "add", *many, (np.zeros(4, "f4"), floats), settle),
        ("bf16x2 atomicAdd, 4 places", "pairs", *many, (sums, floats), settle),
        ("tiled product, 1,024 blocks", "tile", *tiles, (*squares, np.int32(SIDE)), None),
    ]


def seconds(call) -> float:
    """Best of three: of this process, or of those that it starts where they take longer."""
    best = float("inf")
    for _ in range(3):
        before = used()
        call()
        best = min(best, np.subtract(used(), before).max())
    return best


def used() -> tuple[float, float]:
    """Seconds of the processor of this process, and of those that it has started."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return tuple(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    module = RawModule(code=CODE, backend="simulator")
    print("| what | without, s | with, s | times |\n|---|---|---|---|")
    for what, name, grid, block, arguments, shortcut in cases():
        kernel, found = module.get_function(name), []
        kernel(grid, block, arguments)
        for on in (False, True):
            os.environ[workers.WORKERS] = "2" if on else "1"
            if shortcut:
                kept = getattr(*shortcut)
                off = {"go_on": lambda _, key, block: (key, 0), "settle": lambda _, block: False}
                setattr(*shortcut, kept if on else off[shortcut[1]])
            found.append(seconds(lambda k=kernel, g=grid, b=block, a=arguments: k(g, b, a)))
            if shortcut:
                setattr(*shortcut, kept)
        print(f"| {what} | {found[0]:.3f} | {found[1]:.3f} | {found[0] / found[1]:.1f} |")


if __name__ == "__main__":
    main()
