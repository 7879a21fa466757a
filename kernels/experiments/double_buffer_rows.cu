// Idea:          Whole rows of K and V arrive in shared memory by cp.async, the next block of keys
//                while this one is computed: two buffers each.
// Changes from:  09_rows_online.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        double_buffer_rows: grid (batch*heads*n), block (32*WARPS), dynamic shared
//                (4*KEYS*(d + PAD) + d)*4 bytes, static shared 2*KEYS*4 bytes
// Needs:         sm_80; 1 <= WARPS <= 32; KEYS >= 1; PAD a multiple of 4: rows stay aligned; heads
//                a multiple of kv_heads
// Expect:        4*64*(2048 + 4)*4 = 2101248 bytes of buffers at d = 2048, where a block may have
//                166912 on sm_80 and 232448 on sm_90: the launch is refused. At d = 64 it runs
// Limits:        the largest d follows from the budget: 4*KEYS*(d + PAD)*4 bytes of buffers; fewer
//                KEYS buy a larger d, at one round of barriers a block of keys
// Outcome:       reported as "invalid argument" at launch, and double buffering was given up. What
//                does not fit is whole rows, twice, of 64 keys at once: double_buffer_slices.cu
//                cuts the head dim instead and runs at any d

#ifndef WARPS
#define WARPS 8
#endif
#ifndef KEYS
#define KEYS 64
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

// Starts copying rows [0, rows) of a (.., d) matrix; nothing has arrived until copies_arrived().
// Rows past the end keep what they held: their keys are never read.
__device__ void start_copy(float* tile,        // (KEYS, d + PAD), shared
                           const float* from,  // (rows, d)
                           int rows, int d, bool vector)
{
    const int stride = d + PAD;
    const int step = vector ? 4 : 1;  // cp.async copies 16 bytes, or 4 where rows are not aligned
    const int width = d / step;
    for (int i = threadIdx.x; i < rows * width; i += THREADS) {
        const int row = i / width;
        const int col = i % width * step;
        const unsigned to = (unsigned)__cvta_generic_to_shared(tile + row * stride + col);
        const float* source = from + (long long)row * d + col;
        if (vector) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(source)
                         : "memory");
        } else {
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(source)
                         : "memory");
        }
    }
}

__device__ void end_group()  // the copies started since the last call form a group
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `newer` of this thread's groups, the newest, are still under way.
template <int newer>
__device__ void copies_arrived()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(newer) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS) double_buffer_rows(
    const float* q,     // (batch*heads, n, d)
    const float* k,     // (batch*kv_heads, m, d)
    const float* v,     // (batch*kv_heads, m, d)
    const float* bias,  // (.., n, m), added to the scaled scores, or null
    float* out,         // (batch*heads, n, d)
    float* lse,         // (batch*heads, n), log of each row's sum of exponentials, or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    extern __shared__ float4 shared[];  // float4: 16-byte copies need aligned buffers
    const int stride = d + PAD;
    float* k_tiles = reinterpret_cast<float*>(shared);  // (2, KEYS, d + PAD)
    float* v_tiles = k_tiles + 2 * KEYS * stride;       // (2, KEYS, d + PAD)
    float* o = v_tiles + 2 * KEYS * stride;             // (d,), the output so far, undivided
    __shared__ float score[KEYS];                       // (KEYS,)
    __shared__ float weight[KEYS];                      // (KEYS,)

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
    const bool vector = d % 4 == 0 && ((size_t)k | (size_t)v) % 16 == 0;

    for (int col = threadIdx.x; col < d; col += THREADS) {
        o[col] = 0.0f;  // no barrier: only this thread touches its columns
    }
    float row_m = MINUS_INFINITY;  // maximum of the scores so far
    float row_l = 0.0f;     // sum of exp(score - row_m) so far
    if (keys > 0) {
        start_copy(k_tiles, k, min(KEYS, keys), d, vector);
        start_copy(v_tiles, v, min(KEYS, keys), d, vector);
        end_group();
    }
    for (int key0 = 0; key0 < keys; key0 += KEYS) {
        const int count = min(KEYS, keys - key0);
        const int buffer = key0 / KEYS % 2;
        const int next = key0 + KEYS;
        if (next < keys) {
            const int other = (1 - buffer) * KEYS * stride;
            start_copy(k_tiles + other, k + (long long)next * d, min(KEYS, keys - next), d, vector);
            start_copy(v_tiles + other, v + (long long)next * d, min(KEYS, keys - next), d, vector);
        }
        end_group();          // perhaps an empty one, so that the count below holds
        copies_arrived<1>();  // all but the newest: this block of keys is here
        __syncthreads();      // barrier: what the other threads copied must be here too
        const float* k_tile = k_tiles + buffer * KEYS * stride;  // (KEYS, d + PAD)
        const float* v_tile = v_tiles + buffer * KEYS * stride;  // (KEYS, d + PAD)

        for (int key = warp; key < count; key += WARPS) {
            float dot = 0.0f;
            for (int i = lane; i < d; i += 32) {
                dot = fmaf(q[i], k_tile[key * stride + i], dot);
            }
            float s = warp_sum(dot) * scale;
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
            for (int key = 0; key < count; ++key) {
                total = fmaf(weight[key], v_tile[key * stride + col], total);
            }
            o[col] = total;
        }
        __syncthreads();  // barrier: the next copies overwrite tiles that slow warps still read
    }

    const float inverse = row_l > 0.0f ? 1.0f / row_l : 0.0f;  // every key masked: zeros
    for (int col = threadIdx.x; col < d; col += THREADS) {
        out[col] = o[col] * inverse;
    }
    if (lse && threadIdx.x == 0) lse[blockIdx.x] = row_m + logf(row_l);
}
