// Norms and losses: gradients of GELU and of RMS norm, batch norm as trained, a triplet's margin.

#include <cuda_bf16.h>

__device__ __forceinline__ float gelu_slope(float x)
{
    const float inner = 0.79788456f * (x + 0.044715f * x * x * x);
    const float t = tanhf(inner);
    const float of_inner = 0.79788456f * (1.0f + 3.0f * 0.044715f * x * x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * of_inner;
}

// dx = dy times the slope of GELU (by tanh) at x, bfloat16. A thread takes eight numbers.
extern "C" __global__ void gelu_tanh_backward_bf16(
    const __nv_bfloat16* __restrict__ x, const __nv_bfloat16* __restrict__ dy,
    __nv_bfloat16* __restrict__ dx, int eights)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= eights) return;
    const uint4 packed_x = reinterpret_cast<const uint4*>(x)[i];
    const uint4 packed_dy = reinterpret_cast<const uint4*>(dy)[i];
    uint4 out;
    const __nv_bfloat162* v = reinterpret_cast<const __nv_bfloat162*>(&packed_x);
    const __nv_bfloat162* g = reinterpret_cast<const __nv_bfloat162*>(&packed_dy);
    __nv_bfloat162* to = reinterpret_cast<__nv_bfloat162*>(&out);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float2 p = __bfloat1622float2(v[j]), q = __bfloat1622float2(g[j]);
        to[j] = __floats2bfloat162_rn(q.x * gelu_slope(p.x), q.y * gelu_slope(p.y));
    }
    reinterpret_cast<uint4*>(dx)[i] = out;
}

__device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(0xFFFFFFFF, v, step);
    return v;
}

// The gradient of RMS norm to its input, rows of 2048 numbers. A block of 256 takes a row, a
// thread two float4 of it.
extern "C" __global__ void __launch_bounds__(256) rms_norm_backward_rows(
    const float4* __restrict__ x, const float4* __restrict__ gain, const float4* __restrict__ dy,
    float4* __restrict__ dx, float epsilon)
{
    __shared__ float2 of_warp[8];
    const size_t start = (size_t)blockIdx.x * 512;
    float4 v[2], g[2];
    float squares = 0.0f, dot = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int j = threadIdx.x + 256 * i;
        const float4 w = gain[j], d = dy[start + j];
        v[i] = x[start + j];
        g[i] = make_float4(d.x * w.x, d.y * w.y, d.z * w.z, d.w * w.w);
        squares += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
        dot += v[i].x * g[i].x + v[i].y * g[i].y + v[i].z * g[i].z + v[i].w * g[i].w;
    }
    squares = warp_sum(squares);
    dot = warp_sum(dot);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = make_float2(squares, dot);
    __syncthreads();
    squares = dot = 0.0f;
#pragma unroll
    for (int w = 0; w < 8; ++w) {
        squares += of_warp[w].x;
        dot += of_warp[w].y;
    }
    const float r = rsqrtf(squares / 2048.0f + epsilon);
    const float back = r * r * dot / 2048.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i)
        dx[start + threadIdx.x + 256 * i] = make_float4(
            r * (g[i].x - v[i].x * back), r * (g[i].y - v[i].y * back),
            r * (g[i].z - v[i].z * back), r * (g[i].w - v[i].w * back));
}

// Batch norm in training, x (batch, channels, pixels): the mean and the variance of a channel,
// their running averages, and the output. A block of 512 takes a channel.
extern "C" __global__ void __launch_bounds__(512) batch_norm_train_nchw(
    const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ beta,
    float* __restrict__ y, float* __restrict__ running_mean, float* __restrict__ running_var,
    int batch, int channels, int pixels, float momentum)
{
    __shared__ float sums[16], squares[16];
    const int channel = blockIdx.x, t = threadIdx.x;
    float sum = 0.0f, square = 0.0f;
    for (int b = 0; b < batch; ++b) {
        const float* from = x + ((size_t)b * channels + channel) * pixels;
        for (int i = t; i < pixels; i += 512) {
            sum += from[i];
            square += from[i] * from[i];
        }
    }
    sum = warp_sum(sum);
    square = warp_sum(square);
    if (t % 32 == 0) {
        sums[t / 32] = sum;
        squares[t / 32] = square;
    }
    __syncthreads();
    if (t < 32) {
        sum = warp_sum(t < 16 ? sums[t] : 0.0f);
        square = warp_sum(t < 16 ? squares[t] : 0.0f);
        if (t == 0) {
            const float count = (float)batch * pixels;
            const float mean = sum / count, var = square / count - mean * mean;
            running_mean[channel] += momentum * (mean - running_mean[channel]);
            const float unbiased = var * count / (count - 1.0f);
            running_var[channel] += momentum * (unbiased - running_var[channel]);
            sums[0] = mean;
            squares[0] = rsqrtf(var + 1e-5f);
        }
    }
    __syncthreads();
    const float scale = gamma[channel] * squares[0], shift = beta[channel] - sums[0] * scale;
    for (int b = 0; b < batch; ++b) {
        const size_t start = ((size_t)b * channels + channel) * pixels;
        for (int i = t; i < pixels; i += 512) y[start + i] = x[start + i] * scale + shift;
    }
}

// The loss of triplets of embeddings of 128 numbers: how much nearer than a margin a stranger is
// than a relative. A warp takes a triplet, a lane a float4 of each.
extern "C" __global__ void triplet_margin_rows(
    const float4* __restrict__ anchor, const float4* __restrict__ relative,
    const float4* __restrict__ stranger, float* __restrict__ loss, int rows, float margin)
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const size_t at = (size_t)row * 32 + lane;
    const float4 a = anchor[at], p = relative[at], n = stranger[at];
    float x = a.x - p.x, y = a.y - p.y, z = a.z - p.z, w = a.w - p.w;
    const float near = warp_sum(x * x + y * y + z * z + w * w);
    x = a.x - n.x, y = a.y - n.y, z = a.z - n.z, w = a.w - n.w;
    const float far = warp_sum(x * x + y * y + z * z + w * w);
    if (lane == 0) loss[row] = fmaxf(sqrtf(near) - sqrtf(far) + margin, 0.0f);
}
