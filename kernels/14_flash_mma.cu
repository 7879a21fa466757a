// Idea:          Both products run on the tensor cores, instruction by instruction: fragments come
//                from swizzled tiles, and the scores of one product become, in registers, an
//                operand of the next. K and V are copied in turns, as in 12.
// Changes from:  12_flash_async.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                bfloat16 or half; bias null or float32 (.., n, m) at batch*bias_batch +
//                head*bias_head; lse null or float32 (batch*heads, n)
// Launch:        flash_mma: grid (batch*heads, ceil(n/BR)), block (32*WARPS),
//                dynamic shared (BR + 2*BC)*ROW_BYTES bytes
// Needs:         sm_80; d <= D; D and BC multiples of 16; 16*ROW_TILES rows a warp; BFLOAT16 1, or
//                0 for half; heads a multiple of kv_heads
// Expect:        at d = 128 over half of the rate of a loop of nothing but mma.sync; a loop without
//                conflicts
// Limits:        weights are rounded to 16 bits before they meet V; rows that are not 16-byte
//                aligned are copied 2 bytes at a time, with conflicts; ceil(n/BR) <= 65535
// Long:          The two products, the softmax between them and the output work on the same
//                registers: a function for each would take them all and hide which it changes.

#ifndef BFLOAT16
#define BFLOAT16 1  // elements are 1: bfloat16, 0: half
#endif
#ifndef D
#define D 64  // columns of the head dim that a tile holds; those past d are zeros
#endif
#ifndef ROW_TILES
#define ROW_TILES 2  // 16 query rows each, a warp
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef BC
#define BC 64  // keys a tile
#endif

#include "include/async_copy.cuh"
#include "include/block_order.cuh"
#include "include/element.cuh"
#include "include/fragment_softmax.cuh"
#include "include/mma.cuh"
#include "include/swizzled_tile.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int WARP_ROWS = 16 * ROW_TILES;          // query rows a warp
constexpr int BR = WARP_ROWS * WARPS;              // query rows a block
constexpr int ROW_BYTES = (D + 63) / 64 * 64 * 2;  // of a row in shared memory: whole groups

static_assert(D % 16 == 0 && D <= 256 && BC % 16 == 0, "fragments are 16 rows or columns");

extern "C" __global__ void __launch_bounds__(THREADS, 1) flash_mma(
    const Element* __restrict__ q,   // (batch*heads, n, d)
    const Element* __restrict__ k,   // (batch*kv_heads, m, d)
    const Element* __restrict__ v,   // (batch*kv_heads, m, d)
    const float* __restrict__ bias,  // (.., n, m), added to the scaled scores, or null
    Element* __restrict__ out,       // (batch*heads, n, d)
    float* __restrict__ lse,         // (batch*heads, n), log of each sum of exponentials, or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    extern __shared__ __align__(128) unsigned char q_tile[];  // (BR, ROW_BYTES)
    unsigned char* k_tile = q_tile + BR * ROW_BYTES;          // (BC, ROW_BYTES)
    unsigned char* v_tile = k_tile + BC * ROW_BYTES;          // (BC, ROW_BYTES)

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const auto [bh, row0] = row_tile<BR>(causal);
    const int kv_head = heads == kv_heads ? bh : bh / (heads / kv_heads);
    // long long: the offset of a row, or of a head's bias, can pass 2^31.
    if (bias) bias += bh / heads * bias_batch + bh % heads * bias_head;  // (n, m), of this head
    q += ((long long)bh * n + row0) * d;  // (n - row0, d), from this block's first row on
    k += (long long)kv_head * m * d;      // (m, d)
    v += (long long)kv_head * m * d;      // (m, d)
    const bool vector =
        d % 8 == 0 && ((size_t)q | (size_t)k | (size_t)v | (size_t)out) % 16 == 0;

    const int warp_row = row0 + warp * WARP_ROWS;  // the warp's first row
    const int row = warp_row + lane / 4;           // this lane's rows are row + 8*i
    const int last_key = causal ? min(m, row0 + BR + m - n) : m;  // no row of the block sees more

    // A lane's first address for load_matrices(). Of Q and V the second matrix is of the next rows,
    // of K of the next columns: both registers of B are of the same keys.
    const unsigned q_lane = shared_address(q_tile) +
                            swizzled<ROW_BYTES>(warp * WARP_ROWS + lane % 16, lane / 16);
    const unsigned k_lane = shared_address(k_tile) +
                            swizzled<ROW_BYTES>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const unsigned v_lane = shared_address(v_tile) + swizzled<ROW_BYTES>(lane % 16, lane / 16);

    // Starts the copy of a tile of K or V, whose first key is key0.
    auto copy_keys = [&](unsigned char* tile, const Element* from, int key0) {
        start_swizzled_copy<D, ROW_BYTES, BC, THREADS>(tile, from + (long long)key0 * d,
                                                       last_key - key0, d, vector);
    };
    start_swizzled_copy<D, ROW_BYTES, BR, THREADS>(q_tile, q, n - row0, d, vector);
    copy_keys(k_tile, k, 0);

    float o[ROW_TILES][D / 8][4] = {};  // the output so far, not yet divided by sum
    float shift[ROW_TILES][2];          // maximum of the scores so far, in powers of two
    float sum[ROW_TILES][2] = {};       // of exp2(score - shift) so far, over this lane's keys
#pragma unroll
    for (int i = 0; i < 2 * ROW_TILES; ++i) shift[i / 2][i % 2] = LOWEST;

    // exp2 takes the scale with it, unless a bias comes between or it turns the maximum round.
    const bool plain = !bias && scale > 0.0f;
    const float factor = plain ? scale * LOG2E : LOG2E;

    for (int key0 = 0; key0 < last_key; key0 += BC) {
        copies_arrived<0>();  // Q and K are here
        __syncthreads();  // barrier: a fast warp would read what other threads' copies still write,
                          // and the next V tile overwrite the one that others still read
        copy_keys(v_tile, v, key0);

        float s[ROW_TILES][BC / 8][4] = {};  // scores
#pragma unroll
        for (int c = 0; c < D / 16; ++c) {
            unsigned q16[ROW_TILES][4];  // 16 columns of the warp's rows
#pragma unroll
            for (int i = 0; i < ROW_TILES; ++i) {
                load_matrices(q16[i], along_row(q_lane, 2 * c) + i * 16 * ROW_BYTES);
            }
#pragma unroll
            for (int j = 0; j < BC / 16; ++j) {
                unsigned k16[4];  // 16 columns of 16 keys
                load_matrices(k16, along_row(k_lane, 2 * c) + j * 16 * ROW_BYTES);
#pragma unroll
                for (int i = 0; i < ROW_TILES; ++i) {
                    mma16<BFLOAT16>(s[i][2 * j], q16[i], k16[0], k16[1]);
                    mma16<BFLOAT16>(s[i][2 * j + 1], q16[i], k16[2], k16[3]);
                }
            }
        }

        const int key = key0 + lane % 4 * 2;  // this lane's keys are key + 8*j and the next ones
        const bool edge = key0 + BC > m || (causal && key0 + BC > warp_row + 1 + m - n);
#pragma unroll
        for (int i = 0; i < ROW_TILES; ++i) {
            if (!plain) scale_and_bias(s[i], scale, bias, row + 16 * i, key, n, m);
            if (edge) hide_keys(s[i], row + 16 * i, key, n, m, causal);
        }

        float top[ROW_TILES][2];
        bool higher = false;
#pragma unroll
        for (int i = 0; i < 2 * ROW_TILES; ++i) {
            top[i / 2][i % 2] = row_top(s[i / 2], i % 2, factor, bias);
            higher |= top[i / 2][i % 2] > shift[i / 2][i % 2];
        }
        copies_arrived<0>();  // V is here
        __syncthreads();  // barrier: a fast warp would read what other threads' copies still write,
                          // and the next K tile overwrite the one that others still read
        copy_keys(k_tile, k, key0 + BC);
        // Sums are rescaled where a row of the warp has a larger maximum, of which there are fewer
        // and fewer. The vote keeps the warp together: raise() shuffles.
        if (__any_sync(0xffffffff, higher)) {
#pragma unroll
            for (int i = 0; i < ROW_TILES; ++i) {
                const float rescale[2] = {raise(shift[i][0], top[i][0]),
                                          raise(shift[i][1], top[i][1])};
                sum[i][0] *= rescale[0];
                sum[i][1] *= rescale[1];
#pragma unroll
                for (int c = 0; c < D / 8; ++c) {
#pragma unroll
                    for (int x = 0; x < 4; ++x) o[i][c][x] *= rescale[x / 2];
                }
            }
        }

#pragma unroll
        for (int j = 0; j < BC / 16; ++j) {
            unsigned p16[ROW_TILES][4];  // weights of 16 keys, laid out as their scores were
#pragma unroll
            for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
                for (int x = 0; x < 4; ++x) {
                    const int half = x % 2;
                    float(&s2)[4] = s[i][2 * j + x / 2];
                    const float low = exp2f(s2[2 * half] * factor - shift[i][half]);
                    const float high = exp2f(s2[2 * half + 1] * factor - shift[i][half]);
                    sum[i][half] += low + high;
                    p16[i][x] = to_pair(low, high);
                }
            }
#pragma unroll
            for (int c = 0; c < D / 16; ++c) {
                unsigned v16[4];  // 16 keys of 16 columns
                load_transposed(v16, along_row(v_lane, 2 * c) + j * 16 * ROW_BYTES);
#pragma unroll
                for (int i = 0; i < ROW_TILES; ++i) {
                    mma16<BFLOAT16>(o[i][2 * c], p16[i], v16[0], v16[1]);
                    mma16<BFLOAT16>(o[i][2 * c + 1], p16[i], v16[2], v16[3]);
                }
            }
        }
    }
    copies_arrived<0>();
    __syncthreads();  // barrier: where there is no key to see, Q is still on its way, and would
                      // overwrite the output

    // The warp is done with its rows of Q: the output goes there, and from there in whole chunks.
    unsigned char* warp_tile = q_tile + warp * WARP_ROWS * ROW_BYTES;  // (WARP_ROWS, ROW_BYTES)
#pragma unroll
    for (int i = 0; i < 2 * ROW_TILES; ++i) {
        const float total = warp_sum<2, 1>(sum[i / 2][i % 2]);
        const float inverse = total > 0.0f ? 1.0f / total : 0.0f;  // every key masked: zeros
        const int r = row + 8 * i;
        if (lse && r < n && lane % 4 == 0) {
            lse[(long long)bh * n + r] = shift[i / 2][i % 2] * LN2 + logf(total);
        }
#pragma unroll
        for (int c = 0; c < D / 8; ++c) {
            const int at = swizzled<ROW_BYTES>(lane / 4 + 8 * i, c) + lane % 4 * 4;
            const float low = o[i / 2][c][i % 2 * 2] * inverse;
            const float high = o[i / 2][c][i % 2 * 2 + 1] * inverse;
            *reinterpret_cast<unsigned*>(warp_tile + at) = to_pair(low, high);
        }
    }
    __syncwarp();  // lanes read what others wrote
    store_swizzled<ROW_BYTES, WARP_ROWS>(out + ((long long)bh * n + warp_row) * d, warp_tile,
                                         n - warp_row, d, vector);
}
