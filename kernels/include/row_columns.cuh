// Idea:          Threads that share a row hold every so many quads of it, and add up over the row.
// Used by:       16_layernorm.cu
// Explained in:  12_layernorm_mlp_block
#pragma once

#include "quads.cuh"
#include "warp.cuh"

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
