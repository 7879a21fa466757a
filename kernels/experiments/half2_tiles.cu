// Idea:          Q and K go through shared memory as half, a tile of the head dim at a time: what a
//                block needs no longer grows with the head dim; half2 loads, fp32 sums.
// Changes from:  multi_query.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        half2_tiles: grid (ceil(n/QUERIES) * batch*heads), block (32*WARPS),
//                dynamic shared QUERIES*m*4 bytes,
//                static shared (QUERIES + KEYS)*(TILE + 2)*2 bytes
// Needs:         sm_53; KEYS and QUERIES powers of two with KEYS <= 32*WARPS and
//                KEYS*QUERIES a multiple of 32*WARPS; TILE even; heads a multiple of kv_heads
// Expect:        the error of scores from operands with 11 bits; no tensor core at work: the
//                instructions are conversions and fp32 fmas, and there is not one mma among them
// Limits:        |q|, |k| < 65504; QUERIES*m*4 bytes of shared memory for the scores
// Outcome:       reported as "tensor cores are 3 to 4 times slower". Look at the instructions: each
//                element is converted twice and multiplied in fp32, and no mma is ever issued, so
//                nothing was learnt about tensor cores

#include <cuda_fp16.h>

#ifndef WARPS
#define WARPS 8
#endif
#ifndef QUERIES
#define QUERIES 16
#endif
#ifndef KEYS
#define KEYS 64
#endif
#ifndef TILE
#define TILE 128
#endif
#define THREADS (32 * WARPS)
#define PAIRS (QUERIES * KEYS / THREADS)    // scores a thread
#define STRIDE (TILE + 2)                   // pad: neighbouring rows begin on neighbouring banks
#define MINUS_INFINITY __int_as_float(0xff800000)  // NVRTC has no <math.h> to name it

__device__ float warp_max(float value)  // every lane gets the maximum over the warp
{
    for (int offset = 16; offset > 0; offset /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, offset));
    }
    return value;
}

__device__ float warp_sum(float value)  // every lane gets the sum over the warp
{
    for (int offset = 16; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(0xffffffff, value, offset);
    }
    return value;
}

// Rows [0, rows) of a (.., d) matrix, columns [0, cols), rounded to half; zeros outside.
__device__ void load_tile(half* tile,         // (count, STRIDE), shared
                          const float* from,  // (rows, d)
                          int count, int rows, int cols, int d)
{
    for (int i = threadIdx.x; i < count * TILE; i += THREADS) {
        const int row = i / TILE;
        const int col = i % TILE;
        const bool inside = row < rows && col < cols;
        tile[row * STRIDE + col] = __float2half(inside ? from[(long long)row * d + col] : 0.0f);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) half2_tiles(
    const float* q,     // (batch*heads, n, d)
    const float* k,     // (batch*kv_heads, m, d)
    const float* v,     // (batch*kv_heads, m, d)
    const float* bias,  // (.., n, m), added to the scaled scores, or null
    float* out,         // (batch*heads, n, d)
    float* lse,         // (batch*heads, n), log of each row's sum of exponentials, or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    extern __shared__ float score[];  // (QUERIES, m), later the weights
    __shared__ __align__(4) half q_tile[QUERIES * STRIDE];
    __shared__ __align__(4) half k_tile[KEYS * STRIDE];
    __shared__ float row_scale[QUERIES];  // (QUERIES,), 1 / sum of the weights

    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int tiles = (n + QUERIES - 1) / QUERIES;
    const int bh = blockIdx.x / tiles;
    const int row0 = blockIdx.x % tiles * QUERIES;  // first query
    const int rows = min(QUERIES, n - row0);
    const int batch = bh / heads;
    const int head = bh % heads;
    // long long: the offset of a row, or of a head's bias, can pass 2^31.
    const long long kv_head = (long long)batch * kv_heads + head / (heads / kv_heads);
    const long long first = (long long)bh * n + row0;
    q += first * d;        // (rows, d)
    k += kv_head * m * d;  // (m, d)
    v += kv_head * m * d;  // (m, d)
    out += first * d;      // (rows, d)
    if (bias) bias += batch * bias_batch + head * bias_head + (long long)row0 * m;  // (rows, m)

    const int my_key = threadIdx.x % KEYS;
    const int my_row = threadIdx.x / KEYS;  // the first; the next is THREADS / KEYS further
    for (int key0 = 0; key0 < m; key0 += KEYS) {
        float dot[PAIRS] = {};
        for (int start = 0; start < d; start += TILE) {
            load_tile(q_tile, q + start, QUERIES, rows, d - start, d);
            load_tile(k_tile, k + (long long)key0 * d + start, KEYS, m - key0, d - start, d);
            __syncthreads();  // barrier: a fast warp would read elements that are not stored yet
            for (int i = 0; i < TILE; i += 2) {
                const half2 y = *reinterpret_cast<const half2*>(k_tile + my_key * STRIDE + i);
                const float2 b = __half22float2(y);
#pragma unroll
                for (int pair = 0; pair < PAIRS; ++pair) {
                    const int r = my_row + pair * (THREADS / KEYS);
                    const half2 x = *reinterpret_cast<const half2*>(q_tile + r * STRIDE + i);
                    const float2 a = __half22float2(x);
                    dot[pair] = fmaf(a.x, b.x, dot[pair]);
                    dot[pair] = fmaf(a.y, b.y, dot[pair]);
                }
            }
            __syncthreads();  // barrier: a fast warp would overwrite tiles that others still read
        }
        const int key = key0 + my_key;
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            const int r = my_row + pair * (THREADS / KEYS);
            if (r >= rows || key >= m) continue;
            float s = dot[pair] * scale;
            if (bias) s += bias[(long long)r * m + key];
            if (causal && key > row0 + r + m - n) s = MINUS_INFINITY;
            score[(long long)r * m + key] = s;
        }
    }
    __syncthreads();  // barrier: a softmax over some of the scores has the wrong maximum and sum

    for (int r = warp; r < rows; r += WARPS) {  // a warp a row
        float* s_row = score + (long long)r * m;  // (m,)
        float top = MINUS_INFINITY;
        for (int key = lane; key < m; key += 32) {
            top = fmaxf(top, s_row[key]);
        }
        const float row_m = warp_max(top);
        // A row of -inf has no key to look at; shifting it by its maximum would give NaN.
        const float shift = row_m == MINUS_INFINITY ? 0.0f : row_m;
        float sum = 0.0f;
        for (int key = lane; key < m; key += 32) {
            const float p = expf(s_row[key] - shift);
            s_row[key] = p;
            sum += p;
        }
        const float row_l = warp_sum(sum);
        if (lane == 0) {
            row_scale[r] = row_l > 0.0f ? 1.0f / row_l : 0.0f;  // every key masked: zeros
            if (lse) lse[first + r] = row_m + logf(row_l);
        }
    }
    __syncthreads();  // barrier: the weights of all rows must be whole

    for (int col = threadIdx.x; col < d; col += THREADS) {
        float total[QUERIES] = {};
        for (int key = 0; key < m; ++key) {
            const float x = v[(long long)key * d + col];
#pragma unroll
            for (int r = 0; r < QUERIES; ++r) {
                if (r < rows) total[r] = fmaf(score[(long long)r * m + key], x, total[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < QUERIES; ++r) {
            if (r < rows) out[(long long)r * d + col] = total[r] * row_scale[r];
        }
    }
}
