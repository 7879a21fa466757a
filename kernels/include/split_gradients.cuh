// Idea:          Gradients of scores, float32 with a row for each key, pass through shared memory
//                and become the first operand of the gradient of the queries.
// Used by:       30_backward_tf32x3.cu
// Explained in:  11_tensor_cores
#pragma once

#include "tf32x3.cuh"

// 8 queries of a row are 32 bytes. Groups of 4 such are ordered by the row, so that neither four
// rows side by side nor every second of eight meet in a bank.
template <int queries>
__device__ __forceinline__ int turned(int key, int query)  // bytes from the tile's first one
{
    const int order = (key + key / 4 % 2) % 4;
    return key * queries * 4 + query / 32 * 128 + ((query / 8 ^ order) % 4) * 32 + query % 8 * 4;
}

// Writes a warp's gradients of 16 keys, from `first` on, into a tile (.., 8*tiles queries).
template <int tiles>
__device__ __forceinline__ void store_scores(unsigned char* tile, int first,
                                             const float (&ds)[tiles][4])
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int x = 0; x < 2 * tiles; ++x) {
        unsigned char* to =
            tile + turned<8 * tiles>(first + lane / 4 + x % 2 * 8, x / 2 * 8 + lane % 4 * 2);
        const float(&two)[4] = ds[x / 2];
        *reinterpret_cast<float2*>(to) = make_float2(two[x % 2 * 2], two[x % 2 * 2 + 1]);
    }
}

// Which 16 bytes of a group of 128 are column `n` of four matrices at once, so that lanes of a quad
// have 64 bytes side by side, and loads of 4 even or 4 odd rows of a swizzled tile take all banks.
__device__ __forceinline__ int chunk_of(int n) { return n % 2 ? 4 + (n / 2 ^ 1) : n / 2; }

// dq = ds k of 16*tiles queries and `keys` keys, over 32 columns. Lanes have the queries `first` +
// 16*i + lane / 4 * 2 in dq[i][..][0..1], and the next ones in dq[i][..][2..3].
template <int keys, int queries, int row_bytes, int tiles>
__device__ __forceinline__ void split_queries(float (&dq)[tiles][4][4],
                                              const unsigned char* ds,  // (keys, queries)
                                              int first,
                                              const unsigned char* k_even,  // as split_values()
                                              const unsigned char* k_odd)
{
    const int lane = threadIdx.x % 32;
    float big[tiles][4][4] = {}, small[tiles][4][4] = {};
    // Keys a multiple of 8 apart are turned alike.
    const unsigned char* even = ds + turned<queries>(lane % 4 * 2, lane / 4 * 2);
    const unsigned char* odd = ds + turned<queries>(lane % 4 * 2 + 1, lane / 4 * 2);
#pragma unroll 4
    for (int j = 0; j < keys / 8; ++j) {
        Split<4> a[tiles];
#pragma unroll
        for (int i = 0; i < tiles; ++i) {
            const int at = first + 16 * i;  // bits that `even` and `odd` do not have
            const float2 x = *reinterpret_cast<const float2*>(
                ds + ((even - ds) ^ (at / 8 % 4 * 32)) + at / 32 * 128 + j * 32 * queries);
            const float2 y = *reinterpret_cast<const float2*>(
                ds + ((odd - ds) ^ (at / 8 % 4 * 32)) + at / 32 * 128 + j * 32 * queries);
            a[i].set(0, x.x), a[i].set(1, x.y), a[i].set(2, y.x), a[i].set(3, y.y);
        }
        float k4[2][4];
        load_columns(k4[0], k_even + j * 8 * row_bytes);
        load_columns(k4[1], k_odd + j * 8 * row_bytes);
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            Split<2> b;
            b.set(0, k4[0][x]);
            b.set(1, k4[1][x]);
#pragma unroll
            for (int i = 0; i < tiles; ++i) mma_split(big[i][x], small[i][x], a[i], b);
        }
    }
#pragma unroll
    for (int x = 0; x < 16 * tiles; ++x) {
        dq[x / 16][x / 4 % 4][x % 4] =
            whole(big[x / 16][x / 4 % 4][x % 4], small[x / 16][x / 4 % 4][x % 4]);
    }
}

// Calls use(i, half, column, x) for every four columns of a lane's rows, whose second factor was
// loaded by chunk_of().
template <int tiles, class Use>
__device__ __forceinline__ void each_quad(const float (&x)[tiles][4][4], Use use)
{
#pragma unroll
    for (int i = 0; i < 4 * tiles; ++i) {
        const float(&of)[4][4] = x[i / 4];
        const int at = i % 4;  // of a lane's two rows and, in each, two quads
        use(i / 4, at / 2, 4 * chunk_of(threadIdx.x % 4 * 2 + at % 2),
            make_float4(of[0][at], of[1][at], of[2][at], of[3][at]));
    }
}
