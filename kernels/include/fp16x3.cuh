// Idea:          An fp32 number as the sum of two halves, 23 bits of its 24, and three products of
//                such parts in place of one. Powers of two bring numbers into half's range.
// Used by:       32_split_halves.cu, include/half_products.cuh
// Explained in:  11_tensor_cores
#pragma once

#include <cuda_fp16.h>

#include "quads.cuh"
#include "swizzled_tile.cuh"
#include "warp.cuh"

// A tile of K or V is two boxes side by side, (TILE_ROWS, 128) halves: 64 keys, the first 64 of 128
// columns in the first box; or of 128 keys the first 64 there, 64 columns. A box has 64 rows of
// big parts, 64 of small ones, and two rows of 32 floats, factors: what is multiplied with them are
// scores of K's keys, and outputs of V's columns, of which the first box has the first 64. 8 rows
// hold them, for boxes begin at multiples of 1024 bytes.
constexpr int BC = 64 * 128 / D;  // keys
constexpr int SMALL_ROW = 64, FACTOR_ROW = 128, TILE_ROWS = 136;

// Weights, 0 to 1, are split as 2^14 times of themselves, and the factors of V make up for it.
constexpr float RAISE = 16384.0f, LOWER = 1.0f / RAISE;

// What numbers are multiplied with before they are split, and their products after it; up * down
// is 1. The largest number becomes 2^14 to 2^15, and half's last bit is 2^-24: numbers down to
// 2^-16 of the largest keep 23 bits, each power of two below costs one, at 2^-40 none is left.
struct Scale {
    float up, down;
};

__device__ __forceinline__ Scale scale_for(float largest)  // not negative
{
    const int exponent = __float_as_int(largest) >> 23;  // biased by 127
    const int up = min(268 - exponent, 239);  // biased; 2^112 at most: down * LOWER is 2^-126
    return {__int_as_float(up << 23), __int_as_float((254 - up) << 23)};
}

__device__ __forceinline__ float4 larger(float4 top, float4 x)  // of top and |x|
{
    return make_float4(fmaxf(top.x, fabsf(x.x)), fmaxf(top.y, fabsf(x.y)),
                       fmaxf(top.z, fabsf(x.z)), fmaxf(top.w, fabsf(x.w)));
}

// The largest of 4 numbers that are not negative, of each of `lanes` lanes side by side.
template <int lanes>
__device__ __forceinline__ float largest(float4 x)
{
    return warp_max<lanes / 2, 1>(fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)));
}

// Two numbers side by side: big is each rounded to the nearest half, small what is left of it.
__device__ __forceinline__ void split_pair(unsigned& big, unsigned& small, float first,
                                           float second)
{
    const __half2 near = __floats2half2_rn(first, second);
    const float2 back = __half22float2(near);
    const __half2 left = __floats2half2_rn(first - back.x, second - back.y);
    big = *reinterpret_cast<const unsigned*>(&near);
    small = *reinterpret_cast<const unsigned*>(&left);
}

__device__ __forceinline__ void split_quad(uint2& big, uint2& small, float4 x, float4 up)
{
    split_pair(big.x, small.x, x.x * up.x, x.y * up.y);
    split_pair(big.y, small.y, x.z * up.z, x.w * up.w);
}

// Splits rows 16*warp to 16*warp + 15 of a matrix, `left` rows long, into tiles (width / 64, 64,
// 128 bytes) of big and of small parts, `part` bytes further. down: of this lane's rows lane / 4
// and lane / 4 + 8, what their products are multiplied with.
template <int width>
__device__ __forceinline__ void split_rows(float (&down)[2], unsigned tile, int part, int warp,
                                           const float* from, int left, int d)
{
    constexpr int LANES = width / 4;  // a row, four columns each
    constexpr int STEP = 32 / LANES;  // rows at once
    const int lane = threadIdx.x % 32;
    const int column = lane % LANES * 4;
    const bool vector = rows_aligned(from, d) && column < d;
#pragma unroll
    for (int first = 0; first < 16; first += STEP) {
        const int row = 16 * warp + first + lane / LANES;
        const int columns = row < left ? d - column : 0;
        const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const float4 x =
            load_quad(from + (long long)row * d + column, columns, vector && columns > 0);
        const Scale scale = scale_for(largest<LANES>(larger(zero, x)));
        uint2 big, small;
        split_quad(big, small, x, make_float4(scale.up, scale.up, scale.up, scale.up));
        const unsigned to = tile + column / 64 * 64 * 128 +
                            swizzled<128>(row, column % 64 / 8) + column % 8 * 2;
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" :: "r"(to), "r"(big.x), "r"(big.y));
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};"
                     :: "r"(to + part), "r"(small.x), "r"(small.y) : "memory");
#pragma unroll
        for (int i = 0; i < STEP; ++i) {
            const float of_row = __shfl_sync(0xffffffff, scale.down, i * LANES);
            if ((first + i) % 8 == lane / 4) down[(first + i) / 8] = of_row;
        }
    }
}
