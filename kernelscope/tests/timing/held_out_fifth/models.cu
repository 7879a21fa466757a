// What language models run beside their large products, in training and in use.

#include <cuda_fp16.h>

__device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

// dy, x, dx (rows, columns), weight (columns,), mean and rstd (rows,): the gradient of normalised
// rows by their input. A block of 256 takes a row.
extern "C" __global__ void layer_norm_backward(
    const float* __restrict__ dy, const float* __restrict__ x, const float* __restrict__ weight,
    const float* __restrict__ mean, const float* __restrict__ rstd, float* __restrict__ dx,
    int columns)
{
    __shared__ float parts[2][8];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t row = (size_t)blockIdx.x * columns;
    const float m = mean[blockIdx.x], r = rstd[blockIdx.x];
    float sum = 0.0f, along = 0.0f;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) {
        const float g = dy[row + c] * weight[c];
        sum += g;
        along += g * (x[row + c] - m) * r;
    }
    sum = warp_sum(sum);
    along = warp_sum(along);
    if (lane == 0) {
        parts[0][warp] = sum;
        parts[1][warp] = along;
    }
    __syncthreads();
    sum = along = 0.0f;
    for (int w = 0; w < 8; ++w) {
        sum += parts[0][w];
        along += parts[1][w];
    }
    sum /= columns;
    along /= columns;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) {
        const float unit = (x[row + c] - m) * r;
        dx[row + c] = r * (dy[row + c] * weight[c] - sum - unit * along);
    }
}

__device__ __forceinline__ __half2 as_half2(unsigned bits)
{
    return *reinterpret_cast<__half2*>(&bits);
}

__device__ __forceinline__ unsigned pair_of(__half low, __half high)
{
    return __half_as_ushort(low) | (unsigned)__half_as_ushort(high) << 16;
}

// y (rows,) = W x: W (rows, columns) has 4 bits a number, eight to a word, less 8, and a scale for
// every 64 numbers. A block keeps x in shared memory, at most 8,192 numbers; a warp takes rows.
extern "C" __global__ void __launch_bounds__(256) gemv_4bit(
    const unsigned* __restrict__ packed, const __half* __restrict__ scale,
    const __half* __restrict__ x, __half* __restrict__ y, int rows, int columns)
{
    __shared__ uint4 staged[1024];
    const int words = columns / 8;
    for (int w = threadIdx.x; w < words; w += 256) {
        const __half* v = x + 8 * w;
        staged[w] = make_uint4(pair_of(v[0], v[4]), pair_of(v[1], v[5]), pair_of(v[2], v[6]),
                               pair_of(v[3], v[7]));
    }
    __syncthreads();
    const int lane = threadIdx.x % 32;
    const __half2 middle = __float2half2_rn(1032.0f);
    for (int r = blockIdx.x * 8 + threadIdx.x / 32; r < rows; r += gridDim.x * 8) {
        float sum = 0.0f;
#pragma unroll 4
        for (int w = lane; w < words; w += 32) {
            const unsigned q = packed[(size_t)r * words + w];
            const uint4 v = staged[w];
            const unsigned pair[4] = {v.x, v.y, v.z, v.w};
            __half2 part = __float2half2_rn(0.0f);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                // 0x6400 is 1024, and its lowest bits count in ones.
                const unsigned bits = (q >> 4 * i & 0x000F000Fu) | 0x64006400u;
                part = __hfma2(__hsub2(as_half2(bits), middle), as_half2(pair[i]), part);
            }
            const float2 both = __half22float2(part);
            sum += (both.x + both.y) * __half2float(scale[(size_t)r * (words / 8) + w / 8]);
        }
        sum = warp_sum(sum);
        if (lane == 0) y[r] = __float2half(sum);
    }
}

// New keys and values (tokens, heads, 128) go to a cache of pages (pages, 16, heads, 128). Keys are
// turned by turn (tokens, 64), cosine and sine: numbers 64 apart are a pair. Page p of the tokens
// is page p + skipped[p] of the cache. A block takes a token.
extern "C" __global__ void rope_to_cache(
    const __half2* __restrict__ key, const uint4* __restrict__ value,
    const float4* __restrict__ turn, const int* __restrict__ skipped,
    __half2* __restrict__ key_cache, uint4* __restrict__ value_cache, int heads)
{
    const int token = blockIdx.x, page = token / 16 + skipped[token / 16];
    const size_t from = (size_t)token * heads, to = ((size_t)page * 16 + token % 16) * heads;
    for (int i = threadIdx.x; i < heads * 32; i += blockDim.x) {
        const int head = i / 32, pair = i % 32;
        const float4 angle = turn[(size_t)token * 32 + pair];
        const float2 low = __half22float2(key[(from + head) * 64 + pair]);
        const float2 high = __half22float2(key[(from + head) * 64 + pair + 32]);
        __half2* turned = key_cache + (to + head) * 64 + pair;
        turned[0] = __floats2half2_rn(low.x * angle.x - high.x * angle.y,
                                      low.y * angle.z - high.y * angle.w);
        turned[32] = __floats2half2_rn(high.x * angle.x + low.x * angle.y,
                                       high.y * angle.z + low.y * angle.w);
    }
    for (int i = threadIdx.x; i < heads * 16; i += blockDim.x)
        value_cache[to * 16 + i] = value[from * 16 + i];
}

// Means of v weighted by exp(q k / sqrt(32)), (heads, rows, 32), rows a multiple of 64: a thread
// has a query and its sums in registers; keys and values come 16 at a time through shared memory.
extern "C" __global__ void __launch_bounds__(64) online_queries(
    const float4* __restrict__ q, const float4* __restrict__ k, const float4* __restrict__ v,
    float4* __restrict__ out, int rows)
{
    __shared__ float4 keys[16][8], values[16][8];
    const size_t head = (size_t)blockIdx.y * rows * 8;
    const size_t own = head + (size_t)(blockIdx.x * 64 + threadIdx.x) * 8;
    float4 query[8], sum[8];
    for (int i = 0; i < 8; ++i) {
        query[i] = q[own + i];
        sum[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    float most = -1e30f, total = 0.0f;
    for (int first = 0; first < rows; first += 16) {
        __syncthreads();
        for (int i = threadIdx.x; i < 128; i += 64) {
            keys[i / 8][i % 8] = k[head + first * 8 + i];
            values[i / 8][i % 8] = v[head + first * 8 + i];
        }
        __syncthreads();
        float score[16], highest = most;
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            float s = 0.0f;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float4 key = keys[j][i];
                s += query[i].x * key.x + query[i].y * key.y + query[i].z * key.z
                     + query[i].w * key.w;
            }
            score[j] = s * 0.17677670f;
            highest = fmaxf(highest, score[j]);
        }
        const float kept = __expf(most - highest);
        most = highest;
        total *= kept;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            sum[i].x *= kept;
            sum[i].y *= kept;
            sum[i].z *= kept;
            sum[i].w *= kept;
        }
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            const float p = __expf(score[j] - most);
            total += p;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float4 value = values[j][i];
                sum[i].x += p * value.x;
                sum[i].y += p * value.y;
                sum[i].z += p * value.z;
                sum[i].w += p * value.w;
            }
        }
    }
    const float scale = 1.0f / total;
    for (int i = 0; i < 8; ++i)
        out[own + i] =
            make_float4(sum[i].x * scale, sum[i].y * scale, sum[i].z * scale, sum[i].w * scale);
}
