// Idea:          Online softmax of register tiles: each tile of keys gives weights under a running
//                maximum, and a larger maximum rescales what was summed under the old one.
// Used by:       11_flash_fp32.cu, 12_flash_async.cu, 19_flash_split.cu, 20_rows_split.cu,
//                31_join_parts.cu, include/backward_ends.cuh, include/fragment_softmax.cuh,
//                include/long_rows.cuh, include/parts.cuh, include/row_softmax.cuh
// Explained in:  08_online_softmax, 09_flash_attention
#pragma once

#include "warp.cuh"

#define MINUS_INFINITY __int_as_float(0xff800000)  // NVRTC has no <math.h> to name it
constexpr float LOG2E = 1.4426950408889634f;  // exp(x) = exp2(x * LOG2E): the GPU has exp2 only
constexpr float LOWEST = -3.402823466e38f;  // first maximum: finite, for -inf - -inf is NaN
constexpr float HUGE_SCORE = 2.3e38f;       // larger scores times LOG2E overflow

// The factor by which the scores of a row with this maximum become powers of two. Scores next to a
// huge one are at least 1e31 apart: their weights are 0 and 1 by any factor, and 1 is exact.
__device__ __forceinline__ float log2_factor(float row_m)
{
    return fabsf(row_m) > HUGE_SCORE ? 1.0f : LOG2E;
}

// Scales scores of one row, adds the bias and hides the keys that the row may not see. This thread
// has keys key0 + 8*j of the n x m matrix; edge: some of them may be hidden.
template <int keys>
__device__ __forceinline__ void mask_scores(float (&s)[keys], float scale,
                                            const float* bias,  // (n, m), or null
                                            int row, int key0, int n, int m, bool edge, bool causal)
{
#pragma unroll
    for (int j = 0; j < keys; ++j) {
        s[j] *= scale;
    }
    if (bias && row < n) {
        const float* bias_row = bias + (long long)row * m;  // (m,)
#pragma unroll
        for (int j = 0; j < keys; ++j) {
            if (key0 + 8 * j < m) s[j] += bias_row[key0 + 8 * j];
        }
    }
    if (edge) {
        const int visible = causal ? min(m, row + 1 + m - n) : m;  // keys that this row may see
#pragma unroll
        for (int j = 0; j < keys; ++j) {
            if (key0 + 8 * j >= visible) s[j] = MINUS_INFINITY;
        }
    }
}

// Turns this lane's scores of a row into weights exp(score - m) under the new maximum m and adds
// them to sum. Returns the factor of everything that was summed under the old maximum. The lanes
// whose numbers differ in the bits from low to high share the row.
template <int high, int low, int keys>
__device__ __forceinline__ float weights(float (&s)[keys], float& row_m, float& sum)
{
    float top = s[0];
#pragma unroll
    for (int j = 1; j < keys; ++j) {
        top = fmaxf(top, s[j]);
    }
    const float new_m = fmaxf(row_m, warp_max<high, low>(top));
    const float factor = log2_factor(new_m);
    // __fmul_rn: both are rounded. In one fma the factor of an unchanged maximum is not 1, and over
    // thousands of tiles the early keys gain or lose weight.
    const float shift = __fmul_rn(new_m, factor);
    const float rescale = exp2f(__fmul_rn(row_m, factor) - shift);
#pragma unroll
    for (int j = 0; j < keys; ++j) {
        s[j] = exp2f(s[j] * factor - shift);  // at most 1: cannot overflow
        sum += s[j];
    }
    row_m = new_m;
    return rescale;
}

template <int cols>
__device__ __forceinline__ void rescale_row(float (&o)[cols][4], float factor)
{
#pragma unroll
    for (int c = 0; c < cols; ++c) {
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            o[c][x] *= factor;
        }
    }
}

// Stores the weights of a row's scores, adds them to row_l and rescales what was summed before.
// The 8 lanes whose numbers differ in the bits 2, 4 and 8 share the row.
template <int keys, int cols>
__device__ __forceinline__ void softmax_step(float (&s)[keys],
                                             float* p_row,  // key j at 8*j, shared
                                             float (&o)[cols][4], float& row_m, float& row_l)
{
    float sum = 0.0f;
    const float rescale = weights<8, 2>(s, row_m, sum);
    row_l = row_l * rescale + sum;
    rescale_row(o, rescale);
#pragma unroll
    for (int j = 0; j < keys; ++j) {
        p_row[8 * j] = s[j];
    }
}
