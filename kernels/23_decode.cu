// Idea:          Few queries, a long cache: nearly all the time goes into reading K and V. The
//                query heads of one head of K and V are rows of one product, so each byte is read
//                once. Blocks take equal pieces of all keys; warps copy, and wait, for themselves.
// Changes from:  14_flash_mma.cu
// Shapes:        q (batch*heads, n, d), out like q; k and v (pages, kv_heads, page, d), or as the
//                strides say; bfloat16 or half; lengths null (m each) or int32 (batch); page_table
//                null (page b is sequence b) or int32 (batch, m/page); lse as in 14
// Launch:        decode: grid (.., ceil(heads/kv_heads*n / 16)) of at most BLOCKS blocks, block
//                (32*WARPS), dynamic shared 8*WARPS*STAGES*(4*ROW + 1) + 8 bytes,
//                ROW 128*ceil(D / 64), with BULK 2*D + 16
// Needs:         sm_80, with BULK sm_90; d <= D, a multiple of 16; BFLOAT16 1, or 0 for half; heads
//                a multiple of kv_heads; pages of 16*i keys; arrivals zeros, as it leaves them
// Expect:        the time that K and V take to read, where RESIDENT blocks a multiprocessor have
//                STAGES - 1 tiles a warp on their way, and FEWEST tiles or more to read
// Limits:        rows past 16 a head of K and V read it again; one block joins all parts of a head,
//                slowly where hundreds of blocks share it; weights are rounded to 16 bits

#ifndef BFLOAT16
#define BFLOAT16 1  // elements are 1: bfloat16, 0: half
#endif
#ifndef D
#define D 128  // columns of the head dim that a tile holds; those past d are zeros
#endif
#ifndef WARPS
#define WARPS 4  // each takes 16 keys of every tile
#endif
#ifndef STAGES
#define STAGES 3  // tiles in a warp's ring
#endif
#ifndef BULK
#define BULK 0  // 1: the copy engine copies keys of D columns
#endif
#ifndef RESIDENT
#define RESIDENT 2  // blocks a multiprocessor: one reads while another joins
#endif
#ifndef BLOCKS
#define BLOCKS 264  // of the grid, at most: as many as run at once
#endif
#ifndef FEWEST
#define FEWEST 1  // tiles a block, at least
#endif

#include "include/base2_parts.cuh"
#include "include/fragment_weights.cuh"
#include "include/last_block.cuh"
#include "include/mma.cuh"
#include "include/tile_line.cuh"
#include "include/warp_keys.cuh"

constexpr int TILE = 16 * WARPS;  // keys
constexpr int STRIDE = D + 8, PART = 16 * STRIDE;  // floats of a part's row; pad: other banks
using Keys = WarpKeys<D, STAGES, BULK>;
static_assert(D % 16 == 0 && D <= 256 && STAGES > 1, "16 columns a fragment; one tile on its way");

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT) decode(
    const Element* __restrict__ q,       // (batch*kv_heads, all_rows, d)
    const Element* __restrict__ k,       // (pages, kv_heads, page, d), or as the strides say
    const Element* __restrict__ v,       // (pages, kv_heads, page, d), as k
    const int* __restrict__ lengths,     // (batch), keys of each sequence, or null
    const int* __restrict__ page_table,  // (batch, m/page), or null
    Element* __restrict__ out,           // (batch*kv_heads, all_rows, d)
    float* __restrict__ lse,             // (batch*kv_heads, all_rows), or null
    float* parts,        // (blocks, 2, 16, STRIDE), of heads that several blocks share
    unsigned* arrivals,  // (blocks), zeros: parts written of the head that goes on past a block
    int batch, int heads, int kv_heads, int n, int m, int d,
    int page, int head_stride, int key_stride, float scale, int causal)
{
    extern __shared__ __align__(128) unsigned char rings[];  // (WARPS, Keys::BYTES)
    // No static memory: a debug build would begin rings, which are swizzled, at any 16 bytes.
    unsigned* word = reinterpret_cast<unsigned*>(rings + WARPS * Keys::BYTES);  // 2; mbarriers
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4;
    const bool vector =
        d % 8 == 0 && ((size_t)q | (size_t)k | (size_t)v | (size_t)out) % 16 == 0;
    unsigned char* ring = rings + warp * Keys::BYTES;
    const Keys keys(ring, shared_address(word + 2) + warp * STAGES * 8, key_stride, d, vector);
    const unsigned k_lane = Keys::place(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const unsigned v_lane = Keys::TILE + Keys::place(lane % 16, lane / 16);
    const bool plain = scale > 0.0f;  // else exp2 cannot take the scale with it
    const float factor = plain ? scale * LOG2E : LOG2E;

    const int all_rows = heads / kv_heads * n;  // of Q that share a head of K and V
    const int r0 = blockIdx.y * 16;             // this block's first one
    const int rows = min(16, all_rows - r0);
    parts += (long long)blockIdx.y * gridDim.x * 2 * PART;  // of the blocks with the same rows
    arrivals += blockIdx.y * gridDim.x;

    const TileLine<TILE> line = {lengths, batch, kv_heads, m};
    const int total = line.total(), blocks = max(1, BLOCKS / (int)gridDim.y);
    const int share = max(FEWEST, (total + blocks - 1) / blocks);
    int at = blockIdx.x * share, stop = min(total, at + share);
    if (at >= stop) return;
    Place place = line.find(at);
    int step = 0;  // tiles of earlier heads that this warp has read

    while (at < stop) {  // head after head, of the last one and the first one perhaps a piece
        const int b = place.b, tile = place.tile, tiles = line.tiles(b), length = line.length(b);
        const int first = at - tile;  // the head's first tile on the line
        const int count = min(stop, first + tiles) - at;
        // This warp's tiles: the last one of the head may end before its 16 keys.
        const int mine = min(count, (length - warp * 16 + TILE - 1) / TILE - tile);
        const long long row0 = ((long long)b * kv_heads + place.kv_head) * all_rows + r0;

        auto start = [&](int i) {  // the copy of this warp's tile i; past the last one none
            if (i < mine) {
                const int key = (tile + i) * TILE + warp * 16;
                const int from = page_table ? page_table[b * (m / page) + key / page] : b;
                const long long offset = (long long)from * kv_heads * page * d +
                                         (long long)place.kv_head * head_stride +
                                         (long long)(key % page) * key_stride;
                keys.start(step + i, k + offset, v + offset, length - key);
            }
            end_copies();
        };
        for (int i = 0; i < STAGES - 1; ++i) start(i);

        unsigned q16[D / 16][4];  // this lane's rows are r and r + 8
#pragma unroll
        for (int x = 0; x < D / 4; ++x) {
            const int row = r + x % 2 * 8, col = x / 4 * 16 + x % 4 / 2 * 8 + lane % 4 * 2;
            q16[x / 4][x % 4] =
                load_pair(q + (row0 + row) * d + col, row < rows ? d - col : 0, vector);
        }
        auto seen = [&](int row) { return causal ? length - n + 1 + (r0 + row) % n : length; };
        const int visible[2] = {seen(r), seen(r + 8)};  // keys
        float o[D / 8][4] = {};  // the output so far, not yet divided by sum
        float shift[2] = {LOWEST, LOWEST};
        float sum[2] = {};

        for (int i = 0; i < mine; ++i) {
            keys.wait(step + i);
            start(i + STAGES - 1);  // in the place of tile i - 1
            const unsigned stage = shared_address(keys.stage(step + i));

            float s[2][4] = {};  // scores of 16 rows and 16 keys
#pragma unroll
            for (int c = 0; c < D / 16; ++c) {
                unsigned k16[4];  // 16 columns of 16 keys
                load_matrices(k16, Keys::along(stage + k_lane, 2 * c));
                mma16<BFLOAT16>(s[0], q16[c], k16[0], k16[1]);
                mma16<BFLOAT16>(s[1], q16[c], k16[2], k16[3]);
            }
            const int key = (tile + i) * TILE + warp * 16 + lane % 4 * 2;
#pragma unroll
            for (int x = 0; x < 8; ++x) {
                float& score = s[x / 4][x % 4];
                if (!plain) score *= scale;
                if (key + x / 4 * 8 + x % 2 >= visible[x % 4 / 2]) score = MINUS_INFINITY;
            }
            float rescale[2];
            raise_rows(shift, sum, rescale, s, factor);
            if (__any_sync(0xffffffff, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
                for (int x = 0; x < D / 2; ++x) o[x / 4][x % 4] *= rescale[x % 4 / 2];
            }
            unsigned p16[1][4];
            take_exponentials(s, factor, shift, sum);
            pack(p16, s);
#pragma unroll
            for (int c = 0; c < D / 16; ++c) {
                unsigned v16[4];  // 16 keys of 16 columns
                load_transposed(v16, Keys::along(stage + v_lane, 2 * c));
                mma16<BFLOAT16>(o[2 * c], p16[0], v16[0], v16[1]);
                mma16<BFLOAT16>(o[2 * c + 1], p16[0], v16[2], v16[3]);
            }
        }
        step += max(0, mine);
        __syncwarp();  // the part takes the place of tiles that other lanes read
        store_fragments<D, STRIDE>(reinterpret_cast<float*>(ring), o, shift, sum);
        __syncthreads();  // barrier: a fast warp would join parts that are not stored yet

        // A block has at most two parts: of a head that it begins, and of one that it goes on with.
        const int sharer = first / share;  // the first block with tiles of the head
        const int sharers = (first + tiles - 1) / share - sharer + 1;
        auto part_of = [&](int p) { return parts + (2 * (sharer + p) + (p == 0)) * PART; };
        auto finish = [&](int row, int col, const Part4& part) {
            const float inverse = part.end.y > 0.0f ? 1.0f / part.end.y : 0.0f;  // no key: zeros
            const long long to = row0 + row;
            if (col < d) store4(out + to * d + col, part.o, inverse, d - col, vector);
            if (lse && col == 0) lse[to] = part.end.x * LN2 + logf(part.end.y);
        };
        for_chunks<D, 32 * WARPS>(rows, [&](int row, int col) {
            const Part4 part = join_base2<D>([&](int w) {
                return reinterpret_cast<float*>(rings + w * Keys::BYTES) + row * STRIDE;
            }, WARPS, col);
            if (sharers == 1) return finish(row, col, part);
            store_part4<D>(part_of(blockIdx.x - sharer) + row * STRIDE, col, part);
        });
        if (sharers > 1 && arrive_last(arrivals + sharer, sharers, word)) {
            for_chunks<D, 32 * WARPS>(rows, [&](int row, int col) {
                auto row_of = [&](int p) { return part_of(p) + row * STRIDE; };
                finish(row, col, join_base2<D>(row_of, sharers, col));
            });
        }
        if (BULK) stores_visible();
        __syncthreads();  // barrier: the next copies would overwrite parts that others still read

        at += count;
        place = place.kv_head + 1 < kv_heads ? Place{b, place.kv_head + 1, 0} : Place{b + 1, 0, 0};
    }
}
