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

// Replaces the numbers of a row that fills its threads by their deviations from the row's mean;
// returns the sum of their squares, or a negative number where digits have cancelled. One exchange
// of sums; the mean first and the deviations from it then are two. pivot: a number of the row, from
// which distances are taken: a mean that is large beside the deviations rounds nothing then.
template <int warps, int lanes, int count>
__device__ __forceinline__ float full_row_deviations(float4 (&value)[count], float pivot,
                                                     float (*part)[warps])  // (2, warps), shared
{
    constexpr float SHARE = 1.0f / (4 * count * lanes * warps);
    float sums[2] = {0.0f, 0.0f};  // of the distances from the pivot, of their squares
#pragma unroll
    for (int i = 0; i < count; ++i) {
        value[i] = value[i] - pivot;
        sums[0] += sum_of(value[i]);
        sums[1] += sum_of(value[i] * value[i]);
    }
    row_sums<warps, lanes>(sums, part);
    const float mean = sums[0] * SHARE, squares = sums[1] - sums[0] * mean;
#pragma unroll
    for (int i = 0; i < count; ++i) {
        value[i] = value[i] - mean;
    }
    // A pivot far from the mean leaves little of the sum, and rounds all distances. NaN fails too.
    return squares > 0.0625f * sums[1] ? squares : -1.0f;
}
