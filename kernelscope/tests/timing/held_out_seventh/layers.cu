// Layers of networks: norms, pooling, convolutions and a scan.

#include <cuda_fp16.h>

// The gradient of x -> gain * x / sqrt(mean of x * x + 1e-5) in each row of x, dy, dx (rows,
// columns), columns a multiple of 4 and at most 4096. A block of 256 takes a row and keeps it in
// registers.
extern "C" __global__ void __launch_bounds__(256) rms_norm_backward(
    const float4* __restrict__ x, const float4* __restrict__ dy, const float4* __restrict__ gain,
    float4* __restrict__ dx, int columns)
{
    __shared__ float2 part[8];
    const int width = columns / 4, t = threadIdx.x;
    const size_t start = (size_t)blockIdx.x * width;
    float4 v[4], g[4];
    float square = 0.0f, product = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int c = t + i * 256;
        if (c < width) {
            v[i] = x[start + c];
            const float4 d = dy[start + c], w = gain[c];
            g[i] = make_float4(d.x * w.x, d.y * w.y, d.z * w.z, d.w * w.w);
            square += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
            product += v[i].x * g[i].x + v[i].y * g[i].y + v[i].z * g[i].z + v[i].w * g[i].w;
        }
    }
    for (int step = 16; step > 0; step >>= 1) {
        square += __shfl_xor_sync(0xFFFFFFFF, square, step);
        product += __shfl_xor_sync(0xFFFFFFFF, product, step);
    }
    if (t % 32 == 0) part[t / 32] = make_float2(square, product);
    __syncthreads();
    square = product = 0.0f;
    for (int w = 0; w < 8; ++w) {
        square += part[w].x;
        product += part[w].y;
    }
    const float r = rsqrtf(square / columns + 1e-5f), back = r * r * r * product / columns;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int c = t + i * 256;
        if (c < width)
            dx[start + c] =
                make_float4(r * g[i].x - back * v[i].x, r * g[i].y - back * v[i].y,
                            r * g[i].z - back * v[i].z, r * g[i].w - back * v[i].w);
    }
}

// y = clamp(x * scale[c] + shift[c], 0, 6) + shortcut, x (images, channels, plane) of halves: a
// norm of batches with its constants folded, and the end of a residual block.
extern "C" __global__ void norm_relu6_nchw(
    const __half* x, const __half* shortcut, const float* scale, const float* shift, __half* y,
    int n, int channels, int plane)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const int c = i / plane % channels;
        const float v = __half2float(x[i]) * scale[c] + shift[c];
        y[i] = __float2half(fminf(fmaxf(v, 0.0f), 6.0f) + __half2float(shortcut[i]));
    }
}

// The largest of 3 x 3 at each second pixel, and its place: x (planes, height, width), both sizes
// even, value and place (planes, height / 2, width / 2).
extern "C" __global__ void max_pool_index(
    const float* __restrict__ x, float* __restrict__ value, int* __restrict__ place, int height,
    int width)
{
    const int across = blockIdx.x * blockDim.x + threadIdx.x;
    const int down = blockIdx.y * blockDim.y + threadIdx.y;
    if (across >= width / 2 || down >= height / 2) return;
    const float* from = x + (size_t)blockIdx.z * height * width;
    float best = -3.4e38f;
    int where = 0;
    for (int i = -1; i <= 1; ++i) {
        const int h = 2 * down + i;
        if (h < 0 || h >= height) continue;
        for (int j = -1; j <= 1; ++j) {
            const int w = 2 * across + j;
            if (w < 0 || w >= width) continue;
            const float v = from[h * width + w];
            if (v > best) {
                best = v;
                where = h * width + w;
            }
        }
    }
    const size_t at = ((size_t)blockIdx.z * (height / 2) + down) * (width / 2) + across;
    value[at] = best;
    place[at] = where;
}

// A gated layer over time: tanh(a) / (1 + exp(-b)), where a and b are causal convolutions of x
// (channels, length) with taps at t, t - dilation and t - 2 * dilation. weight (2, filters,
// channels, 3), y (filters, length). A block takes 128 times of one filter; channels <= 128.
extern "C" __global__ void wave_gate(
    const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ y,
    int channels, int length, int dilation)
{
    __shared__ float taps[2][3 * 128];
    const int filter = blockIdx.y, t = blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = threadIdx.x; i < 3 * channels; i += blockDim.x) {
        taps[0][i] = weight[(size_t)filter * channels * 3 + i];
        taps[1][i] = weight[(size_t)(gridDim.y + filter) * channels * 3 + i];
    }
    __syncthreads();
    if (t >= length) return;
    float a = 0.0f, b = 0.0f;
    for (int c = 0; c < channels; ++c) {
        const float* row = x + (size_t)c * length;
        for (int k = 0; k < 3; ++k) {
            const int s = t - k * dilation;
            const float v = s >= 0 ? row[s] : 0.0f;
            a += v * taps[0][3 * c + k];
            b += v * taps[1][3 * c + k];
        }
    }
    y[(size_t)filter * length + t] = tanhf(a) / (1.0f + expf(-b));
}

__device__ __forceinline__ float log_add(float a, float b)
{
    return fmaxf(a, b) + log1pf(expf(-fabsf(a - b)));
}

// y[t] = log of the sum of exp(x[s]), s <= t, in each row of length numbers, a multiple of 4. A
// block of 256 takes a row, 1024 numbers at a time.
extern "C" __global__ void __launch_bounds__(256) log_cumsum_exp(
    const float4* __restrict__ x, float4* __restrict__ y, int length)
{
    __shared__ float part[8];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32, width = length / 4;
    x += (size_t)blockIdx.x * width;
    y += (size_t)blockIdx.x * width;
    float carry = -1e30f;
    for (int first = 0; first < width; first += 256) {
        const int i = first + t;
        float4 v = make_float4(-1e30f, -1e30f, -1e30f, -1e30f);
        if (i < width) v = x[i];
        v.y = log_add(v.x, v.y);
        v.z = log_add(v.y, v.z);
        v.w = log_add(v.z, v.w);
        float sum = v.w;
        for (int step = 1; step < 32; step *= 2) {
            const float other = __shfl_up_sync(0xFFFFFFFF, sum, step);
            if (lane >= step) sum = log_add(sum, other);
        }
        if (lane == 31) part[warp] = sum;
        float before = __shfl_up_sync(0xFFFFFFFF, sum, 1);
        if (lane == 0) before = -1e30f;
        __syncthreads();
        before = log_add(before, carry);
        for (int w = 0; w < 8; ++w) {
            if (w < warp) before = log_add(before, part[w]);
            carry = log_add(carry, part[w]);
        }
        if (i < width)
            y[i] = make_float4(log_add(before, v.x), log_add(before, v.y), log_add(before, v.z),
                               log_add(before, v.w));
        __syncthreads();
    }
}
