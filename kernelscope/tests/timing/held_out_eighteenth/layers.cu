// Layers: a norm's gradients, rows of scores with a slope, an activation, pages of a cache, a
// loss of pairs.

#include <cuda_fp16.h>

// The gradients of BatchNorm, channels first, with what the forward pass has kept. A block takes
// a channel.
extern "C" __global__ void __launch_bounds__(512) batch_norm_backward_nchw(
    const float* __restrict__ x, const float* __restrict__ gradient,
    const float* __restrict__ weight, const float* __restrict__ mean,
    const float* __restrict__ inverse, float* __restrict__ x_gradient,
    float* __restrict__ weight_gradient, float* __restrict__ bias_gradient, int batch,
    int channels, int plane)
{
    __shared__ float sums[16], products[16];
    const int channel = blockIdx.x, t = threadIdx.x, lane = t & 31;
    const float middle = mean[channel], factor = inverse[channel];
    float sum = 0.0f, product = 0.0f;
    for (int picture = 0; picture < batch; ++picture) {
        const size_t first = ((size_t)picture * channels + channel) * plane;
        for (int i = t; i < plane; i += 512) {
            const float g = gradient[first + i];
            sum += g;
            product += g * (x[first + i] - middle);
        }
    }
    for (int step = 16; step; step /= 2) {
        sum += __shfl_xor_sync(~0u, sum, step);
        product += __shfl_xor_sync(~0u, product, step);
    }
    if (lane == 0) {
        sums[t / 32] = sum;
        products[t / 32] = product;
    }
    __syncthreads();
    sum = sums[lane & 15];
    product = products[lane & 15];
    for (int step = 8; step; step /= 2) {
        sum += __shfl_xor_sync(~0u, sum, step);
        product += __shfl_xor_sync(~0u, product, step);
    }
    const float count = (float)batch * plane;
    const float scale = weight[channel] * factor, slope = product * factor * factor / count;
    const float part = sum / count;
    for (int picture = 0; picture < batch; ++picture) {
        const size_t first = ((size_t)picture * channels + channel) * plane;
        for (int i = t; i < plane; i += 512)
            x_gradient[first + i] =
                (gradient[first + i] - part - (x[first + i] - middle) * slope) * scale;
    }
    if (t == 0) {
        weight_gradient[channel] = product * factor;
        bias_gradient[channel] = sum;
    }
}

// Shares of causal scores with a slope for each head (ALiBi), halves of at most 2048 columns. A
// block takes a row and keeps it in registers.
extern "C" __global__ void __launch_bounds__(256) alibi_causal_shares_half(
    const __half2* __restrict__ score, __half2* __restrict__ share, int n, float scale)
{
    __shared__ float of_warp[8];
    const int row = blockIdx.x, head = blockIdx.y, t = threadIdx.x, lane = t & 31;
    const size_t first = ((size_t)head * n + row) * (n / 2);
    const float slope = exp2f(-8.0f * (head + 1) / gridDim.y);
    float2 v[4];
    float top = -1.0e30f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int column = 2 * (t + 256 * i);
        v[i] = make_float2(-1.0e30f, -1.0e30f);
        if (column <= row) {
            const float2 s = __half22float2(score[first + column / 2]);
            v[i].x = s.x * scale + slope * (column - row);
            if (column < row) v[i].y = s.y * scale + slope * (column + 1 - row);
        }
        top = fmaxf(top, fmaxf(v[i].x, v[i].y));
    }
    for (int step = 16; step; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    if (lane == 0) of_warp[t / 32] = top;
    __syncthreads();
    for (int i = 0; i < 8; ++i) top = fmaxf(top, of_warp[i]);
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        v[i].x = __expf(v[i].x - top);
        v[i].y = __expf(v[i].y - top);
        sum += v[i].x + v[i].y;
    }
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) of_warp[t / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < 8; ++i) sum += of_warp[i];
    const float inverse = 1.0f / sum;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int column = 2 * (t + 256 * i);
        if (column < n)
            share[first + column / 2] = __floats2half2_rn(v[i].x * inverse, v[i].y * inverse);
    }
}

__device__ __forceinline__ float mish(float x)
{
    const float e = __expf(fminf(x, 20.0f)), n = e * (e + 2.0f);
    return x * __fdividef(n, n + 2.0f);
}

// Mish of halves, eight at once, by a loop over the grid.
extern "C" __global__ void __launch_bounds__(256) mish_half8(
    const __half* __restrict__ x, __half* __restrict__ out, int eights)
{
    const uint4* from = reinterpret_cast<const uint4*>(x);
    for (int i = blockIdx.x * 256 + threadIdx.x; i < eights; i += gridDim.x * 256) {
        uint4 v = from[i];
        __half2* pair = reinterpret_cast<__half2*>(&v);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 two = __half22float2(pair[j]);
            pair[j] = __floats2half2_rn(mish(two.x), mish(two.y));
        }
        reinterpret_cast<uint4*>(out)[i] = v;
    }
}

// Copies keys and values of sequences from pages of 16 tokens to rows without gaps, 1024 halves a
// token. A block takes a page.
extern "C" __global__ void __launch_bounds__(128) gather_pages_half(
    const __half* __restrict__ key, const __half* __restrict__ value,
    const int* __restrict__ page_of, const int* __restrict__ first_token,
    __half* __restrict__ key_out, __half* __restrict__ value_out, int pages_each)
{
    const int sequence = blockIdx.y, t = threadIdx.x;
    const int first = first_token[sequence] + blockIdx.x * 16;
    const int count = min(16, first_token[sequence + 1] - first);
    if (count <= 0) return;
    const size_t page = (size_t)page_of[sequence * pages_each + blockIdx.x] * 16384;
    const uint4* keys = reinterpret_cast<const uint4*>(key + page) + t;
    const uint4* values = reinterpret_cast<const uint4*>(value + page) + t;
    uint4* keys_out = reinterpret_cast<uint4*>(key_out + (size_t)first * 1024) + t;
    uint4* values_out = reinterpret_cast<uint4*>(value_out + (size_t)first * 1024) + t;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
        keys_out[i * 128] = keys[i * 128];
        values_out[i * 128] = values[i * 128];
    }
}

// The cosine loss of pairs of 512 numbers, alike or not, and its gradient for the first of a pair.
// A warp takes a pair.
extern "C" __global__ void __launch_bounds__(256) cosine_pairs_loss_512(
    const float4* __restrict__ a, const float4* __restrict__ b, const int* __restrict__ alike,
    float* __restrict__ loss, float4* __restrict__ gradient, int rows, float margin)
{
    const int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (row >= rows) return;
    float4 p[4], q[4];
    float aa = 0.0f, bb = 0.0f, ab = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        p[i] = a[(size_t)row * 128 + 32 * i + lane];
        q[i] = b[(size_t)row * 128 + 32 * i + lane];
        aa += p[i].x * p[i].x + p[i].y * p[i].y + p[i].z * p[i].z + p[i].w * p[i].w;
        bb += q[i].x * q[i].x + q[i].y * q[i].y + q[i].z * q[i].z + q[i].w * q[i].w;
        ab += p[i].x * q[i].x + p[i].y * q[i].y + p[i].z * q[i].z + p[i].w * q[i].w;
    }
    for (int step = 16; step; step /= 2) {
        aa += __shfl_xor_sync(~0u, aa, step);
        bb += __shfl_xor_sync(~0u, bb, step);
        ab += __shfl_xor_sync(~0u, ab, step);
    }
    const float inverse = rsqrtf(aa * bb + 1e-12f), cosine = ab * inverse;
    float slope = -1.0f, own = 1.0f - cosine;
    if (!alike[row]) {
        own = fmaxf(0.0f, cosine - margin);
        slope = cosine > margin ? 1.0f : 0.0f;
    }
    if (lane == 0) loss[row] = own;
    const float of_b = slope * inverse, of_a = slope * cosine / (aa + 1e-12f);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        gradient[(size_t)row * 128 + 32 * i + lane] =
            make_float4(of_b * q[i].x - of_a * p[i].x, of_b * q[i].y - of_a * p[i].y,
                        of_b * q[i].z - of_a * p[i].z, of_b * q[i].w - of_a * p[i].w);
}
