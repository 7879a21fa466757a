// Idea:          float32's accuracy on Hopper's widest unit: a product of float32 matrices is three
//                products of halves, and each tile's output is added in registers, which round,
//                where tensor cores cut off.
// Changes from:  18_flash_wgmma.cu
// Shapes:        q and out float32 (batch*heads, n, d), row-major; halves, as 32_split_halves.cu
//                writes them, as a tensor map; lse null or float32 (batch*heads, n)
// Launch:        flash_fp16x3: grid (min(BLOCKS, batch*heads*ceil(n/BR))), block (128*(GROUPS+1)),
//                dynamic shared (69632 + 32)*STAGES + 256*GROUPS*D bytes; HEADS orders the tiles
// Needs:         sm_90a; d <= D; D 64 or 128; GROUPS 2; heads a multiple of kv_heads
// Expect:        a third of the rate of 18, less the split of K and V; float32's relative error
// Limits:        no bias; numbers below 2^-16 of the largest one in their row of Q or of K, or in
//                their column of a tile of V, keep fewer bits, at 2^-40 none; keys of V that a
//                mask hides count; inf in q or k becomes NaN, in v for all rows of the head

#ifndef D
#define D 128  // columns of the head dim that a tile holds; those past d are zeros
#endif
#ifndef GROUPS
#define GROUPS 2  // warpgroups that compute, 64 query rows each; one more copies
#endif
#ifndef STAGES
#define STAGES 2  // tiles of K, and of V, in use or on their way
#endif
#ifndef BLOCKS
#define BLOCKS 132  // of the grid, at most: one a multiprocessor
#endif
#ifndef HEADS
#define HEADS 1  // of a group whose longest tiles go first, one group after the other: L2 holds it
#endif

#define BFLOAT16 0  // elements of 16 bits are halves
#include "include/fragment_weights.cuh"
#include "include/half_products.cuh"
#include "include/tma.cuh"
#include "include/warpgroups.cuh"

static_assert(GROUPS == 2, "three leave a thread too few registers");
constexpr int BR = 64 * GROUPS;  // query rows a block
constexpr int Q_PART = D * 128;  // bytes of 64 rows' big parts, or small ones

using KeyRing = Ring<STAGES, 2 * BOX>;

extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) flash_fp16x3(
    const float* __restrict__ q,               // (batch*heads, n, d)
    const __grid_constant__ TensorMap halves,  // (2*batch*kv_heads, tiles*TILE_ROWS, 128), boxes
    float* __restrict__ out,                   // (batch*heads, n, d)
    float* __restrict__ lse,  // (batch*heads, n), log of each sum of exponentials, or null
    int bh, int heads, int kv_heads, int n, int m, int d, float scale, int causal)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const unsigned k_tiles = shared_address(memory);  // (STAGES, 2, TILE_ROWS, 128 bytes)
    const unsigned v_tiles = k_tiles + STAGES * 2 * BOX;  // like k_tiles
    const unsigned q_tiles = v_tiles + STAGES * 2 * BOX;  // (GROUPS, 2, D / 64, 64, 128 bytes)
    const unsigned barriers = q_tiles + GROUPS * 2 * Q_PART;
    const KeyRing k_ring{k_tiles, barriers};
    const KeyRing v_ring{v_tiles, barriers + 16 * STAGES};
    const int group = threadIdx.x / 128;
    const int warp = threadIdx.x / 32 % 4;
    const int lane = threadIdx.x % 32;

    if (threadIdx.x == 0) {
        k_ring.start(4 * GROUPS);  // warps that read a tile
        v_ring.start(4 * GROUPS);
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
        const int values = bh / heads * kv_heads;  // the first matrix of V
        for (int round = 0; threadIdx.x % 128 == 0; ++round) {
            const Work work = work_of<BR, BLOCKS, HEADS>(round, bh, n);
            if (work.head >= bh) break;
            const int kv_head = work.head / (heads / kv_heads);
            for (int j = key_tiles(work.row0) - 1; j >= 0; --j, ++step) {
                fill_tile<2>(k_ring, step, halves, j * TILE_ROWS, kv_head);
                fill_tile<2>(v_ring, step, halves, j * TILE_ROWS, values + kv_head);
            }
        }
        return;
    }
    take_registers<240>();
    const unsigned q_tile = q_tiles + group * 2 * Q_PART;
    float s[BC / 8][4];                           // scores, then their exponentials
    unsigned big[BC / 16][4], small[BC / 16][4];  // these again, as the second product takes them
    float more[D / 8][4];                         // output of a tile of keys
    const bool plain = scale > 0.0f;              // exp2 takes the scale with it
    const float factor = plain ? scale * LOG2E : LOG2E;
    if (group == GROUPS - 1) end_turn<GROUPS>(group);  // the first one begins

    for (int round = 0;; ++round) {
        const Work work = work_of<BR, BLOCKS, HEADS>(round, bh, n);
        if (work.head >= bh) break;
        const int row0 = work.row0 + 64 * group;      // of this warpgroup
        const int row = row0 + 16 * warp + lane / 4;  // this lane's rows are row and row + 8
        const int see_all = causal ? min(m, row0 + 1 + m - n) : m;  // keys that all rows see
        const long long first = (long long)work.head * n + row0;    // of all heads' rows
        float o[D / 8][4] = {};             // the output so far, not yet divided by sum
        float q_down[2];                    // undoes the scales of this lane's rows of Q
        float shift[2] = {LOWEST, LOWEST};  // maximum so far, in powers of two
        float sum[2] = {};                  // of exp2(score - shift) so far, over this lane's keys
        float rescale[2] = {};              // what a higher maximum makes of sum
        float rescale_o[2];                 // and, a step later, of o
        int j = key_tiles(work.row0) - 1;   // from the last tile to the first: masks come first

        meet(group);  // other warps may still multiply the rows of the round before
        split_rows<D>(q_down, q_tile, Q_PART, warp, q + first * d, n - row0, d);
        stores_visible();
        meet(group);

        auto multiply_keys = [&] {  // of this step
            k_ring.wait_full(step);
            my_turn(group);
            registers_ready();
            start_scores(s, q_tile, k_ring.tile(step));
            end_of_group();
        };
        auto weigh = [&](bool edge) {  // these scores, which are here
            scale_scores(s, q_down, k_ring.tile(step));
            __syncwarp();
            if (lane == 0) k_ring.release(step);
            if (edge) {
                if (!plain) scale_and_bias(s, scale, nullptr, 0, 0, 0, 0);
                hide_keys(s, row, j * BC + lane % 4 * 2, n, m, causal);
            }
            rescale_o[0] = rescale[0], rescale_o[1] = rescale[1];
            raise_rows(shift, sum, rescale, s, factor);
            take_exponentials(s, factor, shift, sum);
        };
        auto multiply_values = [&] {  // of the step before
            v_ring.wait_full(step - 1);
            registers_ready();
            start_output(more, big, small, v_ring.tile(step - 1));
            end_of_group();
        };
        auto add_values = [&](const float (&of_o)[2]) {
            products_done<0>();
            add_output(o, of_o, more, v_ring.tile(step - 1));
            __syncwarp();
            if (lane == 0) v_ring.release(step - 1);
        };
        auto next_keys = [&](bool edge) {
            multiply_keys();
            multiply_values();
            end_turn<GROUPS>(group);
            products_done<1>();
            weigh(edge);
            add_values(rescale_o);
            split_weights(big, small, s);
        };

        for (; causal && j > 0 && j * BC >= row0 + 64 + m - n; --j, ++step) {
            k_ring.wait_full(step);  // others see these keys, no row of this group does
            v_ring.wait_full(step);  // a release before that would count for the tile before
            my_turn(group);
            end_turn<GROUPS>(group);
            if (lane == 0) k_ring.release(step), v_ring.release(step);
        }
        multiply_keys();
        end_turn<GROUPS>(group);
        products_done<0>();
        weigh(true);
        split_weights(big, small, s);
        for (--j, ++step; j >= 0 && (!plain || (j + 1) * BC > see_all); --j, ++step) {
            next_keys(true);
        }
        for (; j >= 0; --j, ++step) next_keys(false);
        multiply_values();
        add_values(rescale);

        float inverse[2];
        end_rows(inverse, shift, sum, lse ? lse + first - row0 + row : lse, n - row);
        store_fragments(out + (first - row0 + row) * d + lane % 4 * 2, o, inverse, n - row,
                        d - lane % 4 * 2, d, d % 2 == 0 && (size_t)out % 8 == 0);
    }
    if (group == 0) my_turn(group);  // the last turn, which is nobody's
}
