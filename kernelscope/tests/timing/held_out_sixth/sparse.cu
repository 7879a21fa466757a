// Sparse matrices and graphs.

#include <cuda_fp16.h>

// y = A x: rows of 4 x 4 blocks, of which row r has first[r] to first[r + 1] with a column each. A
// warp takes such a row, four lanes a block.
extern "C" __global__ void spmv_bsr_4(
    const int* __restrict__ first, const int* __restrict__ column,
    const float4* __restrict__ value, const float4* __restrict__ x, float* __restrict__ y, int rows)
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const int end = first[row + 1];
    float sum = 0.0f;
    for (int b = first[row] + lane / 4; b < end; b += 8) {
        const float4 a = value[(size_t)b * 4 + lane % 4], v = x[column[b]];
        sum += a.x * v.x + a.y * v.y + a.z * v.z + a.w * v.w;
    }
    for (int step = 16; step >= 4; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, step);
    if (lane < 4) y[row * 4 + lane] = sum;
}

// out[e] = weight[e] * (row from[e] of x) (row to[e] of y): x, y (nodes, 64) of halves. Eight lanes
// take an edge.
extern "C" __global__ void sddmm_edges(
    const int* __restrict__ from, const int* __restrict__ to, const float* __restrict__ weight,
    const __half* __restrict__ x, const __half* __restrict__ y, float* __restrict__ out, int edges)
{
    const int own = (blockIdx.x * blockDim.x + threadIdx.x) / 8, part = threadIdx.x % 8;
    const int e = min(own, edges - 1);
    const uint4 a = *(const uint4*)(x + (size_t)from[e] * 64 + part * 8);
    const uint4 b = *(const uint4*)(y + (size_t)to[e] * 64 + part * 8);
    const __half2* p = (const __half2*)&a;
    const __half2* q = (const __half2*)&b;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 u = __half22float2(p[i]), v = __half22float2(q[i]);
        sum += u.x * v.x + u.y * v.y;
    }
    for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, step);
    if (part == 0 && own < edges) out[own] = weight[own] * sum;
}

// A round of Bellman and Ford: each node looks along its edges, first[i] to first[i + 1], for a
// shorter way; changed[0] is 1 where any found one.
extern "C" __global__ void bellman_pull(
    const int* first, const int* source, const int* weight, const int* distance, int* next,
    int* changed, int nodes)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= nodes) return;
    const int own = distance[i];
    int best = own;
    for (int e = first[i]; e < first[i + 1]; ++e) best = min(best, distance[source[e]] + weight[e]);
    next[i] = best;
    if (best < own) *changed = 1;
}
