// Idea:          Warps or blocks that share rows take different keys; what each finds of a row (o,
//                m and l) is a part. Parts are added up as tiles are: rescaled to one maximum.
// Used by:       11_flash_fp32.cu, 12_flash_async.cu, include/cluster_parts.cuh
// Explained in:  09_flash_attention
#pragma once

#include "online_softmax.cuh"
#include "vector.cuh"

// A part of a row is `stride` floats: `width` of o, then m and l in the pad.

// Stores what a warp found of its rows for join_parts().
template <int width, int stride, int rows, int cols>
__device__ __forceinline__ void store_part(float* mine,  // row i at 4*i*stride, shared
                                           const float (&o)[rows][cols][4],
                                           const float (&row_m)[rows], const float (&row_l)[rows],
                                           int tx)
{
#pragma unroll
    for (int i = 0; i < rows; ++i) {
        float* row = mine + 4 * i * stride;
#pragma unroll
        for (int c = 0; c < cols; ++c) {
            *reinterpret_cast<float4*>(row + 32 * c + 4 * tx) =
                make_float4(o[i][c][0], o[i][c][1], o[i][c][2], o[i][c][3]);
        }
        if (tx == 0) *reinterpret_cast<float2*>(row + width) = make_float2(row_m[i], row_l[i]);
    }
}

// Adds up 4 columns of a row's parts, each rescaled to the largest maximum, as softmax_step() adds
// up tiles; top and total become the row's m and l. log2: factor that makes m powers of two.
template <int width, int parts, int distance>
__device__ __forceinline__ float4 join_parts(const float* first,  // part p at p*distance
                                             int col, float& top, float& total,
                                             float log2 = LOG2E)
{
    top = LOWEST;
    total = 0.0f;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int p = 0; p < parts; ++p) {
        top = fmaxf(top, first[p * distance + width]);
    }
#pragma unroll
    for (int p = 0; p < parts; ++p) {
        const float* part = first + p * distance;
        const float rescale = exp2f((part[width] - top) * log2);
        const float4 o4 = load4(part + col);
        total += rescale * part[width + 1];
        sum.x += rescale * o4.x;
        sum.y += rescale * o4.y;
        sum.z += rescale * o4.z;
        sum.w += rescale * o4.w;
    }
    return sum;
}
