// Idea:          A thread has VECTORS float4 of Q and of K under way at once and a sum for each, so
//                that neither loads nor fmas wait for one another.
// Changes from:  08_rows_warp.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        wide_vectors: grid (batch*heads*n), block (32*WARPS), dynamic shared m*4 bytes
//                rounded up to 16, as the compiler may read the last four weights at once
// Needs:         sm_50; 1 <= WARPS <= 32; VECTORS 4 (16 floats a step) or 2 (8 floats a step);
//                heads a multiple of kv_heads
// Expect:        more registers a thread than 08 and longer runs of independent loads; as many
//                sectors as 08
// Limits:        m <= 12000: the scores of a row lie in 48 KB of shared memory; the wide loop needs
//                d % 4 == 0 and 16-byte aligned rows, other rows take a single sum
// Outcome:       reported slower than 08 for head dims up to 2048 and faster from 4096 on with 4
//                sums, and no gain with 2; register pressure was blamed. Compare num_regs and
//                local_size_bytes with 08's: without spills look at sectors a request instead, as
//                a thread a key reads K d floats apart however wide its loads are

#ifndef WARPS
#define WARPS 8
#endif
#ifndef VECTORS
#define VECTORS 4
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

// Sum of a[i] * b[i] over d floats, VECTORS float4 of each at once, a sum for each of them.
__device__ float dot_product(const float* a,  // (d,)
                             const float* b,  // (d,)
                             int d, bool vector)
{
    float dot[VECTORS] = {};
    int i = 0;
    if (vector) {
#pragma unroll 2
        for (; i + 4 * VECTORS <= d; i += 4 * VECTORS) {
            float4 x[VECTORS], y[VECTORS];
#pragma unroll
            for (int w = 0; w < VECTORS; ++w) {
                x[w] = *reinterpret_cast<const float4*>(a + i + 4 * w);
                y[w] = *reinterpret_cast<const float4*>(b + i + 4 * w);
            }
#pragma unroll
            for (int w = 0; w < VECTORS; ++w) {
                dot[w] += x[w].x * y[w].x + x[w].y * y[w].y + x[w].z * y[w].z + x[w].w * y[w].w;
            }
        }
    }
    for (; i < d; ++i) {  // what is left of the row, or all of an unaligned one
        dot[0] = fmaf(a[i], b[i], dot[0]);
    }
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < VECTORS; ++w) {
        sum += dot[w];
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) wide_vectors(
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
