// Layers: a modulated norm, a norm of planes, a loss backwards, a step of an optimiser.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// LayerNorm without weights, then (1 + scale) * x + shift, as diffusion transformers have it. A
// warp takes a token of 1152 halves; a picture's tokens have one scale and one shift.
extern "C" __global__ void __launch_bounds__(256) modulate_layer_norm_half(
    const __half2* __restrict__ x, const __half2* __restrict__ scale,
    const __half2* __restrict__ shift, __half2* __restrict__ out, int tokens, int of_picture)
{
    constexpr int PAIRS = 576, OWN = PAIRS / 32;
    const int token = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (token >= tokens) return;
    const __half2* row = x + (size_t)token * PAIRS;
    float2 v[OWN];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        v[i] = __half22float2(row[i * 32 + lane]);
        sum += v[i].x + v[i].y;
    }
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    const float mean = sum / (2 * PAIRS);
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        v[i].x -= mean;
        v[i].y -= mean;
        squares += v[i].x * v[i].x + v[i].y * v[i].y;
    }
    for (int step = 16; step; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
    const float inverse = rsqrtf(squares / (2 * PAIRS) + 1e-6f);
    const int picture = token / of_picture * PAIRS;
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        const float2 a = __half22float2(scale[picture + i * 32 + lane]);
        const float2 b = __half22float2(shift[picture + i * 32 + lane]);
        out[(size_t)token * PAIRS + i * 32 + lane] = __floats2half2_rn(
            v[i].x * inverse * (1.0f + a.x) + b.x, v[i].y * inverse * (1.0f + a.y) + b.y);
    }
}

// InstanceNorm and a leaky ReLU of planes, channels first. A block takes a plane.
extern "C" __global__ void __launch_bounds__(256) instance_norm_leaky_nchw(
    const float4* __restrict__ x, const float* __restrict__ weight,
    const float* __restrict__ bias, float4* __restrict__ out, int channels, int fours, float slope)
{
    __shared__ float sums[8], squares[8];
    const int t = threadIdx.x, channel = blockIdx.x % channels;
    const float4* plane = x + (size_t)blockIdx.x * fours;
    float sum = 0.0f, square = 0.0f;
    for (int i = t; i < fours; i += 256) {
        const float4 v = plane[i];
        sum += v.x + v.y + v.z + v.w;
        square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    for (int step = 16; step; step /= 2) {
        sum += __shfl_down_sync(~0u, sum, step);
        square += __shfl_down_sync(~0u, square, step);
    }
    if (t % 32 == 0) {
        sums[t / 32] = sum;
        squares[t / 32] = square;
    }
    __syncthreads();
    sum = square = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        sum += sums[i];
        square += squares[i];
    }
    const float mean = sum / (4 * fours);
    const float a = weight[channel] * rsqrtf(square / (4 * fours) - mean * mean + 1e-5f);
    const float b = bias[channel] - mean * a;
    for (int i = t; i < fours; i += 256) {
        float4 v = plane[i];
        v = make_float4(a * v.x + b, a * v.y + b, a * v.z + b, a * v.w + b);
        v.x = v.x < 0.0f ? slope * v.x : v.x;
        v.y = v.y < 0.0f ? slope * v.y : v.y;
        v.z = v.z < 0.0f ? slope * v.z : v.z;
        v.w = v.w < 0.0f ? slope * v.w : v.w;
        out[(size_t)blockIdx.x * fours + i] = v;
    }
}

__device__ __forceinline__ float focal(float x, bool positive, float alpha, float gamma)
{
    const float p = 1.0f / (1.0f + expf(positive ? -x : x));
    const float slope = powf(1.0f - p, gamma) * (gamma * p * logf(p) + p - 1.0f);
    return positive ? alpha * slope : (alpha - 1.0f) * slope;
}

// The gradient of the sigmoid focal loss: a label's lowest bit says whether the class is there.
extern "C" __global__ void focal_loss_backward(
    const float4* __restrict__ logit, const uchar4* __restrict__ label,
    float4* __restrict__ gradient, int fours, float alpha, float gamma)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < fours; i += gridDim.x * blockDim.x) {
        const float4 x = logit[i];
        const uchar4 is = label[i];
        gradient[i] = make_float4(
            focal(x.x, is.x & 1, alpha, gamma), focal(x.y, is.y & 1, alpha, gamma),
            focal(x.z, is.z & 1, alpha, gamma), focal(x.w, is.w & 1, alpha, gamma));
    }
}

// A step of Lion: the weights move by the sign of a mix of momentum and gradient.
extern "C" __global__ void lion_step_bf16_gradient(
    float2* __restrict__ weight, float2* __restrict__ momentum,
    const __nv_bfloat162* __restrict__ gradient, int pairs, float rate, float decay, float first,
    float second)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pairs) return;
    const float2 g = __bfloat1622float2(gradient[i]);
    float2 m = momentum[i], w = weight[i];
    const float x = first * m.x + (1.0f - first) * g.x, y = first * m.y + (1.0f - first) * g.y;
    w.x = w.x * (1.0f - rate * decay) - (x == 0.0f ? 0.0f : copysignf(rate, x));
    w.y = w.y * (1.0f - rate * decay) - (y == 0.0f ? 0.0f : copysignf(rate, y));
    m.x = second * m.x + (1.0f - second) * g.x;
    m.y = second * m.y + (1.0f - second) * g.y;
    weight[i] = w;
    momentum[i] = m;
}
