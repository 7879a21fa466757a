// Idea:          A row is read once and stays in registers: its mean, its variance and the result
//                are computed from there. A warp takes a row, or a block where rows are long.
// Changes from:  05_softmax_warp.cu
// Shapes:        x, residual, sum (rows, d); bias, gamma, beta (d); y (rows, parts*d); row-major
//                float32; residual, bias, gamma, beta and sum may be null
// Launch:        layernorm_warp: grid (ceil(rows/ROWS)), block (32, ROWS)
//                layernorm_block: grid (rows), block (32, WARPS), static shared 3*WARPS*4 bytes
// Needs:         sm_50; d <= 128*VECTORS (layernorm_warp) or 128*VECTORS*WARPS (layernorm_block);
//                ROWS and WARPS 1 to 32; parts 1, or 3 for operands of TF32 products
// Expect:        x is read once and y written once: bound by memory for large x, by the latency of
//                one row for small x; the residual costs one array more to read, sum one to write
// Limits:        rows < 2^31; forward only

#ifndef ROWS
#define ROWS 4  // rows a block of layernorm_warp, one a warp
#endif
#ifndef WARPS
#define WARPS 8  // warps of layernorm_block: they share a row
#endif
#ifndef VECTORS
#define VECTORS 4  // groups of four columns that a thread holds
#endif

#include "include/quads.cuh"
#include "include/warp.cuh"

#define INFINITE __int_as_float(0x7f800000)  // NVRTC has no <math.h> to name it

// Warps that an SM must have room for, so that some load while others wait for their sums.
constexpr int BUSY_WARPS = VECTORS <= 2 ? 48 : VECTORS <= 4 ? 32 : 16;
constexpr int LEAST_BLOCKS = BUSY_WARPS < 2 * WARPS ? 1 : BUSY_WARPS / WARPS;

// Replaces each value by its sum over the warps that share a row.
template <int warps, int count>
__device__ __forceinline__ void row_sums(float (&value)[count],
                                         float (*part)[warps])  // (count, warps), shared
{
#pragma unroll
    for (int i = 0; i < count; ++i) {
        value[i] = warp_sum(value[i]);
    }
    if constexpr (warps > 1) {
#pragma unroll
        for (int i = 0; i < count; ++i) {
            if (threadIdx.x == 0) part[i][threadIdx.y] = value[i];
        }
        __syncthreads();  // barrier: a fast warp would add sums that slow warps have not stored
#pragma unroll
        for (int i = 0; i < count; ++i) {
            value[i] = 0.0f;
#pragma unroll
            for (int warp = 0; warp < warps; ++warp) {  // every warp's sum, not the first one's
                value[i] += part[i][warp];
            }
        }
    }
}

// A thread's columns of a row: 4*thread to 4*thread + 3, and each 4*threads further on.
template <int threads, bool vector>
__device__ __forceinline__ void load_columns(float4 (&value)[VECTORS], const float* row, int thread,
                                             int d)
{
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int column = 4 * (thread + threads * i);
        if (column < d) value[i] = load_quad(row + column, d - column, vector);
    }
}

// Normalises one row by 32*warps threads. vector: all rows begin at multiples of 16 bytes.
template <int warps, bool vector>
__device__ __forceinline__ void normalise_row(
    const float* __restrict__ x,         // (d)
    const float* __restrict__ residual,  // (d) or null, added to x
    const float* __restrict__ bias,      // (d) or null, added to x
    const float* __restrict__ gamma,     // (d) or null: ones
    const float* __restrict__ beta,      // (d) or null: zeros
    float* __restrict__ sum,             // (d) or null: x + residual + bias
    float* __restrict__ y,               // (parts*d)
    int thread, int d, int parts, float eps,
    float (*part)[warps])                // (3, warps), shared; null for one warp
{
    constexpr int THREADS = 32 * warps;
    const float share = 1.0f / d;
    float4 value[VECTORS] = {};  // zeros past the row
    load_columns<THREADS, vector>(value, x, thread, d);
    if (residual || bias) {
        float4 more[VECTORS] = {}, shift[VECTORS] = {};
        if (residual) load_columns<THREADS, vector>(more, residual, thread, d);
        if (bias) load_columns<THREADS, vector>(shift, bias, thread, d);
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            value[i] = value[i] + more[i] + shift[i];
        }
    }
    float total[1] = {0.0f};
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int column = 4 * (thread + THREADS * i);
        if (sum && column < d) store_quad(sum + column, value[i], d - column, vector);
        total[0] += (value[i].x + value[i].y) + (value[i].z + value[i].w);
    }
    row_sums<warps>(total, part);
    const float mean = total[0] * share;

    // Where the mean is large beside the deviations, it is rounded by as much as they are. Their
    // own mean, moments[0], is what the rounding left out.
    float moments[2] = {0.0f, 0.0f};  // of the deviations: sum, sum of squares
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int left = d - 4 * (thread + THREADS * i);
        value[i].x = left > 0 ? value[i].x - mean : 0.0f;  // past the row: no deviation
        value[i].y = left > 1 ? value[i].y - mean : 0.0f;
        value[i].z = left > 2 ? value[i].z - mean : 0.0f;
        value[i].w = left > 3 ? value[i].w - mean : 0.0f;
        moments[0] += (value[i].x + value[i].y) + (value[i].z + value[i].w);
        moments[1] += (value[i].x * value[i].x + value[i].y * value[i].y) +
                      (value[i].z * value[i].z + value[i].w * value[i].w);
    }
    row_sums<warps>(moments, part + 1);
    const float rest = moments[0] * share;
    const float variance = fmaxf(moments[1] * share - rest * rest, 0.0f);
    // Where the squares overflow, 1 / sqrt(inf) = 0 would pass for a result: NaN is none.
    const float inverse = moments[1] < INFINITE ? rsqrtf(variance + eps) : nanf("");

#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int column = 4 * (thread + THREADS * i), left = d - column;
        if (left <= 0) continue;
        float4 scale = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
        float4 shift = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (gamma) scale = load_quad(gamma + column, left, vector);
        if (beta) shift = load_quad(beta + column, left, vector);
        const float4 out = make_float4((value[i].x - rest) * inverse * scale.x + shift.x,
                                       (value[i].y - rest) * inverse * scale.y + shift.y,
                                       (value[i].z - rest) * inverse * scale.z + shift.z,
                                       (value[i].w - rest) * inverse * scale.w + shift.w);
        store_parts(y, column, out, left, d, parts, vector);
    }
}

// Finds the arrays' row and whether float4 fits them; null pointers fit.
template <int warps>
__device__ __forceinline__ void normalise(const float* x, const float* residual, const float* bias,
                                          const float* gamma, const float* beta, float* sum,
                                          float* y, long long row, int thread, int d, int parts,
                                          float eps, float (*part)[warps])
{
    const size_t starts = (size_t)x | (size_t)residual | (size_t)bias | (size_t)gamma |
                          (size_t)beta | (size_t)sum | (size_t)y;
    x += row * d;
    if (residual) residual += row * d;
    if (sum) sum += row * d;
    y += row * d * parts;
    if (starts % 16 == 0 && d % 4 == 0) {
        normalise_row<warps, true>(x, residual, bias, gamma, beta, sum, y, thread, d, parts, eps,
                                   part);
    } else {
        normalise_row<warps, false>(x, residual, bias, gamma, beta, sum, y, thread, d, parts, eps,
                                    part);
    }
}

extern "C" __global__ void __launch_bounds__(32 * ROWS) layernorm_warp(
    const float* __restrict__ x,         // (rows, d)
    const float* __restrict__ residual,  // (rows, d) or null
    const float* __restrict__ bias,      // (d) or null
    const float* __restrict__ gamma,     // (d) or null
    const float* __restrict__ beta,      // (d) or null
    float* __restrict__ sum,             // (rows, d) or null
    float* __restrict__ y,               // (rows, parts*d)
    int rows, int d, int parts, float eps)
{
    const long long row = (long long)blockIdx.x * ROWS + threadIdx.y;
    if (row >= rows) return;  // the whole warp leaves: a shuffle waits for all of its lanes
    normalise<1>(x, residual, bias, gamma, beta, sum, y, row, threadIdx.x, d, parts, eps, nullptr);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, LEAST_BLOCKS) layernorm_block(
    const float* __restrict__ x,         // (rows, d)
    const float* __restrict__ residual,  // (rows, d) or null
    const float* __restrict__ bias,      // (d) or null
    const float* __restrict__ gamma,     // (d) or null
    const float* __restrict__ beta,      // (d) or null
    float* __restrict__ sum,             // (rows, d) or null
    float* __restrict__ y,               // (rows, parts*d)
    int rows, int d, int parts, float eps)
{
    __shared__ float part[3][WARPS];  // an array for each sum: no barrier between their uses
    const int thread = threadIdx.y * 32 + threadIdx.x;
    normalise<WARPS>(x, residual, bias, gamma, beta, sum, y, blockIdx.x, thread, d, parts, eps,
                     part);
}
