// Idea:          Scores in fragments with a row for each key and a column for each query: as
//                weights, and as gradients, they are the first operand of the gradients of V and K.
// Used by:       24_backward_mma.cu
// Explained in:  11_tensor_cores
#pragma once

#include "fragment_weights.cuh"

// A lane's scores: s[i][j][x] is of key lane / 4 + 16*i + x / 2 * 8 of the warp's, and of query
// lane % 4 * 2 + 8*j + x % 2 of the tile.

// Scores become weights exp2(score * factor - lse).
template <int tiles, int cols>
__device__ __forceinline__ void take_weights(float (&s)[tiles][cols][4], float factor,
                                             const float2* lse)  // (cols, 4), of two queries each
{
#pragma unroll
    for (int j = 0; j < cols; ++j) {
        const float2 shift = lse[4 * j];
#pragma unroll
        for (int i = 0; i < tiles; ++i) {
            float(&s4)[4] = s[i][j];
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                s4[x] = exp2f(s4[x] * factor - (x % 2 ? shift.y : shift.x));
            }
        }
    }
}

// A key has no weight for queries that may not see it; key0 and row0 are the first ones.
template <int tiles, int cols>
__device__ __forceinline__ void hide_queries(float (&p)[tiles][cols][4], int key0, int row0, int n,
                                             int m, bool causal)
{
    const int lane = threadIdx.x % 32;
    const int left = m - key0 - lane / 4;  // keys
    const int hidden = n - left - row0 - lane % 4 * 2;  // queries, of key 0
#pragma unroll
    for (int i = 0; i < 2 * tiles; ++i) {
#pragma unroll
        for (int x = 0; x < 2 * cols; ++x) {
            float& weight = p[i / 2][x / 2][i % 2 * 2 + x % 2];
            const int query = x / 2 * 8 + x % 2;
            if (8 * i >= left || (causal && query < hidden + 8 * i)) weight = 0.0f;
        }
    }
}

// Gradients of weights become those of scores: what they are above the row's average, weighted.
template <int tiles, int cols>
__device__ __forceinline__ void take_gradients(float (&s)[tiles][cols][4],
                                               const float2* delta,  // as lse
                                               const float4* p)
{
#pragma unroll
    for (int j = 0; j < cols; ++j) {
        const float2 average = delta[4 * j];
#pragma unroll
        for (int i = 0; i < tiles; ++i) {
            const float4 p4 = p[(i * cols + j) * 32];
            float(&s4)[4] = s[i][j];
            s4[0] = p4.x * (s4[0] - average.x);
            s4[1] = p4.y * (s4[1] - average.y);
            s4[2] = p4.z * (s4[2] - average.x);
            s4[3] = p4.w * (s4[3] - average.y);
        }
    }
}

// Of a pair's two warps the first one stores its weights, and goes on; barrier 1 + pair.
template <int tiles, int cols>
__device__ __forceinline__ void store_weights(float4* to,  // (tiles, cols, 32), from this lane on
                                              const float (&p)[tiles][cols][4], int pair)
{
#pragma unroll
    for (int x = 0; x < tiles * cols; ++x) {
        const float(&p4)[4] = p[x / cols][x % cols];
        to[32 * x] = make_float4(p4[0], p4[1], p4[2], p4[3]);
    }
    asm volatile("bar.arrive %0, 64;" :: "r"(1 + pair) : "memory");
}

__device__ __forceinline__ void wait_for_weights(int pair)
{
    asm volatile("bar.sync %0, 64;" :: "r"(1 + pair) : "memory");
}

// Stores a warp's 16*tiles rows in a tile, from row `first` on.
template <int stride, int tiles, int count>
__device__ __forceinline__ void store_fragments(unsigned char* tile,  // (.., stride), shared
                                                int first, const unsigned (&p)[tiles][count][4])
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int x = 0; x < 4 * tiles * count; ++x) {
        const int row = first + x / (4 * count) * 16 + x % 2 * 8 + lane / 4;
        *reinterpret_cast<unsigned*>(tile + swizzled<stride>(row, x / 2 % (2 * count)) +
                                     lane % 4 * 4) = p[x / (4 * count)][x / 4 % count][x % 4];
    }
}

// The same of sums, times a factor, as elements; from the tile's first row on.
template <int stride, int tiles, int cols>
__device__ __forceinline__ void store_sums(unsigned char* tile,  // (16*tiles, stride), shared
                                           float (&sum)[tiles][cols][4], float factor)
{
    unsigned p[tiles][cols / 2][4];
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
#pragma unroll
        for (int x = 0; x < 4 * cols; ++x) sum[i][x / 4][x % 4] *= factor;
        pack(p[i], sum[i]);
    }
    store_fragments<stride>(tile, 0, p);
}
