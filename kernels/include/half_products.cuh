// Idea:          Products of float32 matrices as three products of halves each, ordered at once.
//                Tensor cores cut a sum off in proportion to its size: small products come first,
//                while it is small, and each tile's sum starts anew and is added in registers.
// Used by:       33_flash_fp16x3.cu
// Explained in:  11_tensor_cores
#pragma once

#include "fp16x3.cuh"
#include "wgmma.cuh"

constexpr int BOX = TILE_ROWS * 128;    // bytes of a box of a tile of K or V
constexpr int SMALL = SMALL_ROW * 128;  // from big parts to small ones in it

// s = q k^T of 64 rows and BC keys; q: (2, D / 64, 64, 128 bytes), big parts and small ones.
__device__ __forceinline__ void start_scores(float (&s)[BC / 8][4], unsigned q, unsigned k)
{
    constexpr int COUNT = D / 16;  // 16 columns are 32 bytes of a box
#pragma unroll
    for (int x = 0; x < 3 * COUNT; ++x) {
        const int c = x % COUNT;
        const unsigned q16 = q + (x / COUNT == 0 ? D * 128 : 0) + c / 4 * 64 * 128 + c % 4 * 32;
        const unsigned k16 = k + (x / COUNT == 1 ? SMALL : 0) + c / 4 * BOX + c % 4 * 32;
#pragma unroll
        for (int keys = 0; keys < BC; keys += 64) {
            float(&s64)[8][4] = *reinterpret_cast<float(*)[8][4]>(&s[keys / 8]);
            multiply(s64, describe(q16, 0), describe(k16 + keys / 64 * BOX, 0), x > 0);
        }
    }
}

// more = p v of 64 rows and BC keys, p = big + small.
template <int cols>
__device__ __forceinline__ void start_output(float (&more)[cols][4],
                                             const unsigned (&big)[BC / 16][4],
                                             const unsigned (&small)[BC / 16][4], unsigned v)
{
    constexpr int COUNT = BC / 16;  // 16 keys are 16 rows of 128 bytes
#pragma unroll
    for (int x = 0; x < 3 * COUNT; ++x) {
        const int i = x % COUNT;
        const int v_small = x / COUNT == 1 ? SMALL : 0;
        multiply(more, x / COUNT == 0 ? small[i] : big[i],
                 describe(v + v_small + i / 4 * BOX + i % 4 * 2048, BOX), x > 0);
    }
}

// The factors of a tile's keys or columns 8*j + 2t and the next one, t = lane % 4.
__device__ __forceinline__ void load_factors(float (&down)[2], unsigned tile, int j)
{
    const unsigned from = tile + j / 8 * BOX + FACTOR_ROW * 128 + j % 8 * 32 + threadIdx.x % 4 * 8;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(down[0]), "=f"(down[1]) : "r"(from) : "memory");
}

// Scores as they are without the scales of their rows of Q and of K.
__device__ __forceinline__ void scale_scores(float (&s)[BC / 8][4], const float (&q_down)[2],
                                             unsigned k)
{
#pragma unroll
    for (int j = 0; j < BC / 8; ++j) {
        float down[2];
        load_factors(down, k, j);
#pragma unroll
        for (int x = 0; x < 4; ++x) s[j][x] *= down[x % 2] * q_down[x / 2];
    }
}

// o = o * rescale + more * the factors of V's columns.
template <int cols>
__device__ __forceinline__ void add_output(float (&o)[cols][4], const float (&rescale)[2],
                                           const float (&more)[cols][4], unsigned v)
{
#pragma unroll
    for (int c = 0; c < cols; ++c) {
        float down[2];
        load_factors(down, v, c);
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            o[c][x] = o[c][x] * rescale[x / 2] + more[c][x] * down[x % 2];
        }
    }
}

// Weights become the rows of the next product.
__device__ __forceinline__ void split_weights(unsigned (&big)[BC / 16][4],
                                              unsigned (&small)[BC / 16][4],
                                              const float (&s)[BC / 8][4])
{
#pragma unroll
    for (int x = 0; x < BC / 4; ++x) {
        const float(&pair)[4] = s[x / 2];
        split_pair(big[x / 4][x % 4], small[x / 4][x % 4], pair[x % 2 * 2] * RAISE,
                   pair[x % 2 * 2 + 1] * RAISE);
    }
}

// Writes a lane's columns, times a factor, of two of `rows` rows 8 apart, row-major; pairs: they
// are 8-byte aligned. left: columns from the lane's first on.
template <int cols>
__device__ __forceinline__ void store_fragments(float* to, const float (&o)[cols][4],
                                                const float (&factor)[2], int rows, int left, int d,
                                                bool pairs)
{
#pragma unroll
    for (int x = 0; x < 2 * cols; ++x) {
        const int c = x % cols, half = x / cols;
        const float first = o[c][2 * half] * factor[half];
        const float second = o[c][2 * half + 1] * factor[half];
        float* at = to + 8 * half * d + 8 * c;
        if (8 * half >= rows || 8 * c >= left) continue;
        if (pairs) {
            *reinterpret_cast<float2*>(at) = make_float2(first, second);
        } else {
            at[0] = first;
            if (8 * c + 1 < left) at[1] = second;
        }
    }
}
