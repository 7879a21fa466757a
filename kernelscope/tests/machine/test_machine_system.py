"""Calls, recursion, templates, printf, assert, and the libraries that CUDA C brings along."""

import math

import numpy as np
import pytest
from kernelscope import Sanitizer, UserError, observe
from kernelscope.machine import (
    KernelAssertion,
    MemoryFault,
    SimulatorError,
    Trap,
    UnsupportedKernel,
    access,
    launch,
)
from machine_harness import integers, listen, run, zeros

CODE = r"""
#define ID (blockIdx.x * blockDim.x + threadIdx.x)
struct Both { int low, high; double mean; };
__device__ __noinline__ int square_plus(int x, int y) { return x * x + y; }
__device__ __noinline__ Both both(const int* a, int n) {
    Both b = {a[0], a[0], 0};
    for (int i = 0; i < n; ++i) {
        b.low = min(b.low, a[i]); b.high = max(b.high, square_plus(a[i], i)); b.mean += a[i];
    }
    b.mean /= n;
    return b;
}
__device__ __noinline__ void swap(int* p, int* q) { int t = *p; *p = *q; *q = t; }
__device__ __noinline__ unsigned factorial(unsigned n) { return n < 2 ? 1 : n * factorial(n - 1); }
__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__device__ int odd(int n);
__device__ __noinline__ int even(int n) { return n == 0 ? 1 : odd(n - 1); }
__device__ __noinline__ int odd(int n) { return n == 0 ? 0 : even(n - 1); }
__device__ __noinline__ int endless(int n) { return n < 0 ? n : endless(n + 1) * 3 + 1; }
__device__ __noinline__ int in_warp(int v, unsigned mask) { return __reduce_add_sync(mask, v); }
typedef int (*Function)(int, int);
struct Shape {
    int side;
    __device__ Shape(int s) : side(s) {}
    __device__ virtual int area() const { return side * side; }
};
struct Box : Shape {
    int height;
    __device__ Box(int s, int h) : Shape(s), height(h) {}
    __device__ int area() const override { return side * height; }
};
__device__ int plus(int a, int b) { return a + b; }
__device__ int times(int a, int b) { return a * b; }
template <int N, typename T> __device__ T power(T x) {
    return N == 0 ? T(1) : x * power<(N > 0 ? N - 1 : 0), T>(x);
}
template <typename T, int STEP> __global__ void scaled(const T* a, T* out) {
    out[ID] = a[ID] * T(STEP) + power<3, T>(a[ID]);
}
extern "C" {
__global__ void calls(const int* a, int* out, double* mean) {
    int i = ID;
    Both b = both(a + 3 * i, 3 + i % 4);
    if (b.high % 2) swap(&b.low, &b.high);
    out[2 * i] = b.low; out[2 * i + 1] = square_plus(b.high, -i);
    mean[i] = b.mean;
}
__global__ void recursion(unsigned* f, int* g, int* parity) {
    int i = ID;
    f[i] = factorial(i % 13);
    g[i] = fib(i % 12);
    parity[i] = even(i * 3) * 2 + odd(i);
}
__global__ void deep(int* out) { out[ID] = factorial(200 + ID) + fib(3); }
__global__ void never(int* out) { out[ID] = endless(1); }
__global__ void warp_call(const int* a, int* out) {
    int i = ID;
    if (a[i] % 2) out[i] = in_warp(a[i], __ballot_sync(__activemask(), 1));
    else out[i] = -in_warp(a[i] * 2, __activemask());
}
__global__ void by_pointer(const int* a, int* out) {
    int i = ID;
    Function f = a[i] % 3 == 0 ? plus : a[i] % 3 == 1 ? times : square_plus;
    out[i] = f(a[i], i) + f(i, 2);
}
__global__ void on_the_heap(int* out) {
    int t = threadIdx.x;
    Shape* shape = t % 3 ? new Shape(t) : new Box(t, 5);
    int* row = (int*)malloc(4 * (t + 1));
    for (int k = 0; k <= t; ++k) row[k] = k * t;
    out[t] = shape->area() + row[t];
    free(row);
    delete shape;
    out[64 + t] = malloc(1ull << 40) == nullptr;
}
__global__ void some_want_too_much(int* out) {
    int t = threadIdx.x;
    char* p = (char*)malloc(t % 2 ? 1ull << 63 : 1 << 10);
    out[t] = p != nullptr;
    if (p) { p[0] = p[1023] = 1; free(p); }
}
__global__ void again_and_again(int* out, int rounds) {   // more than the heap, bit by bit
    int got = 0;
    for (int k = 0; k < rounds; ++k) {
        char* p = (char*)malloc(1 << 20);
        if (p) { p[0] = k; got += p[0] == k; }
        free(p);
    }
    out[threadIdx.x] = got;
}
__global__ void says_names(char letter) {
    char word[4] = {letter, char('a' + threadIdx.x), 0, 'x'};
    const char* none = nullptr;
    if (threadIdx.x < 2) printf("%s %-4s|%s\n", word, word, none);
}
__global__ void speaks(const int* a, const float* x) {
    int t = threadIdx.x;
    if (t % 2) printf("%d: %5d|%-5d|%05d|%+d|%i\n", t, a[t], a[t], a[t], a[t], -a[t]);
    if (t == 2) printf("%u %x %X %o %c%c %% %s\n", 3000000000u, a[t], 0xBEEF, 8, 'o', 107, "text");
    if (t == 3) printf("%f %.2f %8.3e %g %G|%*d|%.*f\n",
                       x[t], x[t], x[t], x[t], 1e-9, 6, 42, 1, 2.55);
    if (t == 0) printf("%lld %llu %ld %hd %zu\n",
                       -5000000000ll, 1ull << 63, 7l, (short)-3, sizeof(int));
    if (t == 1) printf("plain\n");
    if (t == 1) printf("%p %a\n", (void*)4096, 0.5);
}
__global__ void checked(const int* a, int limit) {
    assert(a[ID] < limit);
}
__global__ void trapped(const int* a) { if (a[ID] == 6) __trap(); }
__global__ void clocks(long long* out) {
    long long start = clock64(); unsigned early = clock();
    while (clock64() - start < 40) ;
    out[ID] = clock64() - start; out[blockDim.x + ID] = clock() - early;
}
__global__ void inline_ptx(const int* a, int* out, float* f) {
    int i = ID, r; float g;
    asm("{ .reg .s32 t, u; add.s32 t, %1, 7; mul.lo.s32 u, t, %1; sub.s32 %0, u, t; }"
        : "=r"(r) : "r"(a[i]));
    asm("{ .reg .s32 t; .reg .b16 lo, hi; mov.b32 {lo, hi}, %1;"
        " cvt.u32.u16 t, lo; add.s32 %0, t, %0; }"
        : "+r"(r) : "r"(a[i] * 77));
    asm("{ .reg .f32 t; ex2.approx.ftz.f32 t, %1; fma.rn.f32 %0, t, %1, 0f3F800000; }"
        : "=f"(g) : "f"(a[i] * 0.25f));
    asm volatile("st.global.f32 [%0+4], %1;" :: "l"(f + i), "f"(g) : "memory");
    out[i] = r;
}
__global__ void layered(int* out) {
    asm("{ .reg .f32 a; tex.a1d.v4.f32.f32 {a, a, a, a}, [%0, {0, 0f00000000}]; }" :: "l"(out));
}
}
"""
GROUPS = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void groups(const int* a, int* out) {
    __shared__ int part[64];
    cg::thread_block block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    int t = block.thread_rank();
    int v = a[t];
    for (int step = tile.size() / 2; step > 0; step /= 2) v += tile.shfl_down(v, step);
    part[t] = v;
    block.sync();
    auto warp = cg::tiled_partition<32>(block);
    unsigned votes = warp.ballot(a[t] > 4);
    out[t] = part[tile.meta_group_rank() * 8] * 1000 + tile.thread_rank() * 100 + __popc(votes);
    tile.sync();
    if (a[t] & 1) {
        auto some = cg::coalesced_threads();
        out[64 + t] = some.size() * 100 + some.thread_rank();
    }
}
extern "C" __global__ void whole_grid(int* sums, int* out, int rounds) {
    cg::grid_group grid = cg::this_grid();
    int b = blockIdx.x, n = gridDim.x, v = b;
    for (int k = 0; k < rounds; ++k) {
        if (threadIdx.x == 0) sums[b] = v;
        grid.sync();
        v = v * 2 + sums[(b + 1) % n];
        grid.sync();
    }
    out[grid.thread_rank()] = v;
}
extern "C" __global__ void wide_tiles(const int* a, int* out) {   // tiles of two warps
    __shared__ cg::block_tile_memory<128> scratch;
    __shared__ int s[128];
    cg::thread_block block = cg::this_thread_block(scratch);
    auto tile = cg::tiled_partition<64>(block);
    int t = block.thread_rank();
    s[t] = a[t];
    tile.sync();
    out[t] = s[t ^ 63] + tile.shfl(a[t], 5) * 100 + tile.any(a[t] == 77) * 100000;
    out[128 + t] = cg::reduce(tile, a[t], cg::plus<int>());
}
"""


def test_nested_calls(build):
    n = 40
    a, out, mean = integers(3 * n + 9, -30, 30), zeros(2 * n), zeros(n, float)
    run(CODE, "calls", 1, n, a, out, mean, build=build)
    for i in range(n):
        x = a[3 * i : 3 * i + 3 + i % 4].tolist()
        low, high = min(x), max([x[0], *(v * v + k for k, v in enumerate(x))])
        if high % 2:
            low, high = high, low
        assert out[2 * i : 2 * i + 2].tolist() == [low, high * high - i]
        assert mean[i] == sum(x) / len(x)


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@pytest.mark.turns(23)
@pytest.mark.system
def test_recursion(build, order):
    n = 50
    f, g, parity = zeros(n, np.uint32), zeros(n), zeros(n)
    run(CODE, "recursion", 1, n, f, g, parity, build=build, warp_order=order)
    assert f.tolist() == [math.factorial(i % 13) for i in range(n)]
    assert g.tolist() == [fibonacci(i % 12) for i in range(n)]
    assert parity.tolist() == [(i * 3 % 2 == 0) * 2 + i % 2 for i in range(n)]


@pytest.mark.turns(23)
@pytest.mark.system
def test_deep_and_endless_recursion():
    out = zeros(40)
    run(CODE, "deep", 1, 40, out, build="debug")
    assert out.tolist() == [2] * 40  # the factorial is a multiple of 2^32
    with pytest.raises(SimulatorError, match=r"kernel.cu:\d+.*return n < 0 .*endless.*end\?"):
        run(CODE, "never", 1, 4, out, build="debug")


def test_warp_level_instructions_in_a_function(build):
    a, out = integers(64, 0, 50), zeros(64)
    run(CODE, "warp_call", 1, 64, a, out, build=build)
    for w in range(2):
        x = a[32 * w : 32 * w + 32]
        odd, even = x[x % 2 == 1].sum(), x[x % 2 == 0].sum() * 2
        assert out[32 * w : 32 * w + 32].tolist() == [odd if v % 2 else -even for v in x]


def test_function_pointers(build):
    a, out = integers(64, 0, 50), zeros(64)
    run(CODE, "by_pointer", 1, 64, a, out, build=build)
    functions = (lambda x, y: x + y, lambda x, y: x * y, lambda x, y: x * x + y)
    expected = [functions[x % 3](x, i) + functions[x % 3](i, 2) for i, x in enumerate(a.tolist())]
    assert out.tolist() == expected


@pytest.mark.parametrize(("name", "dtype"), [("scaled<float, 3>", "f4"), ("scaled<int, -2>", "i4")])
def test_templates(name, dtype):
    a, out = integers(30, -9, 9).astype(dtype), zeros(30, dtype)
    run(CODE, name, 1, 30, a, out, names=("scaled<float, 3>", "scaled<int, -2>"))
    step = 3 if dtype == "f4" else -2
    assert out.tolist() == (a * step + a**3).tolist()
    with pytest.raises(MemoryFault, match="^scaled at "):  # and not by its mangled name
        run(CODE, name, 1, 31, a, out, names=("scaled<float, 3>", "scaled<int, -2>"))


def test_printf(build, capfd):
    a, x = np.array([5, -6, 255, 1234], np.int32), np.array([0, 1, 2, 3.14159], np.float32)
    run(CODE, "speaks", 1, 4, a, x, build=build)
    value = float(x[3])
    assert capfd.readouterr().out.splitlines() == [
        "1:    -6|-6   |-0006|-6|6",
        "3:  1234|1234 |01234|+1234|-1234",
        "3000000000 ff BEEF 10 ok % text",
        f"{value:f} {value:.2f} {value:8.3e} {value:g} 1E-09|    42|2.5",
        "-5000000000 9223372036854775808 7 -3 4",
        "plain",
        "0x1000 0x1p-1",
    ]


def test_printf_of_strings_in_local_memory(build, capfd):
    run(CODE, "says_names", 1, 4, np.int8(ord("q")), build=build)
    assert capfd.readouterr().out == "qa qa  |(null)\nqb qb  |(null)\n"


def test_malloc_new_and_virtual_functions(build):
    out = zeros(128)
    run(CODE, "on_the_heap", 1, 64, out, build=build)
    assert out[:64].tolist() == [(t * t if t % 3 else 5 * t) + t * t for t in range(64)]
    assert out[64:].tolist() == [1] * 64


def test_assert_and_trap(build):
    a = np.array([1, 2, 6, 4], np.int32)
    run(CODE, "checked", 1, 4, a, np.int32(7), build=build)
    with pytest.raises(KernelAssertion, match=r"a\[.*< limit.*kernel.cu:\d+.*thread \(2, 0, 0\)"):
        run(CODE, "checked", 1, 4, a, np.int32(5), build=build)
    with pytest.raises(Trap, match=r"trapped.*kernel.cu:\d+.*__trap.*thread \(2, 0, 0\)"):
        run(CODE, "trapped", 1, 4, a, build=build)


def test_clock(build):
    out = zeros(64, np.int64)
    run(CODE, "clocks", 1, 32, out, build=build)
    assert (out[:32] >= 40).all() and (out[32:] >= 40).all()


def test_inline_ptx(build):
    n = 40
    a, out, f = integers(n, -9, 9), zeros(n), zeros(n + 1, np.float32)
    run(CODE, "inline_ptx", 1, n, a, out, f, build=build)
    x = a.astype(np.int64)
    assert out.tolist() == ((x + 7) * x - (x + 7) + x * 77 % 65536).tolist()
    assert np.allclose(f[1:], 2.0 ** (x * 0.25) * x * 0.25 + 1, rtol=1e-6)


@pytest.mark.turns(23)
@pytest.mark.system
def test_cooperative_groups(build, order):
    a, out = integers(64, 0, 9), zeros(128)
    run(GROUPS, "groups", 1, 64, a, out, build=build, warp_order=order)
    for t in range(64):
        x = a[t // 8 * 8 : t // 8 * 8 + 8]
        high = (a[t // 32 * 32 : t // 32 * 32 + 32] > 4).sum()
        assert out[t] == x.sum() * 1000 + t % 8 * 100 + high
        odd = [u for u in range(t // 32 * 32, t // 32 * 32 + 32) if a[u] & 1]
        assert out[64 + t] == (len(odd) * 100 + odd.index(t) if a[t] & 1 else 0)


@pytest.mark.turns(29)
@pytest.mark.system
def test_tiles_of_several_warps(build, order):
    a, out = integers(128, 0, 70), zeros(256)
    a[100] = 77
    run(GROUPS, "wide_tiles", 1, 128, a, out, build=build, warp_order=order)
    for first in (0, 64):
        tile = a[first : first + 64]
        expected = tile[::-1] + tile[5] * 100 + 100000 * (first == 64)
        assert out[first : first + 64].tolist() == expected.tolist()
        assert out[128 + first : 192 + first].tolist() == [tile.sum()] * 64


@pytest.mark.turns(23)
@pytest.mark.system
def test_the_sanitizer_does_not_judge_the_memory_in_which_tiles_meet():
    with observe(Sanitizer()) as found:
        run(GROUPS, "wide_tiles", 1, 128, integers(128, 0, 70), zeros(256))
    assert found.findings == []


@pytest.mark.turns(17)  # the header of cooperative groups takes the compiler seconds
def test_a_barrier_of_the_whole_grid(build, monkeypatch):
    monkeypatch.setattr(launch, "LANES_PER_CHUNK", 96)  # blocks of several chunks meet
    out, value = zeros((7, 33)), np.arange(7)
    run(GROUPS, "whole_grid", 7, 33, zeros(7), out, np.int32(3), build=build)
    for _ in range(3):
        value = value * 2 + np.roll(value, -1)
    assert out.tolist() == np.repeat(value[:, None], 33, 1).tolist()


def test_what_is_not_supported_is_named(build):
    where = r"tex.a1d.*layered textures.*kernel.cu:\d+ .*asm\(.*tex.a1d"
    with pytest.raises(UnsupportedKernel, match=where):
        run(CODE, "layered", 1, 32, zeros(32), build=build)


def test_every_instruction_is_told_with_its_line():
    a, out, f = integers(40, -9, 9), zeros(40), zeros(41, np.float32)
    listener = listen(CODE, "inline_ptx", 1, 40, a, out, f)
    text = CODE.splitlines()
    assert "inline_ptx" in "".join(text[min(e.line for e in listener.events) - 4 :][:4])
    told = {text[event.line - 1].strip() for event in listener.events}
    assert told >= {"out[i] = r;", "int i = ID, r; float g;"}
    stores = [e for e in listener.events if e.accesses and e.accesses[0].kind == "store"]
    assert [e.accesses[0].address.size for e in stores] == [40, 40]


def test_the_heap_is_used_again_and_one_wish_too_big_hurts_nobody_else(build):
    out = zeros(64)
    run(CODE, "some_want_too_much", 1, 64, out, build=build)
    assert out.tolist() == [1, 0] * 32
    out = zeros(2)
    run(CODE, "again_and_again", 1, 2, out, np.int32(20), build=build)
    assert out.tolist() == [20, 20]


def test_an_error_of_the_machine_itself_stays_what_it_is(monkeypatch):
    monkeypatch.setattr(access, "_SHIFT", [])
    with pytest.raises(IndexError) as caught:
        run(CODE, "calls", 1, 32, integers(32), zeros(32), zeros(32, np.float64))
    assert not isinstance(caught.value, UserError) and caught.value.__cause__ is None
