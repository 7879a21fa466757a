"""128-bit integers of CUDA C and chains of carries on the simulator, against Python's integers."""

import random

import numpy as np
import pytest
from isa_oracle import encode, exact, signed
from kernelscope import RawModule
from kernelscope.events import observe
from machine_harness import BUILDS, DebugBuild, zeros

WORD, WIDE = 2**64, 2**128
CODE = r"""
typedef unsigned __int128 u128;
typedef __int128 s128;
typedef unsigned long long u64;
__device__ u128 join(const u64* a, int i) { return (u128)a[2 * i + 1] << 64 | a[2 * i]; }
__device__ void put(u64* out, int slot, int n, int i, u128 value) {
    out[2 * (slot * n + i)] = (u64)value; out[2 * (slot * n + i) + 1] = (u64)(value >> 64);
}
extern "C" {
__global__ void arithmetic(const u64* a, const u64* b, u64* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u128 x = join(a, i), y = join(b, i);
    s128 s = x, t = y;
    unsigned by = y & 127;
    put(out, 0, n, i, x + y); put(out, 1, n, i, x - y); put(out, 2, n, i, x * y);
    put(out, 3, n, i, y ? x / y : 0); put(out, 4, n, i, y ? x % y : 0);
    put(out, 5, n, i, t ? s / t : 0); put(out, 6, n, i, t ? s % t : 0);
    put(out, 7, n, i, x << by); put(out, 8, n, i, x >> by); put(out, 9, n, i, s >> by);
    put(out, 10, n, i, -s); put(out, 11, n, i, (x ^ y) & ~(x | 5));
    put(out, 12, n, i, (x < y) + 2 * (x == y) + 4 * (s < t) + 8 * (s >= 0) + 16 * (x >= y));
    put(out, 13, n, i, x / 1000003 + x % 10);
}
__global__ void conversions(const u64* a, const double* d, float* f, double* g, u64* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u128 x = join(a, i);
    f[i] = (float)x; f[n + i] = (float)(s128)x; g[i] = (double)x; g[n + i] = (double)(s128)x;
    put(out, 0, n, i, (u128)fabs(d[i])); put(out, 1, n, i, (s128)d[i]);
    put(out, 2, n, i, (u128)(s128)(long long)x); put(out, 3, n, i, (u128)(unsigned char)x);
}
// Chains that add and subtract: o gets 8 words a thread.
__global__ void mixed(const unsigned* a, const unsigned* b, unsigned* o, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x = a[i], y = b[i], r[8];
    asm volatile("sub.cc.u32 %0, %8, %9; addc.u32 %1, 0, 0;\n"
                 "add.cc.u32 %2, %8, %9; subc.u32 %3, 7, 2;\n"
                 "sub.cc.u32 %4, %8, %9; subc.cc.u32 %5, %9, %8; addc.cc.u32 %6, %8, %8;\n"
                 "subc.u32 %7, 0, 0;"
        : "=&r"(r[0]), "=&r"(r[1]), "=&r"(r[2]), "=&r"(r[3]), "=&r"(r[4]), "=&r"(r[5]),
          "=&r"(r[6]), "=&r"(r[7]) : "r"(x), "r"(y));
    for (int k = 0; k < 8; ++k) o[8 * i + k] = r[k];
}
}
"""
MODULE = RawModule(code=CODE, options=("-device-int128",), backend="simulator")


def run(name, count, *arguments, build):
    kernel = MODULE.get_function(name)
    grid, block = (-(-count // 64),), (64,)
    if build == "debug":
        with observe(DebugBuild()):
            kernel(grid, block, arguments)
    else:
        kernel(grid, block, arguments)


def numbers(count, seed):
    """Integers below 2^128 of every length, half of them near powers of two."""
    source = random.Random(seed)
    out = [0, 1, 2, WORD - 1, WORD, WORD + 1, WIDE - 1, WIDE // 2, WIDE // 2 - 1, 2**32, 10**20]
    while len(out) < count:
        length = source.randrange(1, 129)
        near = (1 << length - 1) + source.randrange(-3, 4)
        out.append((near if len(out) % 2 else source.getrandbits(length)) % WIDE)
    return out[:count]


def halves(values):
    return np.array([half for v in values for half in (v % WORD, v // WORD)], np.uint64)


def joined(out, slots):
    low, high = out.reshape(slots, -1, 2).astype(object).transpose(2, 0, 1)
    return low + high * WORD


def quotient(x, y):
    """Truncated towards zero; 0 where the kernel does not divide."""
    if y == 0:
        return 0
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def expected(x, y):
    s, t, by = signed(x, 128), signed(y, 128), y & 127
    rest = x % y if y else 0
    signed_rest = s - quotient(s, t) * t if t else 0
    flags = (x < y) + 2 * (x == y) + 4 * (s < t) + 8 * (s >= 0) + 16 * (x >= y)
    found = [x + y, x - y, x * y, quotient(x, y), rest, quotient(s, t), signed_rest, x << by]
    return [*found, x >> by, s >> by, -s, (x ^ y) & ~(x | 5), flags, x // 1000003 + x % 10]


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("build", BUILDS)
def test_arithmetic_on_128_bits(build):
    n = 600
    a, b = numbers(n, 1), numbers(n, 2)[::-1]
    b[100:140] = a[100:140]
    out = zeros(14 * 2 * n, np.uint64)
    run("arithmetic", n, halves(a), halves(b), out, np.int32(n), build=build)
    got = joined(out, 14)
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        wanted = [value % WIDE for value in expected(x, y)]
        assert got[:, i].tolist() == wanted, (hex(x), hex(y))


@pytest.mark.parametrize("build", BUILDS)
def test_conversions_of_128_bits(build):
    n = 400
    a = numbers(n, 3)
    rng = np.random.default_rng(4)
    d = rng.uniform(-1, 1, n) * np.exp2(rng.integers(-3, 127, n))
    f, g, out = zeros(2 * n, np.float32), zeros(2 * n, float), zeros(4 * 2 * n, np.uint64)
    run("conversions", n, halves(a), d, f, g, out, np.int32(n), build=build)
    got, f, g = joined(out, 4), f.view(np.uint32).reshape(2, n), g.view(np.uint64).reshape(2, n)
    for i, x in enumerate(a):
        s = signed(x, 128)
        assert f[:, i].tolist() == [encode(exact(v), "f32") for v in (x, s)], hex(x)
        assert g[:, i].tolist() == [encode(exact(v), "f64") for v in (x, s)], hex(x)
        wanted = [int(abs(d[i])), int(d[i]), signed(x % WORD, 64), x % 256]
        assert got[:, i].tolist() == [value % WIDE for value in wanted], d[i]


@pytest.mark.parametrize("build", BUILDS)
def test_additions_and_subtractions_share_one_carry(build):
    """A subtraction sets the carry where it borrows nothing; one that follows an addition borrows
    where that carried nothing.
    """
    n, word = 64, 2**32
    rng = np.random.default_rng(5)
    a, b = (rng.integers(0, word, n, dtype=np.uint32) for _ in range(2))
    a[:4], b[:4] = [0, 5, word - 1, 0], [0, 5, 1, 1]
    out = zeros(8 * n, np.uint32)
    run("mixed", n, a, b, out, np.int32(n), build=build)
    for x, y, got in zip(a.tolist(), b.tolist(), out.reshape(n, 8).tolist(), strict=True):
        kept = x >= y
        second = y - x - (not kept)
        twice = 2 * x + (second >= 0)
        wanted = [x - y, kept, x + y, 5 - (x + y < word), x - y, second, twice, -(twice < word)]
        assert got == [value % word for value in wanted], (hex(x), hex(y))
