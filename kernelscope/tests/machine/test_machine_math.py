"""The arithmetic and the math library of CUDA C on the simulator, against Python and NumPy."""

import math

import numpy as np
from machine_harness import integers, run, zeros

CODE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define ID (blockIdx.x * blockDim.x + threadIdx.x)
extern "C" {
__global__ void bits(const unsigned* a, unsigned* out, int n) {
    int i = ID; unsigned x = a[i], y = a[(i + 1) % n];
    unsigned long long w = (unsigned long long)x << 32 | y;
    out[i] = __popc(x) + 100 * __clz(y) + 10000 * __ffs(x) + 1000000 * __popcll(w);
    out[n + i] = __brev(x) ^ __byte_perm(x, y, 0x3715) ^ __funnelshift_l(x, y, 9);
    out[2 * n + i] = __umulhi(x, y) + __mulhi((int)x, (int)y) + __clzll(w) + __ffsll(w);
    out[3 * n + i] = (x << (y & 31)) ^ (x >> (y & 31)) ^ ((int)x >> 7) ^ __usad(x, y, 3);
    out[4 * n + i] = __hadd((int)x, (int)y) ^ __dp4a((int)x, (int)y, 5) ^ abs((int)x);
}
__global__ void divisions(const long long* a, const long long* b, long long* out, int n) {
    int i = ID;
    long long x = a[i], y = b[i];
    int s = x, t = (int)y | 1;
    unsigned u = x, v = (unsigned)y | 1;
    short p = x, q = (short)y | 1;
    unsigned char c = x, d = (unsigned char)y | 1;
    out[i] = x / y; out[n + i] = x % y;
    out[2 * n + i] = (unsigned long long)x / (unsigned long long)y;
    out[3 * n + i] = (unsigned long long)x % (unsigned long long)y;
    out[4 * n + i] = s / t; out[5 * n + i] = s % t; out[6 * n + i] = u / v; out[7 * n + i] = u % v;
    out[8 * n + i] = p / q * 1000 + p % q; out[9 * n + i] = c / d * 1000 + c % d;
    out[10 * n + i] = s / 7 + s % -13 + u / 10u + x / 1000003;
}
__global__ void doubles(const double* a, double* out, int n) {
    int i = ID; double x = a[i];
    out[i] = sin(x); out[n + i] = cos(x * 100); out[2 * n + i] = exp(x);
    out[3 * n + i] = log(fabs(x));
    out[4 * n + i] = pow(fabs(x), 1.7); out[5 * n + i] = erf(x); out[6 * n + i] = sqrt(fabs(x));
    out[7 * n + i] = tanh(x); out[8 * n + i] = atan2(x, 0.3); out[9 * n + i] = 1.0 / x;
    out[10 * n + i] = fmod(x, 0.7); out[11 * n + i] = floor(x) + rint(x) * 10 + trunc(x) * 100;
    out[12 * n + i] = cbrt(x); out[13 * n + i] = log1p(fabs(x)); out[14 * n + i] = fma(x, x, -x);
    out[15 * n + i] = rsqrt(fabs(x)); out[16 * n + i] = lgamma(fabs(x));
    out[17 * n + i] = hypot(x, 2);
}
__global__ void floats(const float* a, float* out, int n) {
    int i = ID; float x = a[i];
    out[i] = sinf(x * 10000); out[n + i] = cosf(x); out[2 * n + i] = expf(x);
    out[3 * n + i] = logf(fabsf(x));
    out[4 * n + i] = powf(fabsf(x), 2.3f); out[5 * n + i] = erff(x);
    out[6 * n + i] = sqrtf(fabsf(x));
    out[7 * n + i] = tanhf(x); out[8 * n + i] = rsqrtf(fabsf(x));
    out[9 * n + i] = __fdividef(x, 3.1f);
    out[10 * n + i] = fmodf(x, 0.7f); out[11 * n + i] = x / 1.37f; out[12 * n + i] = cbrtf(x);
    out[13 * n + i] = __expf(x); out[14 * n + i] = __logf(fabsf(x)); out[15 * n + i] = exp2f(x);
    out[16 * n + i] = log10f(fabsf(x)); out[17 * n + i] = fmaxf(x, 0.1f) - fminf(x, -0.1f);
    out[18 * n + i] = roundf(x * 5) + truncf(x * 7); out[19 * n + i] = __sinf(x);
    out[20 * n + i] = expm1f(x); out[21 * n + i] = atanf(x); out[22 * n + i] = acosf(x * 0.2f);
    out[23 * n + i] = sinhf(x); out[24 * n + i] = ldexpf(x, 5) + copysignf(2.f, x);
    out[25 * n + i] = 0.5f * x * (2 + erff(x * 0.70710678f)); out[26 * n + i] = tanf(x * 300);
}
__global__ void halves(const float* a, half* h, __nv_bfloat16* b, float* out, int n) {
    int i = ID;
    half x = __float2half(a[i]), y = __float2half(a[(i + 1) % n]);
    h[i] = __hadd(x, y); h[n + i] = __hmul(x, y); h[2 * n + i] = __hfma(x, y, x);
    h[3 * n + i] = __hlt(x, y) ? x : __hneg(y); h[4 * n + i] = __hdiv(x, y); h[5 * n + i] = hexp(x);
    half2 p = __halves2half2(x, y), q = __hmul2(p, __half2half2(y));
    h[6 * n + i] = __low2half(q); h[7 * n + i] = __high2half(__hsub2(q, p));
    __nv_bfloat16 u = __float2bfloat16(a[i]), v = __float2bfloat16(a[(i + 1) % n]);
    b[i] = __hadd(u, v); b[n + i] = __hmul(u, v); b[2 * n + i] = __hfma(u, v, u);
    out[i] = __half2float(x) + __bfloat162float(u);
    out[n + i] = (float)(half)(a[i] * 1000.0f) + __half2int_rn(__hmul(x, __int2half_rn(9)));
}
__global__ void conversions(const float* a, int* out, float* back, int n) {
    int i = ID; float x = a[i] * 1e5f;
    out[i] = (int)x; out[n + i] = __float2int_rn(x); out[2 * n + i] = __float2uint_rz(x);
    out[3 * n + i] = (signed char)(int)x; out[4 * n + i] = __float2int_rd(x) - __float2int_ru(x);
    out[5 * n + i] = (int)(a[i] * 1e30f); out[6 * n + i] = __float_as_int(a[i]);
    back[i] = (float)(long long)(x * 1e6f); back[n + i] = (float)(unsigned)out[i];
    back[2 * n + i] = (float)(double)x;
    back[3 * n + i] = __int_as_float(out[i] & 0x7fffff | 0x3f800000);
}
}
"""


def first(value):
    """Place of the lowest set bit, from 1; 0 if there is none."""
    return (value & -value).bit_length()


def signed_bytes(value):
    return np.array([value], np.uint32).view(np.int8).tolist()


def test_bit_tricks(build):
    n, word = 70, 2**32
    a = integers(n, 0, word, dtype=np.uint32)
    a[:4] = [0, 1, word - 1, 1 << 31]
    out = zeros(5 * n, np.uint32)
    run(CODE, "bits", 1, n, a, out, np.int32(n), build=build)
    signed = a.view(np.int32).tolist()
    for i in range(n):
        j = (i + 1) % n
        x, y, s, t = int(a[i]), int(a[j]), signed[i], signed[j]
        w = x << 32 | y
        got = out.reshape(5, n)[:, i].tolist()
        count = x.bit_count() + 100 * (32 - y.bit_length()) + 10000 * first(x)
        assert got[0] == (count + 1000000 * w.bit_count()) % word
        picked = [(y << 32 | x).to_bytes(8, "little")[k] for k in (5, 1, 7, 3)]
        funnel = ((y << 32 | x) << 9 >> 32) % word
        assert got[1] == int(f"{x:032b}"[::-1], 2) ^ int.from_bytes(picked, "little") ^ funnel
        high = (x * y >> 32) + (s * t >> 32) + (64 - w.bit_length()) + first(w)
        assert got[2] == high % word
        assert got[3] == ((x << y % 32) ^ (x >> y % 32) ^ (s >> 7) ^ (abs(x - y) + 3)) % word
        dot = sum(p * q for p, q in zip(signed_bytes(x), signed_bytes(y), strict=True)) + 5
        assert got[4] == ((s + t >> 1) ^ dot ^ abs(s)) % word


def rest(x, y):
    return x - quotient(x, y) * y


def quotient(x, y):
    q = abs(x) // abs(y)
    return q if (x < 0) == (y < 0) else -q


def cut(value, kind):
    return int(np.array(value % 2**64, np.uint64).astype(kind))


def test_divisions(build):
    rng, n = np.random.default_rng(4), 96
    a = rng.integers(-(2**62), 2**62, n) >> rng.integers(0, 60, n)
    b = (rng.integers(-(2**62), 2**62, n) >> rng.integers(0, 60, n)) | 1
    out = zeros(11 * n, np.int64)
    run(CODE, "divisions", 1, n, a, b, out, np.int32(n), build=build)
    for i, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        got = out.reshape(11, n)[:, i].tolist()
        big_x, big_y = x % 2**64, y % 2**64
        s, t, u, v = cut(x, "i4"), cut(y, "i4"), cut(x, "u4"), cut(y, "u4")
        p, q, c, d = cut(x, "i2"), cut(y, "i2"), cut(x, "u1"), cut(y, "u1")
        assert got[:2] == [quotient(x, y), rest(x, y)]
        assert got[2:4] == [cut(big_x // big_y, "i8"), cut(big_x % big_y, "i8")]
        assert got[4:8] == [quotient(s, t), rest(s, t), u // v, u % v]
        assert got[8:10] == [quotient(p, q) * 1000 + rest(p, q), c // d * 1000 + c % d]
        int_part = (cut(quotient(s, 7) + rest(s, -13), "u4") + u // 10) % 2**32
        assert got[10] == int_part + quotient(x, 1000003)


def close(got, expected, bound, what):
    scale = np.maximum(np.abs(expected), 1e-30)
    worst = np.max(np.abs(got - expected) / scale)
    assert worst <= bound, f"{what}: {worst:.3g} > {bound:.3g}"


def test_double_math(build):
    n = 64
    a = np.random.default_rng(5).standard_normal(n) * 2
    out = zeros(18 * n, float)
    run(CODE, "doubles", 1, n, a, out, np.int32(n), build=build)
    x = np.abs(a)
    each = np.vectorize
    expected = [np.sin(a), np.cos(a * 100), np.exp(a), np.log(x), x**1.7, each(math.erf)(a)]
    expected += [np.sqrt(x), np.tanh(a), np.arctan2(a, 0.3), 1 / a, np.fmod(a, 0.7)]
    expected += [np.floor(a) + np.rint(a) * 10 + np.trunc(a) * 100, np.cbrt(a), np.log1p(x)]
    expected += [a * a - a, 1 / np.sqrt(x), each(math.lgamma)(x), np.hypot(a, 2)]
    for k, (got, want) in enumerate(zip(out.reshape(18, n), expected, strict=True)):
        close(got, want, 2e-14 if k in (14, 16) else 2e-15, k)


def test_float_math(build):
    n = 64
    a = (np.random.default_rng(6).standard_normal(n) * 1.5).astype(np.float32)
    out = zeros(27 * n, np.float32)
    run(CODE, "floats", 1, n, a, out, np.int32(n), build=build)
    d, each, f = a.astype(float), np.vectorize, np.float32
    x, gelu = np.abs(d), 0.5 * d * (2 + np.vectorize(math.erf)(d * 0.70710678))
    expected = [np.sin((a * f(10000)).astype(float)), np.cos(d), np.exp(d), np.log(x)]
    expected += [x ** float(f(2.3)), each(math.erf)(d), np.sqrt(x), np.tanh(d), 1 / np.sqrt(x)]
    expected += [d / float(f(3.1)), np.fmod(d, float(f(0.7))), d / float(f(1.37)), np.cbrt(d)]
    expected += [np.exp(d), np.log(x), 2**d, np.log10(x)]
    expected += [np.maximum(d, float(f(0.1))) - np.minimum(d, -float(f(0.1)))]
    expected += [np.trunc((a * f(5)) + np.copysign(f(0.5), a)) + np.trunc(a * f(7)), np.sin(d)]
    expected += [np.expm1(d), np.arctan(d), np.arccos(d * 0.2), np.sinh(d)]
    expected += [d * 32 + np.copysign(2, d), gelu, np.tan((a * f(300)).astype(float))]
    loose = {9: 4e-7, 13: 1e-6, 19: 1e-5, 25: 1e-5, 14: 1e-5}
    for k, (got, want) in enumerate(zip(out.reshape(27, n), expected, strict=True)):
        close(got.astype(float), want, loose.get(k, 5e-7), k)


def test_half_and_bfloat16(build):
    n = 64
    a = (np.random.default_rng(7).integers(-900, 900, n) / 256 + 0.013).astype(np.float32)
    h, b, out = zeros(8 * n, np.float16), zeros(3 * n, np.uint16), zeros(2 * n, np.float32)
    run(CODE, "halves", 1, n, a, h, b, out, np.int32(n), build=build)
    x = a.astype(np.float16)
    y = np.roll(x, -1)
    got = h.reshape(8, n)
    exact = x.astype(float) * y.astype(float)
    assert (got[0] == x + y).all() and (got[1] == x * y).all()
    assert (got[2] == (exact + x.astype(float)).astype(np.float16)).all()
    assert (got[3] == np.where(x < y, x, -y)).all()
    close(got[4].astype(float), x.astype(float) / y.astype(float), 2**-10, "hdiv")
    close(got[5].astype(float), np.exp(x.astype(float)), 2**-10, "hexp")
    assert (got[6] == x * y).all() and (got[7] == y * y - y).all()

    def bf16(v):
        bits = np.asarray(v, np.float32).view(np.uint32).astype(np.uint64)
        kept = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
        return (kept.astype(np.uint32) << np.uint32(16)).view(np.float32)

    u = bf16(a)
    v = np.roll(u, -1)
    wide = (b.reshape(3, n).astype(np.uint32) << 16).view(np.float32)
    assert (wide[0] == bf16(u + v)).all() and (wide[1] == bf16(u * v)).all()
    assert (wide[2] == bf16((u.astype(float) * v + u).astype(np.float32))).all()
    assert (out[:n] == x.astype(np.float32) + u).all()
    nine = np.rint((x * np.float16(9)).astype(float))
    assert (out[n:] == (a * np.float32(1000)).astype(np.float16).astype(np.float32) + nine).all()


def test_conversions(build):
    n = 64
    a = np.random.default_rng(8).standard_normal(n).astype(np.float32)
    a[0] = np.nan
    out, back = zeros(7 * n), zeros(4 * n, np.float32)
    run(CODE, "conversions", 1, n, a, out, back, np.int32(n), build=build)
    x = (a * np.float32(1e5)).astype(float)
    x[0] = 0
    got = out.reshape(7, n)
    assert (got[0] == np.trunc(x)).all() and (got[1] == np.rint(x)).all()
    assert (got[2] == np.maximum(np.trunc(x), 0)).all()
    assert (got[3] == np.trunc(x).astype(np.int64).astype(np.int8)).all()
    assert (got[4] == np.floor(x) - np.ceil(x)).all()
    assert (got[5] == np.where(a > 0, 2**31 - 1, np.where(a < 0, -(2**31), 0))).all()
    assert (got[6] == a.view(np.int32)).all()
    big = (x.astype(np.float32) * np.float32(1e6)).astype(np.int64).astype(np.float32)
    big[0] = -(2.0**63)  # PTX ISA, cvt: NaN gives the least 64-bit integer, but 0 in 32 bits
    there = back.reshape(4, n)
    assert (there[0] == big).all()
    assert (there[1] == got[0].astype(np.uint32).astype(np.float32)).all()
    assert (there[2][1:] == x[1:].astype(np.float32)).all() and np.isnan(there[2][0])
    assert (there[3] == (got[0] & 0x7FFFFF | 0x3F800000).view(np.float32)).all()
