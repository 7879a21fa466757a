// Idea:          Online softmax of scores that lie in fragments: a lane has two rows of 16, and in
//                each 2 of every 8 keys; the four lanes of a quad share a row.
// Used by:       14_flash_mma.cu, 15_flash_tf32x3.cu, 29_split_tf32x3.cu, include/base2_parts.cuh,
//                include/fragment_weights.cuh
// Explained in:  08_online_softmax, 09_flash_attention
#pragma once

#include "online_softmax.cuh"

constexpr float LN2 = 0.6931471805599453f;  // log(x) = log2(x) * LN2

// A lane's scores of 16 rows and 8*tiles keys: s[j][x] is of row `row` + x / 2 * 8 and of key
// `key` + 8*j + x % 2.

// Scales the scores and adds the bias: where there is none, exp2 takes a positive scale with it.
template <int tiles>
__device__ __forceinline__ void scale_and_bias(float (&s)[tiles][4], float scale,
                                               const float* bias,  // (n, m), or null
                                               int row, int key, int n, int m)
{
#pragma unroll
    for (int x = 0; x < 4 * tiles; ++x) s[x / 4][x % 4] *= scale;
    if (!bias) return;
    const bool pairs = m % 2 == 0 && (size_t)bias % 8 == 0;  // this lane's two are 8-byte aligned
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int r = row + 8 * half;
        if (r >= n) continue;
        const float* from = bias + (long long)r * m + key;
        float2 add[tiles];  // all loads start before the first addition waits for one
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
            const int left = m - key - 8 * j;  // keys of this row from `key` + 8*j on
            add[j] = make_float2(0.0f, 0.0f);
            if (pairs && left > 0) {
                add[j] = *reinterpret_cast<const float2*>(from + 8 * j);
            } else {
                if (left > 0) add[j].x = from[8 * j];
                if (left > 1) add[j].y = from[8 * j + 1];
            }
        }
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
            s[j][2 * half] += add[j].x;
            s[j][2 * half + 1] += add[j].y;
        }
    }
}

// Hides the keys that a row may not see.
template <int tiles>
__device__ __forceinline__ void hide_keys(float (&s)[tiles][4], int row, int key, int n, int m,
                                          bool causal)
{
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int r = row + 8 * half;
        const int visible = (causal ? min(m, r + 1 + m - n) : m) - key;  // of the keys from `key`
#pragma unroll
        for (int x = 0; x < 2 * tiles; ++x) {
            float& score = s[x / 2][2 * half + x % 2];
            if (x / 2 * 8 + x % 2 >= visible) score = MINUS_INFINITY;
        }
    }
}

// The largest of this lane's scores in row half*8 + lane / 4, times factor. Where a bias leaves
// only huge negative ones, which overflow in log2, all that are finite become -HUGE_SCORE.
template <int tiles>
__device__ __forceinline__ float row_top(float (&s)[tiles][4], int half, float factor, bool biased)
{
    float top = fmaxf(s[0][2 * half], s[0][2 * half + 1]);
#pragma unroll
    for (int j = 1; j < tiles; ++j) {
        top = fmaxf(top, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
    }
    if (biased && top < -HUGE_SCORE && top > MINUS_INFINITY) {
#pragma unroll
        for (int x = 0; x < 2 * tiles; ++x) {
            float& score = s[x / 2][2 * half + x % 2];
            if (score > MINUS_INFINITY) score = -HUGE_SCORE;
        }
        top = -HUGE_SCORE;
    }
    return top * factor;
}

// Raises a row's shift to the quad's top and returns the factor of all that was summed under the
// old one.
__device__ __forceinline__ float raise(float& shift, float top)
{
    const float old = shift;
    shift = fmaxf(old, warp_max<2, 1>(top));
    return exp2f(old - shift);
}
