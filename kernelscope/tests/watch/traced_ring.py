"""Traced kernels with mbarriers, bulk copies and products of warp groups, for tests."""

from functools import cache

import numpy as np
from async_source import HEAD
from kernelscope.events import observe
from kernelscope.module import RawModule
from kernelscope.watch import Tracer

# Warp 4 copies; two stages, three tiles of 512 integers; each warp group's lane 0s release.
RING = """
extern "C" __global__ void ring(const int* x, int* out) {
    __shared__ __align__(128) int tiles[2][512];
    __shared__ u64 full[2], empty[2];
    const int t = threadIdx.x, warp = t / 32;
    if (t == 0) {
        for (int i = 0; i < 2; ++i) { start(full + i, 1); start(empty + i, 4); }
        started();
    }
    __syncthreads();
    if (warp == 4) {
        for (int k = 0; t == 128 && k < 3; ++k) {
            wait(empty + k % 2, k / 2 & 1 ^ 1);
            expect(full + k % 2, 2048);
            load(tiles[k % 2], x + 512 * k, 2048, full + k % 2);
        }
        return;
    }
    int sum = 0;
    for (int k = 0; k < 3; ++k) {
        wait(full + k % 2, k / 2 & 1);
        sum += tiles[k % 2][t];
        __syncwarp();
        if (t % 32 == 0) arrive(empty + k % 2);
    }
    out[t] = sum;
}
"""
# Two warp groups order two products each of what a copy has brought; group 1 after group 0.
PRODUCTS = """
extern "C" __global__ void __launch_bounds__(256, 1) products(const int* x, float* out) {
    extern __shared__ __align__(1024) unsigned char memory[];  // two tiles of 2,048 bytes, full
    u64* full = (u64*)(memory + 4096);
    const int t = threadIdx.x, group = t / 128;
    if (t == 0) {
        start(full, 1); started();
        expect(full, 4096);
        load(memory, x, 2048, full); load(memory + 2048, x + 512, 2048, full);
    }
    __syncthreads();
    wait(full, 0);
    if (group == 1) asm volatile("bar.sync 1, 256;" ::: "memory");
    float c[4] = {};
    READY;
    multiply(c, tile_of(memory), tile_of(memory + 2048), 0);
    multiply(c, tile_of(memory), tile_of(memory + 2048), 1);
    COMMIT;
    if (group == 0) asm volatile("bar.arrive 1, 256;" ::: "memory");
    DONE(0);
    out[t] = exp2f(c[0]);
}
"""


@cache
def module(source):
    return RawModule(code=HEAD + source, backend="simulator")


def traced_ring(**options) -> Tracer:
    """The trace of a ring of two stages; its sums are checked."""
    x, out = np.arange(1536, dtype=np.int32), np.zeros(128, np.int32)
    with observe(Tracer(**options)) as trace:
        module(RING).get_function("ring")((1,), (160,), (x, out))
    np.testing.assert_array_equal(out, x.reshape(3, 512)[:, :128].sum(axis=0))
    return trace


def traced_products(**options) -> Tracer:
    """The trace of two warp groups with two products each of ones: every sum is 32."""
    x, out = np.ones(2048, np.float16).view(np.int32), np.zeros(256, np.float32)
    with observe(Tracer(**options)) as trace:
        entry = module(PRODUCTS).get_function("products")
        entry((1,), (256,), (x, out), shared_mem=4104)
    np.testing.assert_array_equal(out, 2.0**32)
    return trace
