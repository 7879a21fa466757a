"""Selected parts of video operands, vector and 128-bit atomics, alloca, cache policies, clocks."""

import numpy as np
import pytest
from kernelscope.errors import SimulatorError
from machine_harness import run, zeros

CODE = r"""
// kernelscope: sm_90
extern "C" {
__global__ void parts(const int* a, const int* b, const int* c, int* out, int n) {
    int t = threadIdx.x;
    int x = a[t], y = b[t], z = c[t], r;
    #define CASE(k, text) asm(text : "=r"(r) : "r"(x), "r"(y), "r"(z)); out[k * n + t] = r;
    CASE(0, "vadd.s32.s32.u32 %0, %1.b3, %2.h1;")
    CASE(1, "vsub.s32.s32.s32.sat %0.h1, %1.h0, %2.h1, %3;")
    CASE(2, "vabsdiff.u32.s32.s32.add %0, %1.b0, %2.b2, %3;")
    CASE(3, "vset.s32.u32.lt %0.b2, %1.b1, %2.b1, %3;")
    CASE(4, "vmad.s32.s32.s32.sat %0, %1.h0, %2.h1, -%3;")
    CASE(5, "vadd2.s32.s32.s32.sat %0.h1, %1.h03, %2.h21, %3;")
    CASE(6, "vmin4.u32.u32.u32 %0.b310, %1.b7012, %2.b3340, %3;")
    CASE(7, "vmad.u32.u32.u32.po.shr7 %0, %1.b2, %2.b0, %3;")
}
__global__ void add_four(float* sums, float* old) {
    int t = threadIdx.x;
    float4 v = make_float4(t, 1, -t, 0.5f), w;
    float* p = sums + 4 * (t % 2);
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
        :: "l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
    asm volatile("atom.global.add.v2.f32 {%0, %1}, [%2], {%3, %4};"
        : "=f"(w.x), "=f"(w.y) : "l"(sums + 8 + 2 * t), "f"(v.x), "f"(v.y) : "memory");
    old[2 * t] = w.x; old[2 * t + 1] = w.y;
    asm volatile("red.global.add.noftz.v2.f16x2 [%0], {%1, %1};"
        :: "l"(sums + 72), "r"(0x3C004000) : "memory");
}
__global__ void add_beside(float* sums) {     // not a multiple of the vector's size
    asm volatile("red.global.add.v2.f32 [%0], {%1, %1};" :: "l"(sums + 1), "f"(1.0f) : "memory");
}
__global__ void wide(unsigned long long* cell, unsigned long long* out) {
    unsigned long long t = threadIdx.x, low, high;
    asm volatile("{ .reg .b128 d, b; mov.b128 b, {%3, %4};"
        " atom.global.exch.b128 d, [%2], b; mov.b128 {%0, %1}, d; }"
        : "=l"(low), "=l"(high) : "l"(cell), "l"(t), "l"(~t) : "memory");
    out[2 * t] = low; out[2 * t + 1] = high;
    __syncwarp();
    asm volatile("{ .reg .b128 d, b, c; mov.b128 b, {%3, %4}; mov.b128 c, {%5, %6};"
        " atom.global.cas.b128 d, [%2], b, c; mov.b128 {%0, %1}, d; }"
        : "=l"(low), "=l"(high) : "l"(cell), "l"(31 - t), "l"(~(31 - t)), "l"(30 - t),
        "l"(~(30 - t)) : "memory");
    out[64 + 2 * t] = low; out[65 + 2 * t] = high;
}
__device__ __noinline__ int sum_of(int n, int step) {
    int* p; long long size = n * sizeof(int);
    asm volatile("{ .reg .b64 x; alloca.u64 x, %1, 16; cvta.local.u64 %0, x; }"
        : "=l"(p) : "l"(size) : "memory");
    for (int i = 0; i < n; ++i) p[i] = i * step;
    int s = 0;
    for (int i = n - 1; i >= 0; --i) s += p[i];
    return s;
}
__global__ void on_the_stack(int* out, int rounds) {
    int t = threadIdx.x, s = 0;
    for (int k = 0; k < rounds; ++k) {
        long long top;
        asm volatile("stacksave.u64 %0;" : "=l"(top) :: "memory");
        s += sum_of(t % 5 + 600, k);
        asm volatile("stackrestore.u64 %0;" :: "l"(top) : "memory");
    }
    out[t] = s;
}
__global__ void policies(const int* a, int* out) {
    unsigned long long p, q, r; int x;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 0.5;" : "=l"(p));
    asm("createpolicy.range.global.L2::evict_last.b64 %0, [%1], 64, 128;" : "=l"(q) : "l"(a));
    asm("createpolicy.cvt.L2.b64 %0, 0x10000000;" : "=l"(r));
    asm volatile("ld.global.L2::cache_hint.b32 %0, [%1], %2;"
        : "=r"(x) : "l"(a + threadIdx.x), "l"(p));
    out[threadIdx.x] = x;
}
__global__ void times(long long* out, long long cycles) {
    long long start = clock64(), x = start, y;
    unsigned high;
    for (int i = 0; i < 20; ++i) x = x * x + 1;
    y = clock64();
    out[0] = y - start + (x == 7);
    while (clock64() - start < cycles) ;
    out[1] = clock64() - start;
    __nanosleep(5000);
    asm volatile("mov.u32 %0, %%clock_hi;" : "=r"(high));
    out[2] = clock64() - start; out[3] = high;
}
__global__ void polls(volatile int* flag, int* out) {    // a time-out, and one that comes in time
    long long start = clock64();
    if (threadIdx.x >= 32) {
        for (int i = 0; i < 100; ++i) __syncwarp();
        if (threadIdx.x == 32) *flag = 1;
    } else {
        while (*flag == 0 && clock64() - start < 1000000000) ;
        out[threadIdx.x] = *flag;
        while (*flag == 1 && clock64() - start < 1000000000) ;
        out[threadIdx.x] += clock64() - start >= 1000000000;
    }
}
}
"""


def signed(value, width):
    value &= (1 << width) - 1
    return value - (value >> width - 1 << width)


def part(word, start, width, is_signed):
    value = word >> start & (1 << width) - 1
    return signed(value, width) if is_signed else value


def clip(value, low, high):
    return max(low, min(high, value))


def selected(x, y, z):
    """What each case gives on an H200; isa.narrow.video names where the PTX ISA's text differs."""
    both = y << 32 | x
    halves = [part(both, 16 * k, 16, True) for k in range(4)]
    octets = [part(both, 8 * k, 8, False) for k in range(8)]
    product = part(x, 0, 16, True) * part(y, 16, 16, True) - signed(z, 32)
    least = [min(octets[a], octets[b]) for a, b in zip((2, 1, 0, 7), (0, 4, 3, 3), strict=True)]
    least[2] = part(z, 16, 8, False)  # the mask leaves it out
    total = clip(halves[0] + halves[2], -(2**15), 2**15 - 1) & 0xFFFF
    return [
        part(x, 24, 8, True) + part(y, 16, 16, False),
        z & 0xFFFF,  # .sat leaves nothing above the low half, and h1 takes what is above it
        abs(part(x, 0, 8, True) - part(y, 16, 8, True)) + z,
        z & 0xFF00FFFF | (part(x, 8, 8, True) < part(y, 8, 8, False)) << 16,
        clip(product, -(2**31), 2**31 - 1),
        total << 16 | z & 0xFFFF,
        sum(value << 8 * i for i, value in enumerate(least)),
        part(x, 16, 8, False) * part(y, 0, 8, False) + signed(z, 32) + 1 >> 7,
    ]


def test_parts_of_the_operands_of_video_instructions():
    a, b, c = np.random.default_rng(5).integers(-(2**31), 2**31, (3, 64)).astype(np.int32)
    out = zeros((8, 64))
    run(CODE, "parts", 1, 64, a, b, c, out, np.int32(64))
    words = [np.array(array).view(np.uint32).tolist() for array in (a, b, c)]
    wanted = np.array([selected(*row) for row in zip(*words, strict=True)], object).T
    for case in range(8):
        found = out[case].view(np.uint32).tolist()
        assert found == [int(x) & 0xFFFFFFFF for x in wanted[case]], case


def test_atomics_on_vectors():
    sums, old = zeros(76, np.float32), zeros(64, np.float32)
    sums[8:72] = 3
    run(CODE, "add_four", 1, 32, sums, old)
    for parity in (0, 1):
        total = sum(range(parity, 32, 2))
        assert sums[4 * parity : 4 * parity + 4].tolist() == [total, 16, -total, 8]
    assert old.tolist() == [3] * 64
    assert sums[8:72].reshape(32, 2).tolist() == [[3 + t, 4] for t in range(32)]
    assert sums[72:74].view(np.float16).tolist() == [64, 32, 64, 32]
    with pytest.raises(SimulatorError, match="add_beside.*8 bytes that are not aligned to 8"):
        run(CODE, "add_beside", 1, 32, sums)


def test_atomics_on_128_bits():
    cell, out = np.array([7, 9], np.uint64), zeros((2, 32, 2), np.uint64)
    run(CODE, "wide", 1, 32, cell, out)
    top = 2**64 - 1
    assert out[0].tolist() == [[7, 9], *[[t, top - t] for t in range(31)]]
    # lane 0 finds what lane 31 left and puts 30 there, and so on
    assert out[1].tolist() == [[31 - t, top - (31 - t)] for t in range(32)]
    assert cell.tolist() == [top, 0]


def test_local_memory_of_a_size_known_at_run_time(build):
    out = zeros(64)
    run(CODE, "on_the_stack", 2, 64, out, np.int32(3), build=build)
    assert out.tolist() == [3 * sum(range(t % 5 + 600)) for t in range(64)]


def test_cache_policies_change_nothing():
    a, out = np.arange(32, dtype=np.int32), zeros(32)
    run(CODE, "policies", 1, 32, a, out)
    assert out.tolist() == a.tolist()


def test_clocks_count_instructions_and_leap(build):
    out = zeros(4, np.int64)
    run(CODE, "times", 1, 1, out, np.int64(10**10), build=build)
    assert 20 <= out[0] < 20000  # 20 multiply-adds
    assert 10**10 <= out[1] < 3 * 10**10
    assert out[2] - out[1] >= 5000
    assert out[3] == 10**10 >> 32 or out[3] in range(2, 7)


def test_a_loop_with_a_time_out(build):
    flag, out = zeros(1), zeros(32)
    run(CODE, "polls", 1, 64, flag, out, build=build)
    assert out.tolist() == [2] * 32
