// Idea:          Few rows, many SMs: a cluster of blocks shares a tile of rows, each block takes a
//                share of the keys, joins what its warps found and sends it to the block that
//                finishes the row, through distributed shared memory.
// Changes from:  12_flash_async.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        flash_split: grid (CLUSTER*batch*heads, ceil(n/BR)) in clusters of CLUSTER,
//                block (32*ROW_WARPS*KEY_WARPS), dynamic shared
//                ((BR + 2*TILE + PARTS)*STRIDE + BR*KEY_WARPS*P_STRIDE)*4 bytes
// Needs:         sm_90 (sm_80 with CLUSTER=1); d <= D; D a multiple of 32; CLUSTER 1, 2, 4 or 8;
//                ROWS x KEYS scores a thread; at most 32 warps, ROW_WARPS along the rows and
//                KEY_WARPS along the keys; heads a multiple of kv_heads; SPAN >= 0
// Expect:        each block reads 1/CLUSTER of the K and V that it reads in 12 with as many blocks,
//                and uses each element for CLUSTER times the rows
// Limits:        the start of the whole cluster and the journey of the parts are work that 12 does
//                not have: they pay where 12's n/BR * batch*heads blocks would leave SMs idle;
//                parts take shared memory of their own; ceil(n/BR) <= 65535

#ifndef CLUSTER
#define CLUSTER 2  // blocks that share a tile of rows: each has a share of the keys
#endif
#ifndef D
#define D 64  // floats of the head dim that a tile holds; those past d are zeros
#endif
#ifndef ROWS
#define ROWS 4  // query rows a thread
#endif
#ifndef KEYS
#define KEYS 4  // keys a thread and tile
#endif
#ifndef ROW_WARPS
#define ROW_WARPS 1  // warps along the rows
#endif
#ifndef KEY_WARPS
#define KEY_WARPS 4  // warps along the keys: they share rows, as the blocks of a cluster do
#endif
#ifndef SPAN
#define SPAN 0  // tiles of keys summed in one chain; 0: all of them
#endif
#include "include/async_copy.cuh"
#include "include/cluster_parts.cuh"
#include "include/long_rows.cuh"
#include "include/online_softmax.cuh"
#include "include/output.cuh"
#include "include/register_tile.cuh"

constexpr int THREADS = 32 * ROW_WARPS * KEY_WARPS;
constexpr int WARP_ROWS = 4 * ROWS;        // query rows a warp: 4 of its lanes along the rows
constexpr int BR = WARP_ROWS * ROW_WARPS;  // query rows a block
constexpr int BC = 8 * KEYS;               // keys a warp: 8 of its lanes along the keys
constexpr int TILE = BC * KEY_WARPS;       // keys a block loads at once
constexpr int OWN = (BR + CLUSTER - 1) / CLUSTER;  // rows that a block finishes
constexpr int PARTS = KEY_WARPS * BR + (CLUSTER > 1) * CLUSTER * OWN;  // rows of warps, blocks
constexpr int COLS = D / 32;               // float4 columns of the output a thread
constexpr int STRIDE = D + 4;              // pad: 8 rows at one column are 8 groups of 4 banks
constexpr int P_STRIDE = BC + 8;           // pad: 4 rows x 8 keys are 32 banks (where KEYS is even)

static_assert(D % 32 == 0, "8 lanes take a float4 of an output row each: 32 columns at once");
static_assert(THREADS <= 1024, "a block has at most 32 warps");

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS, 1) flash_split(
    const float* __restrict__ q,     // (batch*heads, n, d)
    const float* __restrict__ k,     // (batch*kv_heads, m, d)
    const float* __restrict__ v,     // (batch*kv_heads, m, d)
    const float* __restrict__ bias,  // (.., n, m), added to the scaled scores, or null
    float* __restrict__ out,         // (batch*heads, n, d)
    float* __restrict__ lse,         // (batch*heads, n), log of each sum of exponentials, or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    __shared__ Inbox inbox;                            // counts the parts of rows it finishes
    extern __shared__ float4 shared[];                 // float4: aligned for vector loads
    float* q_tile = reinterpret_cast<float*>(shared);  // (BR, STRIDE)
    float* k_tile = q_tile + BR * STRIDE;              // (TILE, STRIDE)
    float* v_tile = k_tile + TILE * STRIDE;            // (TILE, STRIDE)
    float* found = v_tile + TILE * STRIDE;             // (KEY_WARPS, BR, STRIDE)
    float* parts = found + KEY_WARPS * BR * STRIDE;    // (CLUSTER, OWN, STRIDE)
    float* p_tiles = found + PARTS * STRIDE;           // (warps, WARP_ROWS, P_STRIDE)

    const int rank = blockIdx.x % CLUSTER;
    inbox.open(part_bytes<BR, OWN, D>(rank));
    cluster_started();

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    // Lanes t and t^1 read the same of K and V, lanes t and t^2 the same of Q and P: then a warp's
    // 16-byte loads pass over the banks twice, not four times.
    const int tx = lane / 2 % 8;              // along the keys, and along the columns of the output
    const int ty = lane / 16 * 2 + lane % 2;  // along the rows
    const int row_warp = warp / KEY_WARPS;
    const int key_warp = warp % KEY_WARPS;

    const int bh = blockIdx.x / CLUSTER;
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

    // This block's tiles of keys are those from rank * TILE on, CLUSTER * TILE apart.
    const int key1 = rank * TILE;
    start_copy<D, STRIDE, THREADS>(k_tile, k + (long long)key1 * d, TILE, last_key - key1, d, d,
                                   vector);
    for (int key0 = key1; key0 < last_key; key0 += CLUSTER * TILE) {
        copies_arrived<0>();  // Q and K are here
        __syncthreads();  // barrier: a fast warp would read what other threads' copies still write,
                          // and the next V tile overwrite the one that others still read
        start_copy<D, STRIDE, THREADS>(v_tile, v + (long long)key0 * d, TILE, last_key - key0, d, d,
                                       vector);

        float s[ROWS][KEYS] = {};  // scores of this thread's rows and keys
        scores<D, STRIDE>(s, q_mine, k_mine);
        __syncthreads();  // barrier: the next K tile would overwrite the one that others still read
        const int next = key0 + CLUSTER * TILE;
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
        end_tile<SPAN>(spans, key0 / (CLUSTER * TILE), o, row_m, row_l);
    }
    copies_arrived<0>();  // where there is no key to see, Q is still on its way

    add_spans<SPAN>(spans, last_key > key1 + (SPAN - 1) * CLUSTER * TILE, o, row_m, row_l);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        row_l[i] = warp_sum<8, 2>(row_l[i]);
    }

    float* mine = found + (key_warp * BR + row_warp * WARP_ROWS + ty) * STRIDE;
    store_part<D, STRIDE>(mine, o, row_m, row_l, tx);
    // Others send only parts here, which this block leaves alone until all of them have come; then
    // nobody sends, and it may leave. Every block sends its parts, with keys or without.
    cluster_wait();   // barrier: the other blocks' shared memory may not exist yet
    __syncthreads();  // barrier: a fast warp would join parts that others still store

    join_rows<D, KEY_WARPS, BR, OWN, STRIDE, THREADS>(
        found, parts, inbox, rank, LOG2E,
        [&](int r, int col, float4 o4, float top, float total) {
            if (row0 + r >= n) return;
            write4(out, lse, (long long)bh * n + row0 + r, col, o4, top, total, d);
        });
}
