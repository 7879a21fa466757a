// Idea:          What the backward pass of float32 does row by row, before and after the products,
//                as backward_ends.cuh has it for 16 bits; and sums of four floats at once.
// Used by:       30_backward_tf32x3.cu
// Explained in:  11_tensor_cores
#pragma once

#include "online_softmax.cuh"
#include "output.cuh"

// A warp's row, of all heads' rows of whole tiles: its lse in powers of two, its delta, and zeros
// for the sum of its dq. Rows past n, and those without keys, get +inf: exp2(score - lse) is 0.
template <int tile, int width>
__device__ __forceinline__ void begin_row(const float* out, const float* dout,  // (bh, n, d)
                                          const float* lse,  // (bh, n)
                                          float* row_ends,   // (bh, tiles, 2, tile): lse, delta
                                          float* dq_sum,     // (bh, tiles*tile, width)
                                          int bh, int n, int d)
{
    const unsigned rows = (n + tile - 1) / tile * tile;  // of a head
    const unsigned at = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (at >= bh * rows) return;
    const int lane = threadIdx.x % 32, row = at % rows;
    const long long from = (long long)(at / rows) * n + row;
    float sum = 0.0f;
    for (int c = lane; c < width; c += 32) {
        if (row < n && c < d) sum += out[from * d + c] * dout[from * d + c];
        dq_sum[(long long)at * width + c] = 0.0f;
    }
    sum = warp_sum(sum);
    if (lane > 0) return;
    const float end = row < n ? lse[from] : MINUS_INFINITY;
    row_ends += (long long)(at / tile) * 2 * tile + at % tile;
    row_ends[0] = end == MINUS_INFINITY ? -MINUS_INFINITY : end * LOG2E;
    row_ends[tile] = sum;
}

// A warp's row of dq, from its sum.
template <int tile, int width>
__device__ __forceinline__ void end_row(float* dq,            // (bh, n, d)
                                        const float* dq_sum,  // (bh, tiles*tile, width)
                                        int bh, int n, int d, float scale)
{
    const unsigned at = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, rows = n;
    if (at >= bh * rows) return;
    dq_sum += ((long long)(at / rows) * ((n + tile - 1) / tile * tile) + at % rows) * width;
    for (int c = threadIdx.x % 32; c < d; c += 32) dq[(long long)at * d + c] = dq_sum[c] * scale;
}

// Adds to four sums, 16-byte aligned.
__device__ __forceinline__ void add4(float* to, float4 x)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
#else
    atomicAdd(to, x.x);
    atomicAdd(to + 1, x.y);
    atomicAdd(to + 2, x.z);
    atomicAdd(to + 3, x.w);
#endif
}
