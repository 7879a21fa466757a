// Idea:          What the backward pass does row by row, before and after the products: delta =
//                out.dout of each query, and its dq from float32 sums.
// Used by:       24_backward_mma.cu, 25_backward_wgmma.cu, 30_backward_tf32x3.cu
// Explained in:  11_tensor_cores
#pragma once

#include "online_softmax.cuh"
#include "output.cuh"

// Layout of dq_sum for 16 queries: row by row, or in fragments as add_fragments() adds them.
enum class Order { ROWS, FRAGMENTS };

template <typename T>
struct alignas(4 * sizeof(T)) Four {
    T x[4];
};

// The first 4 of `left` elements; zeros past them. vector: aligned to all four, left a multiple
// of 4.
template <typename T>
__device__ __forceinline__ float4 load4(const T* from, int left, bool vector)
{
    if (left <= 0) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    Four<T> four = {};
    if (vector) {
        four = *reinterpret_cast<const Four<T>*>(from);
    } else {
        for (int i = 0; i < min(left, 4); ++i) four.x[i] = from[i];
    }
    return make_float4((float)four.x[0], (float)four.x[1], (float)four.x[2], (float)four.x[3]);
}

// A row, of all heads' rows of whole tiles: its lse in powers of two, its delta, and zeros for the
// sum of its dq. Rows past n, and those without keys, get +inf: exp2(score - lse) is 0.
template <int tile, int width, typename T>
__device__ __forceinline__ void begin_row(const T* out, const T* dout,  // (bh, n, d)
                                          const float* lse,             // (bh, n)
                                          float* row_ends,  // (bh, tiles, 2, tile): lse, delta
                                          float* dq_sum,    // (bh, tiles*tile, width)
                                          int bh, int n, int d)
{
    const unsigned rows = (n + tile - 1) / tile * tile;  // of a head
    constexpr int LANES = width <= 64 ? 16 : 32;  // a row
    const unsigned at = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (at >= bh * rows) return;
    const int lane = threadIdx.x % LANES, row = at % rows;
    const long long from = (long long)(at / rows) * n + row;
    const bool vector = d % 4 == 0 && ((size_t)out | (size_t)dout) % sizeof(Four<T>) == 0;
    float sum = 0.0f;
    for (int c = 4 * lane; c < width; c += 128) {
        if (row < n) {
            const float4 o = load4(out + from * d + c, d - c, vector);
            const float4 g = load4(dout + from * d + c, d - c, vector);
            sum += o.x * g.x + o.y * g.y + o.z * g.z + o.w * g.w;
        }
        *reinterpret_cast<float4*>(dq_sum + (long long)at * width + c) =
            make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    sum = warp_sum<LANES / 2>(sum);
    if (lane > 0) return;
    const float end = row < n ? lse[from] : MINUS_INFINITY;
    row_ends += (long long)(at / tile) * 2 * tile + at % tile;
    row_ends[0] = end == MINUS_INFINITY ? -MINUS_INFINITY : end * LOG2E;
    row_ends[tile] = sum;
}

// Four sums of a row, of 16 rows, that are side by side in dq.
template <int width, Order order>
__device__ __forceinline__ float4 row_sums(const float* sums,  // (16, width), or (width/8, 32, 4)
                                           int row, int column)
{
    if (order == Order::ROWS) return *reinterpret_cast<const float4*>(sums + row * width + column);
    // Lane 4*r + c has columns 2*c and 2*c + 1 of 8, of row r and then of row r + 8.
    sums += column / 8 * 128 + row % 8 * 16 + column % 8 * 2 + row / 8 * 2;
    const float2 x = *reinterpret_cast<const float2*>(sums);
    const float2 y = *reinterpret_cast<const float2*>(sums + 4);
    return make_float4(x.x, x.y, y.x, y.y);
}

// A row of dq, from its sum.
template <int tile, int width, Order order, typename T>
__device__ __forceinline__ void end_row(T* dq,                // (bh, n, d)
                                        const float* dq_sum,  // (bh, tiles*tile, width)
                                        int bh, int n, int d, float scale)
{
    constexpr int LANES = width <= 64 ? 16 : 32;  // a row
    const unsigned at = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES, rows = n;
    if (at >= bh * rows) return;
    const unsigned row = at % rows;
    const bool vector = d % 4 == 0 && (size_t)dq % sizeof(Four<T>) == 0;
    dq_sum += ((long long)(at / rows) * ((n + tile - 1) / tile * tile) + row / 16 * 16) * width;
    for (int c = threadIdx.x % LANES * 4; c < d; c += 128) {
        const float4 sum = row_sums<width, order>(dq_sum, row % 16, c);
        store4(dq + (long long)at * d + c, sum, scale, d - c, vector);
    }
}
