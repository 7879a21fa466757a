// Layers: a step of an optimiser, a norm's gradient, a loss of latent numbers, a recurrence over
// time, scores with a learned bias, the inverse of a pool.

#include <cuda_fp16.h>

// RMSProp, centred. A thread takes four parameters.
extern "C" __global__ void __launch_bounds__(256) rmsprop_centred_step(
    float4* __restrict__ parameter, const float4* __restrict__ gradient,
    float4* __restrict__ square, float4* __restrict__ mean, int fours, float rate, float kept,
    float epsilon)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= fours) return;
    float4 p = parameter[i], g = gradient[i], s = square[i], m = mean[i];
    float* ps = &p.x;
    float* gs = &g.x;
    float* ss = &s.x;
    float* ms = &m.x;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        ss[j] = kept * ss[j] + (1.0f - kept) * gs[j] * gs[j];
        ms[j] = kept * ms[j] + (1.0f - kept) * gs[j];
        ps[j] -= rate * gs[j] / (sqrtf(fmaxf(ss[j] - ms[j] * ms[j], 0.0f)) + epsilon);
    }
    parameter[i] = p;
    square[i] = s;
    mean[i] = m;
}

// GroupNorm's gradient of its input, with what the forward pass has kept. A block takes a group
// of a picture.
extern "C" __global__ void __launch_bounds__(256) group_norm_input_gradient(
    const float* __restrict__ x, const float* __restrict__ gradient,
    const float* __restrict__ weight, const float* __restrict__ mean,
    const float* __restrict__ inverse, float* __restrict__ out, int channels_each, int plane)
{
    __shared__ float sums[8], products[8];
    const int group = blockIdx.x, t = threadIdx.x, lane = t & 31, size = channels_each * plane;
    const int own = blockIdx.y * gridDim.x + group;
    const size_t first = (size_t)own * size;
    const float middle = mean[own], factor = inverse[own];
    float sum = 0.0f, product = 0.0f;
    for (int i = t; i < size; i += 256) {
        const float g = gradient[first + i] * weight[group * channels_each + i / plane];
        sum += g;
        product += g * (x[first + i] - middle);
    }
    for (int step = 16; step; step /= 2) {
        sum += __shfl_down_sync(~0u, sum, step);
        product += __shfl_down_sync(~0u, product, step);
    }
    if (lane == 0) {
        sums[t / 32] = sum;
        products[t / 32] = product;
    }
    __syncthreads();
    sum = product = 0.0f;
    for (int i = 0; i < 8; ++i) {
        sum += sums[i];
        product += products[i];
    }
    sum /= size;
    product *= factor * factor / size;
    for (int i = t; i < size; i += 256) {
        const float g = gradient[first + i] * weight[group * channels_each + i / plane];
        out[first + i] = factor * (g - sum - (x[first + i] - middle) * product);
    }
}

__device__ __forceinline__ float4 floats_of(ushort4 v)
{
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.y << 16),
                       __uint_as_float(v.z << 16), __uint_as_float(v.w << 16));
}

// Draws latent numbers of a variational autoencoder, and its divergence from normal ones. A warp
// takes a row of 128.
extern "C" __global__ void __launch_bounds__(256) latent_draw_kl_128_bf16(
    const ushort4* __restrict__ mean, const ushort4* __restrict__ log_variance,
    const float4* __restrict__ noise, float4* __restrict__ latent, float* __restrict__ loss,
    int rows)
{
    const int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (row >= rows) return;
    const size_t place = (size_t)row * 32 + lane;
    const float4 m = floats_of(mean[place]), l = floats_of(log_variance[place]);
    const float4 e = noise[place];
    float4 z;
    float sum = 0.0f;
    auto one = [&](float middle, float log_square, float normal) {
        const float deviation = __expf(0.5f * log_square);
        sum += middle * middle + deviation * deviation - 1.0f - log_square;
        return middle + deviation * normal;
    };
    z.x = one(m.x, l.x, e.x);
    z.y = one(m.y, l.y, e.y);
    z.z = one(m.z, l.z, e.z);
    z.w = one(m.w, l.w, e.w);
    latent[place] = z;
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) loss[row] = 0.5f * sum;
}

// The mean over time of RWKV, with shares that decay. A thread takes a channel of a sequence.
extern "C" __global__ void __launch_bounds__(64) wkv_over_time(
    const float* __restrict__ decay, const float* __restrict__ bonus,
    const float* __restrict__ key, const float* __restrict__ value, float* __restrict__ out,
    int time, int channels)
{
    const int channel = blockIdx.x * 64 + threadIdx.x;
    if (channel >= channels) return;
    const size_t first = (size_t)blockIdx.y * time * channels + channel;
    const float w = -expf(decay[channel]), u = bonus[channel];
    float above = 0.0f, below = 0.0f, top = -1.0e38f;
#pragma unroll 4
    for (int i = 0; i < time; ++i) {
        const float k = key[first + (size_t)i * channels];
        const float v = value[first + (size_t)i * channels];
        float high = fmaxf(top, u + k);
        float old_share = __expf(top - high), new_share = __expf(u + k - high);
        out[first + (size_t)i * channels] =
            __fdividef(old_share * above + new_share * v, old_share * below + new_share);
        high = fmaxf(w + top, k);
        old_share = __expf(w + top - high);
        new_share = __expf(k - high);
        above = old_share * above + new_share * v;
        below = old_share * below + new_share;
        top = high;
    }
}

// Adds to scores a bias that depends on the distance: 32 buckets, as T5 has them. A thread takes
// two columns.
extern "C" __global__ void __launch_bounds__(256) add_bias_of_distance_half(
    const __half2* __restrict__ score, const float* __restrict__ bias, __half2* __restrict__ out,
    int n)
{
    const int pair = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y, head = blockIdx.z;
    if (2 * pair >= n) return;
    const size_t place = ((size_t)head * n + row) * (n / 2) + pair;
    float2 v = __half22float2(score[place]);
    float* two = &v.x;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const int ahead = 2 * pair + j - row, away = abs(ahead);
        const int far = min(15, 2 + 31 - __clz(away * away));
        two[j] += bias[((ahead > 0 ? 16 : 0) + (away < 8 ? away : far)) * gridDim.z + head];
    }
    out[place] = __float22half2_rn(v);
}

// Puts each number back at its place in a window of 2 x 2, and zeros around it. A thread takes a
// window.
extern "C" __global__ void max_unpool_2x2(
    const float* __restrict__ pooled, const int* __restrict__ corner, float2* __restrict__ out,
    int width, int height)
{
    const int x = blockIdx.x * 64 + threadIdx.x, y = blockIdx.y * 4 + threadIdx.y;
    if (x >= width || y >= height) return;
    const size_t plane = (size_t)blockIdx.z * height, place = (plane + y) * width + x;
    const float v = pooled[place];
    const int c = corner[place];
    float2* to = out + 2 * (plane + y) * width + x;
    to[0] = make_float2(c == 0 ? v : 0.0f, c == 1 ? v : 0.0f);
    to[width] = make_float2(c == 2 ? v : 0.0f, c == 3 ? v : 0.0f);
}
