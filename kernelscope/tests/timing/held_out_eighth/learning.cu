// Layers and losses of networks.

#include <cuda_fp16.h>

// The gradient of a norm over images and places, of each channel of x (images, channels, plane):
// dx = gain / deviation * (dy - mean of dy - z * mean of dy * z), where z is x normalised. A block
// of 512 takes a channel and reads it twice.
extern "C" __global__ void __launch_bounds__(512) batch_norm_backward(
    const float* __restrict__ x, const float* __restrict__ dy, const float* __restrict__ gain,
    float* __restrict__ dx, int images, int channels, int plane)
{
    __shared__ float4 part[16];
    const int channel = blockIdx.x, t = threadIdx.x, n = images * plane;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int i = t; i < n; i += 512) {
        const size_t at = ((size_t)(i / plane) * channels + channel) * plane + i % plane;
        const float v = x[at], d = dy[at];
        sum.x += v;
        sum.y += v * v;
        sum.z += d;
        sum.w += d * v;
    }
    for (int step = 16; step > 0; step /= 2) {
        sum.x += __shfl_xor_sync(0xFFFFFFFF, sum.x, step);
        sum.y += __shfl_xor_sync(0xFFFFFFFF, sum.y, step);
        sum.z += __shfl_xor_sync(0xFFFFFFFF, sum.z, step);
        sum.w += __shfl_xor_sync(0xFFFFFFFF, sum.w, step);
    }
    if (t % 32 == 0) part[t / 32] = sum;
    __syncthreads();
    sum = part[0];
    for (int w = 1; w < 16; ++w) {
        sum.x += part[w].x;
        sum.y += part[w].y;
        sum.z += part[w].z;
        sum.w += part[w].w;
    }
    const float mean = sum.x / n, r = rsqrtf(sum.y / n - mean * mean + 1e-5f);
    const float d_mean = sum.z / n, along = r * (sum.w / n - mean * d_mean), g = gain[channel] * r;
    for (int i = t; i < n; i += 512) {
        const size_t at = ((size_t)(i / plane) * channels + channel) * plane + i % plane;
        dx[at] = g * (dy[at] - d_mean - (x[at] - mean) * r * along);
    }
}

__device__ __forceinline__ float2 focal(float x, int target, float alpha)
{
    const float sign = target ? 1.0f : -1.0f, weight = target ? alpha : 1.0f - alpha;
    const float z = sign * x;
    const float right = 1.0f / (1.0f + expf(-z)), wrong = 1.0f - right;
    const float entropy = fmaxf(-z, 0.0f) + log1pf(expf(-fabsf(z)));
    const float factor = weight * wrong * wrong;
    return make_float2(factor * entropy, -sign * factor * (2.0f * right * entropy + wrong));
}

// The focal loss (gamma = 2) of logits with targets 0 or 1, and its gradient.
extern "C" __global__ void focal_loss(
    const float4* __restrict__ logit, const int4* __restrict__ target, float4* __restrict__ loss,
    float4* __restrict__ gradient, int fours, float alpha)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < fours; i += gridDim.x * blockDim.x) {
        const float4 x = logit[i];
        const int4 is = target[i];
        const float2 a = focal(x.x, is.x, alpha), b = focal(x.y, is.y, alpha);
        const float2 c = focal(x.z, is.z, alpha), d = focal(x.w, is.w, alpha);
        loss[i] = make_float4(a.x, b.x, c.x, d.x);
        gradient[i] = make_float4(a.y, b.y, c.y, d.y);
    }
}

// The cosine of the angle between each row of a and that of b. A warp takes a row.
extern "C" __global__ void cosine_pairs(
    const __half2* __restrict__ a, const __half2* __restrict__ b, float* __restrict__ cosine,
    int rows, int pairs)
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float product = 0.0f, of_a = 0.0f, of_b = 0.0f;
    for (int i = lane; i < pairs; i += 32) {
        const float2 v = __half22float2(a[(size_t)row * pairs + i]);
        const float2 w = __half22float2(b[(size_t)row * pairs + i]);
        product += v.x * w.x + v.y * w.y;
        of_a += v.x * v.x + v.y * v.y;
        of_b += w.x * w.x + w.y * w.y;
    }
    for (int step = 16; step > 0; step /= 2) {
        product += __shfl_down_sync(0xFFFFFFFF, product, step);
        of_a += __shfl_down_sync(0xFFFFFFFF, of_a, step);
        of_b += __shfl_down_sync(0xFFFFFFFF, of_b, step);
    }
    if (lane == 0) cosine[row] = product / fmaxf(sqrtf(of_a) * sqrtf(of_b), 1e-8f);
}

// A transposed convolution with filters of 2 x 2 and a stride of 2: x (images, inputs, height,
// width), weight (inputs, outputs, 2, 2), y (images, outputs, 2 height, 2 width), inputs <= 256. A
// thread takes a pixel of x for one output channel.
extern "C" __global__ void deconv_2x2(
    const float* __restrict__ x, const float4* __restrict__ weight, float2* __restrict__ y,
    int inputs, int height, int width)
{
    __shared__ float4 own[256];
    const int output = blockIdx.y, outputs = gridDim.y, plane = height * width;
    for (int c = threadIdx.x; c < inputs; c += blockDim.x) own[c] = weight[c * outputs + output];
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= plane) return;
    const float* from = x + (size_t)blockIdx.z * inputs * plane + i;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int c = 0; c < inputs; ++c) {
        const float v = from[(size_t)c * plane];
        const float4 w = own[c];
        sum.x += v * w.x;
        sum.y += v * w.y;
        sum.z += v * w.z;
        sum.w += v * w.w;
    }
    const size_t top = ((size_t)blockIdx.z * outputs + output) * 2 * height + 2 * (i / width);
    y[top * width + i % width] = make_float2(sum.x, sum.y);
    y[(top + 1) * width + i % width] = make_float2(sum.z, sum.w);
}
