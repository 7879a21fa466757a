// Idea:          Tensor cores multiply TF32, numbers of 11 bits. An fp32 number is the sum of two
//                of them, so three TF32 products are one product with nearly fp32's accuracy.
// Changes from:  14_flash_mma.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        flash_tf32x3: grid (batch*heads, ceil(n/BR)), block (32*WARPS),
//                dynamic shared (BR + 2*STAGES*BC)*STRIDE*4 bytes
// Needs:         sm_80; d <= D; D a multiple of 32; BC a multiple of 8; 16 rows a warp;
//                STAGES >= 2; BLOCKS on an SM at once; ROUND and Q_IN_REGISTERS 0 or 1;
//                HEAD_GROUP >= 1; heads a multiple of kv_heads
// Expect:        a relative error near that of 12, in less time: 3 products at 8 times the rate
// Limits:        the matrix unit cuts sums off where fp32 rounds them, so no sum is longer than a
//                tile; rows that are not 16-byte aligned are copied 4 bytes at a time;
//                ceil(n/BR) <= 65535

#ifndef D
#define D 64  // floats of the head dim that a tile holds; those past d are zeros
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef BC
#define BC 64  // keys a tile
#endif
#ifndef STAGES
#define STAGES 2  // tiles of K and of V: one in use, the others on their way
#endif
#ifndef BLOCKS
#define BLOCKS 2  // blocks an SM: bounds the registers of a thread
#endif
#ifndef Q_IN_REGISTERS
#define Q_IN_REGISTERS 0  // 1: the fragments of Q are loaded and split once
#endif
#ifndef ROUND
#define ROUND 1
#endif
#ifndef HEAD_GROUP
#define HEAD_GROUP 8  // heads whose tiles of rows run side by side and share L2
#endif

#include "include/async_copy.cuh"
#include "include/block_order.cuh"
#include "include/fragment_softmax.cuh"
#include "include/mma.cuh"
#include "include/output.cuh"
#include "include/vector.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int BR = 16 * WARPS;               // query rows a block
constexpr int STRIDE = D + 4;                // pad: 8 rows at one column are 8 groups of 4 banks
constexpr int KV_TILE = BC * STRIDE;         // floats of a tile of K or V

static_assert(D % 32 == 0 && D <= 256 && BC % 8 == 0, "fragments are 8 keys, 32 columns of V");

// A fragment of TF32 pairs; big + small is the fp32 number.
template <int count>
struct Split {
    unsigned big[count], small[count];
    __device__ __forceinline__ void set(int i, float x) { split_tf32(big[i], small[i], x); }
};

// Adds a b to big + small to nearly fp32's accuracy; a sum of its own keeps the small products from
// being cut off at each step. The product of the two small parts is below what fp32 can hold.
__device__ __forceinline__ void mma_split(float (&big)[4], float (&small)[4], const Split<4>& a,
                                          unsigned b0, unsigned b1, unsigned small0,
                                          unsigned small1)
{
    mma_tf32(small, a.small, b0, b1);
    mma_tf32(big, a.big, b0, b1);
    mma_tf32(small, a.big, small0, small1);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) flash_tf32x3(
    const float* __restrict__ q,     // (batch*heads, n, d)
    const float* __restrict__ k,     // (batch*kv_heads, m, d)
    const float* __restrict__ v,     // (batch*kv_heads, m, d)
    const float* __restrict__ bias,  // (.., n, m), added to the scaled scores, or null
    float* __restrict__ out,         // (batch*heads, n, d)
    float* __restrict__ lse,         // (batch*heads, n), log of each sum of exponentials, or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    extern __shared__ float4 shared[];                 // float4: aligned for vector loads
    float* q_tile = reinterpret_cast<float*>(shared);  // (BR, STRIDE)
    float* k_tiles = q_tile + BR * STRIDE;             // (STAGES, BC, STRIDE)
    float* v_tiles = k_tiles + STAGES * KV_TILE;       // (STAGES, BC, STRIDE)

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const auto [bh, row0] = row_tile<HEAD_GROUP, BR>();
    const int kv_head = heads == kv_heads ? bh : bh / (heads / kv_heads);
    // long long: the offset of a row, or of a head's bias, can pass 2^31.
    if (bias) bias += bh / heads * bias_batch + bh % heads * bias_head;  // (n, m), of this head
    q += ((long long)bh * n + row0) * d;  // (n - row0, d), from this block's first row on
    k += (long long)kv_head * m * d;      // (m, d)
    v += (long long)kv_head * m * d;      // (m, d)
    const bool vector = d % 4 == 0 && ((size_t)q | (size_t)k | (size_t)v) % 16 == 0;

    const int warp_row = row0 + warp * 16;  // the warp's first row
    const int row = warp_row + lane / 4;    // this lane's rows are row and row + 8
    const int last_key = causal ? min(m, row0 + BR + m - n) : m;  // no row of the block sees more

    // A lane's rows for load_matrices(), and its first elements of V: 4 columns of an even key.
    const unsigned q_lane = (unsigned)__cvta_generic_to_shared(
        q_tile + (warp * 16 + lane % 16) * STRIDE + lane / 16 * 4);
    const unsigned k_lane =
        (unsigned)__cvta_generic_to_shared(k_tiles + lane % 8 * STRIDE + lane / 8 * 4);
    const float* v_lane = v_tiles + lane % 4 * 2 * STRIDE + lane / 4 * 4;

    auto copy_tile = [&](int tile) {  // starts the copies of K and V to their stage
        const int key0 = tile * BC, stage = tile % STAGES * KV_TILE;
        const long long at = (long long)key0 * d;
        start_copy<D, STRIDE, THREADS>(k_tiles + stage, k + at, BC, last_key - key0, d, d, vector);
        start_copy<D, STRIDE, THREADS>(v_tiles + stage, v + at, BC, last_key - key0, d, d, vector);
    };
    start_copy<D, STRIDE, THREADS>(q_tile, q, BR, n - row0, d, d, vector);
    for (int tile = 0; tile < STAGES - 1; ++tile) copy_tile(tile);

    float o[D / 32][4][4] = {};  // the output so far, not yet divided by sum
    float shift[2] = {LOWEST, LOWEST};  // maximum of the scores so far, in powers of two
    float sum[2] = {};                  // of exp2(score - shift) so far, over this lane's keys

    // exp2 takes the scale with it, unless a bias comes between or it turns the maximum round.
    const bool plain = !bias && scale > 0.0f;
    const float factor = plain ? scale * LOG2E : LOG2E;

    Split<4> q16[Q_IN_REGISTERS ? D / 16 : 1][2];  // 16 columns of the warp's rows
    auto load_q = [&](int c) {
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            unsigned x[4];
            load_matrices(x, q_lane + (16 * c + 8 * step) * 4);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                q16[Q_IN_REGISTERS ? c : 0][step].set(i, __uint_as_float(x[i]));
            }
        }
    };
    if (Q_IN_REGISTERS) {
        copies_arrived<2 * (STAGES - 1)>();
        __syncthreads();  // barrier: a fast warp would read what other threads' copies still write
#pragma unroll
        for (int c = 0; c < D / 16; ++c) load_q(c);
    }

    for (int tile = 0; tile * BC < last_key; ++tile) {
        copies_arrived<2 * (STAGES - 2)>();
        __syncthreads();  // barrier: a fast warp would read what other threads' copies still write,
                          // and the next copies overwrite the tile that slow warps still read
        copy_tile(tile + STAGES - 1);

        const int key0 = tile * BC, stage = tile % STAGES * KV_TILE;
        if (causal && key0 >= warp_row + 16 + m - n) continue;  // none of its rows sees the tile

        float s[BC / 8][4] = {}, s_small[BC / 8][4] = {};  // scores
#pragma unroll
        for (int c = 0; c < D / 16; ++c) {
            if (!Q_IN_REGISTERS) load_q(c);
            const auto& a16 = q16[Q_IN_REGISTERS ? c : 0];
#pragma unroll
            for (int j = 0; j < BC / 8; ++j) {
                unsigned x[4];  // 16 columns of 8 keys
                load_matrices(x, k_lane + (stage + 8 * j * STRIDE + 16 * c) * 4);
                Split<4> k8;
#pragma unroll
                for (int i = 0; i < 4; ++i) k8.set(i, __uint_as_float(x[i]));
                mma_split(s[j], s_small[j], a16[0], k8.big[0], k8.big[1], k8.small[0],
                          k8.small[1]);
                mma_split(s[j], s_small[j], a16[1], k8.big[2], k8.big[3], k8.small[2],
                          k8.small[3]);
            }
        }

#pragma unroll
        for (int x = 0; x < BC / 2; ++x) s[x / 4][x % 4] += s_small[x / 4][x % 4];

        const int key = key0 + lane % 4 * 2;  // this lane's keys are key + 8*j and the next ones
        const bool edge = key0 + BC > m || (causal && key0 + BC > warp_row + 1 + m - n);
        if (!plain) scale_and_bias(s, scale, bias, row, key, n, m);
        if (edge) hide_keys(s, row, key, n, m, causal);

        float rescale[2], tile_sum[2] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            rescale[half] = raise(shift[half], row_top(s, half, factor));
        }
        Split<4> p8[BC / 8];  // weights of 8 keys, the even ones first, as a of mma_tf32() needs
#pragma unroll
        for (int j = 0; j < BC / 8; ++j) {
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                const float weight = exp2f(s[j][x] * factor - shift[x / 2]);
                tile_sum[x / 2] += weight;
                p8[j].set(x % 2 * 2 + x / 2, weight);
            }
        }
        sum[0] = sum[0] * rescale[0] + tile_sum[0];
        sum[1] = sum[1] * rescale[1] + tile_sum[1];

#pragma unroll
        for (int c = 0; c < D / 32; ++c) {
            // [x] is of the columns 32*c + 4*y + x, y from 0 to 7: four in a row are one load of V.
            float tile_o[4][4] = {}, o_small[4][4] = {};
#pragma unroll
            for (int j = 0; j < BC / 8; ++j) {
                const float* v8 = v_lane + stage + 8 * j * STRIDE + 32 * c;
                const float4 even = load4(v8), odd = load4(v8 + STRIDE);
#pragma unroll
                for (int x = 0; x < 4; ++x) {
                    Split<2> pair;
                    pair.set(0, element(even, x));
                    pair.set(1, element(odd, x));
                    mma_split(tile_o[x], o_small[x], p8[j], pair.big[0], pair.big[1],
                              pair.small[0], pair.small[1]);
                }
            }
#pragma unroll
            for (int x = 0; x < 16; ++x) {
                const int n8 = x / 4, i = x % 4;
                o[c][n8][i] = o[c][n8][i] * rescale[i / 2] + (tile_o[n8][i] + o_small[n8][i]);
            }
        }
    }
    copies_arrived<0>();  // where there is no key to see, Q is still on its way

#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float total = warp_sum<2, 1>(sum[half]);
        const int r = row + 8 * half;
        if (r >= n) continue;
#pragma unroll
        for (int c = 0; c < 2 * (D / 32); ++c) {
            const float(&o4)[4][4] = o[c / 2];
            const int x = 2 * half + c % 2;
            write4(out, lse, (long long)bh * n + r, 32 * (c / 2) + lane % 4 * 8 + c % 2 * 4,
                   make_float4(o4[0][x], o4[1][x], o4[2][x], o4[3][x]), shift[half] * LN2, total,
                   d);
        }
    }
}
