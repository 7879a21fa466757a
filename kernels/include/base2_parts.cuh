// Idea:          Warps or blocks with different keys of 16 rows have a part of the result each. As
//                parts.cuh, of rows in fragments: shifts are powers of two, and one pass joins any
//                number of parts.
// Used by:       23_decode.cu, 34_decode_cluster.cu
// Explained in:  17_decoding
#pragma once

#include "fragment_softmax.cuh"
#include "vector.cuh"

// A part of a row is `stride` floats: `width` of weighted sums, then their shift and the sum of
// weights, in the pad. The same of four columns:
struct Part4 {
    float4 o;
    float2 end;  // shift, sum
};

// Stores the part that a warp has in fragments.
template <int width, int stride, int tiles>
__device__ __forceinline__ void store_fragments(float* part,  // (16, stride), shared
                                                const float (&o)[tiles][4],
                                                const float (&shift)[2], const float (&sum)[2])
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float* row = part + (lane / 4 + 8 * half) * stride;
#pragma unroll
        for (int c = 0; c < tiles; ++c) {
            *reinterpret_cast<float2*>(row + 8 * c + lane % 4 * 2) =
                make_float2(o[c][2 * half], o[c][2 * half + 1]);
        }
        const float total = warp_sum<2, 1>(sum[half]);
        if (lane % 4) continue;
        *reinterpret_cast<float2*>(row + width) = make_float2(shift[half], total);
    }
}

template <int width>
__device__ __forceinline__ void store_part4(float* row, int col, const Part4& part)
{
    *reinterpret_cast<float4*>(row + col) = part.o;
    if (col == 0) *reinterpret_cast<float2*>(row + width) = part.end;
}

// Joins four columns of a row's parts. row_of(p): the row in part p.
template <int width, class RowOf>
__device__ __forceinline__ Part4 join_base2(RowOf row_of, int count, int col)
{
    Part4 all = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), make_float2(LOWEST, 0.0f)};
#pragma unroll 8
    for (int p = 0; p < count; ++p) {
        const float* row = row_of(p);
        const float4 o = load4(row + col);
        const float2 end = *reinterpret_cast<const float2*>(row + width);
        const float shift = fmaxf(all.end.x, end.x);
        const float keep = exp2f(all.end.x - shift);
        const float add = exp2f(end.x - shift);
        all.o.x = all.o.x * keep + o.x * add;
        all.o.y = all.o.y * keep + o.y * add;
        all.o.z = all.o.z * keep + o.z * add;
        all.o.w = all.o.w * keep + o.w * add;
        all.end = make_float2(shift, all.end.y * keep + end.y * add);
    }
    return all;
}

// Calls use(row, col) for every four columns of `rows` rows; the block's threads share them.
template <int width, int threads, class Use>
__device__ __forceinline__ void for_chunks(int rows, Use use)
{
    for (int x = threadIdx.x; x < rows * (width / 4); x += threads) {
        use(x / (width / 4), x % (width / 4) * 4);
    }
}
