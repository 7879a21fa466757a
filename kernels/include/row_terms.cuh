// Idea:          What the backward pass needs of each query besides its row, and how the gradient of
//                queries, which many blocks add up in float32, becomes elements.
// Used by:       25_backward_wgmma.cu
// Explained in:  16_hopper
#pragma once

#include "element.cuh"
#include "online_softmax.cuh"

constexpr int ROW_LANES = D / 8;  // threads a row, 8 elements each

__device__ __forceinline__ float2 both(unsigned pair)  // two elements
{
#if BFLOAT16
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
#else
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
#endif
}

// The terms of a tile of BR queries: log2 of each sum of exponentials, so that a weight is
// exp2(score*log2(e) - shift), infinite where there is no weight; and delta = dout . out, what
// dout . v is on average over the weights. Also the zeros that sums start from.
extern "C" __global__ void __launch_bounds__(256) backward_terms(
    const Element* __restrict__ out, const Element* __restrict__ dout,  // (batch*heads, n, d)
    const float* __restrict__ lse,   // (batch*heads, n)
    float* __restrict__ terms,       // (batch*heads, tiles, 2, BR)
    float* __restrict__ dq_sum,      // (batch*heads, n, d)
    unsigned* __restrict__ turns,    // (batch*heads, tiles, 2) or null
    int n, int d)
{
    const int tiles = (n + BR - 1) / BR;
    const int head = blockIdx.x / tiles;
    const int col = threadIdx.x % ROW_LANES * 8;
    if (turns && threadIdx.x < 2) turns[2ll * blockIdx.x + threadIdx.x] = 0;
#pragma unroll
    for (int r = threadIdx.x / ROW_LANES; r < BR; r += 256 / ROW_LANES) {
        const int row = blockIdx.x % tiles * BR + r;
        const long long at = (long long)head * n + row;
        float sum = 0.0f;
        if (row < n && col < d) {
            const uint4 x = *reinterpret_cast<const uint4*>(out + at * d + col);
            const uint4 y = *reinterpret_cast<const uint4*>(dout + at * d + col);
            const unsigned a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sum += both(a[i]).x * both(b[i]).x + both(a[i]).y * both(b[i]).y;
            }
            float4* zeros = reinterpret_cast<float4*>(dq_sum + at * d + col);
            zeros[0] = zeros[1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (int apart = ROW_LANES / 2; apart > 0; apart /= 2) {
            sum += __shfl_xor_sync(0xffffffff, sum, apart);
        }
        if (col > 0) continue;
        const float log_sum = row < n ? lse[at] : MINUS_INFINITY;
        float* to = terms + 2ll * blockIdx.x * BR + r;
        to[0] = log_sum == MINUS_INFINITY ? -MINUS_INFINITY : log_sum * LOG2E;
        to[BR] = sum;
    }
}

// dq = scale * dq_sum
extern "C" __global__ void __launch_bounds__(256) backward_scale(
    const float* __restrict__ dq_sum, Element* __restrict__ dq,  // (batch*heads, n, d)
    long long count, float scale)  // elements, a multiple of 8
{
    const long long at = ((long long)blockIdx.x * 256 + threadIdx.x) * 8;
    if (at >= count) return;
    const float4 a = *reinterpret_cast<const float4*>(dq_sum + at);
    const float4 b = *reinterpret_cast<const float4*>(dq_sum + at + 4);
    *reinterpret_cast<uint4*>(dq + at) =
        make_uint4(to_pair(a.x * scale, a.y * scale), to_pair(a.z * scale, a.w * scale),
                   to_pair(b.x * scale, b.y * scale), to_pair(b.z * scale, b.w * scale));
}
