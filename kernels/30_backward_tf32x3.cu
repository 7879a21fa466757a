// Idea:          Gradients with nearly fp32's accuracy from three TF32 products each. A warp has 16
//                keys: their weights and gradients of scores go from one product into the next in
//                registers, and only the latter pass through shared memory, to all warps, for dq.
// Changes from:  24_backward_mma.cu
// Shapes:        q, out, dout, dq (batch*heads, n, d); k, v, dk, dv (batch*kv_heads, m, d); lse
//                (batch*heads, n); row-major float32; tiles = ceil(n/BR);
//                row_ends float32 (batch*heads, tiles, 2, BR), dq_sum (batch*heads, tiles*BR, D);
//                turns uint32 (1 + batch*heads*tiles*PARTS), read where DETERMINISTIC
// Launch:        begin_backward: grid (ceil(batch*heads*tiles*BR/(D > 64 ? 8 : 16))), block (256);
//                backward_tf32x3: grid (batch*kv_heads*ceil(m/BC)), RESIDENT a multiprocessor,
//                block (32*WARPS), dynamic shared 8*D*BC + BR*(8*D + 4*BC + 8) bytes, BC =
//                16*WARPS;
//                end_backward: grid (ceil(batch*heads*n/(D > 64 ? 8 : 16))), block (256)
// Needs:         sm_80; d <= D; D a multiple of 32, at most 128; BR of 32; at least D/4 threads;
//                heads a multiple of kv_heads; turns zeros, as it leaves them
// Expect:        the error of 21 in less time; dq is summed as blocks come or, where DETERMINISTIC,
//                as keys do: the same bits on every run
// Limits:        no bias; each warp splits what it reads of Q, dout and K into parts again

#ifndef D
#define D 64  // columns of the head dim that a tile holds; those past d are zeros
#endif
#ifndef WARPS
#define WARPS 4  // a block, 16 keys each
#endif
#ifndef BR
#define BR 64  // queries a tile
#endif
#ifndef RESIDENT
#define RESIDENT 2  // blocks a multiprocessor that registers are left for
#endif
#ifndef DETERMINISTIC
#define DETERMINISTIC 0  // 1: blocks add to dq in a fixed order
#endif

#include "include/async_copy.cuh"
#include "include/backward_ends.cuh"
#include "include/fragment_gradients.cuh"
#include "include/ordered_sums.cuh"
#include "include/split_gradients.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int BC = 16 * WARPS;              // keys a block
constexpr int ROW_BYTES = 4 * D;            // of a row in shared memory
constexpr int TILE_BYTES = BR * ROW_BYTES;  // of Q or dout
constexpr int GROUPS = D / 32;              // of columns that split_values() takes at once
constexpr int ROW_TILES = BR / 16 * GROUPS % (2 * WARPS) ? 1 : 2;  // of dq: 16 queries, 32 columns
constexpr int PARTS = BR / 16 / ROW_TILES * GROUPS;  // of dq of a tile: a warp's each
static_assert(D % 32 == 0 && BR % 32 == 0 && THREADS >= D / 4, "32 columns, 32 queries");

extern "C" __global__ void __launch_bounds__(256) begin_backward(
    const float* __restrict__ out, const float* __restrict__ dout,  // (batch*heads, n, d)
    const float* __restrict__ lse,  // (batch*heads, n)
    float* __restrict__ row_ends,   // (batch*heads, tiles, 2, BR): lse in powers of two, delta
    float* __restrict__ dq_sum,     // (batch*heads, tiles*BR, D), zeros after it
    int rows, int n, int d)         // rows: batch*heads*n
{
    begin_row<BR, D>(out, dout, lse, row_ends, dq_sum, rows / n, n, d);
}

extern "C" __global__ void __launch_bounds__(256) end_backward(
    const float* __restrict__ dq_sum,  // (batch*heads, tiles*BR, D)
    float* __restrict__ dq,            // (batch*heads, n, d)
    int rows, int n, int d, float scale)
{
    end_row<BR, D, Order::ROWS>(dq, dq_sum, rows / n, n, d, scale);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) backward_tf32x3(
    const float* __restrict__ q, const float* __restrict__ dout,  // (batch*heads, n, d)
    const float* __restrict__ k, const float* __restrict__ v,     // (batch*kv_heads, m, d)
    const float* __restrict__ row_ends,              // (batch*heads, tiles, 2, BR)
    float* __restrict__ dq_sum,                      // (batch*heads, tiles*BR, D)
    float* __restrict__ dk, float* __restrict__ dv,  // (batch*kv_heads, m, d)
    unsigned* __restrict__ turns,                    // (1 + batch*heads*tiles*PARTS), zeros
    int heads, int kv_heads, int n, int m, int d, float scale, int causal)
{
    extern __shared__ __align__(128) unsigned char k_tile[];    // (BC, ROW_BYTES)
    unsigned char* v_tile = k_tile + BC * ROW_BYTES;            // (BC, ROW_BYTES)
    unsigned char* q_tile = v_tile + BC * ROW_BYTES;            // (BR, ROW_BYTES)
    unsigned char* dout_tile = q_tile + TILE_BYTES;             // (BR, ROW_BYTES)
    unsigned char* ds_tile = dout_tile + TILE_BYTES;            // (BC, BR), as turned() has them
    float* ends = reinterpret_cast<float*>(ds_tile + BC * BR * 4);  // (2, BR)

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int key_tiles = (m + BC - 1) / BC, tiles = (n + BR - 1) / BR;
    // In a fixed order the last keys are the first to add to dq: no block waits for a later one.
    const int block = DETERMINISTIC ? next_ticket(turns, ds_tile) : blockIdx.x;
    const int key_tile = DETERMINISTIC ? key_tiles - 1 - block % key_tiles : block % key_tiles;
    const int kv_head = block / key_tiles, group = heads / kv_heads;
    const int key0 = key_tile * BC, warp_key = key0 + 16 * warp;  // the warp's first key
    const long long kv_offset = ((long long)kv_head * m + key0) * d;
    const bool vector = d % 4 == 0 && ((size_t)q | (size_t)k | (size_t)v | (size_t)dout |
                                       (size_t)dk | (size_t)dv) % 16 == 0;

    // Steps take the tiles of queries, of all heads with these keys, that see one of them.
    const int first = causal ? min(tiles, max(0, key0 + n - m) / BR) : 0;
    const int steps = (tiles - first) * group;
    auto head_of = [&](int step) { return kv_head * group + step / (tiles - first); };
    auto tile_of = [&](int step) { return first + step % (tiles - first); };
    auto copy_queries = [&](int step) {
        if (step >= steps) return;
        const int row0 = tile_of(step) * BR, head = head_of(step);
#pragma unroll 1  // two copies of this code would take registers that the sums have
        for (int x = 0; x < 2; ++x) {
            const float* from = (x ? dout : q) + ((long long)head * n + row0) * d;
            start_swizzled_copy<D, ROW_BYTES, BR, THREADS>(q_tile + x * TILE_BYTES, from, n - row0,
                                                           d, vector);
        }
        const float* from = row_ends + ((long long)head * tiles * BR + row0) * 2;
        start_copy<2 * BR, 2 * BR, THREADS>(ends, from, 1, 1, 2 * BR, 0, true);
    };
    start_swizzled_copy<D, ROW_BYTES, BC, THREADS>(k_tile, k + kv_offset, m - key0, d, vector);
    start_swizzled_copy<D, ROW_BYTES, BC, THREADS>(v_tile, v + kv_offset, m - key0, d, vector);
    copy_queries(0);
    copies_arrived<0>();
    __syncthreads();  // barrier: a fast warp would read what other threads' copies still write

    // Where a lane reads: rows of K and V and of Q and dout as both factors of the scores and of
    // the weights' gradients; of every 8 rows, one with an even number and the next, as the second
    // factor of the gradients.
    const int mine = swizzled<ROW_BYTES>(16 * warp + lane % 16, lane / 16);
    const unsigned k_lane = shared_address(k_tile) + mine, v_lane = shared_address(v_tile) + mine;
    const int other = swizzled<ROW_BYTES>(lane % 8, lane / 8);
    const int even = swizzled<ROW_BYTES>(lane % 4 * 2, chunk_of(lane / 4));
    const int odd = swizzled<ROW_BYTES>(lane % 4 * 2 + 1, chunk_of(lane / 4));

    float dk_sum[GROUPS][4][4] = {}, dv_sum[GROUPS][4][4] = {};  // of this warp's keys so far
    // sum += p b of 16 keys and the queries of a tile
    auto add_gradients = [&](float(&sum)[GROUPS][4][4], const float(&p)[BR / 8][4],
                             const unsigned char* b) {
        Split<4> parts[1][BR / 8];  // of 8 queries the even ones come first
#pragma unroll
        for (int x = 0; x < BR / 2; ++x) {
            parts[0][x / 4].set(x % 2 * 2 + x % 4 / 2, p[x / 4][x % 4]);
        }
#pragma unroll
        for (int c = 0; c < GROUPS; ++c) {
            float more[1][4][4];
            split_values<ROW_BYTES>(more, parts, b + even + c * 128, b + odd + c * 128);
#pragma unroll
            for (int x = 0; x < 16; ++x) sum[c][x / 4][x % 4] += more[0][x / 4][x % 4];
        }
    };
    for (int step = 0; step < steps; ++step) {
        const int tile = tile_of(step), row0 = tile * BR;
        const float* end = ends + lane % 4 * 2;  // of this lane's queries

        float p[1][BR / 8][4], ds[1][BR / 8][4];  // scores, then weights; their gradients
        split_scores<D, ROW_BYTES>(p, k_lane, shared_address(q_tile) + other);
        weigh_queries(p[0], scale * LOG2E, end);
        if (warp_key + 16 > m || (causal && warp_key + 15 + n - m > row0)) {
            hide_queries(p[0], warp_key + lane / 4, row0 + lane % 4 * 2, n, m, causal);
        }
        split_scores<D, ROW_BYTES>(ds, v_lane, shared_address(dout_tile) + other);
        gradient_of_scores(ds[0], p[0], end + BR);
        store_scores(ds_tile, 16 * warp, ds[0]);
        add_gradients(dv_sum, p[0], dout_tile);
        add_gradients(dk_sum, ds[0], q_tile);

        __syncthreads();  // barrier: the next copies would replace what others still read, and ds
                          // of their keys is not there yet
        copy_queries(step + 1);
        for (int part = warp; part < PARTS; part += WARPS) {
            const int row = part / GROUPS * 16 * ROW_TILES, col = part % GROUPS * 32;
            float dq[ROW_TILES][4][4];
            split_queries<BC, BR, ROW_BYTES>(dq, ds_tile, row, k_tile + even + col * 4,
                                             k_tile + odd + col * 4);
            const long long at = head_of(step) * tiles + tile;
            unsigned* turn = turns + 1 + at * PARTS + part;
            const int seen = causal ? min(m, row0 + BR + m - n) : m;  // keys
            if (DETERMINISTIC) wait_for_turn(turn, (seen - 1) / BC - key_tile);
            float* to = dq_sum + (at * BR + row) * D + col;
            each_quad(dq, [&](int i, int half, int column, float4 x) {
                add4(to + (16 * i + lane / 4 * 2 + half) * D + column, x);
            });
            if (DETERMINISTIC) pass_turn(turn, key_tile == 0);
        }
        copies_arrived<0>();
        __syncthreads();  // barrier: a fast warp would read what other threads' copies still write,
                          // and replace ds that others still read
    }

    auto store = [&](float* to, const float(&sum)[GROUPS][4][4], float factor) {
        each_quad(sum, [&](int c, int half, int column, float4 x) {
            const int key = warp_key + lane / 4 + 8 * half, col = 32 * c + column;
            if (key >= m) return;
            store4(to + ((long long)kv_head * m + key) * d + col, x, factor, d - col, vector);
        });
    };
    store(dv, dv_sum, 1.0f);
    store(dk, dk_sum, scale);
}
