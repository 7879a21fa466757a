// Idea:          An fp32 number as the sum of two TF32 numbers, and three products of such parts
//                in place of one: nearly fp32's accuracy from tensor cores.
// Used by:       15_flash_tf32x3.cu, 26_split_tf32x3.cu
// Explained in:  11_tensor_cores
#pragma once

#include "mma.cuh"

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

// Adds a b to big + small to nearly fp32's accuracy; a sum of its own keeps the small products from
// being cut off at each step. The product of the two small parts is below what fp32 can hold.
__device__ __forceinline__ void mma_split(float (&big)[4], float (&small)[4], const Split<4>& a,
                                          const Split<2>& b)
{
    mma_tf32(small, a.small, b.big[0], b.big[1]);
    mma_tf32(big, a.big, b.big[0], b.big[1]);
    mma_tf32(small, a.big, b.small[0], b.small[1]);
}
