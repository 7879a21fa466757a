// Idea:          cp.async copies the next K tile while this tile's P V is computed, and V while
//                Q K^T is: the copies go past the registers, and no thread waits with data in them.
// Changes from:  11_flash_fp32.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        flash_async: grid (batch*heads, ceil(n/BR)), block (32*ROW_WARPS*KEY_WARPS),
//                dynamic shared ((BR + 2*TILE)*STRIDE + BR*KEY_WARPS*P_STRIDE)*4 bytes
// Needs:         sm_80; d <= D; D a multiple of 32; ROWS x KEYS scores a thread; at most 32 warps,
//                ROW_WARPS along the rows and KEY_WARPS along the keys; where KEY_WARPS > 1,
//                ROW_WARPS*ROWS <= 4*KEYS; heads a multiple of kv_heads; SPAN >= 0
// Expect:        the same sums as 11 in the same order; less time where a block has few warps to
//                hide the latency of its loads
// Limits:        one buffer each for K and V: a copy overlaps one product, not a whole step; rows
//                that are not 16-byte aligned are copied 4 bytes at a time;
//                ceil(n/BR) <= 65535
// Read:          first the diff to 11: all lines but the copies and their barriers repeat
//                those of 11 on purpose, so the diff is this step alone. Then the include files:
//                async_copy.cuh, which is new here; register_tile.cuh and online_softmax.cuh, the
//                two products and the softmax of the loop; output.cuh, the end of a row; last
//                parts.cuh, for KEY_WARPS > 1, and long_rows.cuh, for SPAN > 0

#ifndef D
#define D 64  // floats of the head dim that a tile holds; those past d are zeros
#endif
#ifndef ROWS
#define ROWS 8  // query rows a thread
#endif
#ifndef KEYS
#define KEYS 8  // keys a thread and tile
#endif
#ifndef ROW_WARPS
#define ROW_WARPS 4  // warps along the rows
#endif
#ifndef KEY_WARPS
#define KEY_WARPS 1  // warps along the keys: they share rows and join what they found at the end
#endif
#ifndef SPAN
#define SPAN 0  // tiles of keys summed in one chain; 0: all of them
#endif

#include "include/async_copy.cuh"
#include "include/long_rows.cuh"
#include "include/online_softmax.cuh"
#include "include/output.cuh"
#include "include/parts.cuh"
#include "include/register_tile.cuh"

constexpr int THREADS = 32 * ROW_WARPS * KEY_WARPS;
constexpr int WARP_ROWS = 4 * ROWS;        // query rows a warp: 4 of its lanes along the rows
constexpr int BR = WARP_ROWS * ROW_WARPS;  // query rows a block
constexpr int BC = 8 * KEYS;               // keys a warp: 8 of its lanes along the keys
constexpr int TILE = BC * KEY_WARPS;       // keys a block loads at once
constexpr int COLS = D / 32;               // float4 columns of the output a thread
constexpr int STRIDE = D + 4;              // pad: 8 rows at one column are 8 groups of 4 banks
constexpr int P_STRIDE = BC + 8;           // pad: 4 rows x 8 keys are 32 banks (where KEYS is even)
constexpr int PART = WARP_ROWS * STRIDE;   // floats from one warp's part of a row to the next one's

static_assert(D % 32 == 0, "8 lanes take a float4 of an output row each: 32 columns at once");
static_assert(THREADS <= 1024, "a block has at most 32 warps");
static_assert(KEY_WARPS == 1 || BR * KEY_WARPS <= 2 * TILE, "parts are joined where K and V lay");

extern "C" __global__ void __launch_bounds__(THREADS, 1) flash_async(
    const float* __restrict__ q,     // (batch*heads, n, d)
    const float* __restrict__ k,     // (batch*kv_heads, m, d)
    const float* __restrict__ v,     // (batch*kv_heads, m, d)
    const float* __restrict__ bias,  // (.., n, m), added to the scaled scores, or null
    float* __restrict__ out,         // (batch*heads, n, d)
    float* __restrict__ lse,         // (batch*heads, n), log of each sum of exponentials, or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    extern __shared__ float4 shared[];                 // float4: aligned for vector loads
    float* q_tile = reinterpret_cast<float*>(shared);  // (BR, STRIDE)
    float* k_tile = q_tile + BR * STRIDE;              // (TILE, STRIDE)
    float* v_tile = k_tile + TILE * STRIDE;            // (TILE, STRIDE)
    float* p_tiles = v_tile + TILE * STRIDE;           // (warps, WARP_ROWS, P_STRIDE)

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    // Lanes t and t^1 read the same of K and V, lanes t and t^2 the same of Q and P: then a warp's
    // 16-byte loads pass over the banks twice, not four times.
    const int tx = lane / 2 % 8;              // along the keys, and along the columns of the output
    const int ty = lane / 16 * 2 + lane % 2;  // along the rows
    const int row_warp = warp / KEY_WARPS;
    const int key_warp = warp % KEY_WARPS;

    const int bh = blockIdx.x;
    // Last rows first: under causal they work longest, and the short ones fill the end.
    const int row0 = (gridDim.y - 1 - blockIdx.y) * BR;
    const int kv_head = heads == kv_heads ? bh : bh / (heads / kv_heads);
    // long long: the offset of a row, or of a head's bias, can pass 2^31.
    if (bias) bias += bh / heads * bias_batch + bh % heads * bias_head;  // (n, m), of this head
    q += ((long long)bh * n + row0) * d;  // (n - row0, d), from this block's first row on
    k += (long long)kv_head * m * d;      // (m, d)
    v += (long long)kv_head * m * d;      // (m, d)
    const bool vector = d % 4 == 0 && ((size_t)q | (size_t)k | (size_t)v) % 16 == 0;

    start_copy<D, STRIDE, THREADS>(q_tile, q, BR, n - row0, d, d, vector);

    // This thread's rows are first_row + 4*i, its keys of a tile key + 8*j, and its columns of the
    // output the 4 from 32*c + 4*tx on.
    const float* q_mine = q_tile + (row_warp * WARP_ROWS + ty) * STRIDE;  // row i at 4*i*STRIDE
    const float* k_mine = k_tile + (key_warp * BC + tx) * STRIDE;         // key j at 8*j*STRIDE
    const float* v_mine = v_tile + key_warp * BC * STRIDE + 4 * tx;      // key j at j*STRIDE
    float* p_mine = p_tiles + (warp * WARP_ROWS + ty) * P_STRIDE;         // row i at 4*i*P_STRIDE
    const int first_row = row0 + row_warp * WARP_ROWS + ty;
    const int last_key = causal ? min(m, row0 + BR + m - n) : m;  // no row of the block sees more

    float o[ROWS][COLS][4] = {};  // the output so far, not yet divided by row_l
    float row_m[ROWS];            // maximum of the scores so far
    float row_l[ROWS];            // sum of exp(score - row_m) so far, over this lane's keys
    SpanSums<ROWS, COLS> spans;   // o, row_m and row_l of the spans of tiles before this one
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        row_m[i] = LOWEST;
        row_l[i] = 0.0f;
    }

    start_copy<D, STRIDE, THREADS>(k_tile, k, TILE, last_key, d, d, vector);
    for (int key0 = 0; key0 < last_key; key0 += TILE) {
        copies_arrived<0>();  // Q and K are here
        __syncthreads();  // barrier: a fast warp would read what other threads' copies still write,
                          // and the next V tile overwrite the one that others still read
        start_copy<D, STRIDE, THREADS>(v_tile, v + (long long)key0 * d, TILE, last_key - key0, d, d,
                                       vector);

        float s[ROWS][KEYS] = {};  // scores of this thread's rows and keys
        scores<D, STRIDE>(s, q_mine, k_mine);
        __syncthreads();  // barrier: the next K tile would overwrite the one that others still read
        const int next = key0 + TILE;
        start_copy<D, STRIDE, THREADS>(k_tile, k + (long long)next * d, TILE, last_key - next, d, d,
                                       vector);

        const int key = key0 + key_warp * BC + tx;
        const bool edge = key0 + TILE > m || (causal && key0 + TILE > row0 + m - n);
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            mask_scores(s[i], scale, bias, first_row + 4 * i, key, n, m, edge, causal);
            softmax_step(s[i], p_mine + 4 * i * P_STRIDE + tx, o[i], row_m[i], row_l[i]);
        }
        copies_arrived<1>();  // V is here, the next K may still be on its way
        __syncthreads();  // barrier: a fast warp would read what other threads' copies still write

        add_values<BC, STRIDE, P_STRIDE>(o, p_mine, v_mine);
        end_tile<SPAN>(spans, key0 / TILE, o, row_m, row_l);
    }
    copies_arrived<0>();  // where there is no key to see, Q is still on its way

    add_spans<SPAN>(spans, last_key > (SPAN - 1) * TILE, o, row_m, row_l);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        row_l[i] = warp_sum<8, 2>(row_l[i]);
    }

    if constexpr (KEY_WARPS > 1) {
        __syncthreads();  // barrier: the parts would overwrite tiles that others still read
        float* parts = k_tile;  // (ROW_WARPS, KEY_WARPS, WARP_ROWS, STRIDE)
        float* mine = parts + (warp * WARP_ROWS + ty) * STRIDE;
        store_part<D, STRIDE>(mine, o, row_m, row_l, tx);
        __syncthreads();  // barrier: a fast warp would join parts that are not stored yet

        for (int i = threadIdx.x; i < BR * (D / 4); i += THREADS) {
            const int r = i / (D / 4);
            const int col = i % (D / 4) * 4;
            const int first = r / WARP_ROWS * KEY_WARPS * WARP_ROWS + r % WARP_ROWS;
            float top, total;
            const float4 sum =
                join_parts<D, KEY_WARPS, PART>(parts + first * STRIDE, col, top, total);
            if (row0 + r < n) {
                write4(out, lse, (long long)bh * n + row0 + r, col, sum, top, total, d);
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const int row = first_row + 4 * i;
            const long long at = (long long)bh * n + row;
#pragma unroll
            for (int c = 0; c < COLS; ++c) {
                const float4 o4 = make_float4(o[i][c][0], o[i][c][1], o[i][c][2], o[i][c][3]);
                if (row < n) write4(out, lse, at, 32 * c + 4 * tx, o4, row_m[i], row_l[i], d);
            }
        }
    }
}
