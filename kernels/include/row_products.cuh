// Idea:          A warp has some rows of one matrix and passes tiles of 32 rows of another: a lane
//                multiplies them with a row of its own, and adds up columns of its own.
// Used by:       21_backward_rows.cu
// Explained in:  09_flash_attention
#pragma once

#include "vector.cuh"

// products[r] = row r of a times x.
template <int width, int stride, int rows>
__device__ __forceinline__ void multiply_rows(float (&products)[rows],
                                              const float* a,  // (rows, stride), shared
                                              const float* x)  // (width,), shared
{
#pragma unroll
    for (int r = 0; r < rows; ++r) products[r] = 0.0f;
#pragma unroll 4
    for (int c = 0; c < width; c += 4) {
        const float4 x4 = load4(x + c);
#pragma unroll
        for (int r = 0; r < rows; ++r) {
            const float4 a4 = load4(a + r * stride + c);
            products[r] = fmaf(a4.x, x4.x, fmaf(a4.y, x4.y, products[r]));
            products[r] = fmaf(a4.z, x4.z, fmaf(a4.w, x4.w, products[r]));
        }
    }
}

// sum[r] += weight[r] of lane j times row j of the tile, over j; this lane's columns lane + 32*c.
template <int stride, int rows, int cols>
__device__ __forceinline__ void add_rows(float (&sum)[rows][cols], const float (&weight)[rows],
                                         const float* tile)  // (32, stride), shared
{
#pragma unroll 4
    for (int j = 0; j < 32; ++j) {
        float x[cols];  // read before the shuffles: the compiler would read them again after each
#pragma unroll
        for (int c = 0; c < cols; ++c) x[c] = tile[j * stride + threadIdx.x % 32 + 32 * c];
#pragma unroll
        for (int r = 0; r < rows; ++r) {
            const float w = __shfl_sync(0xffffffff, weight[r], j);
#pragma unroll
            for (int c = 0; c < cols; ++c) sum[r][c] += w * x[c];
        }
    }
}

// Stores factor * sum, as many of its rows as there are.
template <int rows, int cols>
__device__ __forceinline__ void store_rows(float* out,  // (left, d)
                                           const float (&sum)[rows][cols], float factor, int left,
                                           int d)
{
#pragma unroll
    for (int r = 0; r < rows; ++r) {
#pragma unroll
        for (int c = 0; c < cols; ++c) {
            const int col = threadIdx.x % 32 + 32 * c;
            if (r < left && col < d) out[(long long)r * d + col] = sum[r][c] * factor;
        }
    }
}
