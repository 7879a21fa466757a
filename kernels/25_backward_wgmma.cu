// Idea:          Hopper's engines in the backward pass: two warpgroups keep the gradients of 64
//                keys each while queries pass; weights and their gradients, with keys as rows, go
//                from one product into the next; the copy engine adds up dq, in L2.
// Changes from:  18_flash_wgmma.cu
// Shapes:        q, out, dout, dq (batch*heads, n, d); k, v, dk, dv (batch*kv_heads, m, d);
//                row-major bfloat16 or half; lse float32 (batch*heads, n); tiles = ceil(n/BR);
//                row_ends float32 (batch*heads, tiles, 2, BR), dq_sum (batch*heads, tiles*BR, D);
//                turns uint32 (batch*heads, tiles, 2), read where DETERMINISTIC
// Launch:        begin_backward: grid (ceil(batch*heads*tiles*BR/(D > 64 ? 8 : 16))), block (256);
//                backward_wgmma: grid (min(BLOCKS, batch*kv_heads*ceil(m/128))), block (384),
//                dynamic shared 512*D + 4*BR*(3*D + 132) + 1024 bytes, and 4*BR*D more where
//                DETERMINISTIC; then
//                end_backward: grid (ceil(batch*heads*n/(D > 64 ? 8 : 16))), block (256)
// Needs:         sm_90a; d <= D, a multiple of 8; D 128 and BR 64, or D 64 and BR 128;
//                BFLOAT16 1, or 0 for half; heads a multiple of kv_heads; turns zeros, as it
//                leaves them
// Expect:        dq is summed as blocks come or, where DETERMINISTIC, in a fixed order: the same
//                bits on every run
// Limits:        no bias; ds in 16 bits, as in 24; products of 64 x 64 read shared memory as long
//                as they multiply
// Long:          The three kernels of the pass are one file, and the constants and rings of the
//                third one alone take 60 lines.

#ifndef BFLOAT16
#define BFLOAT16 1  // elements are 1: bfloat16, 0: half
#endif
#ifndef D
#define D 128  // columns of the head dim that a tile holds; those past d are zeros
#endif
#ifndef BR
#define BR 64  // queries a tile
#endif
#ifndef BLOCKS
#define BLOCKS 132  // of the grid, at most: one a multiprocessor
#endif
#ifndef DETERMINISTIC
#define DETERMINISTIC 0  // 1: blocks add to dq in a fixed order
#endif

#include "include/backward_ends.cuh"
#include "include/fragment_gradients.cuh"
#include "include/fragment_weights.cuh"
#include "include/key_work.cuh"
#include "include/ordered_sums.cuh"
#include "include/tile_products.cuh"
#include "include/tile_sums.cuh"
#include "include/warpgroups.cuh"

constexpr int GROUPS = 2;                  // warpgroups that compute, 64 keys each; one more copies
constexpr int BC = 64 * GROUPS;            // keys a tile
constexpr int BOXES = D / 64;              // of 64 columns, 128 bytes: a swizzle reaches no further
constexpr int KEY_BOX = 64 * 128;          // bytes
constexpr int BOX = BR * 128;              // bytes, of Q or dO; also of 64 keys in dS
constexpr int STAGES = 2;                  // tiles of Q, dO and dS in use or on their way
constexpr bool DV_FIRST = D == 128;        // start P^T dO before dP is there: faster with large D
constexpr int PART = BR * BOXES / GROUPS;  // queries of which a warpgroup has 64 columns of dq

using KeyRing = Ring<GROUPS, BOXES * KEY_BOX>;  // 64 keys a step
using QueryRing = Ring<STAGES, BOXES * BOX>;
using EndRing = Ring<STAGES, 2 * BR * 4>;
using GradientRing = Ring<STAGES, GROUPS * BOX>;
// Parts of dq that are added up together. In a fixed order each turn costs a way to L2 and back:
// then both take one turn, and two warps have a turn each under way.
constexpr int TOGETHER = DETERMINISTIC ? GROUPS : 1;
constexpr int RINGS = GROUPS / TOGETHER;
using SumRing = Ring<TOGETHER, TOGETHER * PART * 64 * 4>;

extern "C" __global__ void __launch_bounds__(256) begin_backward(
    const Element* __restrict__ out, const Element* __restrict__ dout,  // (batch*heads, n, d)
    const float* __restrict__ lse,  // (batch*heads, n)
    float* __restrict__ row_ends,   // (batch*heads, tiles, 2, BR): lse in powers of two, delta
    float* __restrict__ dq_sum,     // (batch*heads, tiles*BR, D), zeros after it
    int rows, int n, int d)         // rows: batch*heads*n
{
    begin_row<BR, D>(out, dout, lse, row_ends, dq_sum, rows / n, n, d);
}

extern "C" __global__ void __launch_bounds__(256) end_backward(
    const float* __restrict__ dq_sum,  // (batch*heads, tiles*BR, D)
    Element* __restrict__ dq,          // (batch*heads, n, d)
    int rows, int n, int d, float scale)
{
    end_row<BR, D, Order::ROWS>(dq, dq_sum, rows / n, n, d, scale);
}

extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) backward_wgmma(
    const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap dout,  // boxes: BR rows
    const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,     // of 64 rows
    const __grid_constant__ TensorMap dk, const __grid_constant__ TensorMap dv,   // of 64 rows
    const __grid_constant__ TensorMap dq_sum,  // (batch*heads, tiles*BR, D), boxes of PART rows
    const float* __restrict__ row_ends,  // (batch*heads, tiles, 2, BR)
    unsigned* __restrict__ turns,        // (batch*heads, tiles, GROUPS)
    int bh, int heads, int kv_heads, int n, int m, float scale, int causal)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const unsigned barriers = shared_address(memory);  // in the first 1024 bytes
    const KeyRing k_ring{barriers + 1024, barriers};  // both (GROUPS, BOXES, 64, 128 bytes)
    const KeyRing v_ring{end_of(k_ring), barriers + 32};
    const QueryRing q_ring{end_of(v_ring), barriers + 64};  // both (STAGES, BOXES, BR, 128 bytes)
    const QueryRing dout_ring{end_of(q_ring), barriers + 96};
    const GradientRing ds_ring{end_of(dout_ring), barriers + 128};  // (.., GROUPS, BR, 128 bytes)
    const int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // the same in all lanes
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int part = group < GROUPS ? group : warp - 1;  // of dq: what this warp writes or adds up
    const SumRing sum_ring{  // (TOGETHER, TOGETHER, 2, PART, 128 bytes)
        end_of(ds_ring) + part % RINGS * SumRing::TILE_BYTES, barriers + 192 + 16 * (part % RINGS)};
    const EndRing end_ring{end_of(ds_ring) + GROUPS * SumRing::TILE_BYTES, barriers + 160};
    const int tiles = (n + BR - 1) / BR;   // of queries, in a head
    const int sharing = heads / kv_heads;  // heads of queries that see one of keys

    if (threadIdx.x == 0) {
        k_ring.start(1), v_ring.start(1);  // thread of the warpgroup that has the keys
        q_ring.start(4 * GROUPS), dout_ring.start(4 * GROUPS);  // warps that read a tile
        end_ring.start(4 * GROUPS), start_parts(ds_ring, 4 * GROUPS, 1);
    }
    if (threadIdx.x % 128 == 0 && group < RINGS) {
        start_parts(sum_ring, 4 * TOGETHER, 1);  // one thread adds up what warps have written
        barriers_started();
    }
    __syncthreads();  // barrier: a thread would use an mbarrier that is not there yet

    auto each_key_tile = [&](auto role) {
        each_tile<BC, BR, BLOCKS>(bh / sharing, n, m, causal, role);
    };
    int step = 0;  // tiles of queries so far, over all tiles of keys
    if (group == GROUPS) {
        give_registers<40>();
        auto order_copies = [&](int number, const KeyWork& work) {
            for (int i = 0; i < GROUPS; ++i) {
                const int key = work.tile * BC + 64 * i;
                fill_tile<BOXES>(k_ring, number * GROUPS + i, k, key, work.head);
                fill_tile<BOXES>(v_ring, number * GROUPS + i, v, key, work.head);
            }
            each_step(work, sharing, [&](int head, int tile) {
                fill_tile<BOXES>(q_ring, step, q, tile * BR, head);
                fill_line(end_ring, step, row_ends + 2ll * BR * (head * tiles + tile));
                fill_tile<BOXES>(dout_ring, step++, dout, tile * BR, head);
            });
        };
        auto add_up_dq = [&](int, const KeyWork& work) {
            each_step(work, sharing, [&](int head, int tile) {
                const Place place = place_of<BC, BR>(work, tile, n, m, causal);
                if (++step % TOGETHER != part % TOGETHER) return;  // the other warp's
                if (lane == 0) sum_ring.wait_full(step - 1);
                unsigned* turn = turns + (head * tiles + tile) * RINGS + part % RINGS;
                if (DETERMINISTIC) wait_for_turn(turn, place.earlier);
                if (lane == 0) {
                    add_parts<TOGETHER, BOXES, PART>(sum_ring, step - 1, dq_sum, part % RINGS,
                                                     tile * BR, head);
                    if (DETERMINISTIC) sums_done();
                }
                if (DETERMINISTIC) pass_turn(turn, place.earlier + 1 == place.all);
            });
        };
        if (threadIdx.x % 128 == 0) each_key_tile(order_copies);
        if (0 <= part && part < GROUPS) each_key_tile(add_up_dq);
        return;
    }
    take_registers<232>();
    float dk_sum[D / 8][4], dv_sum[D / 8][4];  // gradients of this warpgroup's keys so far
    float s[BR / 8][4];   // scores of its keys, which are rows, and queries; then weights
    float ds[BR / 8][4];  // gradients of the weights, then of the scores
    unsigned p_pairs[BR / 16][4], ds_pairs[BR / 16][4];  // both as the next products take them
    float dq[PART / 8][4];  // 64 columns, which are rows, of PART queries, from all keys of a tile
    const float factor = scale * LOG2E;

    each_key_tile([&](int number, const KeyWork& work) {
        const int key0 = work.tile * BC + 64 * group;  // of this warpgroup
        const int key_step = number * GROUPS + group;
        const unsigned k_mine = k_ring.tile(key_step), v_mine = v_ring.tile(key_step);
        for (int i = 0; i < GROUPS; ++i) k_ring.wait_full(number * GROUPS + i);
        v_ring.wait_full(key_step);
        int i = 0;  // of the work.count tiles of queries
        for (const int begin = step, end = step + sharing * work.count; step < end; ++step) {
            const int row0 = work.query_tile(i) * BR;
            i = i + 1 < work.count ? i + 1 : 0;
            const float* ends = reinterpret_cast<const float*>(  // of this lane's queries
                memory + (end_ring.tile(step) - barriers)) + lane % 4 * 2;
            q_ring.wait_full(step);
            start_scores<BOXES, KEY_BOX, BOX>(s, k_mine, q_ring.tile(step));
            dout_ring.wait_full(step);
            start_scores<BOXES, KEY_BOX, BOX>(ds, v_mine, dout_ring.tile(step));
            products_done<1>();
            end_ring.wait_full(step);
            weigh_queries(s, factor, ends);
            if (key0 + 64 > m || (causal && key0 + 63 + n - m > row0)) {
                hide_queries(s, key0 + 16 * warp + lane / 4, row0 + lane % 4 * 2, n, m, causal);
            }
            auto start_dv = [&] {
                pack(p_pairs, s);
                start_sum<BOX>(dv_sum, p_pairs, dout_ring.tile(step), step > begin);
            };
            if (DV_FIRST) start_dv();
            products_done<DV_FIRST>();
            gradient_of_scores(ds, s, ends + BR);
            if (!DV_FIRST) start_dv();
            pack(ds_pairs, ds);
            store_turned(ds_ring.tile(step) + group * BOX, 16 * warp, ds_pairs);
            part_written(ds_ring, step);
            start_sum<BOX>(dk_sum, ds_pairs, q_ring.tile(step), step > begin);
            ds_ring.wait_full(step);  // keys of the other warpgroup too
            start_turned<GROUPS, BOXES * KEY_BOX, BOX>(
                dq, k_ring.tile(0) + group % BOXES * KEY_BOX,
                ds_ring.tile(step) + group / BOXES * PART * 128);
            products_done<1>();
            if (lane == 0) q_ring.release(step), dout_ring.release(step), end_ring.release(step);
            products_done<0>();
            sum_ring.wait_free(step);
            store_columns(sum_ring.tile(step) + group % TOGETHER * PART * 256, 16 * warp, dq);
            part_written(sum_ring, step);
        }
        const float one[2] = {1.0f, 1.0f}, both[2] = {scale, scale};
        store_rows(v_mine, 16 * warp, dv_sum, one);  // V is read no more: from there dv leaves
        end_turn<GROUPS>(group);
        my_turn(group);  // the other warpgroup reads this one's keys no more
        store_rows(k_mine, 16 * warp, dk_sum, both);
        stores_visible();
        meet(group);
        if (threadIdx.x % 128 == 0) {
            store_tile<BOXES>(v_ring, key_step, dv, key0, work.head);
            store_tile<BOXES>(k_ring, key_step, dk, key0, work.head);
        }
    });
}
