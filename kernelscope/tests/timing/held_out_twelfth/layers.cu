// Layers: an activation behind a bias, a loss of distillation, a gradient, the patches of a ViT.

#include <cuda_fp16.h>

// y = hardswish(x + bias), x (rows, 64) of halves. A thread takes two of them.
extern "C" __global__ void bias_hardswish_half2(
    const __half2* __restrict__ x, const __half2* __restrict__ bias, __half2* __restrict__ y,
    int pairs)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pairs) return;
    const float2 v = __half22float2(x[i]), b = __half22float2(bias[i & 31]);
    const float p = v.x + b.x, q = v.y + b.y;
    y[i] = __floats2half2_rn(p * fminf(fmaxf(p + 3.0f, 0.0f), 6.0f) / 6.0f,
                             q * fminf(fmaxf(q + 3.0f, 0.0f), 6.0f) / 6.0f);
}

__device__ __forceinline__ float block_sum(float v, float* of_warp)
{
    for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(0xFFFFFFFF, v, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0.0f;
    for (int w = 0; w < 8; ++w) v += of_warp[w];
    return v;
}

__device__ __forceinline__ float block_max(float v, float* of_warp)
{
    for (int step = 16; step > 0; step >>= 1) v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFF, v, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
    __syncthreads();
    v = of_warp[0];
    for (int w = 1; w < 8; ++w) v = fmaxf(v, of_warp[w]);
    return v;
}

// Hinton's loss of a small network: the divergence of its softmax from that of a large one, at a
// temperature, in rows of 1000 classes. A block of 256 takes a row.
extern "C" __global__ void __launch_bounds__(256) distill_kl_rows(
    const float* __restrict__ small, const float* __restrict__ large, float* __restrict__ loss,
    float temperature)
{
    __shared__ float of_warp[8];
    const size_t start = (size_t)blockIdx.x * 1000;
    float s[4], t[4], most_s = -1e30f, most_t = -1e30f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int j = threadIdx.x + 256 * i;
        s[i] = j < 1000 ? small[start + j] / temperature : -1e30f;
        t[i] = j < 1000 ? large[start + j] / temperature : -1e30f;
        most_s = fmaxf(most_s, s[i]);
        most_t = fmaxf(most_t, t[i]);
    }
    most_s = block_max(most_s, of_warp);
    most_t = block_max(most_t, of_warp);
    float sum_s = 0.0f, sum_t = 0.0f, cross = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float p = __expf(t[i] - most_t);
        sum_s += __expf(s[i] - most_s);
        sum_t += p;
        if (threadIdx.x + 256 * i < 1000) cross += p * (t[i] - s[i]);
    }
    sum_s = block_sum(sum_s, of_warp);
    sum_t = block_sum(sum_t, of_warp);
    cross = block_sum(cross, of_warp);
    if (threadIdx.x == 0) {
        const float apart = most_s + logf(sum_s) - most_t - logf(sum_t);
        loss[blockIdx.x] = temperature * temperature * (cross / sum_t + apart);
    }
}

// The gradients of PReLU: dx, and slope's, added to what it has. x and dy are planes of 56 x 56 in
// 64 channels. A block of 256 takes a plane.
extern "C" __global__ void __launch_bounds__(256) prelu_backward_nchw(
    const float* __restrict__ x, const float* __restrict__ dy, const float* __restrict__ slope,
    float* __restrict__ dx, float* __restrict__ dslope)
{
    __shared__ float of_warp[8];
    const int channel = blockIdx.x % 64;
    const size_t start = (size_t)blockIdx.x * 3136;
    const float a = slope[channel];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < 3136; i += 256) {
        const float v = x[start + i], g = dy[start + i];
        dx[start + i] = v > 0.0f ? g : a * g;
        if (v <= 0.0f) sum += v * g;
    }
    sum = block_sum(sum, of_warp);
    if (threadIdx.x == 0) atomicAdd(&dslope[channel], sum);
}

// Pictures (batch, 3, 224, 224) as the tokens of a ViT: (batch, 196, 3 x 16 x 16), in halves. A
// thread takes four pixels of a row.
extern "C" __global__ void patchify_16_half(
    const float4* __restrict__ picture, __half2* __restrict__ token, int quads)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= quads) return;
    const int x = i % 56, y = i / 56 % 224, channel = i / 12544 % 3, image = i / 37632;
    const int patch = y / 16 * 14 + x / 4;
    const size_t to = ((size_t)image * 196 + patch) * 768 + channel * 256 + y % 16 * 16 + x % 4 * 4;
    const float4 v = picture[i];
    token[to / 2] = __floats2half2_rn(v.x, v.y);
    token[to / 2 + 1] = __floats2half2_rn(v.z, v.w);
}
