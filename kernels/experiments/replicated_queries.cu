// Idea:          The shared-memory layout of a first tensor-core attempt: mma wants 16 rows and a
//                block has one, so it is stored 16 times beside a block of whole rows of K.
// Changes from:  09_rows_online.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        replicated_queries: grid (batch*heads*n), block (32*WARPS), dynamic shared
//                ((COPIES + KEYS)*(d + PAD) + d)*4 bytes, static shared (COPIES + 1)*KEYS*4 bytes
// Needs:         sm_50; 32*WARPS a multiple of KEYS, COPIES*KEYS a multiple of 32*WARPS; heads a
//                multiple of kv_heads
// Expect:        (16 + 64)*(2048 + 4)*4 = 656640 bytes for the tiles at d = 2048, where a block may
//                have 166912 on sm_80 and 232448 on sm_90: the launch is refused. At d = 64 it runs
// Limits:        15 of 16 rows of every product are thrown away, so 16 times the work; the products
//                here are fp32 fmas, as what failed was the budget and not the mma
// Outcome:       reported as "invalid argument" at launch, and taken as a limit of tensor cores.
//                The budget is one of whole rows: tiles of the head dim fit at any d, and a block
//                of 16 different queries has no copies to store. Compare half2_tiles.cu

#ifndef WARPS
#define WARPS 8
#endif
#ifndef KEYS
#define KEYS 64
#endif
#ifndef COPIES
#define COPIES 16
#endif
#ifndef PAD
#define PAD 4
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

extern "C" __global__ void __launch_bounds__(THREADS) replicated_queries(
    const float* q,     // (batch*heads, n, d)
    const float* k,     // (batch*kv_heads, m, d)
    const float* v,     // (batch*kv_heads, m, d)
    const float* bias,  // (.., n, m), added to the scaled scores, or null
    float* out,         // (batch*heads, n, d)
    float* lse,         // (batch*heads, n), log of each row's sum of exponentials, or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    extern __shared__ float q_tile[];              // (COPIES, d + PAD), the same row in each
    const int stride = d + PAD;
    float* k_tile = q_tile + COPIES * stride;      // (KEYS, d + PAD)
    float* o = k_tile + KEYS * stride;             // (d,), the output so far, undivided
    __shared__ float product[COPIES][KEYS];        // (COPIES, KEYS), as an mma leaves it
    __shared__ float weight[KEYS];                 // (KEYS,)
    float* score = product[0];                     // (KEYS,), the one row that is used

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

    for (int i = threadIdx.x; i < COPIES * d; i += THREADS) {
        q_tile[i / d * stride + i % d] = q[i % d];
    }
    for (int col = threadIdx.x; col < d; col += THREADS) {
        o[col] = 0.0f;  // no barrier: only this thread touches its columns
    }
    float row_m = MINUS_INFINITY;  // maximum of the scores so far
    float row_l = 0.0f;     // sum of exp(score - row_m) so far
    for (int key0 = 0; key0 < keys; key0 += KEYS) {
        const int count = min(KEYS, keys - key0);
        for (int i = threadIdx.x; i < count * d; i += THREADS) {
            k_tile[i / d * stride + i % d] = k[(long long)key0 * d + i];
        }
        __syncthreads();  // barrier: a fast warp would read elements that are not stored yet
        const int key = threadIdx.x % KEYS;
        for (int copy = threadIdx.x / KEYS; copy < COPIES; copy += THREADS / KEYS) {
            float dot = 0.0f;
            for (int i = 0; key < count && i < d; ++i) {
                dot = fmaf(q_tile[copy * stride + i], k_tile[key * stride + i], dot);
            }
            float s = dot * scale;
            if (bias && key < count) s += bias[key0 + key];
            product[copy][key] = s;
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
