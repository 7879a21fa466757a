// Layers: a norm of groups, tokens drawn from logits, moments of an optimiser, a norm across
// channels.

#include <cuda_fp16.h>

// GroupNorm and SiLU of halves, channels last: 320 channels in 32 groups. A block takes a group of
// a picture, five pairs of channels of every pixel.
extern "C" __global__ void __launch_bounds__(512) group_norm_silu_nhwc_half(
    const __half2* __restrict__ x, const float* __restrict__ weight,
    const float* __restrict__ bias, __half2* __restrict__ out, int pixels)
{
    constexpr int PAIRS = 160, OWN = 5;
    __shared__ float sums[16], squares[16];
    const int t = threadIdx.x, lane = t & 31, items = pixels * OWN;
    const size_t first = (size_t)blockIdx.y * pixels * PAIRS + blockIdx.x * OWN;
    float sum = 0.0f, square = 0.0f;
    for (int i = t; i < items; i += 512) {
        const float2 v = __half22float2(x[first + (size_t)(i / OWN) * PAIRS + i % OWN]);
        sum += v.x + v.y;
        square += v.x * v.x + v.y * v.y;
    }
    for (int step = 16; step; step /= 2) {
        sum += __shfl_xor_sync(~0u, sum, step);
        square += __shfl_xor_sync(~0u, square, step);
    }
    if (lane == 0) {
        sums[t / 32] = sum;
        squares[t / 32] = square;
    }
    __syncthreads();
    sum = sums[lane & 15];
    square = squares[lane & 15];
    for (int step = 8; step; step /= 2) {
        sum += __shfl_xor_sync(~0u, sum, step);
        square += __shfl_xor_sync(~0u, square, step);
    }
    const float mean = sum / (2 * items);
    const float inverse = rsqrtf(square / (2 * items) - mean * mean + 1e-5f);
    for (int i = t; i < items; i += 512) {
        const int pair = i % OWN, channel = 2 * (blockIdx.x * OWN + pair);
        const size_t at = first + (size_t)(i / OWN) * PAIRS + pair;
        float2 v = __half22float2(x[at]);
        v.x = (v.x - mean) * inverse * weight[channel] + bias[channel];
        v.y = (v.y - mean) * inverse * weight[channel + 1] + bias[channel + 1];
        v.x /= 1.0f + __expf(-v.x);
        v.y /= 1.0f + __expf(-v.y);
        out[at] = __floats2half2_rn(v.x, v.y);
    }
}

__device__ __forceinline__ float gumbel(unsigned row, unsigned column, unsigned seed)
{
    unsigned h = (row * 0x9E3779B9u ^ seed) + column;
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    h ^= h >> 16;
    const float u = ((h >> 9) + 0.5f) * (1.0f / 8388608.0f);
    return -logf(-logf(u));
}

// Draws a token of each row of logits: the greatest of logit / temperature and Gumbel noise. A
// block takes a row.
extern "C" __global__ void __launch_bounds__(512) gumbel_argmax_rows(
    const float* __restrict__ logit, int* __restrict__ token, int vocabulary, float inverse,
    unsigned seed)
{
    __shared__ float values[16];
    __shared__ int places[16];
    const int t = threadIdx.x, row = blockIdx.x;
    const float* own = logit + (size_t)row * vocabulary;
    float best = -3.0e38f;
    int place = 0;
    for (int i = t; i < vocabulary; i += 512) {
        const float v = own[i] * inverse + gumbel(row, i, seed);
        if (v > best) {
            best = v;
            place = i;
        }
    }
    for (int step = 16; step; step /= 2) {
        const float v = __shfl_down_sync(~0u, best, step);
        const int p = __shfl_down_sync(~0u, place, step);
        if (v > best || (v == best && p < place)) {
            best = v;
            place = p;
        }
    }
    if (t % 32 == 0) {
        values[t / 32] = best;
        places[t / 32] = place;
    }
    __syncthreads();
    if (t) return;
    for (int i = 1; i < 16; ++i)
        if (values[i] > best || (values[i] == best && places[i] < place)) {
            best = values[i];
            place = places[i];
        }
    token[row] = place;
}

__device__ __forceinline__ float lamb(
    float w, float g, float& m, float& v, float first, float second, float decay)
{
    m = first * m + (1.0f - first) * g;
    v = second * v + (1.0f - second) * g * g;
    return m / (sqrtf(v) + 1e-6f) + decay * w;
}

// The first half of a step of LAMB: moments, the wanted update, and sums of squares of weights and
// update for the trust ratio.
extern "C" __global__ void __launch_bounds__(256) lamb_moments_norms(
    const float4* __restrict__ weight, const float4* __restrict__ gradient,
    float4* __restrict__ mean, float4* __restrict__ square, float4* __restrict__ update,
    float* __restrict__ norms, int fours, float first, float second, float decay)
{
    __shared__ float of_warp[2][8];
    float weights = 0.0f, updates = 0.0f;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < fours; i += gridDim.x * 256) {
        const float4 w = weight[i], g = gradient[i];
        float4 m = mean[i], v = square[i], u;
        u.x = lamb(w.x, g.x, m.x, v.x, first, second, decay);
        u.y = lamb(w.y, g.y, m.y, v.y, first, second, decay);
        u.z = lamb(w.z, g.z, m.z, v.z, first, second, decay);
        u.w = lamb(w.w, g.w, m.w, v.w, first, second, decay);
        mean[i] = m;
        square[i] = v;
        update[i] = u;
        weights += w.x * w.x + w.y * w.y + w.z * w.z + w.w * w.w;
        updates += u.x * u.x + u.y * u.y + u.z * u.z + u.w * u.w;
    }
    for (int step = 16; step; step /= 2) {
        weights += __shfl_down_sync(~0u, weights, step);
        updates += __shfl_down_sync(~0u, updates, step);
    }
    if (threadIdx.x % 32 == 0) {
        of_warp[0][threadIdx.x / 32] = weights;
        of_warp[1][threadIdx.x / 32] = updates;
    }
    __syncthreads();
    if (threadIdx.x < 2) {
        float sum = 0.0f;
        for (int i = 0; i < 8; ++i) sum += of_warp[threadIdx.x][i];
        atomicAdd(norms + threadIdx.x, sum);
    }
}

// AlexNet's local response norm, over five channels, channels first. A thread makes one number.
extern "C" __global__ void local_response_norm_nchw(
    const float* __restrict__ x, float* __restrict__ out, int channels, int plane, float alpha,
    float beta, float k)
{
    const int pixel = blockIdx.x * blockDim.x + threadIdx.x, channel = blockIdx.y;
    if (pixel >= plane) return;
    const float* own = x + (size_t)blockIdx.z * channels * plane + pixel;
    float sum = 0.0f;
    for (int c = max(channel - 2, 0); c <= min(channel + 2, channels - 1); ++c) {
        const float v = own[(size_t)c * plane];
        sum += v * v;
    }
    const size_t at = ((size_t)blockIdx.z * channels + channel) * plane + pixel;
    out[at] = own[(size_t)channel * plane] * powf(k + alpha / 5.0f * sum, -beta);
}
