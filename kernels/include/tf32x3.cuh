// Idea:          An fp32 number as the sum of two TF32 numbers, and three products of such parts
//                in place of one: nearly fp32's accuracy from tensor cores.
// Used by:       15_flash_tf32x3.cu, 29_split_tf32x3.cu, include/split_gradients.cuh
// Explained in:  11_tensor_cores
#pragma once

#include "mma.cuh"
#include "swizzled_tile.cuh"

// A fragment of TF32 pairs; big + small is the fp32 number.
template <int count>
struct Split {
    unsigned big[count], small[count];
    __device__ __forceinline__ void set(int i, float x) { split_tf32(big[i], small[i], x); }
    __device__ __forceinline__ void set(const unsigned* x)
    {
#pragma unroll
        for (int i = 0; i < count; ++i) set(i, __uint_as_float(x[i]));
    }
};

// All that is cut off makes a product smaller, on the mean by a share of the small products: 2.2e-4
// in the bits of the small parts that are not read, 1.7e-4 in small times small, which is left out,
// and some in sums, which the matrix unit cuts off too. The factor gives it back: docs/mma_log.md.
__device__ __forceinline__ float whole(float big, float small) { return fmaf(small, 1.0005f, big); }

// Adds a b to big + small to nearly fp32's accuracy; a sum of its own keeps the small products from
// being cut off at each step.
__device__ __forceinline__ void mma_split(float (&big)[4], float (&small)[4], const Split<4>& a,
                                          const Split<2>& b)
{
    mma_tf32(small, a.small, b.big[0], b.big[1]);
    mma_tf32(big, a.big, b.big[0], b.big[1]);
    mma_tf32(small, a.big, b.small[0], b.small[1]);
}

template <int count>  // 2 or 4
__device__ __forceinline__ void load_columns(float (&x)[count], const unsigned char* from)
{
    if constexpr (count == 4) {
        const float4 x4 = *reinterpret_cast<const float4*>(from);
        x[0] = x4.x, x[1] = x4.y, x[2] = x4.z, x[3] = x4.w;
    } else {
        const float2 x2 = *reinterpret_cast<const float2*>(from);
        x[0] = x2.x, x[1] = x2.y;
    }
}

// s = q k^T of 16*tiles rows and 8*groups keys in swizzled tiles, over `width` columns. A lane's
// first address for load_matrices(): of row lane % 16 and chunk lane / 16 of Q, of row lane % 8 and
// chunk lane / 8 of K.
template <int width, int row_bytes, int tiles, int groups>
__device__ __forceinline__ void split_scores(float (&s)[tiles][groups][4], unsigned q_lane,
                                             unsigned k_lane)
{
    float big[tiles][groups][4] = {}, small[tiles][groups][4] = {};
#pragma unroll
    for (int c = 0; c < width / 16; ++c) {
        Split<4> q16[tiles][2];  // 16 columns of the rows
#pragma unroll
        for (int i = 0; i < 2 * tiles; ++i) {
            unsigned x[4];
            load_matrices(x, along_row(q_lane, 4 * c + i % 2 * 2) + i / 2 * 16 * row_bytes);
            q16[i / 2][i % 2].set(x);
        }
#pragma unroll
        for (int j = 0; j < groups; ++j) {
            unsigned x[4];  // 16 columns of 8 keys
            load_matrices(x, along_row(k_lane, 4 * c) + j * 8 * row_bytes);
            Split<2> k8[2];
            k8[0].set(x);
            k8[1].set(x + 2);
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
                mma_split(big[i][j], small[i][j], q16[i][0], k8[0]);
                mma_split(big[i][j], small[i][j], q16[i][1], k8[1]);
            }
        }
    }
#pragma unroll
    for (int x = 0; x < 4 * tiles * groups; ++x) {
        const int i = x / 4 / groups;
        s[i][x / 4 % groups][x % 4] =
            whole(big[i][x / 4 % groups][x % 4], small[i][x / 4 % groups][x % 4]);
    }
}

// o = p v of 16*tiles rows and 8*groups keys, over 8*cols columns, cols 2 or 4: o[i][x] is of the
// columns cols*y + x, y from 0 to 7, so that one load has all that a lane needs of a key. Of 8 keys
// of p the even ones come first.
template <int row_bytes, int tiles, int groups, int cols>
__device__ __forceinline__ void split_values(
    float (&o)[tiles][cols][4], const Split<4> (&p)[tiles][groups],
    const unsigned char* v_even,  // this lane's columns of key 2 * (lane % 4), from lane / 4 on
    const unsigned char* v_odd)   // and of the key after it
{
    float big[tiles][cols][4] = {}, small[tiles][cols][4] = {};
#pragma unroll
    for (int j = 0; j < groups; ++j) {
        float even[cols], odd[cols];
        load_columns(even, v_even + j * 8 * row_bytes);
        load_columns(odd, v_odd + j * 8 * row_bytes);
#pragma unroll
        for (int x = 0; x < cols; ++x) {
            Split<2> pair;
            pair.set(0, even[x]);
            pair.set(1, odd[x]);
#pragma unroll
            for (int i = 0; i < tiles; ++i) mma_split(big[i][x], small[i][x], p[i][j], pair);
        }
    }
#pragma unroll
    for (int x = 0; x < 4 * tiles * cols; ++x) {
        const int i = x / 4 / cols;
        o[i][x / 4 % cols][x % 4] =
            whole(big[i][x / 4 % cols][x % 4], small[i][x / 4 % cols][x % 4]);
    }
}
