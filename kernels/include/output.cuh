// Idea:          The end of a row: its output divided by the sum of its weights, and its lse.
// Used by:       11_flash_fp32.cu, 12_flash_async.cu, 15_flash_tf32x3.cu, 19_flash_split.cu,
//                20_rows_split.cu, 29_split_tf32x3.cu, include/backward_ends.cuh
// Explained in:  08_online_softmax
#pragma once

// Writes x * factor to the first 4 of `left` columns; vector: `to` is 16-byte aligned and left is
// a multiple of 4.
__device__ __forceinline__ void store4(float* to, float4 x, float factor, int left, bool vector)
{
    if (vector) {
        if (left > 0) {
            // __stcg: a plain store becomes four of 4 bytes where the other branch has them.
            __stcg(reinterpret_cast<float4*>(to),
                   make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor));
        }
    } else {
        if (left > 0) to[0] = x.x * factor;
        if (left > 1) to[1] = x.y * factor;
        if (left > 2) to[2] = x.z * factor;
        if (left > 3) to[3] = x.w * factor;
    }
}

// Writes 4 columns of row `at`, divided by the row's sum, and one thread the row's lse.
__device__ __forceinline__ void write4(float* out,  // (batch*heads*n, d)
                                       float* lse,  // (batch*heads*n) or null
                                       long long at, int col, float4 o, float row_m, float row_l,
                                       int d)
{
    const float inverse = row_l > 0.0f ? 1.0f / row_l : 0.0f;  // every key masked: zeros
    store4(out + at * d + col, o, inverse, d - col, d % 4 == 0 && (size_t)out % 16 == 0);
    if (lse && col == 0) lse[at] = row_m + logf(row_l);
}
