// Layers: an activation, a norm behind a residual, a causal softmax, the pool before a classifier.

#include <cuda_fp16.h>

__device__ __forceinline__ float mish(float v) { return v * tanhf(log1pf(__expf(v))); }

// y = x tanh(log(1 + exp(x))). A grid-stride loop over four floats each.
extern "C" __global__ void mish_float4(
    const float4* __restrict__ x, float4* __restrict__ y, int quads)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < quads; i += gridDim.x * blockDim.x) {
        const float4 v = x[i];
        y[i] = make_float4(mish(v.x), mish(v.y), mish(v.z), mish(v.w));
    }
}

// sum = x + residual, and y = the layer norm of sum, in rows of 1024 halves. A block of 128 takes a
// row, a thread eight halves of it, in registers.
extern "C" __global__ void __launch_bounds__(128) residual_layer_norm(
    const __half* __restrict__ x, const __half* __restrict__ residual,
    const __half* __restrict__ gamma, const __half* __restrict__ beta, __half* __restrict__ sum,
    __half* __restrict__ y)
{
    __shared__ float total[4], squares[4];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const size_t at = (size_t)blockIdx.x * 128 + t;
    const uint4 a = ((const uint4*)x)[at], b = ((const uint4*)residual)[at];
    const __half2 *a2 = (const __half2*)&a, *b2 = (const __half2*)&b;
    uint4 packed;
    __half2* out = (__half2*)&packed;
    float2 v[4];
    float mean = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 p = __half22float2(a2[i]), q = __half22float2(b2[i]);
        v[i] = make_float2(p.x + q.x, p.y + q.y);
        out[i] = __floats2half2_rn(v[i].x, v[i].y);
        mean += v[i].x + v[i].y;
    }
    ((uint4*)sum)[at] = packed;
    for (int step = 16; step > 0; step >>= 1) mean += __shfl_xor_sync(0xFFFFFFFF, mean, step);
    if (lane == 0) total[warp] = mean;
    __syncthreads();
    mean = (total[0] + total[1] + total[2] + total[3]) / 1024.0f;
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        v[i].x -= mean;
        v[i].y -= mean;
        square += v[i].x * v[i].x + v[i].y * v[i].y;
    }
    for (int step = 16; step > 0; step >>= 1) square += __shfl_xor_sync(0xFFFFFFFF, square, step);
    if (lane == 0) squares[warp] = square;
    __syncthreads();
    square = (squares[0] + squares[1] + squares[2] + squares[3]) / 1024.0f;
    const float over = rsqrtf(square + 1e-5f);
    const uint4 g = ((const uint4*)gamma)[t], c = ((const uint4*)beta)[t];
    const __half2 *g2 = (const __half2*)&g, *c2 = (const __half2*)&c;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 by = __half22float2(g2[i]), plus = __half22float2(c2[i]);
        out[i] = __floats2half2_rn(v[i].x * over * by.x + plus.x, v[i].y * over * by.y + plus.y);
    }
    ((uint4*)y)[at] = packed;
}

// The softmax of scaled scores (heads, tokens, tokens), where a token sees those up to itself; the
// others get 0. A warp takes a row.
extern "C" __global__ void causal_softmax_rows(
    const float* __restrict__ score, float* __restrict__ share, int rows, int tokens, float scale)
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const int seen = row % tokens + 1;
    const float* from = score + (size_t)row * tokens;
    float* to = share + (size_t)row * tokens;
    float most = -1e30f, sum = 0.0f;
    for (int i = lane; i < seen; i += 32) {
        const float v = scale * from[i], before = most;
        most = fmaxf(most, v);
        sum = sum * __expf(before - most) + __expf(v - most);
    }
    for (int step = 16; step > 0; step >>= 1) {
        const float other = __shfl_xor_sync(0xFFFFFFFF, most, step);
        const float others = __shfl_xor_sync(0xFFFFFFFF, sum, step);
        const float both = fmaxf(most, other);
        sum = sum * __expf(most - both) + others * __expf(other - both);
        most = both;
    }
    const float over = 1.0f / sum;
    for (int i = lane; i < tokens; i += 32)
        to[i] = i < seen ? __expf(scale * from[i] - most) * over : 0.0f;
}

// The mean of each plane of 7 x 7, as before the classifier of a ResNet. A warp takes a plane.
extern "C" __global__ void global_average_pool(
    const float* __restrict__ x, float* __restrict__ y, int planes)
{
    const int plane = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (plane >= planes) return;
    float sum = 0.0f;
    for (int i = lane; i < 49; i += 32) sum += x[(size_t)plane * 49 + i];
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_down_sync(0xFFFFFFFF, sum, step);
    if (lane == 0) y[plane] = sum / 49.0f;
}
