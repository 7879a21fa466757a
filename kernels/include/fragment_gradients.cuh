// Idea:          Scores with keys as rows become weights and their gradients where they are, in
//                fragments; what another product takes as columns leaves them turned.
// Used by:       25_backward_wgmma.cu, 30_backward_tf32x3.cu
// Explained in:  16_hopper
#pragma once

#include "swizzled_tile.cuh"

// A lane's elements of 16 keys and 8*tiles queries: c[j][x] is of key `key` + x / 2 * 8 and of
// query `row` + 8*j + x % 2, where key and row are the lane's first ones.

// Each score becomes exp2(score * factor - shift); shifts: of the queries from the lane's first on.
template <int tiles>
__device__ __forceinline__ void weigh_queries(float (&c)[tiles][4], float factor,
                                              const float* shifts)  // (8*tiles - 6,), shared
{
#pragma unroll
    for (int j = 0; j < tiles; ++j) {
        const float2 shift = *reinterpret_cast<const float2*>(shifts + 8 * j);
#pragma unroll
        for (int x = 0; x < 4; ++x) c[j][x] = exp2f(c[j][x] * factor - (x % 2 ? shift.y : shift.x));
    }
}

// A query that may not see a key, and every query of a key past the last one, has the weight 0.
template <int tiles>
__device__ __forceinline__ void hide_queries(float (&c)[tiles][4], int key, int row, int n, int m,
                                             bool causal)
{
    int hidden[2];  // of the queries from `row` on: from the lane's first key, and from its second
#pragma unroll
    for (int x = 0; x < 2; ++x) {
        hidden[x] = key + 8 * x >= m ? 8 * tiles : causal ? key + 8 * x + n - m - row : 0;
    }
#pragma unroll
    for (int j = 0; j < tiles; ++j) {
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            if (8 * j + x % 2 < hidden[x / 2]) c[j][x] = 0.0f;
        }
    }
}

// Gradients of weights, c, become those of scores: weight * (c - delta). delta: what c is on
// average over the weights of a query, of each from the lane's first on.
template <int tiles>
__device__ __forceinline__ void gradient_of_scores(float (&c)[tiles][4],
                                                   const float (&weights)[tiles][4],
                                                   const float* deltas)  // (8*tiles - 6,), shared
{
#pragma unroll
    for (int j = 0; j < tiles; ++j) {
        const float2 delta = *reinterpret_cast<const float2*>(deltas + 8 * j);
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            c[j][x] = weights[j][x] * (c[j][x] - (x % 2 ? delta.y : delta.x));
        }
    }
}

// Writes a warp's 16 keys, from `first` on, as columns into a tile (16*tiles queries, 128 bytes);
// pairs: as pack() makes them.
template <int tiles>
__device__ __forceinline__ void store_turned(unsigned tile, int first,
                                             const unsigned (&pairs)[tiles][4])
{
    const int lane = threadIdx.x % 32;  // gives the address of one row of one of four matrices
    const unsigned to = tile + swizzled<128>(lane / 16 * 8 + lane % 8, first / 8 + lane / 8 % 2);
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                     :: "r"(to + 2048 * i), "r"(pairs[i][0]), "r"(pairs[i][1]), "r"(pairs[i][2]),
                        "r"(pairs[i][3]) : "memory");
    }
}

// Writes a warp's 16 columns, from `first` on, of 8*tiles queries into a tile of float32 (boxes,
// 8*tiles, 128 bytes): 8 of 32 lanes have columns side by side, the others have rows that are
// swizzled differently, so no two meet in a bank.
template <int tiles>
__device__ __forceinline__ void store_columns(unsigned tile, int first, const float (&c)[tiles][4])
{
#pragma unroll
    for (int x = 0; x < 4; ++x) {
        const int col = first + threadIdx.x % 32 / 4 + x / 2 * 8;
        const unsigned to = tile + col / 32 * (tiles * 1024) + col % 4 * 4 +
                            swizzled<128>(threadIdx.x % 4 * 2 + x % 2, col % 32 / 4);
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
            asm volatile("st.shared.f32 [%0], %1;" :: "r"(to + 1024 * j), "f"(c[j][x]) : "memory");
        }
    }
}
