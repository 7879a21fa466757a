// Pictures and fields in space.

#include <cuda_fp16.h>

// The motion of each pixel between two pictures of floats (height, width), by Lucas and Kanade over
// 5 x 5 pixels, edges repeated; (0, 0) where they have too little texture. A block takes 32 x 8.
extern "C" __global__ void __launch_bounds__(256) lucas_kanade_5x5(
    const float* __restrict__ from, const float* __restrict__ to, float2* __restrict__ flow,
    int height, int width)
{
    __shared__ float before[14][38];
    __shared__ float3 slope[12][36];
    const int left = blockIdx.x * 32, top = blockIdx.y * 8, t = threadIdx.y * 32 + threadIdx.x;
    for (int i = t; i < 14 * 38; i += 256) {
        const int h = min(max(top + i / 38 - 3, 0), height - 1);
        const int w = min(max(left + i % 38 - 3, 0), width - 1);
        before[i / 38][i % 38] = from[(size_t)h * width + w];
    }
    __syncthreads();
    for (int i = t; i < 12 * 36; i += 256) {
        const int r = i / 36, c = i % 36;
        const int h = min(max(top + r - 2, 0), height - 1);
        const int w = min(max(left + c - 2, 0), width - 1);
        slope[r][c] = make_float3(0.5f * (before[r + 1][c + 2] - before[r + 1][c]),
                                  0.5f * (before[r + 2][c + 1] - before[r][c + 1]),
                                  to[(size_t)h * width + w] - before[r + 1][c + 1]);
    }
    __syncthreads();
    const int x = left + threadIdx.x, y = top + threadIdx.y;
    if (x >= width || y >= height) return;
    float xx = 0.0f, xy = 0.0f, yy = 0.0f, xt = 0.0f, yt = 0.0f;
#pragma unroll
    for (int i = 0; i < 5; ++i)
#pragma unroll
        for (int j = 0; j < 5; ++j) {
            const float3 s = slope[threadIdx.y + i][threadIdx.x + j];
            xx += s.x * s.x;
            xy += s.x * s.y;
            yy += s.y * s.y;
            xt += s.x * s.z;
            yt += s.y * s.z;
        }
    const float size = xx * yy - xy * xy;
    float2 found = make_float2(0.0f, 0.0f);
    if (size > 1e-4f) {
        found.x = (xy * yt - yy * xt) / size;
        found.y = (xy * xt - xx * yt) / size;
    }
    flow[(size_t)y * width + x] = found;
}

// Features of points (n, 3) from grids of several sizes, as in instant-ngp: level l has 16 * 2^(l *
// finer) cells along each side of the unit cube, which repeats, and a table of 2^bits pairs of
// halves, by number of the corner where there are few, and else by hash. feature (levels, n) of
// pairs. A thread takes a point at a level.
extern "C" __global__ void hash_grid_encode(
    const float* __restrict__ point, const __half2* __restrict__ table,
    __half2* __restrict__ feature, int n, int bits, float finer)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, level = blockIdx.y;
    if (i >= n) return;
    const float cells = floorf(16.0f * exp2f(level * finer));
    const unsigned size = 1u << bits, side = (unsigned)cells + 1;
    const bool dense = (unsigned long long)side * side * side <= size;
    table += (size_t)level << bits;
    unsigned cell[3];
    float part[3];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        const float v = point[3 * i + axis], at = (v - floorf(v)) * cells;
        const float low = fminf(floorf(at), cells - 1.0f);
        cell[axis] = (unsigned)low;
        part[axis] = at - low;
    }
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int corner = 0; corner < 8; ++corner) {
        unsigned c[3];
        float weight = 1.0f;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            const int up = corner >> axis & 1;
            c[axis] = cell[axis] + up;
            weight *= up ? part[axis] : 1.0f - part[axis];
        }
        const unsigned place = dense ? (c[2] * side + c[1]) * side + c[0]
                                     : (c[0] ^ c[1] * 2654435761u ^ c[2] * 805459861u) & (size - 1);
        const float2 v = __half22float2(table[place]);
        sum.x += weight * v.x;
        sum.y += weight * v.y;
    }
    feature[(size_t)level * n + i] = __floats2half2_rn(sum.x, sum.y);
}
