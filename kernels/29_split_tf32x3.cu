// Idea:          Few rows, many SMs, and tensor cores: the warps of a cluster of blocks share a
//                tile of rows; each takes a share of the keys in three TF32 products. A block
//                joins what its warps found and sends it through distributed shared memory.
// Changes from:  15_flash_tf32x3.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        split_tf32x3: grid (CLUSTER*batch*heads, ceil(n/BR)) in clusters of CLUSTER,
//                block (32*ROW_WARPS*KEY_WARPS), dynamic shared
//                ((BR + 2*TILE)*ROW_BYTES/4 + PARTS*STRIDE + 2)*4 bytes
// Needs:         sm_90 (sm_80 with CLUSTER=1); d <= D; D a multiple of 16; CLUSTER 1, 2, 4 or 8;
//                BC a multiple of 8; at most 32 warps, ROW_WARPS along the rows, 16 each, and
//                KEY_WARPS along the keys; at least D/4 threads; heads a multiple of kv_heads
// Expect:        the relative error of 15; less time where 15 leaves SMs or warp schedulers idle,
//                and less than 19, whose products are not on tensor cores
// Limits:        warps along the rows all split the same K and V into TF32 parts; the parts of rows
//                take shared memory of their own; else as 15; ceil(n/BR) <= 65535

#ifndef CLUSTER
#define CLUSTER 2  // blocks that share a tile of rows: each has a share of the keys
#endif
#ifndef D
#define D 64  // floats of the head dim that a tile holds; those past d are zeros
#endif
#ifndef ROW_WARPS
#define ROW_WARPS 2  // warps along the rows
#endif
#ifndef KEY_WARPS
#define KEY_WARPS 4  // warps along the keys: they share rows, as the blocks of a cluster do
#endif
#ifndef BC
#define BC 16  // keys a warp and tile
#endif

#include "include/async_copy.cuh"
#include "include/cluster_parts.cuh"
#include "include/fragment_softmax.cuh"
#include "include/mma.cuh"
#include "include/output.cuh"
#include "include/swizzled_tile.cuh"

// As split_tf32() of mma.cuh, but not from constant memory: short launches take less time
// (docs/mma_log.md). `layer` is 0, as a grid has one layer, but the compiler does not know that.
__device__ __forceinline__ void split_in_layer(unsigned& big, unsigned& small, float x)
{
    unsigned layer;
    asm("mov.u32 %0, %%ctaid.z;" : "=r"(layer));
    big = __float_as_uint(x) & (0xffffe000u | layer);
    small = __float_as_uint(x - __uint_as_float(big));
}
#define split_tf32 split_in_layer  // tf32x3.cuh calls this one
#include "include/tf32x3.cuh"

constexpr int THREADS = 32 * ROW_WARPS * KEY_WARPS;
constexpr int BR = 16 * ROW_WARPS;                 // query rows a block
constexpr int TILE = BC * KEY_WARPS;               // keys a block loads at once
constexpr int ROUND = CLUSTER * TILE;              // keys that the cluster takes at once
constexpr int ROW_BYTES = (D + 31) / 32 * 128;     // of a row of Q, K or V in shared memory
constexpr int COLS = 4 - D / 16 % 2 * 2;           // columns of V that a lane loads at once
constexpr int GROUPS = D / (8 * COLS);             // columns of 8 lanes side by side are a group
constexpr int OWN = (BR + CLUSTER - 1) / CLUSTER;  // rows that a block finishes
constexpr int PARTS = KEY_WARPS * BR + (CLUSTER > 1) * CLUSTER * OWN;  // rows of warps, blocks
constexpr int STRIDE = D + 4;                      // floats of a row's part: its end has l and m

static_assert(D % 16 == 0 && BC % 8 == 0 && THREADS <= 1024, "16 columns, 8 keys, 32 warps");

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS, 1) split_tf32x3(
    const float* __restrict__ q,     // (batch*heads, n, d)
    const float* __restrict__ k,     // (batch*kv_heads, m, d)
    const float* __restrict__ v,     // (batch*kv_heads, m, d)
    const float* __restrict__ bias,  // (.., n, m), added to the scaled scores, or null
    float* __restrict__ out,         // (batch*heads, n, d)
    float* __restrict__ lse,         // (batch*heads, n), log of each sum of exponentials, or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    extern __shared__ __align__(128) unsigned char q_tile[];  // (BR, ROW_BYTES)
    unsigned char* k_tile = q_tile + BR * ROW_BYTES;          // (TILE, ROW_BYTES)
    unsigned char* v_tile = k_tile + TILE * ROW_BYTES;        // (TILE, ROW_BYTES)
    float* found = reinterpret_cast<float*>(v_tile + TILE * ROW_BYTES);  // (KEY_WARPS, BR, STRIDE)
    float* parts = found + KEY_WARPS * BR * STRIDE;                      // (CLUSTER, OWN, STRIDE)
    Inbox& inbox = *reinterpret_cast<Inbox*>(found + PARTS * STRIDE);    // counts parts of others

    const int rank = blockIdx.x % CLUSTER;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
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

    const int warp_row = 16 * row_warp;          // the warp's first row of the block's
    const int row = row0 + warp_row + lane / 4;  // this lane's rows are row and row + 8
    const int last_key = causal ? min(m, row0 + BR + m - n) : m;  // no row of the block sees more

    // A lane's first addresses, and the bytes to its columns of V: of an even key, of the next one.
    const unsigned q_lane =
        shared_address(q_tile) + swizzled<ROW_BYTES>(warp_row + lane % 16, lane / 16);
    const unsigned k_lane =
        shared_address(k_tile) + swizzled<ROW_BYTES>(key_warp * BC + lane % 8, lane / 8);
    const unsigned char* v_warp = v_tile + key_warp * BC * ROW_BYTES + lane / 4 * COLS % 4 * 4;
    const int v_even = swizzled<ROW_BYTES>(lane % 4 * 2, lane / 4 * COLS / 4);
    const int v_odd = swizzled<ROW_BYTES>(lane % 4 * 2 + 1, lane / 4 * COLS / 4);

    auto copy_keys = [&](unsigned char* to, const float* from, int key0) {  // starts to copy a tile
        start_swizzled_copy<D, ROW_BYTES, TILE, THREADS>(to, from + (long long)key0 * d,
                                                         last_key - key0, d, vector);
    };
    start_swizzled_copy<D, ROW_BYTES, BR, THREADS>(q_tile, q, n - row0, d, vector);
    copy_keys(k_tile, k, rank * TILE);
    copy_keys(v_tile, v, rank * TILE);
    inbox.open(part_bytes<BR, OWN, D>(rank));  // while the copies are on their way
    cluster_started();

    float o[GROUPS][COLS][4] = {};      // the output so far, not yet divided by sum
    float shift[2] = {LOWEST, LOWEST};  // maximum of the scores so far, in powers of two
    float sum[2] = {};                  // of exp2(score - shift) so far, over this lane's keys

    // exp2 takes the scale with it, unless a bias comes between or a scale < 0 reverses the order.
    const bool plain = !bias && scale > 0.0f;
    const float factor = plain ? scale * LOG2E : LOG2E;

    for (int key0 = rank * TILE; key0 < last_key; key0 += ROUND) {  // this block's tiles
        copies_arrived<1>();  // Q and K are here, V may still be on its way
        __syncthreads();  // barrier: a fast warp would read what other threads' copies still write

        float s[1][BC / 8][4];  // scores
        split_scores<D, ROW_BYTES>(s, q_lane, k_lane);

        const int first = key0 + key_warp * BC;  // the warp's first key
        const int key = first + lane % 4 * 2;    // this lane's are key + 8*j and the next ones
        const bool edge = first + BC > m || (causal && first + BC > row0 + warp_row + 1 + m - n);
        Split<4> p8[1][BC / 8];  // weights; of 8 keys the even ones come first
        float rescale[2];
        if (!plain) scale_and_bias(s[0], scale, bias, row, key, n, m);
        if (edge) hide_keys(s[0], row, key, n, m, causal);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            rescale[half] = raise(shift[half], row_top(s[0], half, factor, bias));
            float tile_sum = 0.0f;
#pragma unroll
            for (int x = 0; x < BC / 4; ++x) {
                const float weight = exp2f(s[0][x / 2][2 * half + x % 2] * factor - shift[half]);
                tile_sum += weight;
                p8[0][x / 2].set(x % 2 * 2 + half, weight);
            }
            sum[half] = sum[half] * rescale[half] + tile_sum;
        }

        copies_arrived<0>();  // V is here
        __syncthreads();  // barrier: as before, and the next K tile would overwrite this one
        copy_keys(k_tile, k, key0 + ROUND);
#pragma unroll
        for (int c = 0; c < GROUPS; ++c) {
            float more[1][COLS][4];
            split_values<ROW_BYTES>(more, p8, v_warp + along_row(v_even, 2 * COLS * c),
                                    v_warp + along_row(v_odd, 2 * COLS * c));
#pragma unroll
            for (int x = 0; x < 4 * COLS; ++x) {
                float& sum_o = o[c][x / 4][x % 4];
                sum_o = sum_o * rescale[x % 4 / 2] + more[0][x / 4][x % 4];
            }
        }
        if (key0 + ROUND >= last_key) break;
        __syncthreads();  // barrier: the next V tile would overwrite the one that others still read
        copy_keys(v_tile, v, key0 + ROUND);
    }
    copies_arrived<0>();  // where there is no key to see, Q is still on its way
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float total = warp_sum<2, 1>(sum[half]);
        float* part = found + (key_warp * BR + warp_row + lane / 4 + 8 * half) * STRIDE;
#pragma unroll
        for (int x = 0; x < D / 4; x += 4) {  // this lane's columns of the row: D / 4
            auto own = [&](int i) { return o[i / COLS / 2][i % COLS][2 * half + i / COLS % 2]; };
            const int col = (x / (2 * COLS) * 4 + lane % 4) * 2 * COLS + x % (2 * COLS);
            *reinterpret_cast<float4*>(part + col) =
                make_float4(own(x), own(x + 1), own(x + 2), own(x + 3));
        }
        if (lane % 4 == 0) *reinterpret_cast<float2*>(part + D) = make_float2(shift[half], total);
    }
    // Every block sends its parts, with keys or without; once all are here, this one may leave.
    cluster_wait();   // barrier: the other blocks' shared memory may not exist yet
    __syncthreads();  // barrier: a fast warp would join parts that others still store

    join_rows<D, KEY_WARPS, BR, OWN, STRIDE, THREADS>(
        found, parts, inbox, rank, 1.0f,
        [&](int r, int col, float4 o4, float top, float total) {
            if (row0 + r >= n) return;
            write4(out, lse, (long long)bh * n + row0 + r, col, o4, top * LN2, total, d);
        });
}
