// Idea:          Threads that share a row hold every so many quads of it, and add up over the row.
// Used by:       16_layernorm.cu
// Explained in:  12_layernorm_mlp_block
#pragma once

#include "quads.cuh"
#include "warp.cuh"

__device__ __forceinline__ float4 operator-(float4 a, float b)
{
    return make_float4(a.x - b, a.y - b, a.z - b, a.w - b);
}

__device__ __forceinline__ float4 operator*(float4 a, float4 b)
{
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

__device__ __forceinline__ float4 operator*(float a, float4 b)
{
    return make_float4(a * b.x, a * b.y, a * b.z, a * b.w);
}

__device__ __forceinline__ float sum_of(float4 a) { return (a.x + a.y) + (a.z + a.w); }

// A thread's columns of a row: 4*thread to 4*thread + 3, and each 4*threads further on.
template <int threads, bool vector, int count>
__device__ __forceinline__ void load_columns(float4 (&value)[count], const float* row, int thread,
                                             int d)
{
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const int column = 4 * (thread + threads * i);
        if (column < d) value[i] = load_quad(row + column, d - column, vector);
    }
}

// Replaces each value by its sum over the threads that share a row.
template <int warps, int lanes, int count>
__device__ __forceinline__ void row_sums(float (&value)[count],
                                         float (*part)[warps])  // (count, warps), shared
{
#pragma unroll
    for (int i = 0; i < count; ++i) {
        value[i] = warp_sum<lanes / 2>(value[i]);
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

// Replaces mean and squares, the sum of squared distances from the mean, of `own` numbers of each
// thread by those of the row. Two sets of n numbers with means a and b have together the mean
// (a + b)/2 and n/2 (a - b)^2 more of squares (Chan, Golub and LeVeque, The American Statistician
// 37, 1983).
template <int own, int warps, int lanes>
__device__ __forceinline__ void row_moments(float& mean, float& squares,
                                            float (*part)[warps])  // (2, warps), shared
{
#pragma unroll
    for (int joined = 1; joined < lanes; joined *= 2) {  // threads whose numbers a set has
        const float other = __shfl_xor_sync(0xffffffff, mean, joined), apart = other - mean;
        const float more = __shfl_xor_sync(0xffffffff, squares, joined);
        squares = squares + more + 0.5f * own * joined * apart * apart;
        mean = 0.5f * (mean + other);
    }
    if constexpr (warps > 1) {
        if (threadIdx.x == 0) {
            part[0][threadIdx.y] = mean;
            part[1][threadIdx.y] = squares;
        }
        __syncthreads();  // barrier: a fast warp would join sums that slow warps have not stored
        mean = squares = 0.0f;
#pragma unroll
        for (int warp = 0; warp < warps; ++warp) mean += part[0][warp] * (1.0f / warps);
#pragma unroll
        for (int warp = 0; warp < warps; ++warp) {
            const float apart = part[0][warp] - mean;
            squares += part[1][warp] + float(own * lanes) * apart * apart;
        }
    }
}

// Replaces the numbers of a row that fills its threads by their deviations from the row's mean;
// returns the sum of their squares. One exchange of sums, where the mean first and the deviations
// from it then are two. pivot: a number of the row, from which means are distances: one that is
// large beside the deviations rounds nothing.
template <int warps, int lanes, int count>
__device__ __forceinline__ float full_row_deviations(float4 (&value)[count], float pivot,
                                                     float (*part)[warps])  // (2, warps), shared
{
    // Of this thread's numbers: distances from one of them. The square of their mean is at most
    // 4*count times their variance, so few digits cancel; and less is waited for at once than with
    // distances from their mean, which ptxas pays for with loads that come later.
    const float own = value[0].x;
    float mean = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const float4 off = value[i] - own;
        mean += sum_of(off);
        squares += sum_of(off * off);
    }
    mean *= 1.0f / (4 * count);
    squares = fmaxf(squares - 4 * count * mean * mean, 0.0f);
    mean += own - pivot;
    row_moments<4 * count, warps, lanes>(mean, squares, part);
#pragma unroll
    for (int i = 0; i < count; ++i) {
        value[i] = (value[i] - pivot) - mean;
    }
    return squares;
}
