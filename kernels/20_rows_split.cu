// Idea:          Few queries, large head dim: a cluster of blocks splits the head dim. Each sends
//                its partial scores to the block that owns the row, and gets the row's weights
//                back, both through distributed shared memory; each keeps its slice of the output.
// Changes from:  09_rows_online.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        rows_split: grid (CLUSTER*batch*heads, ceil(n/BR)) in clusters of CLUSTER, block
//                (32*WARPS), dynamic shared
//                ((2*BC + BR)*STRIDE + (CLUSTER*OWN + BR)*P_STRIDE + 2*(BR + OWN))*4 bytes
// Needs:         sm_90 (sm_80 with CLUSTER=1); d <= CLUSTER*32*WARPS*COLS; CLUSTER 1, 2, 4 or 8;
//                COLS 1, 2 or 4; ROWS x KEYS scores a thread; WARPS <= 32; the warps' scores fit
//                where K lay; heads a multiple of kv_heads
// Expect:        K and V are read once for BR queries where 09 read them for each, every element by
//                the one block whose slice it is in; CLUSTER SMs work on a tile of rows
// Limits:        two journeys through the cluster a key tile, in which every block waits for the
//                slowest; ceil(n/BR) <= 65535
// Long:          The owner's softmax stands between the two journeys of a tile, so that what it
//                sends into other blocks is read beside the waits that order it.

#ifndef CLUSTER
#define CLUSTER 8  // blocks that share a tile of rows: each has a slice of the head dim
#endif
#ifndef COLS
#define COLS 1  // float4 columns of a slice a thread
#endif
#ifndef WARPS
#define WARPS 8  // warps a block, each with 32*COLS columns of the slice
#endif
#ifndef ROWS
#define ROWS 4  // query rows a thread
#endif
#ifndef KEYS
#define KEYS 8  // keys a thread and tile
#endif

#include "include/async_copy.cuh"
#include "include/cluster_sum.cuh"
#include "include/inbox.cuh"
#include "include/online_softmax.cuh"
#include "include/output.cuh"
#include "include/register_tile.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int BR = 4 * ROWS;                       // query rows a cluster: 4 lanes along the rows
constexpr int OWN = (BR + CLUSTER - 1) / CLUSTER;  // rows whose softmax a block computes
constexpr int BC = 8 * KEYS;                       // keys a tile: 8 lanes along the keys
constexpr int LANE_KEYS = (BC + 31) / 32;  // keys a lane in the softmax, where a warp has a row
constexpr int WARP_COLS = 32 * COLS;       // columns a warp
constexpr int SLICE = WARP_COLS * WARPS;   // columns a block
constexpr int STRIDE = SLICE + 4;          // pad: 8 rows at one column are 8 groups of 4 banks
constexpr int P_STRIDE = BC + 8;           // pad: 4 rows x 8 keys are 32 banks (where KEYS is even)

static_assert(THREADS <= 1024, "a block has at most 32 warps");
static_assert(4 % COLS == 0, "the threads copy whole rows of a tile at a time");
static_assert(WARPS * BR * P_STRIDE <= BC * STRIDE, "the warps' scores lie where K lay");

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS, 1) rows_split(
    const float* __restrict__ q,     // (batch*heads, n, d)
    const float* __restrict__ k,     // (batch*kv_heads, m, d)
    const float* __restrict__ v,     // (batch*kv_heads, m, d)
    const float* __restrict__ bias,  // (.., n, m), added to the scaled scores, or null
    float* __restrict__ out,         // (batch*heads, n, d)
    float* __restrict__ lse,         // (batch*heads, n), log of each sum of exponentials, or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    __shared__ Inbox sums_inbox, weights_inbox;        // count what other blocks send of a tile
    extern __shared__ float4 shared[];                 // float4: aligned for vector loads
    float* q_tile = reinterpret_cast<float*>(shared);  // (BR, STRIDE)
    float* k_tile = q_tile + BR * STRIDE;              // (BC, STRIDE)
    float* v_tile = k_tile + BC * STRIDE;              // (BC, STRIDE)
    float* sums = v_tile + BC * STRIDE;                // (CLUSTER, OWN, P_STRIDE), of rows it owns
    float* p_tile = sums + CLUSTER * OWN * P_STRIDE;   // (BR, P_STRIDE), weights
    float* rescale = p_tile + BR * P_STRIDE;           // (BR,), of what was summed before this tile
    float* row_l = rescale + BR;                       // (BR,), sum of exp(score - m) so far
    float* own_m = row_l + BR;                         // (OWN,), maximum of the scores so far
    float* own_l = own_m + OWN;                        // (OWN,), row_l of the rows it owns
    float* parts = k_tile;                             // (WARPS, BR, P_STRIDE), after K is used

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    // Lanes t and t^1 read the same of K and V, lanes t and t^2 the same of Q and P: then a warp's
    // 16-byte loads pass over the banks twice, not four times.
    const int tx = lane / 2 % 8;              // along the keys, and along the columns of the output
    const int ty = lane / 16 * 2 + lane % 2;  // along the rows

    for (int own = threadIdx.x; own < OWN; own += THREADS) {
        own_m[own] = LOWEST;
        own_l[own] = 0.0f;
    }

    const int rank = blockIdx.x % CLUSTER;
    const int bh = blockIdx.x / CLUSTER;
    const int row0 = blockIdx.y * BR;
    const int kv_head = heads == kv_heads ? bh : bh / (heads / kv_heads);
    const int dim0 = rank * SLICE;          // this block's slice of the head dim
    const int dims = min(SLICE, d - dim0);  // may be <= 0: then it only adds zeros
    // long long: the offset of a row, or of a head's bias, can pass 2^31.
    if (bias) bias += bh / heads * bias_batch + bh % heads * bias_head;  // (n, m), of this head
    q += ((long long)bh * n + row0) * d + dim0;   // (n - row0, dims), rows d apart
    k += (long long)kv_head * m * d + dim0;       // (m, dims), rows d apart
    v += (long long)kv_head * m * d + dim0;       // (m, dims), rows d apart
    out += ((long long)bh * n + row0) * d + dim0;  // (n - row0, dims), rows d apart
    const bool vector = d % 4 == 0 && ((size_t)q | (size_t)k | (size_t)v) % 16 == 0;
    const int last_key = causal ? min(m, row0 + BR + m - n) : m;  // no row of the block sees more

    const int own_count = own_rows<BR, OWN>(rank);
    const int sums_bytes = (CLUSTER - 1) * own_count * BC * 4;
    const int weights_bytes = (BR - own_count) * (BC + 2) * 4;
    sums_inbox.open(last_key > 0 ? sums_bytes : 0);
    weights_inbox.open(last_key > 0 ? weights_bytes : 0);
    cluster_started();

    start_copy<SLICE, STRIDE, THREADS>(q_tile, q, BR, n - row0, dims, d, vector);
    start_copy<SLICE, STRIDE, THREADS>(k_tile, k, BC, last_key, dims, d, vector);
    start_copy<SLICE, STRIDE, THREADS>(v_tile, v, BC, last_key, dims, d, vector);
    cluster_wait();  // barrier: the other blocks' shared memory may not exist yet

    // This thread's rows are ty + 4*i, its keys of a tile tx + 8*j, and its columns of the output
    // the 4 from 32*c + 4*tx on in those of its warp.
    const float* q_mine = q_tile + ty * STRIDE + warp * WARP_COLS;  // row i at 4*i*STRIDE
    const float* k_mine = k_tile + tx * STRIDE + warp * WARP_COLS;  // key j at 8*j*STRIDE
    const float* v_mine = v_tile + warp * WARP_COLS + 4 * tx;       // key j at j*STRIDE
    float o[ROWS][COLS][4] = {};  // the output so far, not yet divided by row_l

    // A block sends sums of the next tile when it has all weights of this one: the owners have read
    // this tile's sums. An owner sends weights when it has all sums of a tile: all blocks have used
    // the weights before. So nothing is sent that could replace what a block still reads; and a
    // block that has the last weights is no longer sent to. last_key is the same in all its blocks.
    for (int key0 = 0; key0 < last_key; key0 += BC) {
        copies_arrived<1>();  // Q and K are here, V may still be on its way
        __syncthreads();  // barrier: a fast warp would read what other threads' copies still write

        float s[ROWS][KEYS] = {};  // scores over this warp's columns
        scores<WARP_COLS, STRIDE>(s, q_mine, k_mine);

        // Scores of the whole head dim: the sum over the block's warps, then over the cluster.
        __syncthreads();  // barrier: the parts would overwrite the K that others still read
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < KEYS; ++j) {
                parts[(warp * BR + ty + 4 * i) * P_STRIDE + tx + 8 * j] = s[i][j];
            }
        }
        __syncthreads();  // barrier: a fast warp would add up parts that are not stored yet
        send_sums<WARPS, BR, OWN, BC, P_STRIDE, THREADS>(parts, sums, sums_inbox, rank);
        __syncthreads();  // barrier: the next K tile would overwrite parts that others still add
                          // up, and a fast warp read sums of this block not yet there
        const int next = key0 + BC;
        // Only warps that own rows: another could come when the next phase is over too, and hang.
        if (warp < own_count) {
            sums_inbox.wait(key0 / BC);  // barrier: the same of sums of other blocks
            if (next < last_key) sums_inbox.expect(sums_bytes);
        }
        start_copy<SLICE, STRIDE, THREADS>(k_tile, k + (long long)next * d, BC, last_key - next,
                                           dims, d, vector);

        for (int own = warp; own < OWN; own += WARPS) {
            const int r = rank * OWN + own;
            const int row = row0 + r;
            if (r >= BR) break;
            const int keys = causal ? min(m, row + 1 + m - n) : m;  // those this row may see
            float x[LANE_KEYS];
#pragma unroll
            for (int j = 0; j < LANE_KEYS; ++j) {
                const int col = lane + 32 * j;
                x[j] = MINUS_INFINITY;
                if (col < BC && key0 + col < keys) {
                    x[j] = sum_of<CLUSTER, OWN * P_STRIDE>(sums + own * P_STRIDE + col) * scale;
                    if (bias && row < n) x[j] += bias[(long long)row * m + key0 + col];
                }
            }
            float new_m = own_m[own];
            float sum = 0.0f;
            const float factor = weights<16, 1>(x, new_m, sum);
#pragma unroll
            for (int j = 0; j < LANE_KEYS; ++j) {
                if (lane + 32 * j < BC) p_tile[r * P_STRIDE + lane + 32 * j] = x[j];
            }
            __syncwarp();  // barrier: a fast lane would send weights that others have yet to store
            for (int i = lane; i < CLUSTER * BC / 4; i += 32) {
                const int to = i / (BC / 4);
                const int col = i % (BC / 4) * 4;
                const float* row_p = p_tile + r * P_STRIDE;
                if (to != rank) send4(weights_inbox.in(to, rank, row_p), col, load4(row_p + col));
            }
            if (lane < CLUSTER) send(weights_inbox.in(lane, rank, rescale + r), factor);
            const float new_l = own_l[own] * factor + warp_sum(sum);  // while the weights travel
            __syncwarp();  // barrier: a fast lane would replace m and l before others read them
            if (lane < CLUSTER) send(weights_inbox.in(lane, rank, row_l + r), new_l);
            if (lane == 0) own_m[own] = new_m;
            if (lane == 0) own_l[own] = new_l;
        }
        copies_arrived<1>();  // V is here, the next K may still be on its way
        __syncthreads();  // barrier: a fast warp would read V, or own weights, not there yet
        weights_inbox.wait(key0 / BC);  // barrier: the same of weights and factors of other blocks
        if (next < last_key) weights_inbox.expect(weights_bytes);

#pragma unroll
        for (int i = 0; i < ROWS; ++i) rescale_row(o[i], rescale[ty + 4 * i]);
        add_values<BC, STRIDE, P_STRIDE>(o, p_tile + ty * P_STRIDE, v_mine);
        __syncthreads();  // barrier: the next V tile would overwrite the one that others still read
        start_copy<SLICE, STRIDE, THREADS>(v_tile, v + (long long)next * d, BC, last_key - next,
                                           dims, d, vector);
    }
    copies_arrived<0>();  // where there is no key to see, Q is still on its way

    const bool vector_out = d % 4 == 0 && (size_t)out % 16 == 0;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int r = ty + 4 * i;
        if (row0 + r >= n) break;
        // Every key masked: zeros; without a tile of keys, nobody sent row_l.
        const float inverse = last_key > 0 && row_l[r] > 0.0f ? 1.0f / row_l[r] : 0.0f;
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
            const int col = warp * WARP_COLS + 32 * c + 4 * tx;
            const float4 o4 = make_float4(o[i][c][0], o[i][c][1], o[i][c][2], o[i][c][3]);
            store4(out + (long long)r * d + col, o4, inverse, dims - col, vector_out);
        }
    }
    if (lse) {
        for (int own = threadIdx.x; own < OWN; own += THREADS) {
            const int r = rank * OWN + own;
            const int row = row0 + r;
            if (r < BR && row < n) lse[(long long)bh * n + row] = own_m[own] + logf(own_l[own]);
        }
    }
}
