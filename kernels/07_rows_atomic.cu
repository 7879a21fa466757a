// Idea:          One block a query row, one kernel from Q, K, V to the output; its threads find the
//                row's maximum and sum by atomics on shared memory.
// Changes from:  04_softmax_output_serial.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        rows_atomic: grid (batch*heads*n), block (THREADS), dynamic shared m*4 bytes
//                rounded up to 16, as the compiler may read the last four weights at once
// Needs:         sm_50; THREADS <= 1024; heads a multiple of kv_heads
// Expect:        the scores never reach global memory; every thread's atomic meets the others' at
//                one address and waits its turn; neighbouring threads read K d floats apart, and K
//                and V are read once for every query; the order of the sum, so its last bit, varies
// Limits:        m <= 12000: the scores of a row lie in 48 KB of shared memory (09 has no limit);
//                batch*heads*n < 2^31

#ifndef THREADS
#define THREADS 256
#endif
#define MINUS_INFINITY __int_as_float(0xff800000)  // NVRTC has no <math.h> to name it

// An int that orders as the float does. The bits of negative floats order the wrong way round, so
// atomicMax on bare bits would take the smallest of them; flipping all but the sign mends it.
__device__ int ordered(float x)
{
    const int bits = __float_as_int(x);
    return bits >= 0 ? bits : bits ^ 0x7fffffff;
}

__device__ float from_ordered(int order)
{
    return __int_as_float(order >= 0 ? order : order ^ 0x7fffffff);
}

extern "C" __global__ void __launch_bounds__(THREADS) rows_atomic(
    const float* q,     // (batch*heads, n, d)
    const float* k,     // (batch*kv_heads, m, d)
    const float* v,     // (batch*kv_heads, m, d)
    const float* bias,  // (.., n, m), added to the scaled scores, or null
    float* out,         // (batch*heads, n, d)
    float* lse,         // (batch*heads, n), log of each row's sum of exponentials, or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    extern __shared__ float score[];  // (m,), later the weights
    __shared__ int highest;           // of the scores, as ordered() maps them
    __shared__ float sum;             // of the weights

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

    if (threadIdx.x == 0) {
        highest = ordered(MINUS_INFINITY);
        sum = 0.0f;
    }
    __syncthreads();  // barrier: an atomic of a fast thread would be lost under the first value

    for (int key = threadIdx.x; key < keys; key += THREADS) {
        const float* k_row = k + (long long)key * d;  // (d,)
        float dot = 0.0f;
        for (int i = 0; i < d; ++i) {
            dot = fmaf(q[i], k_row[i], dot);
        }
        float s = dot * scale;
        if (bias) s += bias[key];
        score[key] = s;
        atomicMax(&highest, ordered(s));
    }
    __syncthreads();  // barrier: the maximum of all scores is needed, not of those found so far

    const float row_m = from_ordered(highest);
    // A row of -inf has no key to look at; shifting it by its maximum would give inf - inf = NaN.
    const float shift = row_m == MINUS_INFINITY ? 0.0f : row_m;
    for (int key = threadIdx.x; key < keys; key += THREADS) {
        const float p = expf(score[key] - shift);  // at most 1: cannot overflow
        score[key] = p;
        atomicAdd(&sum, p);
    }
    __syncthreads();  // barrier: weights and sum must be whole before they are used

    const float row_l = sum;
    const float inverse = row_l > 0.0f ? 1.0f / row_l : 0.0f;  // every key masked: zeros
    for (int col = threadIdx.x; col < d; col += THREADS) {
        float total = 0.0f;
        for (int key = 0; key < keys; ++key) {
            total = fmaf(score[key], v[(long long)key * d + col], total);
        }
        out[col] = total * inverse;
    }
    if (lse && threadIdx.x == 0) lse[blockIdx.x] = row_m + logf(row_l);
}
