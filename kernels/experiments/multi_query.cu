// Idea:          A block serves QUERIES query rows: each element of K and V that is read is used
//                QUERIES times.
// Changes from:  09_rows_online.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        multi_query: grid (ceil(n/QUERIES) * batch*heads), block (32*WARPS),
//                dynamic shared QUERIES*d*4 bytes, static shared 2*QUERIES*KEYS*4 bytes
// Needs:         sm_50; 1 <= WARPS <= 32; KEYS >= 1; heads a multiple of kv_heads
// Expect:        1/QUERIES of 09's reads of K and V; 1/QUERIES of its blocks
// Limits:        QUERIES*d*4 bytes of shared memory a block: 32 KB at d = 2048 and 128 KB at
//                d = 8192 with QUERIES 4, more than 48 KB only on GPUs that grant it
// Outcome:       reported as impossible for large head dims, "shared memory too small", and with
//                outputs in a register array as wrong past 128 dims. The outputs fit: what does
//                not is Q, K and V of a tile as whole rows. Look at the blocks, too: few queries
//                leave fewer blocks than SMs, and time it beside 09 there

#ifndef WARPS
#define WARPS 8
#endif
#ifndef KEYS
#define KEYS 64
#endif
#ifndef QUERIES
#define QUERIES 4
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

extern "C" __global__ void __launch_bounds__(THREADS) multi_query(
    const float* q,     // (batch*heads, n, d)
    const float* k,     // (batch*kv_heads, m, d)
    const float* v,     // (batch*kv_heads, m, d)
    const float* bias,  // (.., n, m), added to the scaled scores, or null
    float* out,         // (batch*heads, n, d)
    float* lse,         // (batch*heads, n), log of each row's sum of exponentials, or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    extern __shared__ float o[];             // (QUERIES, d), outputs so far, undivided
    __shared__ float score[QUERIES][KEYS];   // (QUERIES, KEYS)
    __shared__ float weight[QUERIES][KEYS];  // (QUERIES, KEYS)

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
    const int keys = causal ? max(0, min(m, row0 + rows + m - n)) : m;  // of the last row
    const bool vector = d % 4 == 0 && ((size_t)q | (size_t)k) % 16 == 0;

    for (int i = threadIdx.x; i < QUERIES * d; i += THREADS) {
        o[i] = 0.0f;
    }
    float row_m[QUERIES], row_l[QUERIES];  // (QUERIES,), the same in every thread
#pragma unroll
    for (int r = 0; r < QUERIES; ++r) {
        row_m[r] = MINUS_INFINITY;
        row_l[r] = 0.0f;
    }
    for (int key0 = 0; key0 < keys; key0 += KEYS) {
        const int count = min(KEYS, keys - key0);
        for (int key = warp; key < count; key += WARPS) {
            const float* k_row = k + (long long)(key0 + key) * d;  // (d,)
            float dot[QUERIES] = {};
            for (int i = vector ? 4 * lane : d; i < d; i += 128) {
                const float4 x = *reinterpret_cast<const float4*>(k_row + i);  // read once,
#pragma unroll
                for (int r = 0; r < QUERIES; ++r) {  // used QUERIES times
                    const float* q_row = q + (long long)min(r, rows - 1) * d;  // (d,)
                    const float4 y = *reinterpret_cast<const float4*>(q_row + i);
                    dot[r] += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
                }
            }
            for (int i = vector ? d : lane; i < d; i += 32) {
                const float x = k_row[i];
#pragma unroll
                for (int r = 0; r < QUERIES; ++r) {
                    dot[r] = fmaf(q[(long long)min(r, rows - 1) * d + i], x, dot[r]);
                }
            }
#pragma unroll
            for (int r = 0; r < QUERIES; ++r) {
                float s = warp_sum(dot[r]) * scale;
                const int row = row0 + r;
                if (bias && row < n) s += bias[(long long)r * m + key0 + key];
                if (causal && key0 + key > row + m - n) s = MINUS_INFINITY;
                if (lane == 0) score[r][key] = s;
            }
        }
        __syncthreads();  // barrier: a fast warp would read scores that slow warps have not stored

        float rescale[QUERIES];
#pragma unroll
        for (int r = 0; r < QUERIES; ++r) {
            float top = MINUS_INFINITY;
            for (int key = lane; key < count; key += 32) {
                top = fmaxf(top, score[r][key]);
            }
            const float new_m = fmaxf(row_m[r], warp_max(top));
            // Before the first key new_m is -inf; shifting by it would give inf - inf = NaN.
            const float shift = new_m == MINUS_INFINITY ? 0.0f : new_m;
            rescale[r] = expf(row_m[r] - shift);
            float sum = 0.0f;
            for (int key = lane; key < count; key += 32) {
                const float p = expf(score[r][key] - shift);
                sum += p;
                if (warp == 0) weight[r][key] = p;
            }
            row_l[r] = row_l[r] * rescale[r] + warp_sum(sum);
            row_m[r] = new_m;
        }
        __syncthreads();  // barrier: the weights must be whole, and nobody may still read score

        for (int col = threadIdx.x; col < d; col += THREADS) {
            float total[QUERIES];
#pragma unroll
            for (int r = 0; r < QUERIES; ++r) {
                total[r] = o[r * d + col] * rescale[r];
            }
            for (int key = 0; key < count; ++key) {
                const float x = v[(long long)(key0 + key) * d + col];  // read once as well
#pragma unroll
                for (int r = 0; r < QUERIES; ++r) {
                    total[r] = fmaf(weight[r][key], x, total[r]);
                }
            }
#pragma unroll
            for (int r = 0; r < QUERIES; ++r) {
                o[r * d + col] = total[r];
            }
        }
    }

#pragma unroll
    for (int r = 0; r < QUERIES; ++r) {
        const float inverse = row_l[r] > 0.0f ? 1.0f / row_l[r] : 0.0f;  // every key masked: zeros
        for (int col = threadIdx.x; r < rows && col < d; col += THREADS) {
            out[(long long)r * d + col] = o[r * d + col] * inverse;
        }
        if (lse && r < rows && threadIdx.x == 0) lse[first + r] = row_m[r] + logf(row_l[r]);
    }
}
