// Idea:          Online softmax: K and V are taken in blocks of KEYS; a larger maximum found later
//                rescales what was summed under the old one, so no row of scores is ever kept.
// Changes from:  08_rows_warp.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        rows_online: grid (batch*heads*n), block (32*WARPS), dynamic shared d*4 bytes,
//                static shared 2*KEYS*4 bytes
// Needs:         sm_50; 1 <= WARPS <= 32; KEYS >= 1; heads a multiple of kv_heads
// Expect:        shared memory by d, not by m; a warp reads a row of K side by side, so each of
//                its sectors is fetched whole; K and V are still read once for every query
// Limits:        a block a query: batch*heads*n blocks, which with few queries leaves most of a
//                large GPU idle (see 20); batch*heads*n < 2^31; d <= 12000 in 48 KB

#ifndef WARPS
#define WARPS 8
#endif
#ifndef KEYS
#define KEYS 64
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

// This lane's share of the sum of a[i] * b[i] over d floats; warp_sum() completes it.
__device__ float dot_product(const float* a,  // (d,)
                             const float* b,  // (d,)
                             int d, int lane, bool vector)
{
    float4 dot = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (vector) {
#pragma unroll 4
        for (int i = 4 * lane; i < d; i += 128) {
            const float4 x = *reinterpret_cast<const float4*>(a + i);
            const float4 y = *reinterpret_cast<const float4*>(b + i);
            dot.x = fmaf(x.x, y.x, dot.x);
            dot.y = fmaf(x.y, y.y, dot.y);
            dot.z = fmaf(x.z, y.z, dot.z);
            dot.w = fmaf(x.w, y.w, dot.w);
        }
    } else {
        for (int i = lane; i < d; i += 32) {
            dot.x = fmaf(a[i], b[i], dot.x);
        }
    }
    return (dot.x + dot.y) + (dot.z + dot.w);
}

extern "C" __global__ void __launch_bounds__(THREADS) rows_online(
    const float* q,     // (batch*heads, n, d)
    const float* k,     // (batch*kv_heads, m, d)
    const float* v,     // (batch*kv_heads, m, d)
    const float* bias,  // (.., n, m), added to the scaled scores, or null
    float* out,         // (batch*heads, n, d)
    float* lse,         // (batch*heads, n), log of each row's sum of exponentials, or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    extern __shared__ float o[];    // (d,), the output so far, not yet divided by row_l
    __shared__ float score[KEYS];   // (KEYS,)
    __shared__ float weight[KEYS];  // (KEYS,)

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

    for (int col = threadIdx.x; col < d; col += THREADS) {
        o[col] = 0.0f;  // no barrier: only this thread touches its columns
    }
    float row_m = MINUS_INFINITY;  // maximum of the scores so far
    float row_l = 0.0f;     // sum of exp(score - row_m) so far
    for (int key0 = 0; key0 < keys; key0 += KEYS) {
        const int count = min(KEYS, keys - key0);
        for (int key = warp; key < count; key += WARPS) {
            float s = dot_product(q, k + (long long)(key0 + key) * d, d, lane, vector);
            s = warp_sum(s) * scale;
            if (bias) s += bias[key0 + key];
            if (lane == 0) score[key] = s;
        }
        __syncthreads();  // barrier: a fast warp would read scores that slow warps have not stored

        float top = MINUS_INFINITY;
        for (int key = lane; key < count; key += 32) {  // every warp does the same: no exchange
            top = fmaxf(top, score[key]);
        }
        const float new_m = fmaxf(row_m, warp_max(top));
        // Before the first key new_m is -inf; shifting by it would give inf - inf = NaN.
        const float shift = new_m == MINUS_INFINITY ? 0.0f : new_m;
        const float rescale = expf(row_m - shift);  // what was summed under the old maximum
        float sum = 0.0f;
        for (int key = lane; key < count; key += 32) {
            const float p = expf(score[key] - shift);  // at most 1: cannot overflow
            sum += p;
            if (warp == 0) weight[key] = p;
        }
        row_l = row_l * rescale + warp_sum(sum);
        row_m = new_m;
        __syncthreads();  // barrier: the weights must be whole, and nobody may still read score

        for (int col = threadIdx.x; col < d; col += THREADS) {
            float total = o[col] * rescale;
#pragma unroll 8
            for (int key = 0; key < count; ++key) {
                total = fmaf(weight[key], v[(long long)(key0 + key) * d + col], total);
            }
            o[col] = total;
        }
    }

    const float inverse = row_l > 0.0f ? 1.0f / row_l : 0.0f;  // every key masked: zeros
    for (int col = threadIdx.x; col < d; col += THREADS) {
        out[col] = o[col] * inverse;
    }
    if (lse && threadIdx.x == 0) lse[blockIdx.x] = row_m + logf(row_l);
}
