"""CUDA C programs whose every result bit is fixed: warps, atomics, memory, conversions, functions.

Each kernel is `run(const unsigned* in, unsigned long long* out)`: `in` holds 4096 words, `out` has
eight 64-bit words a thread.
"""

from dataclasses import dataclass

import numpy as np

WORDS, SLOTS = 4096, 8
_HEAD = """\
#define PLACE (blockIdx.x * blockDim.x + threadIdx.x)
typedef unsigned long long u64;
"""
_ENTRY = """
extern "C" __global__ void run(const unsigned* in, u64* out) {
  const unsigned t = threadIdx.x, place = PLACE, lane = t & 31u;
  const unsigned x = in[place & 4095u], y = in[(place * 7 + 3) & 4095u];
  u64* o = out + 8 * (size_t)place;
"""


@dataclass(frozen=True)
class SmallProgram:
    """blocks of `threads`; `before` stands ahead of the kernel, whose lines `body` is."""

    name: str
    body: str
    before: str = ""
    blocks: int = 3
    threads: int = 96
    options: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The whole CUDA C text."""
        includes = "".join(line + "\n" for line in self.before.splitlines() if line[:1] == "#")
        rest = "\n".join(line for line in self.before.splitlines() if line[:1] != "#")
        return includes + _HEAD + rest + _ENTRY + self.body + "\n}\n"

    def arguments(self) -> list[np.ndarray]:
        """Seeded input words, (4096,) uint32, and zeros for the output, uint64."""
        rng = np.random.default_rng(11)
        words = rng.integers(0, 1 << 32, WORDS, dtype=np.uint32)
        words[::3] %= 40
        return [words, np.zeros(self.blocks * self.threads * SLOTS, np.uint64)]


def _shuffles() -> str:
    lines, slot = ["u64 h = 0;"], 0
    for width in (32, 16, 8, 4, 2, 1):
        for name, by in (("", "y"), ("_up", "y & 31"), ("_down", "y & 31"), ("_xor", "y & 31")):
            lines.append(f"h = h * 31 + __shfl{name}_sync(~0u, x + {width}, {by}, {width});")
        lines.append(f"o[{slot}] = h;")
        slot += 1
    lines.append("o[6] = (u64)__double_as_longlong(__shfl_xor_sync(~0u, (double)x, 5));")
    lines.append("o[7] = __shfl_sync(~0u, ((u64)x << 32) | y, y);")
    return "\n".join(lines)


_VOTES = """
  o[0] = __ballot_sync(~0u, x & 1); o[1] = __all_sync(~0u, x < 4000000000u);
  o[2] = __any_sync(~0u, x == 7); o[3] = __match_any_sync(~0u, x & 3);
  int same; o[4] = __match_all_sync(~0u, x > 40, &same) * 2ull + same;
  o[5] = __match_any_sync(~0u, (u64)(y & 1) << 40);
  o[6] = __popc(__ballot_sync(~0u, x & 8));
  o[7] = __popc(__ballot_sync(~0u, y & 2) & ((1u << lane) - 1));"""
_SUBSETS = """
  u64 h = 0;
  const unsigned part = __ballot_sync(~0u, x & 4);
  if (part >> lane & 1) {
    h = __reduce_add_sync(part, x) * 3ull + __reduce_xor_sync(part, y);
    h = h * 5 + (unsigned)__reduce_max_sync(part, (int)y) + __shfl_sync(part, x, __ffs(part) - 1);
  } else {
    h = __reduce_min_sync(~part, x) * 7ull + (unsigned)__reduce_min_sync(~part, (int)x);
    h = h * 9 + __ballot_sync(~part, y & 8) + __reduce_or_sync(~part, x & y);
  }
  o[0] = h; o[1] = __reduce_and_sync(~0u, x | 0xff);"""
_ATOMICS = """
  __shared__ unsigned s[16]; __shared__ u64 w[4]; __shared__ float f[2];
  if (t < 16) s[t] = t == 2 || t == 5 ? ~0u : 0; if (t < 4) w[t] = t == 1 ? ~0ull : 0;
  if (t < 2) f[t] = 0;
  __syncthreads();  // all places hold their first values
  atomicAdd(&s[0], x); atomicOr(&s[1], x); atomicAnd(&s[2], x | 3); atomicXor(&s[3], x);
  atomicMax(&s[4], x); atomicMin(&s[5], x); atomicMax((int*)&s[6], (int)x);
  atomicMin((int*)&s[7], (int)x); atomicInc(&s[8], 12); atomicDec(&s[9], 12); atomicSub(&s[10], y);
  atomicAdd(&w[0], (u64)x << 20); atomicMin(&w[1], (u64)x * y); atomicMax(&w[2], (u64)x * y);
  atomicXor(&w[3], (u64)x << 32 | y); atomicAdd(&f[0], (float)(x & 255));
  unsigned old = s[11], seen;
  do { seen = old; old = atomicCAS(&s[11], seen, seen + (x & 3)); } while (old != seen);
  atomicAdd(&s[12], atomicAdd(&s[13], 1));
  __syncthreads();  // all updates are done
  for (int i = 0; i < 7; ++i) o[i] = s[(t + i) & 15];
  o[7] = w[t & 3] + (unsigned)f[0];"""
_GLOBAL_ATOMICS = """
  u64* base = out + 8 * (size_t)(blockIdx.x * blockDim.x);  // the block's own stretch
  const unsigned n = t & 7;
  atomicAdd((unsigned*)&base[n], x); atomicMax((unsigned*)&base[8 + n], x);
  atomicMin((long long*)&base[16 + n], -(long long)x); atomicXor(&base[24 + n], (u64)x * y);
  atomicAdd((double*)&base[32 + n], (double)(x & 1023)); atomicAdd((float*)&base[40 + n], x & 7);
  atomicOr(&base[48 + n], 1ull << (x & 63)); atomicInc((unsigned*)&base[56 + n], 5);
  if (t == 0) {
    o[64] = atomicExch(&base[65], x) + atomicExch(&base[65], y); o[66] = atomicCAS(&base[65], y, 9);
    float* tiny = (float*)&o[67];  // a subnormal sum
    o[68] = __float_as_uint(atomicAdd(tiny, 1e-40f)); o[69] = __float_as_uint(atomicAdd(tiny, 0));
    __shared__ float close; close = 0; atomicAdd(&close, 1e-40f); o[70] = __float_as_uint(close);
    __shared__ float far; far = 0; through_generic(&far, 1e-40f);
    through_generic((float*)&o[72], 1e-40f); o[71] = __float_as_uint(far);
  }"""
_GLOBAL_ATOMICS_BEFORE = """
__device__ __noinline__ void through_generic(float* at, float by) { atomicAdd(at, by); }"""
_VECTORS = """
  const uint4 a = ((const uint4*)in)[place & 1023]; const uint2 b = ((const uint2*)in)[x & 2047];
  const uchar4 c = ((const uchar4*)in)[y & 4095]; const short2 d = ((const short2*)in)[y & 4095];
  const signed char e = ((const signed char*)in)[x & 16383];
  const float2 f = ((const float2*)in)[t];
  ((ulonglong2*)o)[0] = make_ulonglong2((u64)a.x << 32 | a.y, (u64)a.z << 32 | a.w);
  ((uint4*)o)[1] = make_uint4(b.x + b.y, c.x | c.y << 8 | c.z << 16, c.w, (unsigned)(d.x * d.y));
  ((uint2*)o)[4] = make_uint2((unsigned)(int)e, __float_as_uint(f.x) ^ __float_as_uint(f.y));
  ((unsigned char*)o)[41] = x; ((unsigned short*)o)[22] = y; ((double*)o)[6] = x;
  o[7] = ((const u64*)in)[y & 2047];"""
_LOCAL = """
  Pair pairs[6]; unsigned history[17];
  for (int i = 0; i < 17; ++i) history[i] = x >> i;
  for (int i = 0; i < 6; ++i) pairs[i] = {(char)(x >> i), (short)(y + i), x * 2.5 + i};
  history[y % 17] += 5; pairs[x % 6].value += table[y & 7]; counter_free[place & 255] = y;
  o[0] = history[(x + y) % 17]; o[1] = (u64)(long long)pairs[y % 6].value;
  o[2] = (u64)(long long)pairs[(y + 1) % 6].code + pairs[x % 6].kind; o[3] = fibonacci(x % 9);
  o[4] = choose(x & 1, x, y); unsigned char* bytes = (unsigned char*)history; o[5] = bytes[y % 68];
  o[6] = table[x & 7]; o[7] = (u64)sizeof(Pair);"""
_LOCAL_BEFORE = """
struct Pair { char kind; short code; double value; };
__constant__ int table[8] = {1, -2, 3, -4, 5, -6, 7, -8};
__device__ unsigned counter_free[256];
__device__ __noinline__ unsigned fibonacci(unsigned n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
__device__ __noinline__ u64 choose(bool first, unsigned a, unsigned b) {
  if (first) return (u64)a * a;
  return b * 3ull;
}"""
_WIDE = """
  const unsigned __int128 a = (unsigned __int128)x << 70 | (u64)y << 20 | x, b = (u64)y * x + 1;
  const unsigned __int128 p = a * b, s = a + (p << 3) - b; const __int128 n = -(__int128)(a >> 7);
  o[0] = (u64)p; o[1] = (u64)(p >> 64); o[2] = (u64)s; o[3] = (u64)(s >> 64);
  o[4] = (u64)(n >> 33); o[5] = n < (__int128)b;
  o[6] = (u64)(a / (b | 1)); o[7] = (u64)(a % (b | 1));"""
_WIDE_DIVISIONS = """
  unsigned __int128 a = (unsigned __int128)x << 70 | (u64)y << 20 | x;
  a ^= (unsigned __int128)(y * 0x9e3779b97f4a7c15ull) << (x & 63) << 13;
  const unsigned __int128 b = ((unsigned __int128)y << (x & 63) | y) + 1;
  const __int128 s = (__int128)(a << (y & 7)), d = -(__int128)(b >> (y & 31)) - 1;
  o[0] = (u64)(a / b) ^ (u64)(a / b >> 64); o[1] = (u64)(a % b) ^ (u64)(a % b >> 64);
  o[2] = (u64)(s / d) ^ (u64)(s / d >> 64); o[3] = (u64)(s % d) ^ (u64)(s % d >> 64);
  o[4] = (u64)(s >> (y & 127)) + 31 * (u64)(a >> (x & 127) >> 5) + 7 * (u64)(a << (y & 127) >> 64);
  o[5] = (a < b) + 2 * (s < d) + 4 * (s >= d);
  o[6] = (u64)__double_as_longlong((double)a) ^ __float_as_uint((float)s);
  o[7] = (u64)(unsigned __int128)((double)x * y * 1e9) ^ (u64)((__int128)(-1e21f * x) >> 64);"""
_CARRIES = """
  unsigned r[8];
  asm volatile("sub.cc.u32 %0, %8, %9; addc.u32 %1, 0, 0;\\n"
               "add.cc.u32 %2, %8, %9; subc.u32 %3, 7, 2;\\n"
               "sub.cc.u32 %4, %8, %9; subc.cc.u32 %5, %9, %8; addc.cc.u32 %6, %8, %8;\\n"
               "subc.u32 %7, 0, 0;"
      : "=&r"(r[0]), "=&r"(r[1]), "=&r"(r[2]), "=&r"(r[3]), "=&r"(r[4]), "=&r"(r[5]), "=&r"(r[6]),
        "=&r"(r[7]) : "r"(x), "r"(y));
  for (int k = 0; k < 4; ++k) o[k] = r[2 * k] | (u64)r[2 * k + 1] << 32;
  const u64 v = (u64)x << 32 | y, w = (u64)y << 31 ^ x;
  asm volatile("sub.cc.u64 %0, %4, %5; addc.cc.u64 %1, %5, %5;\\n"
               "mad.lo.cc.u64 %2, %4, %5, %5; addc.u64 %3, %4, 1;"
      : "=&l"(o[4]), "=&l"(o[5]), "=&l"(o[6]), "=&l"(o[7]) : "l"(v), "l"(w));"""
_CONVERSIONS = """
  const float f = __uint_as_float(x); const double d = __hiloint2double((int)x, (int)y);
  const int i = (int)y; const long long l = (long long)(((u64)x << 32) | y);
  u64 h = 0;
  const bool tame = fabsf(f) < 1e9f, calm = fabs(d) < 1e18;
  if (tame) h = (unsigned)(int)f * 3u + (unsigned)__float2int_rn(f) + (unsigned)__float2int_ru(f);
  o[0] = h; h = 0;
  if (calm) h = (u64)(long long)d * 5 + (u64)__double2ll_rd(d) + (u64)__double2ll_rn(d);
  o[1] = h; o[2] = __float_as_uint((float)i) + ((u64)__float_as_uint((float)l) << 32);
  o[3] = (u64)__double_as_longlong((double)l) ^ (u64)__double_as_longlong((double)x);
  o[4] = d == d ? __float_as_uint((float)d) : 0;
  o[5] = (u64)(long long)(short)x + (u64)(long long)(signed char)y + (unsigned char)i;
  o[6] = f == f ? (u64)__double_as_longlong((double)f) : 0;
  const unsigned whole = __float_as_uint(rintf(f)) ^ __float_as_uint(floorf(f));
  o[7] = tame ? whole ^ __float_as_uint(truncf(f)) : 0;"""
_HALVES = """
  const __half a = __ushort_as_half(x & 0x7bff), b = __ushort_as_half(y & 0xfbff);
  const __half2 p = __halves2half2(a, b), q = __halves2half2(b, __float2half_rn(x * 1e-7f));
  o[0] = __half_as_ushort(a + b) | (u64)__half_as_ushort(a * b) << 16;
  o[1] = __half_as_ushort(__hfma(a, b, a)); const __half2 r = __hfma2(p, q, p);
  o[2] = __half_as_ushort(__low2half(r)) | (u64)__half_as_ushort(__high2half(r)) << 16;
  o[3] = __float_as_uint(__half2float(a)) | (u64)__half_as_ushort(__float2half_rz(x * 1e-6f)) << 32;
  o[4] = __hlt(a, b) + 2 * __heq(a, a) + 4 * __hgt(b, a); o[5] = __half_as_ushort(__hmax(a, b));
  const __nv_bfloat16 c = __float2bfloat16_rn(__half2float(a)), e = __float2bfloat16_rn(y * 1e-3f);
  o[6] = __bfloat16_as_ushort(__hfma(c, e, c));
  o[6] |= (u64)__half_as_ushort(__int2half_rn(x & 65535)) << 16;
  o[7] = (unsigned)__half2int_rz(a) + __bfloat16_as_ushort(c) * 65536ull;"""
_BARRIERS = """
  __shared__ unsigned ping[96], pong[96];
  ping[t] = x;
  if (t < 64) {  // two warps meet at a barrier of their own
    asm volatile("bar.sync 1, 64;" ::: "memory");
    o[0] = ping[63 - t];
  }
  asm volatile("barrier.sync 2;" ::: "memory");  // everyone
  pong[t] = ping[(t * 5) % 96];
  o[1] = __syncthreads_count(x & 1); o[2] = __syncthreads_and(x) != 0;
  o[3] = __syncthreads_or(y) != 0; o[4] = pong[95 - t];
  if (t >= 64) asm volatile("bar.arrive 3, 96;" ::: "memory");
  else { asm volatile("bar.sync 3, 96;" ::: "memory"); o[5] = pong[t + 32]; }
  for (int i = 0; i < 5; ++i) {
    __syncthreads();  // the last round's reads are done
    ping[t] += pong[(t + i) % 96];
    __syncthreads();  // the sums are there before they are moved on
    pong[t] = ping[(t + 7) % 96];
  }
  o[6] = pong[t]; o[7] = ping[t];"""
_FLOW = """
  u64 h = x; int found = -1;
  for (int i = 0; i < 12; ++i) {
    if ((h & 7) == 3) continue;
    for (unsigned j = y & 7; j < 9; ++j) {
      h = h * 6364136223846793005ull + j;
      if ((h >> 60) == 5) goto next;
      if ((h >> 59) == 3) break;
    }
    switch (h % 7) {
      case 0: h ^= h >> 3;
      case 1: h += 17; break;
      case 5: found = i; break;
      default: h = ~h;
    }
  next:;
  }
  unsigned steps = 0, n = (x & 1023) + 1;
  while (n != 1) { n = n & 1 ? 3 * n + 1 : n / 2; ++steps; }
  o[0] = h; o[1] = (u64)(long long)found; o[2] = steps;
  if (x & 1) { o[3] = 1; if (y & 1) return; o[4] = 2; }
  o[5] = __popcll(h) + __clzll(h) + __ffsll(h);"""

_VECTOR_ATOMICS = """
  float a, b, p = (float)(x & 4095), q = (float)(y & 4095) / 64;
  o[0] = 0;
  for (int i = 1; i < 5; ++i) {
    if (i & 1)
      asm volatile("atom.global.v2.f32.add {%0, %1}, [%2], {%3, %4};"
                   : "=f"(a), "=f"(b) : "l"(o), "f"(p), "f"(q) : "memory");
    else
      asm volatile("atom.global.add.v2.f32 {%0, %1}, [%2], {%3, %4};"
                   : "=f"(a), "=f"(b) : "l"(o), "f"(q), "f"(p) : "memory");
    o[i] = (u64)__float_as_uint(a) << 32 | __float_as_uint(b);
  }"""

PROGRAMS = (
    SmallProgram("shuffles of every width", _shuffles()),
    SmallProgram("votes and matches", _VOTES),
    SmallProgram("reductions of part of a warp", _SUBSETS),
    SmallProgram("shared atomics", _ATOMICS, threads=77),
    SmallProgram("global atomics", _GLOBAL_ATOMICS, _GLOBAL_ATOMICS_BEFORE),
    SmallProgram("vectors of atomics", _VECTOR_ATOMICS, options=("-arch=sm_90",)),
    SmallProgram("vector loads and stores", _VECTORS),
    SmallProgram("local memory, structures, recursion", _LOCAL, _LOCAL_BEFORE),
    SmallProgram("128-bit integers", _WIDE, options=("-device-int128",)),
    SmallProgram(
        "128-bit divisions and conversions", _WIDE_DIVISIONS, blocks=9, options=("-device-int128",)
    ),
    SmallProgram("chains of additions and subtractions", _CARRIES),
    SmallProgram("conversions", _CONVERSIONS, blocks=9),
    SmallProgram(
        "half precision", _HALVES, "#include <cuda_fp16.h>\n#include <cuda_bf16.h>", blocks=9
    ),
    SmallProgram("named barriers", _BARRIERS),
    SmallProgram("gotos, switches, early returns", _FLOW, threads=75),
)
