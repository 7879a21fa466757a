// Idea:          Flash attention as in the textbook: a block has a tile of query rows, one a warp,
//                and streams K and V through shared memory, 32 keys at a time for all its rows.
// Changes from:  09_rows_online.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        flash_rows: grid (batch*heads, ceil(n/WARPS)), block (32*WARPS), static shared
//                (WARPS + 32)*(D + 4)*4 bytes
// Needs:         sm_50; d <= D; D a multiple of 32; WARPS <= 32 and 128*WARPS >= D;
//                heads a multiple of kv_heads
// Expect:        1/WARPS of the global reads of K and V that 09 has; a lane has one score and D/32
//                outputs of its row, so every multiply-add reads shared memory
// Limits:        bound by those reads (see 11); K and V wait for each other, for they take turns in
//                one tile; ceil(n/WARPS) <= 65535

#ifndef D
#define D 64  // floats of the head dim that a tile holds; those past d are zeros
#endif
#ifndef WARPS
#define WARPS 8  // warps a block, each with a query row
#endif
#define THREADS (32 * WARPS)
#define MINUS_INFINITY __int_as_float(0xff800000)  // NVRTC has no <math.h> to name it

#include "include/tile.cuh"
#include "include/vector.cuh"
#include "include/warp.cuh"

constexpr int KEYS = 32;       // keys a tile: one a lane
constexpr int COLS = D / 32;   // columns of the output a lane
constexpr int STRIDE = D + 4;  // pad: 8 rows at one column are 8 groups of 4 banks

static_assert(D % 32 == 0, "the lanes of a warp take 32 columns of the output at once");
static_assert(THREADS <= 1024, "a block has at most 32 warps");

extern "C" __global__ void __launch_bounds__(THREADS) flash_rows(
    const float* __restrict__ q,     // (batch*heads, n, d)
    const float* __restrict__ k,     // (batch*kv_heads, m, d)
    const float* __restrict__ v,     // (batch*kv_heads, m, d)
    const float* __restrict__ bias,  // (.., n, m), added to the scaled scores, or null
    float* __restrict__ out,         // (batch*heads, n, d)
    float* __restrict__ lse,         // (batch*heads, n), log of each sum of exponentials, or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    __shared__ float4 shared[(WARPS + KEYS) * STRIDE / 4];  // float4: aligned for vector loads
    float* q_tile = reinterpret_cast<float*>(shared);       // (WARPS, STRIDE)
    float* kv_tile = q_tile + WARPS * STRIDE;               // (KEYS, STRIDE), K, then V

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int bh = blockIdx.x;
    const int row0 = blockIdx.y * WARPS;  // the block's first query
    const int row = row0 + warp;          // this warp's query
    // long long: the offset of a row, or of a head's bias, can pass 2^31.
    const long long kv_head = bh / (heads / kv_heads);
    q += ((long long)bh * n + row0) * d;  // (n - row0, d), from this block's first row on
    k += kv_head * m * d;                 // (m, d)
    v += kv_head * m * d;                 // (m, d)
    if (bias) bias += bh / heads * bias_batch + bh % heads * bias_head;  // (n, m), of this head
    const bool vector = d % 4 == 0 && ((size_t)q | (size_t)k | (size_t)v) % 16 == 0;
    const int keys = causal ? min(m, row + 1 + m - n) : m;           // those this row may see
    const int last_key = causal ? min(m, row0 + WARPS + m - n) : m;  // those any row may see

    load_tile<D, STRIDE, THREADS>(q_tile, q, WARPS, n - row0, d, vector);

    float o[COLS] = {};            // columns lane + 32*c of the output, not yet divided by row_l
    float row_m = MINUS_INFINITY;  // maximum of the scores so far
    float row_l = 0.0f;            // sum of exp(score - row_m) so far
    for (int key0 = 0; key0 < last_key; key0 += KEYS) {
        const long long at = (long long)key0 * d;
        __syncthreads();  // barrier: K would overwrite V that slow warps still read
        load_tile<D, STRIDE, THREADS>(kv_tile, k + at, KEYS, last_key - key0, d, vector);
        __syncthreads();  // barrier: a fast warp would read elements that are not stored yet

        float s = 0.0f;  // score of this warp's row and this lane's key
        for (int c = 0; c < D; c += 4) {
            const float4 q4 = load4(q_tile + warp * STRIDE + c);
            const float4 k4 = load4(kv_tile + lane * STRIDE + c);
            s += q4.x * k4.x + q4.y * k4.y + q4.z * k4.z + q4.w * k4.w;
        }
        __syncthreads();  // barrier: V would overwrite K that slow warps still read
        load_tile<D, STRIDE, THREADS>(kv_tile, v + at, KEYS, last_key - key0, d, vector);

        const int key = key0 + lane;
        s *= scale;
        if (bias && row < n && key < keys) s += bias[(long long)row * m + key];
        if (key >= keys) s = MINUS_INFINITY;
        const float new_m = fmaxf(row_m, warp_max(s));
        // Before the first key new_m is -inf; shifting by it would give inf - inf = NaN.
        const float shift = new_m == MINUS_INFINITY ? 0.0f : new_m;
        const float rescale = expf(row_m - shift);  // what was summed under the old maximum
        const float p = expf(s - shift);            // at most 1: cannot overflow
        row_l = row_l * rescale + warp_sum(p);
        row_m = new_m;
        for (int c = 0; c < COLS; ++c) o[c] *= rescale;
        __syncthreads();  // barrier: a fast warp would read elements of V that are not stored yet

#pragma unroll 8
        for (int j = 0; j < KEYS; ++j) {
            const float weight = __shfl_sync(0xffffffff, p, j);  // of key key0 + j
            for (int c = 0; c < COLS; ++c) {
                o[c] += weight * kv_tile[j * STRIDE + lane + 32 * c];
            }
        }
    }

    if (row >= n) return;  // the last tile of rows is not full
    const float inverse = row_l > 0.0f ? 1.0f / row_l : 0.0f;  // every key masked: zeros
    out += ((long long)bh * n + row) * d;                      // (d,), this row
    for (int c = 0; c < COLS; ++c) {
        if (lane + 32 * c < d) out[lane + 32 * c] = o[c] * inverse;
    }
    if (lse && lane == 0) lse[(long long)bh * n + row] = row_m + logf(row_l);
}
