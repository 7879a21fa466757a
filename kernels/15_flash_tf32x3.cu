// Idea:          Tensor cores multiply TF32, numbers of 11 bits. An fp32 number is the sum of two
//                of them, so three TF32 products are one product with nearly fp32's accuracy.
// Changes from:  14_flash_mma.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        flash_tf32x3: grid (batch*heads, ceil(n/BR)), block (32*WARPS),
//                dynamic shared (BR + 2*BC)*ROW_BYTES bytes
// Needs:         sm_80; d <= D; D a multiple of 32; BC a multiple of 8; 16*ROW_TILES rows a
//                warp; at least D/4 threads; heads a multiple of kv_heads
// Expect:        a relative error near that of 12, in less time; no bank conflicts
// Limits:        the matrix unit cuts sums off where fp32 rounds them, so no sum is longer than a
//                tile; inf in q, k or v becomes NaN; rows that are not 16-byte aligned are copied
//                4 bytes at a time; ceil(n/BR) <= 65535

#ifndef D
#define D 64  // floats of the head dim that a tile holds; those past d are zeros
#endif
#ifndef ROW_TILES
#define ROW_TILES 1  // 16 query rows each, a warp
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef BC
#define BC 64  // keys a tile
#endif

#include "include/async_copy.cuh"
#include "include/block_order.cuh"
#include "include/fragment_softmax.cuh"
#include "include/output.cuh"
#include "include/swizzled_tile.cuh"
#include "include/tf32x3.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int WARP_ROWS = 16 * ROW_TILES;  // query rows a warp
constexpr int BR = WARP_ROWS * WARPS;      // query rows a block
constexpr int ROW_BYTES = 4 * D;           // of a row in shared memory

static_assert(D % 32 == 0 && D <= 256 && BC % 8 == 0, "fragments are 8 keys, 32 columns of V");

extern "C" __global__ void __launch_bounds__(THREADS, 1) flash_tf32x3(
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
    const bool vector = d % 4 == 0 && ((size_t)q | (size_t)k | (size_t)v) % 16 == 0;

    const int warp_row = row0 + warp * WARP_ROWS;  // the warp's first row
    const int row = warp_row + lane / 4;           // this lane's rows are row + 8*i
    const int last_key = causal ? min(m, row0 + BR + m - n) : m;  // no row of the block sees more

    // A lane's first address for load_matrices(), and its first 4 columns of V: of an even key and
    // of the odd one after it.
    const unsigned q_lane = shared_address(q_tile) +
                            swizzled<ROW_BYTES>(warp * WARP_ROWS + lane % 16, lane / 16);
    const unsigned k_lane = shared_address(k_tile) + swizzled<ROW_BYTES>(lane % 8, lane / 8);
    const unsigned char* v_even = v_tile + swizzled<ROW_BYTES>(lane % 4 * 2, lane / 4);
    const unsigned char* v_odd = v_tile + swizzled<ROW_BYTES>(lane % 4 * 2 + 1, lane / 4);

    // Starts the copy of a tile of K or V, whose first key is key0.
    auto copy_keys = [&](unsigned char* tile, const float* from, int key0) {
        start_swizzled_copy<D, ROW_BYTES, BC, THREADS>(tile, from + (long long)key0 * d,
                                                       last_key - key0, d, vector);
    };
    start_swizzled_copy<D, ROW_BYTES, BR, THREADS>(q_tile, q, n - row0, d, vector);
    copy_keys(k_tile, k, 0);

    float o[ROW_TILES][D / 32][4][4] = {};  // the output so far, in groups of split_values(), not
                                            // yet divided by sum
    float shift[ROW_TILES][2];              // maximum of the scores so far, in powers of two
    float sum[ROW_TILES][2] = {};           // of exp2(score - shift) so far, over this lane's keys
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

        float s[ROW_TILES][BC / 8][4];  // scores
        split_scores<D, ROW_BYTES>(s, q_lane, k_lane);

        const int key = key0 + lane % 4 * 2;  // this lane's keys are key + 8*j and the next ones
        const bool edge = key0 + BC > m || (causal && key0 + BC > warp_row + 1 + m - n);
        Split<4> p8[ROW_TILES][BC / 8];  // weights; of 8 keys the even ones come first
        float rescale[ROW_TILES][2];
#pragma unroll
        for (int i = 0; i < ROW_TILES; ++i) {
            if (!plain) scale_and_bias(s[i], scale, bias, row + 16 * i, key, n, m);
            if (edge) hide_keys(s[i], row + 16 * i, key, n, m, causal);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                rescale[i][half] = raise(shift[i][half], row_top(s[i], half, factor, bias));
                float tile_sum = 0.0f;
#pragma unroll
                for (int x = 0; x < BC / 4; ++x) {
                    const float score = s[i][x / 2][2 * half + x % 2];
                    const float weight = exp2f(score * factor - shift[i][half]);
                    tile_sum += weight;
                    p8[i][x / 2].set(x % 2 * 2 + half, weight);
                }
                sum[i][half] = sum[i][half] * rescale[i][half] + tile_sum;
            }
        }

        copies_arrived<0>();  // V is here
        __syncthreads();  // barrier: a fast warp would read what other threads' copies still write,
                          // and the next K tile overwrite the one that others still read
        copy_keys(k_tile, k, key0 + BC);
#pragma unroll
        for (int c = 0; c < D / 32; ++c) {
            float more[ROW_TILES][4][4];
            split_values<ROW_BYTES>(more, p8, v_even + c * 128, v_odd + c * 128);
#pragma unroll
            for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
                for (int x = 0; x < 16; ++x) {
                    float& sum_o = o[i][c][x / 4][x % 4];
                    sum_o = sum_o * rescale[i][x % 4 / 2] + more[i][x / 4][x % 4];
                }
            }
        }
    }
    copies_arrived<0>();  // where there is no key to see, Q is still on its way

#pragma unroll
    for (int i = 0; i < 2 * ROW_TILES; ++i) {
        const float total = warp_sum<2, 1>(sum[i / 2][i % 2]);
        const int r = row + 8 * i;
        if (r >= n) continue;
#pragma unroll
        for (int c = 0; c < D / 16; ++c) {
            const float(&o4)[4][4] = o[i / 2][c / 2];
            const int x = i % 2 * 2 + c % 2;
            write4(out, lse, (long long)bh * n + r, 32 * (c / 2) + lane % 4 * 8 + c % 2 * 4,
                   make_float4(o4[0][x], o4[1][x], o4[2][x], o4[3][x]), shift[i / 2][i % 2] * LN2,
                   total, d);
        }
    }
}
