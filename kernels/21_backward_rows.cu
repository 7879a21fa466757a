// Idea:          The backward pass in the form of the forward one. Nothing of n x m was kept, so
//                weights are computed again, from q, k and lse. A block has rows of one side, ROWS
//                a warp, and streams the other side past them: queries that meet all keys get dq;
//                keys that meet all queries get dk and dv.
// Changes from:  10_flash_rows.cu
// Shapes:        q, out, dout, dq (batch*heads, n, d); k, v, dk, dv (batch*kv_heads, m, d); lse,
//                delta (batch*heads, n); row-major float32; bias null or (.., n, m) at
//                batch*bias_batch + head*bias_head; dbias null or zeros (batch*heads, n, m)
// Launch:        backward_delta: grid (ceil(rows/WARPS)), block (32*WARPS); then
//                backward_rows: grid (batch*heads * ceil(n/OWN)) and backward_keys: grid
//                (batch*kv_heads * ceil(m/OWN)), each with OWN = WARPS*ROWS, block (32*WARPS),
//                dynamic shared 2*(OWN + 32)*(D + 4)*4 bytes
// Needs:         sm_50; d <= D; D a multiple of 32; WARPS <= 32 and 128*WARPS >= D;
//                heads a multiple of kv_heads
// Expect:        the same bits on every run: an element has one writer, and there are no atomics;
//                7 products of n x m x d where 5 would do, as both sides need scores and dp
// Limits:        bound by shared memory, as 10, though a value read serves ROWS multiply-adds;
//                with a causal mask blocks differ in length, and long ones may start last

#ifndef D
#define D 64  // floats of the head dim that a tile holds; those past d are zeros
#endif
#ifndef WARPS
#define WARPS 8  // warps a block
#endif
#ifndef ROWS
#define ROWS 4  // rows a warp: what it reads of the other side serves them all
#endif
#define THREADS (32 * WARPS)
#define MINUS_INFINITY __int_as_float(0xff800000)  // NVRTC has no <math.h> to name it

#include "include/row_products.cuh"
#include "include/tile.cuh"
#include "include/warp.cuh"

constexpr int OWN = WARPS * ROWS;  // rows a block
constexpr int COLS = D / 32;       // columns of a gradient a lane
constexpr int STRIDE = D + 4;      // pad: 8 rows at one column are 8 groups of 4 banks

static_assert(D % 32 == 0, "the lanes of a warp take 32 columns of a gradient at once");

// A row's mean of dp = dout.v over its weights p: the sum of p * dout.v is dout.out.
extern "C" __global__ void __launch_bounds__(THREADS) backward_delta(
    const float* __restrict__ out, const float* __restrict__ dout,  // (rows, d)
    float* __restrict__ delta,                                      // (rows,)
    int rows, int d)
{
    const long long row = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int c = lane; c < d; c += 32) sum += out[row * d + c] * dout[row * d + c];
    sum = warp_sum(sum);
    if (lane == 0) delta[row] = sum;
}

// The gradients of a block's rows from all rows of the other side. of_keys: its rows are keys.
template <bool of_keys>
__device__ __forceinline__ void gradients(
    const float* a, const float* b,        // (left, d), from row own0 on: q and dout, or k and v
    const float* x, const float* y,        // (.., d), the other side: k and v, or q and dout
    const float* bias,                     // (n, m) or null, of the first head
    const float* lse, const float* delta,  // (heads_met, n)
    float* da, float* db, float* dbias,    // (left, d), dq alone or dk and dv; (n, m) or null
    int own0, int heads_met, int n, int m, int d, long long bias_head, float scale, int causal)
{
    extern __shared__ float4 shared[];
    float* a_tile = reinterpret_cast<float*>(shared);  // (OWN, STRIDE)
    float* b_tile = a_tile + OWN * STRIDE;             // (OWN, STRIDE)
    float* x_tile = b_tile + OWN * STRIDE;             // (32, STRIDE)
    float* y_tile = x_tile + 32 * STRIDE;              // (32, STRIDE)

    const int lane = threadIdx.x % 32;
    const int mine = threadIdx.x / 32 * ROWS;  // this warp's first row in the tiles
    const int left = (of_keys ? m : n) - own0, others = of_keys ? n : m;
    // With a causal mask row i sees keys up to i + m - n.
    const int first = of_keys && causal ? max(0, own0 - (m - n)) : 0;
    const int last = !of_keys && causal ? min(m, own0 + OWN + m - n) : others;
    const bool vector = d % 4 == 0 && ((size_t)a | (size_t)b | (size_t)x | (size_t)y) % 16 == 0;
    load_tile<D, STRIDE, THREADS>(a_tile, a, OWN, left, d, vector);
    load_tile<D, STRIDE, THREADS>(b_tile, b, OWN, left, d, vector);
    float a_sum[ROWS][COLS] = {}, b_sum[ROWS][COLS] = {};
    for (int head = 0; head < heads_met; ++head) {
        for (int other0 = first; other0 < last; other0 += 32) {
            const long long at = ((long long)head * others + other0) * d;
            __syncthreads();  // barrier: a fast warp would overwrite rows that others still read
            load_tile<D, STRIDE, THREADS>(x_tile, x + at, 32, others - other0, d, vector);
            load_tile<D, STRIDE, THREADS>(y_tile, y + at, 32, others - other0, d, vector);
            __syncthreads();  // barrier: a fast warp would read elements that are not stored yet

            float s[ROWS], dp[ROWS], p[ROWS], ds[ROWS];
            multiply_rows<D, STRIDE>(s, a_tile + mine * STRIDE, x_tile + lane * STRIDE);
            multiply_rows<D, STRIDE>(dp, b_tile + mine * STRIDE, y_tile + lane * STRIDE);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const int own = own0 + mine + r, other = other0 + lane;
                const int row = of_keys ? other : own, key = of_keys ? own : other;
                p[r] = ds[r] = 0.0f;
                if (row >= n || key >= m || (causal && key > row + m - n)) continue;
                const long long query = (long long)head * n + row, place = (long long)row * m + key;
                const float score = s[r] * scale + (bias ? bias[head * bias_head + place] : 0.0f);
                // A row that bias masks whole has lse -inf: exp(score - lse) would be NaN.
                if (score > MINUS_INFINITY) p[r] = expf(score - lse[query]);
                ds[r] = p[r] * (dp[r] - delta[query]);  // through the softmax
                if (!of_keys && dbias) dbias[place] = ds[r];
            }
            add_rows<STRIDE>(a_sum, ds, x_tile);
            if (of_keys) add_rows<STRIDE>(b_sum, p, y_tile);
        }
    }
    store_rows(da + (long long)mine * d, a_sum, scale, left - mine, d);
    if (of_keys) store_rows(db + (long long)mine * d, b_sum, 1.0f, left - mine, d);
}

extern "C" __global__ void __launch_bounds__(THREADS) backward_rows(
    const float* __restrict__ q, const float* __restrict__ dout,     // (batch*heads, n, d)
    const float* __restrict__ k, const float* __restrict__ v,        // (batch*kv_heads, m, d)
    const float* __restrict__ bias,                                  // (.., n, m) or null
    const float* __restrict__ lse, const float* __restrict__ delta,  // (batch*heads, n)
    float* __restrict__ dq,                                          // (batch*heads, n, d)
    float* __restrict__ dbias,                                       // (batch*heads, n, m) or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    const int tiles = (n + OWN - 1) / OWN, row0 = blockIdx.x % tiles * OWN;
    const long long bh = blockIdx.x / tiles, at = (bh * n + row0) * d;
    const long long kv = bh / (heads / kv_heads) * m * d;
    if (bias) bias += bh / heads * bias_batch + bh % heads * bias_head;
    if (dbias) dbias += bh * n * m;
    gradients<false>(q + at, dout + at, k + kv, v + kv, bias, lse + bh * n, delta + bh * n,
                     dq + at, nullptr, dbias, row0, 1, n, m, d, 0, scale, causal);
}

extern "C" __global__ void __launch_bounds__(THREADS) backward_keys(
    const float* __restrict__ q, const float* __restrict__ dout,     // (batch*heads, n, d)
    const float* __restrict__ k, const float* __restrict__ v,        // (batch*kv_heads, m, d)
    const float* __restrict__ bias,                                  // (.., n, m) or null
    const float* __restrict__ lse, const float* __restrict__ delta,  // (batch*heads, n)
    float* __restrict__ dk, float* __restrict__ dv,                  // (batch*kv_heads, m, d)
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    const int tiles = (m + OWN - 1) / OWN, key0 = blockIdx.x % tiles * OWN;
    const int group = heads / kv_heads;  // heads of q that this head of k and v serves
    const long long kv = blockIdx.x / tiles, at = (kv * m + key0) * d, bh = kv * group;
    if (bias) bias += bh / heads * bias_batch + bh % heads * bias_head;
    gradients<true>(k + at, v + at, q + bh * n * d, dout + bh * n * d, bias, lse + bh * n,
                    delta + bh * n, dk + at, dv + at, nullptr, key0, group, n, m, d, bias_head,
                    scale, causal);
}
