#include <math_constants.h>

extern "C" __global__ void normalise_thread(const float* x, float* y, int rows, int columns)
{
    const int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    const float* row = x + (size_t)r * columns;
    float most = -CUDART_INF_F, sum = 0.0f;
    for (int c = 0; c < columns; ++c) most = fmaxf(most, row[c]);
    for (int c = 0; c < columns; ++c) sum += __expf(row[c] - most);
    for (int c = 0; c < columns; ++c) y[(size_t)r * columns + c] = __expf(row[c] - most) / sum;
}

extern "C" __global__ void normalise_block(const float* x, float* y, int columns)
{
    __shared__ float part[256];
    const int t = threadIdx.x;
    const float* row = x + (size_t)blockIdx.x * columns;
    float most = -CUDART_INF_F, sum = 0.0f;
    for (int c = t; c < columns; c += 256) most = fmaxf(most, row[c]);
    part[t] = most;
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (t < step) part[t] = fmaxf(part[t], part[t + step]);
        __syncthreads();
    }
    most = part[0];
    __syncthreads();
    for (int c = t; c < columns; c += 256) sum += __expf(row[c] - most);
    part[t] = sum;
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (t < step) part[t] += part[t + step];
        __syncthreads();
    }
    const float scale = 1.0f / part[0];
    for (int c = t; c < columns; c += 256)
        y[(size_t)blockIdx.x * columns + c] = scale * __expf(row[c] - most);
}

// One warp a row; maximum and sum in one pass.
extern "C" __global__ void normalise_online(const float* x, float* y, int rows, int columns)
{
    const int r = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (r >= rows) return;
    const float* row = x + (size_t)r * columns;
    float most = -1e30f, sum = 0.0f;
    for (int c = lane; c < columns; c += 32) {
        const float v = row[c], larger = fmaxf(most, v);
        sum = sum * __expf(most - larger) + __expf(v - larger);
        most = larger;
    }
    for (int step = 16; step > 0; step /= 2) {
        const float m = __shfl_xor_sync(~0u, most, step), s = __shfl_xor_sync(~0u, sum, step);
        const float larger = fmaxf(most, m);
        sum = sum * __expf(most - larger) + s * __expf(m - larger);
        most = larger;
    }
    for (int c = lane; c < columns; c += 32)
        y[(size_t)r * columns + c] = __expf(row[c] - most) / sum;
}
