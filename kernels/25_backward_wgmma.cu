// Idea:          Hopper's engines in the backward pass: two warpgroups keep the gradients of 64 keys
//                each in registers while queries pass; weights and their gradients, with keys as
//                rows, go from one product into the next; parts of dq leave by the copy engine,
//                which adds them up in L2.
// Changes from:  18_flash_wgmma.cu
// Shapes:        q, dout (batch*heads, n, d), k, v, dk, dv (batch*kv_heads, m, d) as tensor maps,
//                bfloat16 or half, and dq_sum (batch*heads, n, d), float32; out and dq like q; lse
//                (batch*heads, n); terms (batch*heads, tiles, 2, BR), turns (batch*heads, tiles, 2)
//                or null, with tiles = ceil(n/BR)
// Launch:        backward_terms: grid (batch*heads*tiles), block (256); then
//                backward_wgmma: grid (min(BLOCKS, batch*kv_heads*ceil(m/128))), block (384),
//                dynamic shared 512*D + 2*BR*(6*D + 256) + 16*BR + 256 bytes; then
//                backward_scale: grid (ceil(batch*heads*n*d/2048)), block (256)
// Needs:         sm_90a; d <= D, a multiple of 8; D 128 and BR 64 or 80, or D 64 and BR 128;
//                BFLOAT16 1, or 0 for half; heads a multiple of kv_heads
// Expect:        half of the tensor cores' peak at d = 128; with turns the same bits on every run
// Limits:        no bias; wgmma reads its operands from shared memory nearly all the time

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

#include "include/fragment_gradients.cuh"
#include "include/fragment_weights.cuh"
#include "include/key_work.cuh"
#include "include/row_terms.cuh"
#include "include/tma.cuh"
#include "include/warpgroups.cuh"
#include "include/wgmma.cuh"

constexpr int GROUPS = 2;         // warpgroups that compute, 64 keys each; one more copies
constexpr int BC = 64 * GROUPS;   // keys a tile
constexpr int BOXES = D / 64;     // of 64 columns, 128 bytes: a swizzle reaches no further
constexpr int KEY_BOX = 64 * 128; // bytes
constexpr int BOX = BR * 128;     // bytes, of Q or dO; also of 64 keys in dS
constexpr int STAGES = 2;         // tiles of Q, and of dO, in use or on their way
constexpr int PART = BR * BOXES / GROUPS;  // queries of which a warpgroup has 64 columns of dq

using KeyRing = Ring<GROUPS, BOXES * KEY_BOX>;  // 64 keys a step
using QueryRing = Ring<STAGES, BOXES * BOX>;
using TermRing = Ring<STAGES, 2 * BR * 4>;
using GradientRing = Ring<2, GROUPS * BOX>;
using SumRing = Ring<1, PART * 64 * 4>;

extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) backward_wgmma(
    const __grid_constant__ TensorMap q,       // (batch*heads, n, d), boxes of BR rows
    const __grid_constant__ TensorMap dout,    // like q
    const __grid_constant__ TensorMap k,       // (batch*kv_heads, m, d), boxes of 64 rows
    const __grid_constant__ TensorMap v,       // like k
    const __grid_constant__ TensorMap dk,      // like k
    const __grid_constant__ TensorMap dv,      // like k
    const __grid_constant__ TensorMap dq_sum,  // (batch*heads, n, d), boxes of PART rows
    const float* __restrict__ terms,  // (batch*heads, tiles, 2, BR), see backward_terms
    unsigned* turns,                  // (batch*heads, tiles, GROUPS), zeros, or null: in any order
    int bh, int heads, int kv_heads, int n, int m, float scale, int causal)  // bh: batch*heads
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const unsigned k_tiles = shared_address(memory);  // (GROUPS, BOXES, 64, 128 bytes)
    const unsigned v_tiles = k_tiles + GROUPS * BOXES * KEY_BOX;    // like k_tiles
    const unsigned q_tiles = v_tiles + GROUPS * BOXES * KEY_BOX;    // (STAGES, BOXES, BR, 128 bytes)
    const unsigned dout_tiles = q_tiles + STAGES * BOXES * BOX;     // like q_tiles
    const unsigned ds_tiles = dout_tiles + STAGES * BOXES * BOX;    // (2, GROUPS, BR, 128 bytes)
    const unsigned sum_tiles = ds_tiles + 2 * GROUPS * BOX;         // (GROUPS, 2, PART, 128 bytes)
    const unsigned term_lines = sum_tiles + GROUPS * SumRing::TILE_BYTES;  // (STAGES, 2, BR floats)
    const unsigned barriers = term_lines + STAGES * TermRing::TILE_BYTES;
    const KeyRing k_ring{k_tiles, barriers};
    const KeyRing v_ring{v_tiles, barriers + 32};
    const QueryRing q_ring{q_tiles, barriers + 64};
    const QueryRing dout_ring{dout_tiles, barriers + 96};
    const TermRing term_ring{term_lines, barriers + 128};
    const GradientRing ds_ring{ds_tiles, barriers + 160};
    auto sum_ring = [&](int group) {
        return SumRing{sum_tiles + group * SumRing::TILE_BYTES, barriers + 192 + 16 * group};
    };
    const int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // the same in all lanes
    const int warp = threadIdx.x / 32 % 4;
    const int lane = threadIdx.x % 32;
    const int tiles = (n + BR - 1) / BR;  // of queries, in a head
    const int sharing = heads / kv_heads;  // heads of queries that see one of keys

    if (threadIdx.x == 0) {
        k_ring.start(1);  // thread of the warpgroup that has the keys
        v_ring.start(1);
        q_ring.start(4 * GROUPS);  // warps that read a tile
        dout_ring.start(4 * GROUPS);
        term_ring.start(4 * GROUPS);
        ds_ring.start(1, 4 * GROUPS);  // warps that write a tile; free ones need no wait
        for (int i = 0; i < GROUPS; ++i) sum_ring(i).start(1, 4);
        barriers_started();
    }
    __syncthreads();  // barrier: a thread would use an mbarrier that is not there yet

    auto work_of_round = [&](int round) {
        return key_work<BC, BR, BLOCKS>(round, bh / sharing, n, m, causal);
    };
    int step = 0;  // tiles of queries so far, over all rounds
    if (group == GROUPS) {
        give_registers<40>();
        for (int round = 0; threadIdx.x % 128 == 0; ++round) {  // this thread orders what comes
            const KeyWork work = work_of_round(round);
            if (work.head >= bh / sharing) break;
            for (int i = 0; i < GROUPS; ++i) {
                const int key = work.tile * BC + 64 * i;
                fill_tile<BOXES>(k_ring, round * GROUPS + i, k, key, work.head);
                fill_tile<BOXES>(v_ring, round * GROUPS + i, v, key, work.head);
            }
            for (int head = work.head * sharing; head < (work.head + 1) * sharing; ++head) {
                for (int i = 0; i < work.count; ++i, ++step) {
                    const int tile = work.query_tile(i);
                    fill_tile<BOXES>(q_ring, step, q, tile * BR, head);
                    fill_line(term_ring, step, terms + 2ll * BR * (head * tiles + tile));
                    fill_tile<BOXES>(dout_ring, step, dout, tile * BR, head);
                }
            }
        }
        const int part = warp - 1;  // of dq: what the warpgroup of this number leaves
        for (int round = 0; lane == 0 && 0 <= part && part < GROUPS; ++round) {
            const KeyWork work = work_of_round(round);
            if (work.head >= bh / sharing) break;
            for (int head = work.head * sharing; head < (work.head + 1) * sharing; ++head) {
                for (int i = 0; i < work.count; ++i, ++step) {
                    const int tile = work.query_tile(i);
                    unsigned* turn = turns + (head * tiles + tile) * GROUPS + part;
                    sum_ring(part).wait_full(step);
                    if (turns) wait_until(turn, earlier_tiles<BC, BR>(work, i, n, m, causal));
                    add_tile<2>(sum_ring(part), step, dq_sum, tile * BR + part / BOXES * PART,
                                part % BOXES * 64, head);
                    if (turns) sums_done(), count_up(turn);
                }
            }
        }
        return;
    }
    take_registers<232>();
    float dk_sum[D / 8][4];            // gradients of this warpgroup's keys so far
    float dv_sum[D / 8][4];
    float s[BR / 8][4];                // scores of its keys, rows, and queries; then their weights
    float ds[BR / 8][4];               // gradients of the weights, then of the scores
    unsigned p_pairs[BR / 16][4];      // weights as the product takes them that makes dv
    unsigned ds_pairs[BR / 16][4];     // the same for dk
    float dq[PART / 8][4];             // 64 columns, rows here, of PART queries, over a tile of keys
    const float factor = scale * LOG2E;
    const SumRing my_sums = sum_ring(group);

    for (int round = 0;; ++round) {
        const KeyWork work = work_of_round(round);
        if (work.head >= bh / sharing) break;
        const int key0 = work.tile * BC + 64 * group;  // of this warpgroup
        const int key_step = round * GROUPS + group;
        const unsigned k_mine = k_ring.tile(key_step);
        const unsigned v_mine = v_ring.tile(key_step);
        const unsigned k_cols = k_tiles + group % BOXES * KEY_BOX;
        const int steps = sharing * work.count;
        int i = 0, at = 0;  // steps so far: of all heads, of this one

        auto start_scores = [&] {  // of this step's queries
            q_ring.wait_full(step);
            forget(s);
            registers_ready();
#pragma unroll
            for (int c = 0; c < D / 16; ++c) {  // 16 columns are 32 bytes of a box
                multiply(s, describe(k_mine, 0, c / 4 * KEY_BOX + c % 4 * 32),
                         describe(q_ring.tile(step), 0, c / 4 * BOX + c % 4 * 32), c > 0);
            }
            end_of_group();
        };
        auto start_gradients = [&] {
            dout_ring.wait_full(step);
            forget(ds);
            registers_ready();
#pragma unroll
            for (int c = 0; c < D / 16; ++c) {
                multiply(ds, describe(v_mine, 0, c / 4 * KEY_BOX + c % 4 * 32),
                         describe(dout_ring.tile(step), 0, c / 4 * BOX + c % 4 * 32), c > 0);
            }
            end_of_group();
        };
        auto add_product = [&](auto& sum, const auto& pairs, unsigned tile) {
            registers_ready();
#pragma unroll
            for (int c = 0; c < BR / 16; ++c) {  // 16 queries are 16 rows of 128 bytes
                multiply(sum, pairs[c], describe(tile, BOX, c * 2048), c > 0 || i > 0);
            }
        };
        auto start_dq = [&] {
            const unsigned ds_rows = ds_ring.tile(step) + group / BOXES * PART * 128;
            forget(dq);
            registers_ready();
#pragma unroll
            for (int c = 0; c < BC / 16; ++c) {  // 16 keys
                multiply_turned(dq, describe(k_cols, 0, c / 4 * BOXES * KEY_BOX + c % 4 * 2048),
                                describe(ds_rows, 0, c / 4 * BOX + c % 4 * 32), c > 0);
            }
            end_of_group();
        };
        auto leave_dq = [&] {  // of the step before
            my_sums.wait_free(step - 1);
            store_columns(my_sums.tile(step - 1), 16 * warp, dq);
            stores_visible();
            __syncwarp();
            if (lane == 0) arrive(my_sums.full(step - 1));
        };
        auto shifts_of = [&](int step) {  // of this lane's queries; deltas are BR further on
            return reinterpret_cast<const float*>(memory + (term_ring.tile(step) - k_tiles)) +
                   lane % 4 * 2;
        };
        auto weights_and_gradients = [&] {  // of the scores that are under way
            start_gradients();
            products_done<1>();
            term_ring.wait_full(step);
            weigh_queries(s, factor, shifts_of(step));
            const int row0 = work.query_tile(at) * BR;
            if (key0 + 64 > m || (causal && key0 + 63 + n - m > row0)) {
                hide_queries(s, key0 + 16 * warp + lane / 4, row0 + lane % 4 * 2, n, m, causal);
            }
            products_done<0>();
        };

        for (int x = 0; x < GROUPS; ++x) k_ring.wait_full(round * GROUPS + x);
        v_ring.wait_full(key_step);
        start_scores();
        for (;;) {
            weights_and_gradients();
            gradient_of_scores(ds, s, shifts_of(step) + BR);
            pack(p_pairs, s);
            add_product(dv_sum, p_pairs, dout_ring.tile(step));
            pack(ds_pairs, ds);
            store_turned(ds_ring.tile(step) + group * BOX, 16 * warp, ds_pairs);
            stores_visible();
            __syncwarp();
            if (lane == 0) arrive(ds_ring.full(step));
            add_product(dk_sum, ds_pairs, q_ring.tile(step));
            end_of_group();
            ds_ring.wait_full(step);
            start_dq();
            products_done<1>();
            if (lane == 0) {
                q_ring.release(step);
                dout_ring.release(step);
                term_ring.release(step);
            }
            ++step;
            if (++i == steps) break;
            if (++at == work.count) at = 0;
            products_done<0>();
            start_scores();
            leave_dq();
        }
        products_done<0>();
        leave_dq();

        const float one[2] = {1.0f, 1.0f}, scales[2] = {scale, scale};
        store_rows(v_mine, 16 * warp, dv_sum, one);  // read no more: from there dv leaves
        end_turn<GROUPS>(group);
        my_turn(group);  // the other warpgroup reads these keys no more
        store_rows(k_mine, 16 * warp, dk_sum, scales);
        stores_visible();
        meet(group);
        if (threadIdx.x % 128 == 0) {
            store_tile<BOXES>(v_ring, key_step, dv, key0, work.head);
            store_tile<BOXES>(k_ring, key_step, dk, key0, work.head);
        }
    }
}
