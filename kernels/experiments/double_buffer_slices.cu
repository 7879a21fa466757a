// Idea:          The two buffers hold a slice of the head dim of a block of keys instead of whole
//                rows, so that double buffering fits whatever the head dim.
// Changes from:  double_buffer_rows.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        double_buffer_slices: grid (batch*heads*n), block (32*WARPS), dynamic shared d*4
//                bytes, static shared (2*KEYS*(32*WARPS + PAD) + 2*KEYS)*4 bytes
// Needs:         sm_80; 1 <= WARPS <= 32; KEYS a multiple of WARPS; PAD a multiple of 4: rows stay
//                aligned; heads a multiple of kv_heads
// Expect:        (2*32*(128 + 4) + 2*32)*4 = 34048 bytes of buffers at any d, beside d floats of
//                output; a slice of K or V arrives while the one before it is computed
// Limits:        two barriers a slice; still a block a query, so K and V are read for each of them;
//                d*4 bytes for the output: more than 48 KB in all from d = 3584 on
// Outcome:       not tried by those who gave up double buffering as too large. Compare its time
//                with 09's: 09 waits for each load, but has many more warps an SM to hide it

#ifndef WARPS
#define WARPS 4
#endif
#ifndef KEYS
#define KEYS 32
#endif
#ifndef PAD
#define PAD 4
#endif
#define THREADS (32 * WARPS)
#define SLICE THREADS                       // columns of a slice: one a thread in the output
#define STRIDE (SLICE + PAD)
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

// Starts copying rows [0, rows) of a (.., d) matrix, columns [0, cols); nothing has arrived until
// copies_arrived(). Rows past the end keep what they held: their keys are never read.
__device__ void start_copy(float* tile,        // (KEYS, STRIDE), shared
                           const float* from,  // (rows, d)
                           int rows, int cols, int d, bool vector)
{
    const int step = vector ? 4 : 1;  // cp.async copies 16 bytes, or 4 where rows are not aligned
    const int width = cols / step;
    for (int i = threadIdx.x; i < rows * width; i += THREADS) {
        const int row = i / width;
        const int col = i % width * step;
        const unsigned to = (unsigned)__cvta_generic_to_shared(tile + row * STRIDE + col);
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

extern "C" __global__ void __launch_bounds__(THREADS) double_buffer_slices(
    const float* q,     // (batch*heads, n, d)
    const float* k,     // (batch*kv_heads, m, d)
    const float* v,     // (batch*kv_heads, m, d)
    const float* bias,  // (.., n, m), added to the scaled scores, or null
    float* out,         // (batch*heads, n, d)
    float* lse,         // (batch*heads, n), log of each row's sum of exponentials, or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    extern __shared__ float o[];                            // (d,), the output so far, undivided
    __shared__ __align__(16) float tiles[2][KEYS * STRIDE];  // (2, KEYS, SLICE + PAD): K or V
    __shared__ float score[KEYS];                            // (KEYS,)
    __shared__ float weight[KEYS];                           // (KEYS,)

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

    // Slices arrive in the order K slice 0, 1, .., V slice 0, 1, .., next block of keys.
    const int slices = (d + SLICE - 1) / SLICE;
    const int steps = (keys + KEYS - 1) / KEYS * 2 * slices;
    auto start = [&](int step) {
        if (step < steps) {
            const int key0 = step / (2 * slices) * KEYS;
            const int from = step % slices * SLICE;
            const float* rows = (step / slices % 2 == 0 ? k : v) + (long long)key0 * d + from;
            start_copy(tiles[step % 2], rows, min(KEYS, keys - key0), min(SLICE, d - from), d,
                       vector);
        }
        end_group();  // perhaps an empty one, so that the count in next_slice holds
    };
    auto next_slice = [&](int step) {
        start(step + 1);
        copies_arrived<1>();  // all but the newest: this slice is here
        __syncthreads();      // barrier: what the other threads copied must be here too
        return tiles[step % 2];
    };
    start(0);
    int step = 0;
    for (int key0 = 0; key0 < keys; key0 += KEYS) {
        const int count = min(KEYS, keys - key0);
        float dot[KEYS / WARPS] = {};  // of this warp's keys: warp, warp + WARPS, ..
        for (int slice = 0; slice < slices; ++slice, ++step) {
            const float* k_tile = next_slice(step);  // (KEYS, SLICE + PAD)
            for (int i = lane; i < min(SLICE, d - slice * SLICE); i += 32) {
                const float x = q[slice * SLICE + i];
#pragma unroll
                for (int j = 0; j < KEYS / WARPS; ++j) {
                    const int key = warp + j * WARPS;
                    if (key < count) dot[j] = fmaf(x, k_tile[key * STRIDE + i], dot[j]);
                }
            }
            __syncthreads();  // barrier: the copy after next overwrites this slice
        }
#pragma unroll
        for (int j = 0; j < KEYS / WARPS; ++j) {
            const int key = warp + j * WARPS;
            float s = warp_sum(dot[j]) * scale;
            if (bias && key < count) s += bias[key0 + key];
            if (lane == 0 && key < count) score[key] = s;
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

        for (int slice = 0; slice < slices; ++slice, ++step) {
            const float* v_tile = next_slice(step);  // (KEYS, SLICE + PAD)
            const int col = slice * SLICE + threadIdx.x;
            if (col < d) {
                float total = o[col] * rescale;
                for (int key = 0; key < count; ++key) {
                    total = fmaf(weight[key], v_tile[key * STRIDE + threadIdx.x], total);
                }
                o[col] = total;
            }
            __syncthreads();  // barrier: the copy after next overwrites this slice
        }
    }
    copies_arrived<0>();  // only empty groups are left; a block must not end with copies under way

    const float inverse = row_l > 0.0f ? 1.0f / row_l : 0.0f;  // every key masked: zeros
    for (int col = threadIdx.x; col < d; col += THREADS) {
        out[col] = o[col] * inverse;
    }
    if (lse && threadIdx.x == 0) lse[blockIdx.x] = row_m + logf(row_l);
}
