"""Atomic operations and locks on the simulator."""

import numpy as np
import pytest
from kernelscope.machine import Hang, launch
from machine_harness import run, zeros

CODE = r"""
#include <cuda_fp16.h>
#define ID (blockIdx.x * blockDim.x + threadIdx.x)
typedef unsigned long long ull;
__device__ __noinline__ void through_generic(float* at, float by) { atomicAdd(at, by); }
extern "C" {
__global__ void tiny_sums(float* global, float* out) {
    __shared__ float close[3];
    if (threadIdx.x < 3) close[threadIdx.x] = 0;
    __syncthreads();                                           // all sums start at zero
    through_generic(close + threadIdx.x % 2, 1e-40f); through_generic(global, 1e-40f);
    atomicAdd(close + 2, 1e-40f); atomicAdd(global + 1, 1e-40f);
    __syncthreads();                                           // all sums are complete
    if (threadIdx.x < 3) out[threadIdx.x] = close[threadIdx.x];
}
__global__ void two_spaces(int* global, int* out) {            // lanes of a warp update both
    __shared__ int close[2];
    int t = threadIdx.x;
    if (t < 2) close[t] = t * 100;
    __syncthreads();                                           // both counters are set
    int* counter = t % 3 ? global + t % 2 : close + t % 2;
    out[t] = atomicAdd(counter, t % 3 ? 1 : 2);
    __syncthreads();                                           // all lanes have counted
    if (t < 2) global[2 + t] = close[t];
}
__global__ void unused(const int* a, const int* bin, int* i, unsigned* u, ull* l, float* f,
                       double* d, int n) {                     // results are not used: red
    int t = ID;
    if (t >= n) return;
    int b = bin[t], x = a[t];
    atomicAdd(i + b, x); atomicAdd(u + b, (unsigned)x); atomicAdd(l + b, (ull)x << 33);
    atomicAdd(f + b, x * 0.25f); atomicAdd(d + b, x * 0.125);
    atomicMax(i + 4 + b, x); atomicMin(i + 8 + b, x); atomicMax(u + 4 + b, (unsigned)x);
    atomicMin(u + 8 + b, (unsigned)x); atomicAnd(u + 12 + b, ~(1u << (t % 32)));
    atomicOr(u + 16 + b, 1u << (x & 31)); atomicXor(u + 20 + b, x * 77u);
    atomicMax(l + 4 + b, (ull)x * x); atomicSub(i + 12 + b, x);
    atomicMax((long long*)l + 8 + b, (long long)x << 20);
}
__global__ void used(const int* a, const int* bin, int* slot, unsigned* wrap, int n, int bins) {
    int t = ID;
    if (t >= n) return;
    int b = bin[t];
    slot[t] = atomicAdd(wrap + b, 1u);                         // every lane a place of its own
    slot[n + t] = atomicInc(wrap + bins + b, 6u);
    slot[2 * n + t] = atomicDec(wrap + 2 * bins + b, 4u);
    slot[3 * n + t] = atomicExch(wrap + 3 * bins + b, t + 1);
    slot[4 * n + t] = atomicCAS(wrap + 4 * bins + b, 0u, t + 1);
    slot[5 * n + t] = atomicMax((int*)wrap + 5 * bins + b, a[t]);
}
__global__ void in_shared(const int* a, const int* bin, int* out, float* sums, int n) {
    __shared__ int count[5];
    __shared__ float sum[5];
    __shared__ ull big[5];
    int t = threadIdx.x;
    if (t < 5) { count[t] = 0; sum[t] = 0; big[t] = 0; }
    __syncthreads();
    int rank = -1;
    if (t < n) {
        rank = atomicAdd(&count[bin[t]], 1);
        atomicAdd(&sum[bin[t]], a[t] * 0.5f);
        atomicMax(&big[bin[t]], (ull)a[t] * 1000003);
    }
    __syncthreads();
    if (t < n) out[t] = rank * 100 + count[bin[t]];
    if (t < 5) { sums[t] = sum[t]; sums[5 + t] = big[t] / 1000003; }
}
__device__ float float_max(float* p, float x) {                // by compare-and-swap
    int old = __float_as_int(*p), seen;
    do {
        seen = old;
        if (__int_as_float(seen) >= x) break;
        old = atomicCAS((int*)p, seen, __float_as_int(x));
    } while (old != seen);
    return __int_as_float(old);
}
__device__ double multiply(double* p, double x) {
    ull* q = (ull*)p; ull old = *q, seen;
    do {
        seen = old;
        old = atomicCAS(q, seen, __double_as_longlong(x * __longlong_as_double(seen)));
    } while (old != seen);
    return __longlong_as_double(old);
}
__global__ void by_swapping(const float* a, float* best, double* product, int n) {
    int t = ID;
    if (t >= n) return;
    float_max(best + t % 3, a[t]);
    multiply(product, t % 2 ? 2.0 : 0.5);
    if (t % 5 == 0) multiply(product, 4.0);
}
__global__ void halves(const float* a, half* h, half2* h2) {
    int t = ID;
    atomicAdd(h2 + t % 2, __floats2half2_rn(a[t], -a[t] * 2));
    atomicAdd(h, __float2half(a[t]));
}
__global__ void lock_in_a_warp(int* lock, int* total, int* order) {
    int t = ID;
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            int turn = *(volatile int*)total;
            order[turn] = t;
            *(volatile int*)total = turn + 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}
__global__ void plain_lock(int* lock, int* total) {    // the loop that needs fair scheduling
    while (atomicCAS(lock, 0, 1) != 0) ;
    int v = *(volatile int*)total;
    *(volatile int*)total = v + threadIdx.x;
    __threadfence();
    atomicExch(lock, 0);
}
__global__ void backing_off(int* lock, int* total) {   // waits longer and longer, and counts
    int tries = 0;
    unsigned wait = 8;
    while (atomicCAS(lock, 0, 1) != 0) { ++tries; if (wait < 256) wait *= 2; __nanosleep(wait); }
    *(volatile int*)total += 1 + 0 * tries;
    __threadfence();
    atomicExch(lock, 0);
    total[1] = tries > 1 << 30;
}
__global__ void between_warps(volatile int* flag, int* out) {
    int w = threadIdx.x / 32;
    if (w < 3) while (flag[w + 1] == 0) ;               // the last warp starts a chain
    out[threadIdx.x] = w == 3 ? 1 : out[threadIdx.x + 32] * 2;
    __threadfence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) flag[w] = 1;
}
__global__ void between_blocks(volatile int* flag, int* out) {
    if (blockIdx.x + 1 < gridDim.x && threadIdx.x == 0) while (flag[blockIdx.x + 1] == 0) ;
    __syncthreads();
    int above = blockIdx.x + 1 < gridDim.x ? ((volatile int*)out)[blockIdx.x + 1] : 0;
    if (threadIdx.x == 0) {
        out[blockIdx.x] = above + blockIdx.x;
        __threadfence();
        flag[blockIdx.x] = 1;
    }
}
__global__ void last_block(const int* a, int* part, unsigned* ticket, int* out) {
    __shared__ bool last;
    __shared__ int sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, a[ID]);
    __syncthreads();
    if (threadIdx.x == 0) {
        part[blockIdx.x] = sum;
        __threadfence();
        last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        int total = 0;
        for (int b = 0; b < gridDim.x; ++b) total += ((volatile int*)part)[b];
        *out = total;
    }
}
__global__ void deadlock(int* locks) {                  // each holds what the other wants
    int mine = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) {
        while (atomicCAS(locks + mine, 0, 1) != 0) ;
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        while (atomicCAS(locks + 1 - mine, 0, 1) != 0) ;  // for ever
}
__global__ void divergent_spin(volatile int* flag, int* out) {
    int turns = 0;
    while (flag[0] == 0) {                              // nobody writes the flag
        if (threadIdx.x % 2) { if (flag[1] == 5) out[0] = 1; }
        else if (flag[2] == 7) out[1] = 2;
        turns ^= 1;
    }
    out[2] = turns;
}
__global__ void counts_for_ever(volatile int* flag, int* out) {
    int turns = 0;
    while (*flag == 0) ++turns;                         // never comes back to the same state
    *out = turns;
}
}
"""


def wrap(value, bits=32):
    return (int(value) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def test_atomics_whose_results_are_not_used(build, order):
    rng, n = np.random.default_rng(7), 300
    a, bins = rng.integers(-99, 99, n).astype(np.int32), rng.integers(0, 4, n).astype(np.int32)
    i, u, big = zeros(16), zeros(24, np.uint32), zeros(12, np.uint64)
    u[8:12] = 2**32 - 1
    u[12:16] = 2**32 - 1
    f, d = zeros(4, np.float32), zeros(4, float)
    arguments = (a, bins, i, u, big, f, d, np.int32(n))
    run(CODE, "unused", 3, 128, *arguments, build=build, warp_order=order)
    big_signed = big.view(np.int64)
    for b in range(4):
        here = np.nonzero(bins == b)[0]
        x = a[here].astype(object)
        unsigned = [int(v) % 2**32 for v in x]
        wide = [int(v) % 2**64 for v in x]
        assert i[b] == sum(x) and i[4 + b] == max(0, *x) and i[8 + b] == min(0, *x)
        assert i[12 + b] == -sum(x)
        assert u[b] == sum(x) % 2**32
        assert u[4 + b] == max(unsigned) and u[8 + b] == min(unsigned)
        assert u[12 + b] == (2**32 - 1) & ~sum({1 << int(t) % 32 for t in here})
        assert u[16 + b] == np.bitwise_or.reduce([1 << v % 32 for v in unsigned])
        assert u[20 + b] == np.bitwise_xor.reduce([v * 77 % 2**32 for v in unsigned])
        assert big[b] == sum(v << 33 for v in wide) % 2**64
        assert big[4 + b] == max(v * v % 2**64 for v in wide)
        assert big_signed[8 + b] == max(0, *(int(v) << 20 for v in x))
        assert f[b] == sum(x) * 0.25 and d[b] == sum(x) * 0.125


@pytest.mark.parametrize("bins", [1, 3, 300])
def test_atomics_whose_results_are_used(build, bins):
    """Old values are those of some order of the lanes; here every order is checked for sense."""
    rng, n = np.random.default_rng(bins), 300
    a = rng.integers(-999, 999, n).astype(np.int32)
    bin_of = rng.integers(0, bins, n).astype(np.int32)
    slot, wrapped = zeros(6 * n), zeros(6 * bins, np.uint32)
    run(CODE, "used", 3, 128, a, bin_of, slot, wrapped, np.int32(n), np.int32(bins), build=build)
    slot, final = slot.reshape(6, n), wrapped.reshape(6, bins)
    for b in range(bins):
        here = np.nonzero(bin_of == b)[0]
        if not here.size:
            continue
        size = here.size
        assert sorted(slot[0][here]) == list(range(size)) and final[0, b] == size
        assert sorted(slot[1][here]) == sorted(k % 7 for k in range(size))
        assert final[1, b] == size % 7
        down = [0 if k == 0 else (4 - (k - 1) % 5) for k in range(size + 1)]
        assert sorted(slot[2][here]) == sorted(down[:size]) and final[2, b] == down[size]
        assert sorted([*slot[3][here], final[3, b]]) == [0, *sorted(here + 1)]
        winner = final[4, b]
        assert winner - 1 in here
        assert sorted(slot[4][here]) == [0] + [winner] * (size - 1)
        assert final[5].view(np.int32)[b] == max(0, a[here].max())
        seen = sorted({0, *np.maximum(a[here], 0)})
        assert set(slot[5][here]) <= set(seen) and 0 in slot[5][here]


def test_atomics_in_shared_memory(build):
    rng, n = np.random.default_rng(3), 75
    a, bins = rng.integers(0, 99, n).astype(np.int32), rng.integers(0, 5, n).astype(np.int32)
    out, sums = zeros(n), zeros(10, np.float32)
    run(CODE, "in_shared", 1, 96, a, bins, out, sums, np.int32(n), build=build)
    for b in range(5):
        here = bins == b
        assert sums[b] == a[here].sum() * 0.5 and sums[5 + b] == a[here].max()
        assert sorted(out[here]) == [rank * 100 + here.sum() for rank in range(here.sum())]


def test_loops_of_compare_and_swap(build, order):
    n = 150
    a = np.random.default_rng(5).standard_normal(n).astype(np.float32)
    best, product = np.full(3, -9, np.float32), np.array([3.0])
    run(CODE, "by_swapping", 2, 96, a, best, product, np.int32(n), build=build, warp_order=order)
    assert best.tolist() == [a[k::3].max() for k in range(3)]
    assert product[0] == 3.0 * 4.0**30


def test_sums_in_shared_memory_keep_subnormals(build):
    """However they are addressed; those in global memory are flushed."""
    out, sums, tiny = zeros(3, np.float32), zeros(2, np.float32), np.float32(1e-40)
    run(CODE, "tiny_sums", 1, 4, sums, out, build=build)
    assert out.tolist() == [2 * tiny, 2 * tiny, 4 * tiny] and sums.tolist() == [0, 0]


def test_lanes_that_update_different_spaces(build):
    counters, out = np.array([7, 40, 0, 0], np.int32), zeros(64)
    run(CODE, "two_spaces", 1, 64, counters, out, build=build)
    cases = ((7, 1, False, 0), (40, 1, False, 1), (0, 2, True, 0), (100, 2, True, 1))
    for start, step, third, parity in cases:
        lanes = [t for t in range(64) if (t % 3 == 0) == third and t % 2 == parity]
        end = start + step * len(lanes)
        assert sorted(out[lanes]) == list(range(start, end, step))
        assert counters[2 * third + parity] == end


def test_atomic_halves(build):
    n = 60
    a = (np.random.default_rng(6).integers(-8, 8, n) / 4).astype(np.float32)
    h, h2 = zeros(1, np.float16), zeros(4, np.float16)
    run(CODE, "halves", 1, n, a, h, h2, build=build)
    assert h[0] == a.sum()
    assert h2.tolist() == [a[::2].sum(), -2 * a[::2].sum(), a[1::2].sum(), -2 * a[1::2].sum()]


@pytest.mark.turns(23)
@pytest.mark.system
def test_locks_finish(build, order):
    lock, total, turns = zeros(1), zeros(1), zeros(96)
    run(CODE, "lock_in_a_warp", 2, 48, lock, total, turns, build=build, warp_order=order)
    assert total[0] == 96 and lock[0] == 0 and sorted(turns.tolist()) == [*range(96)]
    total[0] = 0
    run(CODE, "plain_lock", 2, 40, lock, total, build=build, warp_order=order)
    assert total[0] == 2 * sum(range(40)) and lock[0] == 0
    total = zeros(2)
    run(CODE, "backing_off", 2, 12, lock, total, build=build, warp_order=order)
    assert total.tolist() == [24, 0]


@pytest.mark.parametrize("order", [None, 1, 2])
def test_waiting_for_other_warps_and_blocks(build, order, monkeypatch):
    flag, out = zeros(4), zeros(128)
    run(CODE, "between_warps", 1, 128, flag, out, build=build, warp_order=order)
    assert out.tolist() == np.repeat([8, 4, 2, 1], 32).tolist()
    monkeypatch.setattr(launch, "LANES_PER_CHUNK", 70)  # two blocks a chunk
    flag, out = zeros(9), zeros(9)
    run(CODE, "between_blocks", 9, 32, flag, out, build=build, warp_order=order)
    assert out.tolist() == [sum(range(b, 9)) for b in range(9)]


def test_the_last_block_sums_up(build, order):
    a = np.random.default_rng(9).integers(-50, 50, 7 * 45).astype(np.int32)
    out = zeros(1)
    arrays = (a, zeros(7), zeros(1, np.uint32), out)
    run(CODE, "last_block", 7, 45, *arrays, build=build, warp_order=order)
    assert out[0] == a.sum()


@pytest.mark.parametrize(
    ("name", "text", "arguments"), [("deadlock", "for ever", 1), ("divergent_spin", "flag", 2)]
)
def test_what_can_not_finish_is_a_hang(name, text, arguments, build, order):
    arrays = [zeros(8) for _ in range(arguments)]
    with pytest.raises(Hang, match=rf"{name} hangs at kernel.cu:\d+.*{text}.*thread"):
        run(CODE, name, 1, 64, *arrays, build=build, warp_order=order)


def test_a_loop_that_counts_ends_by_the_clock(monkeypatch):
    monkeypatch.setenv("KERNELSCOPE_TIMEOUT", "0.3")
    with pytest.raises(Hang, match=r"longer than 0.3 s.*kernel.cu:\d+.*KERNELSCOPE_TIMEOUT"):
        run(CODE, "counts_for_ever", 1, 32, zeros(1), zeros(1))


def test_the_environment_chooses_a_warp_order(monkeypatch):
    turns = []
    for seed in ("", "1", "2"):
        monkeypatch.setenv("KERNELSCOPE_WARP_ORDER", seed)
        order = zeros(128)
        run(CODE, "lock_in_a_warp", 1, 128, zeros(1), zeros(1), order)
        assert sorted(order.tolist()) == [*range(128)]
        turns.append(order.tolist())
    assert turns[0] != turns[1] != turns[2]
    monkeypatch.setenv("KERNELSCOPE_WARP_ORDER", "left")
    with pytest.raises(ValueError, match="KERNELSCOPE_WARP_ORDER is 'left'"):
        run(CODE, "lock_in_a_warp", 1, 32, zeros(1), zeros(1), zeros(32))
