// Idea:          A row and its gradient are in registers together, so that mean and deviation are
//                computed again, not stored. A thread has the same columns in all of its rows: the
//                sums over rows, dgamma and dbeta, stay with it. Each block leaves its sums to
//                28_column_sums.cu: no atomics, and the same bits in every run.
// Changes from:  16_layernorm.cu
// Shapes:        x, dout, dsum, dx (rows, d); gamma (d); sums (blocks, 2, d): dgamma and dbeta of
//                each block's rows; row-major float32; gamma and dsum may be null
// Launch:        layernorm_backward: grid (min(BLOCKS, ceil(rows/ROWS))), block (32*WARPS, ROWS),
//                static shared 1044*WARPS*ROWS bytes
// Needs:         sm_50; d <= 128*VECTORS*WARPS; WARPS*ROWS 1 to 32
// Expect:        x and dout are read once, dx is written once: bound by memory for large x, by the
//                latency of a row for small x; dsum costs one array more to read
// Limits:        rows < 2^31; of rows of more than 8192 columns, some numbers leave the registers

#ifndef WARPS
#define WARPS 1  // they share a row
#endif
#ifndef ROWS
#define ROWS 8  // that a block works at side by side
#endif
#ifndef VECTORS
#define VECTORS 4  // groups of four columns that a thread holds
#endif
#ifndef BLOCKS
#define BLOCKS 264  // a grid of as many as run at once: each takes rows in turn
#endif

#include "include/quads.cuh"
#include "include/warp.cuh"

constexpr int THREADS = 32 * WARPS;  // of a row
constexpr int HELD = 4 * VECTORS;    // columns of a thread

// The column of a thread's number i: 4*thread to 4*thread + 3, and each 4*THREADS further on.
__device__ __forceinline__ int column_of(int i)
{
    return 4 * (threadIdx.x + THREADS * (i / 4)) + i % 4;
}

// A thread's columns of a row, zeros from column `width` on.
__device__ __forceinline__ void load_columns(float (&value)[HELD], const float* row, int width,
                                             bool vector)
{
#pragma unroll
    for (int i = 0; i < HELD; i += 4) {
        const int column = column_of(i);
        float4 quad = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (column < width) quad = load_quad(row + column, width - column, vector);
#pragma unroll
        for (int j = 0; j < 4; ++j) value[i + j] = element(quad, j);
    }
}

// Replaces each value by its sum over the warps that share a row.
template <int count>
__device__ __forceinline__ void row_sums(float (&value)[count],
                                         float (*part)[WARPS])  // (count, WARPS), shared
{
#pragma unroll
    for (int i = 0; i < count; ++i) {
        value[i] = warp_sum(value[i]);
        if (WARPS > 1 && threadIdx.x % 32 == 0) part[i][threadIdx.x / 32] = value[i];
    }
    if (WARPS == 1) return;
    __syncthreads();  // barrier: a fast warp would add sums that slow warps have not stored
#pragma unroll
    for (int i = 0; i < count; ++i) {
        value[i] = 0.0f;
#pragma unroll 4
        for (int warp = 0; warp < WARPS; ++warp) value[i] += part[i][warp];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS * ROWS) layernorm_backward(
    const float* __restrict__ x,      // (rows, d)
    const float* __restrict__ gamma,  // (d) or null: ones
    const float* __restrict__ dout,   // (rows, d)
    const float* __restrict__ dsum,   // (rows, d) or null, added to dx
    float* __restrict__ dx,           // (rows, d)
    float* __restrict__ sums,         // (blocks, 2, d)
    int rows, int d, float eps)
{
    __shared__ float part[ROWS][5][WARPS];  // an array for each sum: no barrier between their uses
    __shared__ float4 total[2][ROWS][THREADS];
    const float share = 1.0f / d;
    const bool vector = rows_aligned(x, d) && rows_aligned(gamma, d) && rows_aligned(dout, d) &&
                        rows_aligned(dsum, d) && rows_aligned(dx, d) && rows_aligned(sums, d);
    float scale[HELD], dgamma[HELD] = {}, dbeta[HELD] = {};
    if (gamma) load_columns(scale, gamma, d, vector);
    for (long long first = (long long)blockIdx.x * ROWS; first < rows; first += gridDim.x * ROWS) {
        const long long row = first + threadIdx.y, start = row * d;
        const int width = row < rows ? d : 0;  // past the last row: zeros, and nothing is stored
        float value[HELD], grad[HELD], mean[1] = {0.0f}, moments[4] = {};
        load_columns(value, x + start, width, vector);
        load_columns(grad, dout + start, width, vector);
#pragma unroll
        for (int i = 0; i < HELD; ++i) mean[0] += value[i];
        row_sums(mean, part[threadIdx.y]);
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            value[i] = column_of(i) < width ? value[i] - mean[0] * share : 0.0f;
            const float scaled = gamma ? scale[i] * grad[i] : grad[i];
            moments[0] += value[i];
            moments[1] += value[i] * value[i];
            moments[2] += scaled;
            moments[3] += scaled * value[i];
        }
        row_sums(moments, part[threadIdx.y] + 1);
        if (width == 0) continue;
        const float rest = moments[0] * share;  // what the rounding of the mean left out, as in 16
        const float variance = fmaxf(moments[1] * share - rest * rest, 0.0f);
        // 0 * inf = NaN: where the squares overflow, no finite number passes for a gradient.
        const float inverse = rsqrtf(variance + eps) + 0.0f * moments[1];
        const float shift = moments[2] * share;  // means: of the scaled gradient, and times normed
        const float slope = (moments[3] - rest * moments[2]) * share * inverse;
#pragma unroll
        for (int i = 0; i < HELD; i += 4) {
            const int column = column_of(i), left = d - column;
            if (left <= 0) continue;
            float4 down = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (dsum) down = load_quad(dsum + start + column, left, vector);
            float gradient[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float normed = (value[i + j] - rest) * inverse;
                const float scaled = gamma ? scale[i + j] * grad[i + j] : grad[i + j];
                gradient[j] = inverse * (scaled - shift - normed * slope);
                dgamma[i + j] += grad[i + j] * normed;
                dbeta[i + j] += grad[i + j];
            }
            down = down + make_float4(gradient[0], gradient[1], gradient[2], gradient[3]);
            store_quad(dx + start + column, down, left, vector);
        }
    }
#pragma unroll  // the sums of the block's rows, in the order of threadIdx.y
    for (int i = 0; i < HELD; i += 4) {
        __syncthreads();  // barrier: fast warps would overwrite sums that slow warps still read
        total[0][threadIdx.y][threadIdx.x] =
            make_float4(dgamma[i], dgamma[i + 1], dgamma[i + 2], dgamma[i + 3]);
        total[1][threadIdx.y][threadIdx.x] =
            make_float4(dbeta[i], dbeta[i + 1], dbeta[i + 2], dbeta[i + 3]);
        __syncthreads();  // barrier: a fast warp would read sums that slow warps have not stored
        const int column = column_of(i);
        for (int which = threadIdx.y; which < 2 && column < d; which += ROWS) {
            float4 sum = total[which][0][threadIdx.x];
            for (int y = 1; y < ROWS; ++y) sum = sum + total[which][y][threadIdx.x];
            store_quad(sums + (2LL * blockIdx.x + which) * d + column, sum, d - column, vector);
        }
    }
}
