// Idea:          Tensor cores through the wmma API: a warp multiplies 16 x 16 matrices at once.
//                Which lane has which element is not documented, so scores pass through shared
//                memory: stored as a matrix, read as rows, a row a lane for the softmax.
// Changes from:  12_flash_async.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                bfloat16 or float16; bias null or float32 (.., n, m) at batch*bias_batch +
//                head*bias_head; lse null or float32 (batch*heads, n)
// Launch:        flash_wmma: grid (batch*heads, ceil(n/BR)), block (32*WARPS), dynamic shared
//                2*(BR + 2*KEYS)*(D + 8) + 4*BR*(KEYS + 9) bytes, BR = 16*ROW_TILES*WARPS
// Needs:         sm_80; d <= D; D and KEYS multiples of 16; ROW_TILES 1 or 2; BFLOAT16 1: bfloat16,
//                0: float16; heads a multiple of kv_heads; WARPS <= 32
// Expect:        several times the speed of 12; sums are float32, weights are rounded to 16 bits
// Limits:        scores and weights pass through shared memory (see 14); ceil(n/BR) <= 65535

#ifndef BFLOAT16
#define BFLOAT16 1  // element type: 1 bfloat16, 0 float16
#endif
#ifndef D
#define D 64  // columns of the head dim that a tile holds; those past d are zeros
#endif
#ifndef ROW_TILES
#define ROW_TILES 2  // matrices of 16 query rows a warp
#endif
#ifndef KEYS
#define KEYS 64  // keys a tile
#endif
#ifndef WARPS
#define WARPS 4  // warps a block, all along the rows
#endif

#include "include/async_copy.cuh"
#include "include/element_copy.cuh"
#include "include/matrix.cuh"
#include "include/row_softmax.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int WARP_ROWS = 16 * ROW_TILES;  // query rows a warp
constexpr int BR = WARP_ROWS * WARPS;      // query rows a block
constexpr int LANES = 32 / WARP_ROWS;      // lanes that share a row in the softmax
constexpr int PART = KEYS / LANES;         // keys of a tile that such a lane has
constexpr int STRIDE = D + 8;              // pad: 8 rows of 16 bytes are the 32 banks
constexpr int S_STRIDE = KEYS + 8;         // of the scores (floats) and of the weights (elements)

static_assert(D % 16 == 0 && KEYS % 16 == 0, "matrices of 16 x 16");
static_assert(ROW_TILES == 1 || ROW_TILES == 2, "32 lanes share at most 32 rows");

extern "C" __global__ void __launch_bounds__(THREADS) flash_wmma(
    const Element* __restrict__ q,   // (batch*heads, n, d)
    const Element* __restrict__ k,   // (batch*kv_heads, m, d)
    const Element* __restrict__ v,   // (batch*kv_heads, m, d)
    const float* __restrict__ bias,  // (.., n, m), added to the scaled scores, or null
    Element* __restrict__ out,       // (batch*heads, n, d)
    float* __restrict__ lse,         // (batch*heads, n), log of each sum of exponentials, or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    extern __shared__ __align__(128) char shared[];
    Element* q_tile = reinterpret_cast<Element*>(shared);                  // (BR, STRIDE)
    Element* k_tile = q_tile + BR * STRIDE;                                // (KEYS, STRIDE)
    Element* v_tile = k_tile + KEYS * STRIDE;                              // (KEYS, STRIDE)
    float* s_tiles = reinterpret_cast<float*>(v_tile + KEYS * STRIDE);     // (BR, S_STRIDE)
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const Element* q_mine = q_tile + warp * WARP_ROWS * STRIDE;            // (WARP_ROWS, STRIDE)
    float* s_mine = s_tiles + warp * WARP_ROWS * S_STRIDE;                 // (WARP_ROWS, S_STRIDE)
    Element* p_mine = reinterpret_cast<Element*>(s_mine);                  // the same, where S was
    float* factors = s_tiles + BR * S_STRIDE + warp * WARP_ROWS;           // (WARP_ROWS)

    const int bh = blockIdx.x;
    // Last rows first: under causal they work longest, and the short ones fill the end.
    const int row0 = (gridDim.y - 1 - blockIdx.y) * BR;
    const int kv_head = heads == kv_heads ? bh : bh / (heads / kv_heads);
    // long long: the offset of a row, or of a head's bias, can pass 2^31.
    if (bias) bias += bh / heads * bias_batch + bh % heads * bias_head;  // (n, m), of this head
    q += ((long long)bh * n + row0) * d;  // (n - row0, d), from this block's first row on
    k += (long long)kv_head * m * d;      // (m, d)
    v += (long long)kv_head * m * d;      // (m, d)
    const bool vector = d % 8 == 0 && ((size_t)q | (size_t)k | (size_t)v | (size_t)out) % 16 == 0;

    start_element_copy<BR, D, STRIDE, THREADS>(q_tile, q, n - row0, d, vector);

    // In the softmax this lane has a row, or a part of it: PART keys of a tile from first_key on.
    // turn: without it rows 4 apart of S, and rows 8 apart of P, would meet in the same banks.
    const int my_row = lane % WARP_ROWS;
    const int first_key = lane / WARP_ROWS * PART;
    const int my_part = my_row * S_STRIDE + first_key;
    const int turn = (lane / 4 ^ lane / 8) & 1;
    const int row = row0 + warp * WARP_ROWS + my_row;
    const int last_key = causal ? min(m, row0 + BR + m - n) : m;  // no row of the block sees more
    const int visible = causal ? min(m, row + 1 + m - n) : m;     // keys that this lane's row sees

    int row_of[Sums::num_elements];
    rows_of_elements<S_STRIDE>(row_of, s_mine);

    Sums o[ROW_TILES][D / 16];  // the output so far, not yet divided by row_l
    float row_m = MINUS_INFINITY;  // of this lane's row, in log2: weights are exp2(s - row_m)
    float row_l = 0.0f;            // sum of the weights so far, over this lane's keys
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
        for (int c = 0; c < D / 16; ++c) {
            wmma::fill_fragment(o[i][c], 0.0f);
        }
    }

    start_element_copy<KEYS, D, STRIDE, THREADS>(k_tile, k, last_key, d, vector);
    for (int key0 = 0; key0 < last_key; key0 += KEYS) {
        copies_arrived<0>();  // Q and K are here
        __syncthreads();  // barrier: a fast warp would read what other threads' copies still write,
                          // and the next V tile overwrite the one that others still read
        start_element_copy<KEYS, D, STRIDE, THREADS>(v_tile, v + (long long)key0 * d,
                                                     last_key - key0, d, vector);

        store_scores<D, STRIDE, ROW_TILES, KEYS, S_STRIDE>(s_mine, q_mine, k_tile);
        __syncthreads();  // barrier: the next K tile would overwrite the one that others still
                          // read, and a fast lane read scores that are not stored yet
        const int next = key0 + KEYS;
        start_element_copy<KEYS, D, STRIDE, THREADS>(k_tile, k + (long long)next * d,
                                                     last_key - next, d, vector);

        float s[PART];  // scores of this lane's row, in log2
        load_row(s, s_mine + my_part, turn, scale * LOG2E);
        if (bias || key0 + KEYS > m || (causal && key0 + KEYS > row0 + m - n)) {
            const int key = key0 + first_key;
            const float* bias_row = bias && row < n ? bias + (long long)row * m + key : nullptr;
            mask_row(s, bias_row, turn, m - key, visible - key);
        }
        const float top = LANES > 1 ? warp_max<16, 16>(largest(s)) : largest(s);
        const float new_m = fmaxf(row_m, top);
        const float rescale = new_m == row_m ? 1.0f : exp2f(row_m - new_m);
        if (lane < WARP_ROWS) factors[my_row] = rescale;
        __syncwarp();  // barrier: weights would overwrite scores that other lanes still read
        // Before the first key new_m is -inf; shifting by it would give inf - inf = NaN.
        const float shift = new_m == MINUS_INFINITY ? 0.0f : new_m;
        row_l = row_l * rescale + store_weights(p_mine + my_part, s, turn, shift);
        row_m = new_m;
        if (__any_sync(0xffffffff, rescale != 1.0f)) rescale_rows(o, row_of, factors);
        copies_arrived<1>();  // V is here, the next K may still be on its way
        __syncthreads();  // barrier: a fast warp would read what other threads' copies still write,
                          // and a fast lane weights that are not stored yet
        add_values<KEYS, STRIDE, S_STRIDE>(o, p_mine, v_tile);
    }
    copies_arrived<0>();  // where there is no key to see, Q is still on its way

    if (LANES > 1) row_l = warp_sum<16, 16>(row_l);
    __syncwarp();  // barrier: a fast lane would overwrite factors and weights still to be read
    if (lane < WARP_ROWS) {
        factors[my_row] = row_l > 0.0f ? 1.0f / row_l : 0.0f;  // every key masked: zeros
        if (lse && row < n) lse[(long long)bh * n + row] = (row_m + log2f(row_l)) / LOG2E;
    }
    out += ((long long)bh * n + row - my_row) * d;  // (.., d), from this warp's first row on
#pragma unroll
    for (int first = 0; first < D; first += KEYS) {  // KEYS columns at once, where S was
        __syncwarp();  // barrier: a fast lane would overwrite columns that others still read
#pragma unroll
        for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
            for (int c = first / 16; c < min(D, first + KEYS) / 16; ++c) {
                wmma::store_matrix_sync(s_mine + 16 * i * S_STRIDE + 16 * c - first, o[i][c],
                                        S_STRIDE, wmma::mem_row_major);
            }
        }
        __syncwarp();  // barrier: a fast lane would read columns that are not stored yet
        for (int i = 4 * lane; i < WARP_ROWS * KEYS; i += 128) {
            const int r = i / KEYS;
            const int col = first + i % KEYS;
            if (row - my_row + r < n && col < d) {
                store4(out + (long long)r * d + col, load4(s_mine + r * S_STRIDE + i % KEYS),
                       factors[r], d - col, vector);
            }
        }
    }
}
