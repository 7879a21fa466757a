// Idea:          Four neighbouring columns of a row as one float4: a 16-byte access where rows are
//                aligned, else those of the four that the row has.
// Used by:       17_bias_gelu.cu, 22_heads.cu, 26_layernorm_backward.cu, 27_bias_gelu_backward.cu,
//                include/fp16x3.cuh, include/row_columns.cuh
// Explained in:  12_layernorm_mlp_block
#pragma once

#include "vector.cuh"

// Whether float4 accesses to all rows of `width` floats from x on are aligned; null is aligned.
__device__ __forceinline__ bool rows_aligned(const float* x, int width)
{
    return (size_t)x % 16 == 0 && width % 4 == 0;
}

// x[0] to x[3], zeros from x[left] on; vector: all four are there, 16-byte aligned.
__device__ __forceinline__ float4 load_quad(const float* x, int left, bool vector)
{
    if (vector) return load4(x);
    float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (left > 0) value.x = x[0];
    if (left > 1) value.y = x[1];
    if (left > 2) value.z = x[2];
    if (left > 3) value.w = x[3];
    return value;
}

__device__ __forceinline__ void store_quad(float* x, float4 value, int left, bool vector)
{
    if (vector) {
        // __stcg: a plain store becomes four of 4 bytes where the other branch has them.
        __stcg(reinterpret_cast<float4*>(x), value);
        return;
    }
    if (left > 0) x[0] = value.x;
    if (left > 1) x[1] = value.y;
    if (left > 2) x[2] = value.z;
    if (left > 3) x[3] = value.w;
}

__device__ __forceinline__ float4 operator+(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// -- operands of tensor cores ---------------------------------------------------------------------
// TF32 keeps 11 of the 24 bits of a float's significand. The nearest such number, and what it
// leaves over, which has 12 bits and a sign: together they are x.
__device__ __forceinline__ float tf32_high(float x)
{
    return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
}

// Stores `left` columns of a row, four at most. parts 1: as they are. parts 3: a row becomes
// [low | high | high], `width` floats each: with a matrix [high; low; high] one product over
// 3*width columns is the sum of three. The small two come first: tensor cores cut each sum off, by
// as much as it is large.
__device__ __forceinline__ void store_parts(float* row, int column, float4 x, int left, int width,
                                            int parts, bool vector)
{
    if (parts == 1) {
        store_quad(row + column, x, left, vector);
        return;
    }
    const float4 high =
        make_float4(tf32_high(x.x), tf32_high(x.y), tf32_high(x.z), tf32_high(x.w));
    const float4 low = make_float4(x.x - high.x, x.y - high.y, x.z - high.z, x.w - high.w);
    store_quad(row + column, low, left, vector);
    store_quad(row + width + column, high, left, vector);
    store_quad(row + 2 * width + column, high, left, vector);
}
