// Parts of language models.

#include <cuda_fp16.h>

// x (rows, columns) half, weight (columns,): a block takes a row.
extern "C" __global__ void rms_norm(
    const __half2* x, const __half2* weight, __half2* y, int columns)
{
    __shared__ float sums[8];
    const __half2* row = x + (size_t)blockIdx.x * columns / 2;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < columns / 2; c += 256) {
        const float2 v = __half22float2(row[c]);
        sum += v.x * v.x + v.y * v.y;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    float total = 0.0f;
    for (int w = 0; w < 8; ++w) total += sums[w];
    const float scale = rsqrtf(total / columns + 1e-5f);
    for (int c = threadIdx.x; c < columns / 2; c += 256) {
        const float2 v = __half22float2(row[c]), w = __half22float2(weight[c]);
        y[(size_t)blockIdx.x * columns / 2 + c] =
            __floats2half2_rn(v.x * scale * w.x, v.y * scale * w.y);
    }
}

// x (tokens, heads, 128) float32: pairs 64 apart turn by an angle of the token's number.
extern "C" __global__ void rotary(const float* x, float* y, int tokens, int heads)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, pair = i % 64;
    if (i >= tokens * heads * 64) return;
    const int token = i / 64 / heads;
    const size_t at = (size_t)(i / 64) * 128 + pair;
    float sine, cosine;
    __sincosf(token * exp2f(-13.2877f * pair / 64.0f), &sine, &cosine);
    const float a = x[at], b = x[at + 64];
    y[at] = a * cosine - b * sine;
    y[at + 64] = a * sine + b * cosine;
}

// table (words, 256) float32; out (tokens, 256): a row for each token
extern "C" __global__ void embedding(
    const float4* table, const int* token, float4* out, int tokens)
{
    const int t = blockIdx.x * 4 + threadIdx.x / 64, part = threadIdx.x % 64;
    if (t < tokens) out[(size_t)t * 64 + part] = table[(size_t)token[t] * 64 + part];
}

// gradient of `embedding`: rows with the same word add up
extern "C" __global__ void embedding_backward(
    const float* out, const int* token, float* table, int tokens)
{
    const int t = blockIdx.x, part = threadIdx.x;
    if (t < tokens) atomicAdd(&table[(size_t)token[t] * 256 + part], out[(size_t)t * 256 + part]);
}

// x (rows, 1024) float32 -> bytes and a scale a row: a warp takes a row and keeps it.
extern "C" __global__ void quantise_rows(const float4* x, char4* q, float* scale, int rows)
{
    const int r = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (r >= rows) return;
    float4 v[8];
    float most = 1e-20f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        v[i] = x[(size_t)r * 256 + 32 * i + lane];
        most = fmaxf(most, fmaxf(fabsf(v[i].x), fabsf(v[i].y)));
        most = fmaxf(most, fmaxf(fabsf(v[i].z), fabsf(v[i].w)));
    }
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    const float by = 127.0f / most;
#pragma unroll
    for (int i = 0; i < 8; ++i)
        q[(size_t)r * 256 + 32 * i + lane] = make_char4(
            __float2int_rn(v[i].x * by), __float2int_rn(v[i].y * by), __float2int_rn(v[i].z * by),
            __float2int_rn(v[i].w * by));
    if (lane == 0) scale[r] = most / 127.0f;
}

// packed (n,) u32 of eight 4-bit numbers each; scale of 32 words; y (8 * n,) half
extern "C" __global__ void dequantise_4bit(
    const unsigned* packed, const float* scale, __half* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned word = packed[i];
    const float s = scale[i / 32];
    __half2 part[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int low = (word >> 8 * k & 15u) - 8, high = (word >> (8 * k + 4) & 15u) - 8;
        part[k] = __floats2half2_rn(s * low, s * high);
    }
    reinterpret_cast<uint4*>(y)[i] = *reinterpret_cast<uint4*>(part);
}

// gate, up, y (n,) float32: gate * sigmoid(gate) * up, four at a time
extern "C" __global__ void swiglu(const float4* gate, const float4* up, float4* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float4 g = gate[i], u = up[i];
    y[i] = make_float4(
        u.x * g.x / (1.0f + __expf(-g.x)), u.y * g.y / (1.0f + __expf(-g.y)),
        u.z * g.z / (1.0f + __expf(-g.z)), u.w * g.w / (1.0f + __expf(-g.w)));
}
