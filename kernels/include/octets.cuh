// Idea:          Eight neighbouring columns of a row as floats, whatever type memory has them in:
//                16-byte accesses where rows are aligned, else those columns that the row has.
// Used by:       31_join_parts.cu
// Explained in:  20_more_than_one_gpu
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Octet {
    float x[8];
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }

__device__ __forceinline__ void round_to(float& to, float x) { to = x; }
__device__ __forceinline__ void round_to(__nv_bfloat16& to, float x)
{
    to = __float2bfloat16_rn(x);
}
__device__ __forceinline__ void round_to(__half& to, float x) { to = __float2half_rn(x); }

// x[0] to x[7], zeros from x[left] on; vector: all eight are there, 16-byte aligned.
template <typename T>
__device__ __forceinline__ Octet load_octet(const T* x, int left, bool vector)
{
    Octet octet;
    if (vector) {
        alignas(16) T raw[8];
#pragma unroll
        for (int i = 0; i < (int)sizeof(raw) / 16; ++i) {
            reinterpret_cast<uint4*>(raw)[i] = reinterpret_cast<const uint4*>(x)[i];
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) octet.x[i] = to_float(raw[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) octet.x[i] = i < left ? to_float(x[i]) : 0.0f;
    }
    return octet;
}

template <typename T>
__device__ __forceinline__ void store_octet(T* x, const Octet& octet, int left, bool vector)
{
    if (vector) {
        alignas(16) T raw[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) round_to(raw[i], octet.x[i]);
#pragma unroll
        for (int i = 0; i < (int)sizeof(raw) / 16; ++i) {
            reinterpret_cast<uint4*>(x)[i] = reinterpret_cast<const uint4*>(raw)[i];
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (i < left) round_to(x[i], octet.x[i]);
        }
    }
}
