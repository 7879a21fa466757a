// Layers: a gated activation, a loss with its gradient, norms with rotations, pooling backwards.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// out = value * GELU(gate), with the error function: a row has its values, and then its gates. A
// thread takes two columns.
extern "C" __global__ void geglu_erf_half2(
    const __half2* __restrict__ x, __half2* __restrict__ out, int pairs)
{
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= pairs) return;
    const size_t row = blockIdx.y;
    const float2 value = __half22float2(x[row * 2 * pairs + column]);
    const float2 gate = __half22float2(x[row * 2 * pairs + pairs + column]);
    const float left = 0.5f * gate.x * (1.0f + erff(gate.x * 0.70710678f));
    const float right = 0.5f * gate.y * (1.0f + erff(gate.y * 0.70710678f));
    out[row * pairs + column] = __floats2half2_rn(value.x * left, value.y * right);
}

__device__ __forceinline__ void add_online(float& most, float& total, float of_other, float other)
{
    const float top = fmaxf(most, of_other);
    total = total * __expf(most - top) + other * __expf(of_other - top);
    most = top;
}

// Cross entropy with smoothed labels, and its gradient, of rows of bfloat16. A block takes a row:
// once for the logarithm of the sum, once for the gradient. A row of the ignored label gives zeros.
extern "C" __global__ void __launch_bounds__(512) cross_entropy_gradient_bf16(
    const uint4* __restrict__ logits, const int* __restrict__ label, float* __restrict__ loss,
    uint4* __restrict__ gradient, int classes, int ignored, float smoothing, float scale)
{
    __shared__ float of_warp[16][3], whole[2];
    const int t = threadIdx.x, lane = t & 31, count = classes / 8, target = label[blockIdx.x];
    const uint4* row = logits + (size_t)blockIdx.x * count;
    uint4* to = gradient + (size_t)blockIdx.x * count;
    if (target == ignored) {
        for (int i = t; i < count; i += 512) to[i] = make_uint4(0, 0, 0, 0);
        if (t == 0) loss[blockIdx.x] = 0.0f;
        return;
    }
    float most = -1e30f, total = 0.0f, sum = 0.0f;
    for (int i = t; i < count; i += 512) {
        const uint4 v = row[i];
        const __nv_bfloat162* pair = reinterpret_cast<const __nv_bfloat162*>(&v);
        float x[8];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 f = __bfloat1622float2(pair[j]);
            x[2 * j] = f.x;
            x[2 * j + 1] = f.y;
        }
        float top = most;
#pragma unroll
        for (int j = 0; j < 8; ++j) top = fmaxf(top, x[j]);
        total *= __expf(most - top);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            total += __expf(x[j] - top);
            sum += x[j];
        }
        most = top;
    }
#pragma unroll
    for (int step = 16; step; step /= 2) {
        const float of_other = __shfl_xor_sync(~0u, most, step);
        const float other = __shfl_xor_sync(~0u, total, step);
        add_online(most, total, of_other, other);
        sum += __shfl_xor_sync(~0u, sum, step);
    }
    if (lane == 0) {
        of_warp[t / 32][0] = most;
        of_warp[t / 32][1] = total;
        of_warp[t / 32][2] = sum;
    }
    __syncthreads();
    if (t == 0) {
        for (int w = 1; w < 16; ++w) {
            add_online(most, total, of_warp[w][0], of_warp[w][1]);
            sum += of_warp[w][2];
        }
        whole[0] = most + logf(total);
        whole[1] = sum;
    }
    __syncthreads();
    const float log_sum = whole[0], even = smoothing / classes;
    if (t == 0) {
        const __nv_bfloat16* single = reinterpret_cast<const __nv_bfloat16*>(row);
        const float own = log_sum - __bfloat162float(single[target]);
        loss[blockIdx.x] = (1.0f - smoothing) * own + smoothing * (log_sum - whole[1] / classes);
    }
    for (int i = t; i < count; i += 512) {
        uint4 v = row[i];
        __nv_bfloat162* pair = reinterpret_cast<__nv_bfloat162*>(&v);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 f = __bfloat1622float2(pair[j]);
            float left = __expf(f.x - log_sum) - even, right = __expf(f.y - log_sum) - even;
            if (8 * i + 2 * j == target) left -= 1.0f - smoothing;
            if (8 * i + 2 * j + 1 == target) right -= 1.0f - smoothing;
            pair[j] = __floats2bfloat162_rn(left * scale, right * scale);
        }
        to[i] = v;
    }
}

// RMS norms of the queries' and the keys' heads of 128, and rotations of their halves by a
// token's position. A warp takes a head of a token, and a lane two elements of each half.
extern "C" __global__ void __launch_bounds__(256) qk_norm_rotary_half(
    const __half2* __restrict__ qkv, const __half2* __restrict__ of_query,
    const __half2* __restrict__ of_key, const float2* __restrict__ cosine,
    const float2* __restrict__ sine, const int* __restrict__ position, __half2* __restrict__ out,
    int tokens, int queries, int keys)
{
    const int warp = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x & 31;
    const int token = warp / (queries + keys), head = warp % (queries + keys);
    if (token >= tokens) return;
    const __half2* from = qkv + ((size_t)token * (queries + 2 * keys) + head) * 64;
    float2 x = __half22float2(from[lane]), y = __half22float2(from[32 + lane]);
    float squares = x.x * x.x + x.y * x.y + y.x * y.x + y.y * y.y;
#pragma unroll
    for (int step = 16; step; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
    const float by = rsqrtf(squares / 128.0f + 1e-6f);
    const __half2* weight = head < queries ? of_query : of_key;
    const float2 p = __half22float2(weight[lane]), q = __half22float2(weight[32 + lane]);
    x = make_float2(x.x * by * p.x, x.y * by * p.y);
    y = make_float2(y.x * by * q.x, y.y * by * q.y);
    const float2 c = cosine[position[token] * 32 + lane], s = sine[position[token] * 32 + lane];
    __half2* to = out + (size_t)warp * 64;
    to[lane] = __floats2half2_rn(x.x * c.x - y.x * s.x, x.y * c.y - y.y * s.y);
    to[32 + lane] = __floats2half2_rn(y.x * c.x + x.x * s.x, y.y * c.y + x.y * s.y);
}

// The gradient of average pooling over 3 x 3 with stride 2 and a border of one, channels last. A
// thread takes four channels of a pixel, and strides.
extern "C" __global__ void avg_pool_backward_nhwc(
    const float4* __restrict__ gradient, float4* __restrict__ out, int count, int side, int fours)
{
    const int half = side / 2;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        const int channel = i % fours, pixel = i / fours;
        const int column = pixel % side, row = pixel / side % side, image = pixel / side / side;
        const int last_row = min((row + 1) / 2, half - 1);
        const int last_column = min((column + 1) / 2, half - 1);
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int r = row / 2; r <= last_row; ++r)
            for (int c = column / 2; c <= last_column; ++c) {
                const float4 g = gradient[((image * half + r) * half + c) * fours + channel];
                sum.x += g.x;
                sum.y += g.y;
                sum.z += g.z;
                sum.w += g.w;
            }
        const float part = 1.0f / 9.0f;
        out[i] = make_float4(sum.x * part, sum.y * part, sum.z * part, sum.w * part);
    }
}
