// Idea:          Hopper's engines at once: one thread orders copies of whole tiles, warpgroups in
//                turns order products of 64 rows, and while the tensor cores multiply for one of
//                them the others take exponentials.
// Changes from:  14_flash_mma.cu
// Shapes:        q and out (batch*heads, n, d), k and v (batch*kv_heads, m, d) as tensor maps,
//                bfloat16 or half; lse null or float32 (batch*heads, n)
// Launch:        flash_wgmma: grid (min(BLOCKS, batch*heads*ceil(n/BR))), block (128*(GROUPS+1)),
//                dynamic shared 2*D*(64*Q_STAGES + 4*BC) + 16*Q_STAGES + 64 bytes, Q_STAGES
//                GROUPS + 1 for D = 256, else 2*GROUPS; HEADS orders the tiles
// Needs:         sm_90a; d <= D, a multiple of 8; D 64, 128, 192 or 256; BC 64 or 128; GROUPS 2 or
//                3; BFLOAT16 1, or 0 for half; heads a multiple of kv_heads
// Expect:        two thirds of the tensor cores' peak at d = 128
// Limits:        no bias; the copy engine wants rows that are 16-byte aligned

#ifndef BFLOAT16
#define BFLOAT16 1  // elements are 1: bfloat16, 0: half
#endif
#ifndef D
#define D 128  // columns of the head dim that a tile holds; those past d are zeros
#endif
#ifndef GROUPS
#define GROUPS 2  // warpgroups that compute, 64 query rows each; one more copies
#endif
#ifndef BC
#define BC 128  // keys a tile
#endif
#ifndef BLOCKS
#define BLOCKS 132  // of the grid, at most: one a multiprocessor
#endif
#ifndef HEADS
#define HEADS 1  // of a group whose longest tiles go first, one group after the other: L2 holds it
#endif

#include "include/fragment_weights.cuh"
#include "include/tma.cuh"
#include "include/warpgroups.cuh"
#include "include/wgmma.cuh"

constexpr int BR = 64 * GROUPS;  // query rows a block
constexpr int BOXES = D / 64;    // of 64 columns, 128 bytes: a swizzle reaches no further
constexpr int Q_BOX = 64 * 128;  // bytes
constexpr int BOX = BC * 128;    // bytes, of K or V
constexpr int STAGES = 2;        // tiles of K, and of V, in use or on their way
constexpr int Q_STAGES = D > 192 ? GROUPS + 1 : 2 * GROUPS;  // the same of Q, 64 rows each
constexpr int SLACK = D > 128 ? 8 : 0;  // see raise_rows(): o is wide, and rescaled seldom
constexpr int REGISTERS = GROUPS == 3 ? 160 : 240;           // of a computing thread

using QRing = Ring<Q_STAGES, BOXES * Q_BOX>;
using KeyRing = Ring<STAGES, BOXES * BOX>;

extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) flash_wgmma(
    const __grid_constant__ TensorMap q,    // (batch*heads, n, d), boxes of 64 rows
    const __grid_constant__ TensorMap k,    // (batch*kv_heads, m, d), boxes of BC rows
    const __grid_constant__ TensorMap v,    // like k
    const __grid_constant__ TensorMap out,  // like q
    float* __restrict__ lse,  // (batch*heads, n), log of each sum of exponentials, or null
    int bh, int heads, int kv_heads, int n, int m, float scale, int causal)  // bh: batch*heads
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const unsigned q_tiles = shared_address(memory);  // (Q_STAGES, BOXES, 64, 128 bytes)
    const unsigned k_tiles = q_tiles + Q_STAGES * BOXES * Q_BOX;
    const unsigned v_tiles = k_tiles + STAGES * BOXES * BOX;  // both (STAGES, BOXES, BC, 128 bytes)
    const unsigned barriers = v_tiles + STAGES * BOXES * BOX;
    const KeyRing k_ring{k_tiles, barriers};
    const KeyRing v_ring{v_tiles, barriers + 16 * STAGES};
    const QRing q_ring{q_tiles, barriers + 32 * STAGES};  // GROUPS steps a round
    const int group = threadIdx.x / 128;
    const int warp = threadIdx.x / 32 % 4;
    const int lane = threadIdx.x % 32;

    if (threadIdx.x == 0) {
        k_ring.start(4 * GROUPS);  // warps that read a tile
        v_ring.start(4 * GROUPS);
        q_ring.start(1);  // thread of the warpgroup whose tile it is
        barriers_started();
    }
    __syncthreads();  // barrier: a thread would use an mbarrier that is not there yet

    // The tiles of keys that some row of a block sees; one at least, for there is an output.
    auto key_tiles = [&](int row0) {
        const int keys = causal ? min(m, row0 + BR + m - n) : m;
        return max(1, (keys + BC - 1) / BC);
    };
    int step = 0;  // tiles of keys so far, over all rounds
    if (group == GROUPS) {
        give_registers<24>();
        for (int round = 0; threadIdx.x % 128 == 0; ++round) {
            const Work work = work_of<BR, BLOCKS, HEADS>(round, bh, n);
            if (work.head >= bh) break;
            for (int i = 0; i < GROUPS; ++i) {
                fill_tile<BOXES>(q_ring, round * GROUPS + i, q, work.row0 + 64 * i, work.head);
            }
            const int kv_head = work.head / (heads / kv_heads);
            for (int j = key_tiles(work.row0) - 1; j >= 0; --j, ++step) {
                fill_tile<BOXES>(k_ring, step, k, j * BC, kv_head);
                fill_tile<BOXES>(v_ring, step, v, j * BC, kv_head);
            }
        }
        return;
    }
    take_registers<REGISTERS>();
    float s[BC / 8][4];      // scores, then their exponentials
    unsigned p[BC / 16][4];  // these again, as the second product takes them
    float o[D / 8][4] = {};  // the output so far, not yet divided by sum
    const bool plain = scale > 0.0f;  // exp2 takes the scale with it
    const float factor = plain ? scale * LOG2E : LOG2E;
    if (group == GROUPS - 1) end_turn<GROUPS>(group);  // the first one begins

    for (int round = 0;; ++round) {
        const Work work = work_of<BR, BLOCKS, HEADS>(round, bh, n);
        if (work.head >= bh) break;
        const int row0 = work.row0 + 64 * group;     // of this warpgroup
        const int row = row0 + 16 * warp + lane / 4;  // this lane's rows are row and row + 8
        const int see_all = causal ? min(m, row0 + 1 + m - n) : m;  // keys that all rows see
        const int q_step = round * GROUPS + group;
        const unsigned q_tile = q_ring.tile(q_step);
        float shift[2] = {LOWEST, LOWEST};  // maximum so far less SLACK at most, in powers of two
        float sum[2] = {};                  // of exp2(score - shift) so far, over this lane's keys
        float rescale[2];                   // what a higher maximum makes of sum and o
        int j = key_tiles(work.row0) - 1;   // from the last tile to the first: masks come first
        int more = 0;                       // is there an output of this round to add to?

        auto start_scores = [&] {  // of this step's keys
            k_ring.wait_full(step);
            my_turn(group);
            registers_ready();
#pragma unroll
            for (int c = 0; c < D / 16; ++c) {  // 16 columns are 32 bytes of a box
                multiply(s, describe(q_tile + c / 4 * Q_BOX + c % 4 * 32, 0),
                         describe(k_ring.tile(step) + c / 4 * BOX + c % 4 * 32, 0), c > 0);
            }
            end_of_group();
        };
        auto weigh = [&](bool edge) {  // these scores, which are here
            if (lane == 0) k_ring.release(step);
            if (edge) {
                if (!plain) scale_and_bias(s, scale, nullptr, 0, 0, 0, 0);
                hide_keys(s, row, j * BC + lane % 4 * 2, n, m, causal);
            }
            raise_rows<SLACK>(shift, sum, rescale, s, factor);
            take_exponentials(s, factor, shift, sum);
        };
        auto start_output = [&] {  // of the weights of the step before
            v_ring.wait_full(step - 1);
            registers_ready();
#pragma unroll
            for (int i = 0; i < BC / 16; ++i) {  // 16 keys are 16 rows of 128 bytes
                multiply(o, p[i], describe(v_ring.tile(step - 1) + i * 2048, BOX), i > 0 || more);
            }
            end_of_group();
            more = 1;
        };
        auto end_output = [&] {
            products_done<0>();
            if (lane == 0) v_ring.release(step - 1);
        };
        auto next_keys = [&](bool edge) {
            start_scores();
            start_output();
            end_turn<GROUPS>(group);
            products_done<1>();
            weigh(edge);
            end_output();
            pack(p, s);
            if (D <= 128 || __any_sync(0xffffffff, rescale[0] < 1.0f || rescale[1] < 1.0f)) {
#pragma unroll
                for (int x = 0; x < D / 2; ++x) o[x / 4][x % 4] *= rescale[x % 4 / 2];
            }
        };

        for (; causal && j > 0 && j * BC >= row0 + 64 + m - n; --j, ++step) {
            k_ring.wait_full(step);  // others see these keys, no row of this group does
            v_ring.wait_full(step);  // a release before that would count for the tile before
            my_turn(group);
            end_turn<GROUPS>(group);
            if (lane == 0) k_ring.release(step), v_ring.release(step);
        }
        q_ring.wait_full(q_step);
        start_scores();
        end_turn<GROUPS>(group);
        products_done<0>();
        weigh(true);
        pack(p, s);
        for (--j, ++step; j >= 0 && (!plain || (j + 1) * BC > see_all); --j, ++step) {
            next_keys(true);
        }
        for (; j >= 0; --j, ++step) next_keys(false);
        start_output();
        end_output();

        float inverse[2];
        end_rows(inverse, shift, sum, lse ? lse + (long long)work.head * n + row : lse, n - row);
        store_rows(q_tile, 16 * warp, o, inverse);  // Q is read no more: from there it leaves
        stores_visible();
        meet(group);
        if (threadIdx.x % 128 == 0) store_tile<BOXES>(q_ring, q_step, out, row0, work.head);
    }
    if (group == 0) my_turn(group);  // the last turn, which is nobody's
}
