// Idea:          A lane has a row of scores, or a part of it, for itself: its maximum and its sum
//                need no shuffles.
// Used by:       13_flash_wmma.cu
// Explained in:  09_flash_attention
#pragma once

#include "element.cuh"
#include "online_softmax.cuh"
#include "vector.cuh"

// A lane's scores are 4 and 4 side by side: s[i] is the one at i ^ 4*turn of its part of the row.

// Loads scores and scales them. turn: 1 in lanes that begin with the second four.
template <int part>
__device__ __forceinline__ void load_row(float (&s)[part], const float* from,  // (part), shared
                                         int turn, float factor)
{
#pragma unroll
    for (int c = 0; c < part; c += 4) {
        const float4 s4 = load4(from + (c ^ 4 * turn));
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            s[c + x] = element(s4, x) * factor;
        }
    }
}

// A bias in log2; finite numbers that overflow there become the same huge one.
__device__ __forceinline__ float in_log2(float bias)
{
    return bias > MINUS_INFINITY ? fmaxf(bias, -HUGE_SCORE) * LOG2E : bias;
}

// Adds the bias, in log2 like the scores, and hides keys past the first `visible`.
template <int part>
__device__ __forceinline__ void mask_row(float (&s)[part],
                                         const float* bias,  // (keys), from the part on, or null
                                         int turn, int keys, int visible)
{
#pragma unroll
    for (int i = 0; i < part; ++i) {
        const int key = i ^ 4 * turn;
        if (bias && key < keys) s[i] += in_log2(bias[key]);
        if (key >= visible) s[i] = MINUS_INFINITY;
    }
}

template <int part>
__device__ __forceinline__ float largest(const float (&s)[part])
{
    float top = s[0];
#pragma unroll
    for (int i = 1; i < part; ++i) {
        top = fmaxf(top, s[i]);
    }
    return top;
}

// Stores weights exp2(s - shift) as elements. Returns their sum, before they are rounded.
template <int part>
__device__ __forceinline__ float store_weights(Element* to,  // (part), shared
                                               const float (&s)[part], int turn, float shift)
{
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < part; c += 4) {
        float p[4];
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            p[x] = exp2f(s[c + x] - shift);
            sum += p[x];
        }
        *reinterpret_cast<uint2*>(to + (c ^ 4 * turn)) =
            make_uint2(to_pair(p[0], p[1]), to_pair(p[2], p[3]));
    }
    return sum;
}
