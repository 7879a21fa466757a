// Idea:          One name for the 16-bit type that a kernel is compiled for: float16 keeps 11
//                significant bits, bfloat16 keeps 8 and the range of float32.
// Used by:       14_flash_mma.cu, include/element_copy.cuh, include/fragment_products.cuh,
//                include/fragment_weights.cuh, include/matrix.cuh, include/row_softmax.cuh,
//                include/warp_keys.cuh
// Explained in:  09_flash_attention
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#if BFLOAT16
using Element = __nv_bfloat16;
#else
using Element = __half;
#endif

__device__ __forceinline__ Element to_element(float x)  // rounded to nearest
{
#if BFLOAT16
    return __float2bfloat16_rn(x);
#else
    return __float2half_rn(x);
#endif
}

// Two elements side by side in 4 bytes, the first one in the low half.
__device__ __forceinline__ unsigned to_pair(float first, float second)
{
#if BFLOAT16
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
#else
    const __half2 pair = __floats2half2_rn(first, second);
#endif
    return *reinterpret_cast<const unsigned*>(&pair);
}

// Writes x * factor to the first 4 of `left` columns; vector: `to` is 8-byte aligned and left is a
// multiple of 4.
__device__ __forceinline__ void store4(Element* to, float4 x, float factor, int left, bool vector)
{
    if (vector) {
        *reinterpret_cast<uint2*>(to) =
            make_uint2(to_pair(x.x * factor, x.y * factor), to_pair(x.z * factor, x.w * factor));
    } else {
        to[0] = to_element(x.x * factor);
        if (left > 1) to[1] = to_element(x.y * factor);
        if (left > 2) to[2] = to_element(x.z * factor);
        if (left > 3) to[3] = to_element(x.w * factor);
    }
}
