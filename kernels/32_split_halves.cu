// Idea:          Every block of attention reads all keys: what can be done to them once is done
//                before. Each number becomes two halves, scaled so that they fit.
// Changes from:  nothing
// Shapes:        k and v float32 (batch*kv_heads, m, d), row-major; halves half (2,
//                batch*kv_heads, tiles, 136, 128), K and then V, tiles ceil(m*D/8192), as
//                include/fp16x3.cuh has them
// Launch:        split_halves: grid (batch*kv_heads*tiles, 2), block (THREADS)
// Needs:         sm_80; d <= D; D 64 or 128; THREADS a multiple of 32, 4*THREADS/D a divisor of 64
// Expect:        as long as a copy of K and V takes
// Limits:        writes more than it reads: 17/16 of the bytes of K and V

#ifndef D
#define D 128  // columns of a row of halves; those past d are zeros
#endif
#ifndef THREADS
#define THREADS 256
#endif

#include "include/fp16x3.cuh"

constexpr int LANES = D / 4;           // threads a row, four columns each
constexpr int STEP = THREADS / LANES;  // rows at once
constexpr int COUNT = BC / STEP;       // rows of a thread

static_assert(THREADS % LANES == 0 && BC % STEP == 0, "threads share rows evenly");

extern "C" __global__ void __launch_bounds__(THREADS) split_halves(
    const float* __restrict__ k,  // (batch*kv_heads, m, d)
    const float* __restrict__ v,  // (batch*kv_heads, m, d)
    __half* __restrict__ halves,  // (2, batch*kv_heads, tiles, TILE_ROWS, 128)
    int batch, int kv_heads, int m, int d)
{
    __shared__ float4 tops[STEP][LANES];
    const bool of_v = blockIdx.y;
    const int tiles = (m + BC - 1) / BC;
    const int first = threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    const int key0 = blockIdx.x % tiles * BC + first;
    const int columns = d - 4 * lane;
    const float* from = of_v ? v : k;
    const bool vector = rows_aligned(from, d) && columns > 0;
    from += ((long long)(blockIdx.x / tiles) * m + key0) * d + 4 * lane;

    float4 x[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {  // rows past the last key are zeros
        const bool inside = key0 + i * STEP < m;
        x[i] = load_quad(from + (long long)i * STEP * d, inside ? columns : 0, vector && inside);
    }
    const long long tile = (of_v ? (long long)batch * kv_heads * tiles : 0) + blockIdx.x;
    halves += tile * TILE_ROWS * 128;  // (TILE_ROWS, 128), this tile
    auto factor = [&](int i) {  // of a key of K, or a column of V
        const int row = FACTOR_ROW + i / 32 % 2;  // where the copy engine's swizzle brings it back
        return reinterpret_cast<float*>(halves + row * 128 + i / 64 * 64) + (i % 32 ^ row % 8 * 4);
    };
    // Scores are sums over columns, so each key of K has a scale; outputs are sums over keys, and
    // each column of V has one.
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 up = zero;
    if (of_v) {
        float4 top = zero;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) top = larger(top, x[i]);
        tops[first][lane] = top;
        __syncthreads();  // barrier: a maximum would miss other threads' rows
#pragma unroll
        for (int i = 0; i < STEP; ++i) top = larger(top, tops[i][lane]);
        const Scale a = scale_for(top.x), b = scale_for(top.y), c = scale_for(top.z),
                    e = scale_for(top.w);
        up = make_float4(a.up, b.up, c.up, e.up);
        if (first == 0) {
            *reinterpret_cast<float4*>(factor(4 * lane)) =
                make_float4(a.down * LOWER, b.down * LOWER, c.down * LOWER, e.down * LOWER);
        }
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int key = first + i * STEP;
        __half* to = halves + key % 64 * 128 + key / 64 * 64 + 4 * lane;
        if (!of_v) {
            const Scale scale = scale_for(largest<LANES>(larger(zero, x[i])));
            up = make_float4(scale.up, scale.up, scale.up, scale.up);
            if (lane == 0) *factor(key) = scale.down;
        }
        uint2 big, small;
        split_quad(big, small, x[i], up);
        *reinterpret_cast<uint2*>(to) = big;
        *reinterpret_cast<uint2*>(to + SMALL_ROW * 128) = small;
    }
}
