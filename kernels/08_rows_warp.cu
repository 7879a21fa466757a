// Idea:          Shuffles instead of atomics: a warp reduces 32 values in registers and only one
//                value a warp goes through shared memory; Q and K are read four floats at a time.
// Changes from:  07_rows_atomic.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        rows_warp: grid (batch*heads*n), block (32*WARPS), dynamic shared m*4 bytes
//                rounded up to 16, as the compiler may read the last four weights at once
// Needs:         sm_50; 1 <= WARPS <= 32; heads a multiple of kv_heads
// Expect:        no atomics, the same bits on every run; a quarter of 07's load instructions for
//                the scores where d % 4 == 0 and q and k are 16-byte aligned, but as many sectors:
//                neighbouring threads still read K d floats apart
// Limits:        m <= 12000: the scores of a row lie in 48 KB of shared memory (09 has no limit);
//                batch*heads*n < 2^31

#ifndef WARPS
#define WARPS 8
#endif
#define THREADS (32 * WARPS)
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

// Sum of a[i] * b[i] over d floats; four sums side by side, so that no fma waits for the last one.
__device__ float dot_product(const float* a,  // (d,)
                             const float* b,  // (d,)
                             int d, bool vector)
{
    float4 dot = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (vector) {
#pragma unroll 4
        for (int i = 0; i < d; i += 4) {
            const float4 x = *reinterpret_cast<const float4*>(a + i);
            const float4 y = *reinterpret_cast<const float4*>(b + i);
            dot.x = fmaf(x.x, y.x, dot.x);
            dot.y = fmaf(x.y, y.y, dot.y);
            dot.z = fmaf(x.z, y.z, dot.z);
            dot.w = fmaf(x.w, y.w, dot.w);
        }
    } else {
        for (int i = 0; i < d; ++i) {
            dot.x = fmaf(a[i], b[i], dot.x);
        }
    }
    return (dot.x + dot.y) + (dot.z + dot.w);
}

extern "C" __global__ void __launch_bounds__(THREADS) rows_warp(
    const float* q,     // (batch*heads, n, d)
    const float* k,     // (batch*kv_heads, m, d)
    const float* v,     // (batch*kv_heads, m, d)
    const float* bias,  // (.., n, m), added to the scaled scores, or null
    float* out,         // (batch*heads, n, d)
    float* lse,         // (batch*heads, n), log of each row's sum of exponentials, or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    extern __shared__ float score[];       // (m,), later the weights
    __shared__ float warp_maximum[WARPS];  // (WARPS,)
    __shared__ float warp_total[WARPS];    // (WARPS,)

    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int bh = blockIdx.x / n;
    const int row = blockIdx.x % n;  // query
    const int batch = bh / heads;
    const int head = bh % heads;
    // long long: the offset of a row, or of a head's bias, can pass 2^31.
    const long long kv_head = (long long)batch * kv_heads + head / (heads / kv_heads);
    q += (long long)blockIdx.x * d;  // (d,), this row
    k += kv_head * m * d;            // (m, d)
    v += kv_head * m * d;            // (m, d)
    out += (long long)blockIdx.x * d;
    if (bias) bias += batch * bias_batch + head * bias_head + (long long)row * m;  // (m,)
    const int keys = causal ? max(0, min(m, row + 1 + m - n)) : m;  // those this row may see
    const bool vector = d % 4 == 0 && ((size_t)q | (size_t)k) % 16 == 0;

    float maximum = MINUS_INFINITY;
    for (int key = threadIdx.x; key < keys; key += THREADS) {
        float s = dot_product(q, k + (long long)key * d, d, vector) * scale;
        if (bias) s += bias[key];
        score[key] = s;
        maximum = fmaxf(maximum, s);
    }
    maximum = warp_max(maximum);
    if (lane == 0) warp_maximum[warp] = maximum;
    __syncthreads();  // barrier: a fast warp would read maxima that slow warps have not stored

    const float row_m = warp_max(lane < WARPS ? warp_maximum[lane] : MINUS_INFINITY);
    // A row of -inf has no key to look at; shifting it by its maximum would give inf - inf = NaN.
    const float shift = row_m == MINUS_INFINITY ? 0.0f : row_m;
    float total = 0.0f;
    for (int key = threadIdx.x; key < keys; key += THREADS) {
        const float p = expf(score[key] - shift);  // at most 1: cannot overflow
        score[key] = p;
        total += p;
    }
    total = warp_sum(total);
    if (lane == 0) warp_total[warp] = total;
    __syncthreads();  // barrier: weights and sums must be whole before they are used

    const float row_l = warp_sum(lane < WARPS ? warp_total[lane] : 0.0f);
    const float inverse = row_l > 0.0f ? 1.0f / row_l : 0.0f;  // every key masked: zeros
    for (int col = threadIdx.x; col < d; col += THREADS) {
        float sum = 0.0f;
#pragma unroll 4
        for (int key = 0; key < keys; ++key) {
            sum = fmaf(score[key], v[(long long)key * d + col], sum);
        }
        out[col] = sum * inverse;
    }
    if (lse && threadIdx.x == 0) lse[blockIdx.x] = row_m + logf(row_l);
}
