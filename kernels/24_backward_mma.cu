// Idea:          The gradients on the tensor cores. A block keeps a tile of K and V and meets all
//                queries. Scores are computed with a row for each key, so that weights become, in
//                registers, an operand of the gradients of K and V. Warps work in pairs: one has
//                the weights and the gradient of V, the other their gradient and that of K.
// Changes from:  14_flash_mma.cu
// Shapes:        q, out, dout, dq (batch*heads, n, d); k, v, dk, dv (batch*kv_heads, m, d);
//                row-major bfloat16 or half; lse float32 (batch*heads, n); tiles = ceil(n/BR);
//                row_ends float32 (batch*heads, tiles, 2, BR), dq_sum (batch*heads, tiles*BR/16,
//                D/8, 32, 4); turns uint32 (1 + batch*heads*tiles*PAIRS), read where DETERMINISTIC
// Launch:        begin_backward: grid (ceil(batch*heads*tiles*BR/(D > 64 ? 8 : 16))), block (256);
//                backward_mma: grid (batch*kv_heads*ceil(m/BC)), block (64*PAIRS), dynamic shared
//                2*BC*ROW_BYTES + BR*(4*ROW_BYTES + 8*BC + 16) bytes, BC = 16*KEY_TILES*PAIRS;
//                end_backward: grid (ceil(batch*heads*n/(D > 64 ? 8 : 16))), block (256)
// Needs:         sm_80; d <= D; D a multiple of 16; BR 64, or 128 with PAIRS even; BFLOAT16 1, or
//                0 for half; heads a multiple of kv_heads; turns zeros, as it leaves them
// Expect:        tensor cores and reads of shared memory take nearly the same time; dq is summed as
//                blocks come or, where DETERMINISTIC, as keys do: the same bits on every run
// Limits:        no bias; weights and ds in 16 bits: in half a ds past 65504 is infinite

#ifndef BFLOAT16
#define BFLOAT16 1  // elements are 1: bfloat16, 0: half
#endif
#ifndef D
#define D 64  // columns of the head dim that a tile holds; those past d are zeros
#endif
#ifndef KEY_TILES
#define KEY_TILES 2  // 16 keys each, a warp
#endif
#ifndef PAIRS
#define PAIRS 4  // of warps
#endif
#ifndef BR
#define BR 64  // queries a tile
#endif
#ifndef DETERMINISTIC
#define DETERMINISTIC 0  // 1: blocks add to dq in a fixed order
#endif

#include "include/async_copy.cuh"
#include "include/backward_ends.cuh"
#include "include/fragment_products.cuh"
#include "include/fragment_weights.cuh"
#include "include/key_rows.cuh"
#include "include/ordered_sums.cuh"

constexpr int WARPS = 2 * PAIRS;
constexpr int THREADS = 32 * WARPS;
constexpr int WARP_KEYS = 16 * KEY_TILES;          // keys a warp
constexpr int BC = WARP_KEYS * PAIRS;              // keys a block
constexpr int ROW_BYTES = (D + 63) / 64 * 64 * 2;  // of a row in shared memory: whole groups
constexpr int TILE_BYTES = BR * ROW_BYTES;         // of Q or its gradient
constexpr int DS_BYTES = BC * BR * 2;              // of the scores' gradient
constexpr int PARTS = BR / 32;                     // a warp's dq: 32 queries and, of each COLUMNS
constexpr int COLUMNS = WARPS / PARTS;             // times 16 columns, 16
constexpr int SHARE = (D / 16 + COLUMNS - 1) / COLUMNS;
constexpr int TOGETHER = 8;  // heads whose blocks take turns to start, where dq has a fixed order
static_assert(D % 16 == 0 && D <= 256 && BR % 64 == 0, "16 rows or columns a fragment; 128 bytes");

extern "C" __global__ void __launch_bounds__(256) begin_backward(
    const Element* __restrict__ out, const Element* __restrict__ dout,  // (batch*heads, n, d)
    const float* __restrict__ lse,  // (batch*heads, n)
    float* __restrict__ row_ends,   // (batch*heads, tiles, 2, BR): lse in powers of two, delta
    float* __restrict__ dq_sum,     // (batch*heads, tiles*BR/16, D/8, 32, 4), zeros after it
    int rows, int n, int d)         // rows: batch*heads*n
{
    begin_row<BR, D>(out, dout, lse, row_ends, dq_sum, rows / n, n, d);
}

extern "C" __global__ void __launch_bounds__(256) end_backward(
    const float* __restrict__ dq_sum,  // (batch*heads, tiles*BR/16, D/8, 32, 4)
    Element* __restrict__ dq,          // (batch*heads, n, d)
    int rows, int n, int d, float scale)
{
    end_row<BR, D, Order::FRAGMENTS>(dq, dq_sum, rows / n, n, d, scale);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) backward_mma(
    const Element* __restrict__ q, const Element* __restrict__ dout,  // (batch*heads, n, d)
    const Element* __restrict__ k, const Element* __restrict__ v,     // (batch*kv_heads, m, d)
    const float* __restrict__ row_ends,                  // (batch*heads, tiles, 2, BR)
    float* __restrict__ dq_sum,                          // (batch*heads, tiles*BR/16, D/8, 32, 4)
    Element* __restrict__ dk, Element* __restrict__ dv,  // (batch*kv_heads, m, d)
    unsigned* __restrict__ turns,                        // (1 + batch*heads*tiles*PAIRS), zeros
    int heads, int kv_heads, int n, int m, int d, float scale, int causal)
{
    extern __shared__ __align__(128) unsigned char k_tile[];  // (BC, ROW_BYTES)
    unsigned char* v_tile = k_tile + BC * ROW_BYTES;          // (BC, ROW_BYTES)
    unsigned char* q_tiles = v_tile + BC * ROW_BYTES;         // (2, 2, BR, ROW_BYTES): Q, dout
    unsigned char* ds_tiles = q_tiles + 4 * TILE_BYTES;       // (2, BC, 2*BR bytes)
    float4* p_tile = reinterpret_cast<float4*>(ds_tiles + 2 * DS_BYTES);  // (PAIRS, .., 32)
    float* ends = reinterpret_cast<float*>(p_tile + BC * BR / 4);         // (2, 2, BR)

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pair = warp % PAIRS;
    const bool of_k = warp >= PAIRS;  // this warp has the gradient of K, else of V
    const int key_tiles = (m + BC - 1) / BC, tiles = (n + BR - 1) / BR;
    // In a fixed order the last keys are the first to add to dq: no block waits for a later one.
    // Blocks of several heads start in turns, so that fewer of one head are at work.
    const int block = DETERMINISTIC ? next_ticket(turns, ds_tiles) : blockIdx.x;
    const int first_head = block / (TOGETHER * key_tiles) * TOGETHER;
    const int together = min(TOGETHER, (int)gridDim.x / key_tiles - first_head);
    const int within = block - first_head * key_tiles, group = heads / kv_heads;
    const int kv_head = DETERMINISTIC ? first_head + within % together : block / key_tiles;
    const int key_tile = DETERMINISTIC ? key_tiles - 1 - within / together : block % key_tiles;
    const int key0 = key_tile * BC, warp_key = key0 + pair * WARP_KEYS;  // the warp's first key
    const long long kv_offset = ((long long)kv_head * m + key0) * d;
    const bool vector = d % 8 == 0 && ((size_t)q | (size_t)k | (size_t)v | (size_t)dout |
                                       (size_t)dk | (size_t)dv) % 16 == 0;

    const int first = causal ? max(0, key0 + n - m) / BR * BR : 0;  // of the rows that see keys
    auto copy_queries = [&](int head, int row0) {
        const int stage = row0 / BR % 2;
        unsigned char* to = q_tiles + stage * 2 * TILE_BYTES;
#pragma unroll 1  // two copies of this code would take registers that the sums have
        for (int x = 0; x < 2; ++x, to += TILE_BYTES) {
            const Element* from = (x ? dout : q) + ((long long)head * n + row0) * d;
            start_swizzled_copy<D, ROW_BYTES, BR, THREADS>(to, from, n - row0, d, vector);
        }
        const float* from = row_ends + ((long long)head * tiles * BR + row0) * 2;
        start_copy<2 * BR, 2 * BR, THREADS>(ends + stage * 2 * BR, from, 1, 1, 2 * BR, 0, true);
    };
    start_swizzled_copy<D, ROW_BYTES, BC, THREADS>(k_tile, k + kv_offset, m - key0, d, vector);
    start_swizzled_copy<D, ROW_BYTES, BC, THREADS>(v_tile, v + kv_offset, m - key0, d, vector);

    // Where a lane reads: of V and dout, or K and Q, the first product; of Q, or dout, the second.
    unsigned char* mine = (of_k ? v_tile : k_tile) + pair * WARP_KEYS * ROW_BYTES;
    const unsigned a_lane = shared_address(mine) + rows_next<ROW_BYTES>();
    const unsigned b_lane = shared_address(q_tiles + of_k * TILE_BYTES) + columns_next<ROW_BYTES>();
    const unsigned c_lane = shared_address(q_tiles + !of_k * TILE_BYTES) + rows_next<ROW_BYTES>();
    const unsigned ds_lane = shared_address(ds_tiles) + columns_next<2 * BR>();
    const unsigned k_lane = shared_address(k_tile) + rows_next<ROW_BYTES>();
    float4* pair_p = p_tile + pair * WARP_KEYS * BR / 4 + lane;

    float sum[KEY_TILES][D / 8][4] = {};  // the gradient of this warp's keys so far
    int added = -1;                       // tile of dq that the pair added to last

    // After a barrier: one warp passes the turn on for both, while the other computes.
    auto end_turn = [&] {
        if (added >= 0) pass_turn(turns + 1 + added * PAIRS + pair, key_tile == 0);
        added = -1;
    };
    // Adds what this block's keys give to dq of a tile of queries.
    auto add_dq = [&](int head, int row0) {
        float dq[2][2 * SHARE][4] = {};
        const int part = warp % PARTS, column = warp / PARTS, tile = head * tiles + row0 / BR;
        add_columns_by_columns<BC, 2 * BR, ROW_BYTES, D, COLUMNS>(
            dq, ds_lane + row0 / BR % 2 * DS_BYTES, 4 * part, k_lane, column);
        if (DETERMINISTIC) {
            if (of_k) added = tile;
            const int seen = causal ? min(m, row0 + BR + m - n) : m;  // keys
            wait_for_turn(turns + 1 + tile * PAIRS + pair, (seen - 1) / BC - key_tile);
        }
        add_fragments<D, COLUMNS>(dq_sum + ((long long)tile * BR + 32 * part) * D, dq, column);
    };

    // The heads with these keys. dq of a tile of queries is added a step after its own.
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        copy_queries(head, first);
        for (int row0 = first, stage = first / BR % 2;; row0 += BR, stage ^= 1) {
            copies_arrived<0>();
            __syncthreads();  // barrier: a fast warp would read what other threads still write, and
                              // tiles, weights and ds would replace those that others still read
            if (row0 + BR < n) copy_queries(head, row0 + BR);
            end_turn();
            // The warps of a pair add to dq at different times: one as the other has exponentials.
            if (of_k && row0 > first) add_dq(head, row0 - BR);
            if (row0 < n) {
                float s[KEY_TILES][BR / 8][4] = {};  // scores, or the gradient of weights
                add_rows_by_rows<D, ROW_BYTES>(s, a_lane, b_lane + stage * 2 * TILE_BYTES);
                const float2* end = reinterpret_cast<const float2*>(
                    ends + (2 * stage + of_k) * BR + lane % 4 * 2);
                if (of_k) {
                    wait_for_weights(pair);
                    take_gradients(s, end, pair_p);
                } else {
                    take_weights(s, scale * LOG2E, end);
                    const int see_all = causal ? min(m, row0 + 1 + m - n) : m;  // keys of all rows
                    if (warp_key + WARP_KEYS > see_all) {
                        hide_queries(s, warp_key, row0, n, m, causal);
                    }
                    store_weights(pair_p, s, pair);
                }
                unsigned p16[KEY_TILES][BR / 16][4];  // weights, or their gradients
#pragma unroll
                for (int i = 0; i < KEY_TILES; ++i) pack(p16[i], s[i]);
                if (of_k) {
                    store_fragments<2 * BR>(ds_tiles + stage * DS_BYTES, pair * WARP_KEYS, p16);
                }
                add_weighted<ROW_BYTES>(sum, p16, c_lane + stage * 2 * TILE_BYTES);
            }
            if (!of_k && row0 > first) add_dq(head, row0 - BR);
            if (row0 >= n) break;
        }
    }
    __syncthreads();  // barrier: the gradient takes the place of K, which others still read
    end_turn();
    store_sums<ROW_BYTES>(mine, sum, of_k ? scale : 1.0f);
    __syncwarp();  // lanes read what others wrote
    store_swizzled<ROW_BYTES, WARP_KEYS>((of_k ? dk : dv) + ((long long)kv_head * m + warp_key) * d,
                                         mine, m - warp_key, d, vector);
}
