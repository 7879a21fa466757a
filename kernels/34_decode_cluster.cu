// Idea:          A short cache is read in two microseconds, and joining the parts through global
//                memory took as long. Here a cluster shares the keys of a head, and its blocks join
//                their parts in shared memory: each of them finishes some of the rows.
// Changes from:  23_decode.cu
// Shapes:        as 23
// Launch:        decode_cluster: grid (batch*kv_heads*CLUSTER, ceil(heads/kv_heads*n / 16)), block
//                (32*WARPS), dynamic shared WARPS*STAGES*(32*ROW + 8) + 64*(D + 8) + 8 bytes,
//                ROW 128*ceil(D / 64), with BULK 2*D + 16
// Needs:         sm_90, with CLUSTER 1 sm_80; d <= D, a multiple of 16; BFLOAT16 1, or 0 for half;
//                heads a multiple of kv_heads; pages of 16*i keys
// Expect:        one journey of the parts through the cluster, where 23 writes them to L2, counts
//                blocks there and reads them back
// Limits:        CLUSTER blocks a head: few heads leave multiprocessors idle, and of many or of
//                unequal ones the last clusters start late; weights are rounded to 16 bits

#ifndef BFLOAT16
#define BFLOAT16 1  // elements are 1: bfloat16, 0: half
#endif
#ifndef D
#define D 128  // columns of the head dim that a tile holds; those past d are zeros
#endif
#ifndef WARPS
#define WARPS 8  // each takes 16 keys of every tile
#endif
#ifndef STAGES
#define STAGES 2  // tiles in a warp's ring
#endif
#ifndef BULK
#define BULK 0  // 1: the copy engine copies keys of D columns
#endif
#ifndef CLUSTER
#define CLUSTER 8  // blocks that share the keys of a head
#endif

#include "include/base2_parts.cuh"
#include "include/fragment_weights.cuh"
#include "include/inbox.cuh"
#include "include/mma.cuh"
#include "include/warp_keys.cuh"

constexpr int TILE = 16 * WARPS;    // keys
constexpr int STRIDE = D + 8;       // floats of a part's row; pad: other banks
constexpr int OWN = 16 / CLUSTER;   // rows that a block finishes: its rank, + CLUSTER, ...
constexpr int SENT = 4 * (D + 4);   // bytes of a part's row that go to another block
using Keys = WarpKeys<D, STAGES, BULK>;
static_assert(D % 16 == 0 && D <= 256 && STAGES > 1, "16 columns a fragment; one tile on its way");

extern "C" __global__ void CLUSTERED __launch_bounds__(32 * WARPS, 1) decode_cluster(
    const Element* __restrict__ q,       // (batch*kv_heads, all_rows, d)
    const Element* __restrict__ k,       // (pages, kv_heads, page, d), or as the strides say
    const Element* __restrict__ v,       // (pages, kv_heads, page, d), as k
    const int* __restrict__ lengths,     // (batch), keys of each sequence, or null
    const int* __restrict__ page_table,  // (batch, m/page), or null
    Element* __restrict__ out,           // (batch*kv_heads, all_rows, d)
    float* __restrict__ lse,             // (batch*kv_heads, all_rows), or null
    int heads, int kv_heads, int n, int m, int d,
    int page, int head_stride, int key_stride, float scale, int causal)
{
    extern __shared__ __align__(128) unsigned char rings[];  // (WARPS, Keys::BYTES)
    // No static memory: a debug build would begin rings, which are swizzled, at any 16 bytes.
    float* parts = reinterpret_cast<float*>(rings + WARPS * Keys::BYTES);  // (CLUSTER, OWN, STRIDE)
    Inbox& inbox = *reinterpret_cast<Inbox*>(parts + 16 * STRIDE);         // 1; mbarriers
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4;
    const bool vector =
        d % 8 == 0 && ((size_t)q | (size_t)k | (size_t)v | (size_t)out) % 16 == 0;
    unsigned char* ring = rings + warp * Keys::BYTES;
    const Keys keys(ring, shared_address(&inbox + 1) + warp * STAGES * 8, key_stride, d, vector);
    const unsigned k_lane = Keys::place(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const unsigned v_lane = Keys::TILE + Keys::place(lane % 16, lane / 16);
    const bool plain = scale > 0.0f;  // else exp2 cannot take the scale with it
    const float factor = plain ? scale * LOG2E : LOG2E;

    const int all_rows = heads / kv_heads * n;  // of Q that share a head of K and V
    const int r0 = blockIdx.y * 16;             // this block's first one
    const int rows = min(16, all_rows - r0);
    const int rank = blockIdx.x % CLUSTER;
    inbox.open(max(0, (rows - rank + CLUSTER - 1) / CLUSTER) * (CLUSTER - 1) * SENT);
    cluster_started();

    const int head = blockIdx.x / CLUSTER, b = head / kv_heads;
    const long long row0 = (long long)head * all_rows + r0;
    const int length = lengths ? lengths[b] : m;
    const int tiles = (length + TILE - 1) / TILE;
    const int share = (tiles + CLUSTER - 1) / CLUSTER, tile = rank * share;  // this block's first
    // This warp's tiles: the last one of the head may end before its 16 keys.
    const int mine = min(share, (length - warp * 16 + TILE - 1) / TILE - tile);

    auto start = [&](int i) {  // the copy of this warp's tile i; past the last one none
        if (i < mine) {
            const int key = (tile + i) * TILE + warp * 16;
            const int from = page_table ? page_table[b * (m / page) + key / page] : b;
            const long long offset = (long long)from * kv_heads * page * d +
                                     (long long)(head % kv_heads) * head_stride +
                                     (long long)(key % page) * key_stride;
            keys.start(i, k + offset, v + offset, length - key);
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
        keys.wait(i);
        start(i + STAGES - 1);  // in the place of tile i - 1
        const unsigned stage = shared_address(keys.stage(i));

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
    __syncwarp();  // the part takes the place of tiles that other lanes read
    store_fragments<D, STRIDE>(reinterpret_cast<float*>(ring), o, shift, sum);
    cluster_wait();   // barrier: the other blocks' shared memory may not exist yet
    __syncthreads();  // barrier: a fast warp would join parts that are not stored yet

    for_chunks<D, 32 * WARPS>(rows, [&](int row, int col) {
        const Part4 part = join_base2<D>([&](int w) {
            return reinterpret_cast<float*>(rings + w * Keys::BYTES) + row * STRIDE;
        }, WARPS, col);
        const float* mine = parts + (rank * OWN + row / CLUSTER) * STRIDE;
        const Slot to = inbox.in(row % CLUSTER, rank, mine);
        send4(to, col, part.o);
        if (col == 0) send4(to, D, make_float4(part.end.x, part.end.y, 0.0f, 0.0f));
    });
    __syncthreads();  // barrier: a fast warp would join parts that others still store
    inbox.wait(0);    // barrier: a fast block would join parts that are not here yet

    for_chunks<D, 32 * WARPS>(OWN, [&](int own, int col) {
        const int row = own * CLUSTER + rank;
        if (row >= rows) return;
        const Part4 part = join_base2<D>([&](int block) {
            return parts + (block * OWN + own) * STRIDE;
        }, CLUSTER, col);
        const float inverse = part.end.y > 0.0f ? 1.0f / part.end.y : 0.0f;  // no key: zeros
        const long long to = row0 + row;
        if (col < d) store4(out + to * d + col, part.o, inverse, d - col, vector);
        if (lse && col == 0) lse[to] = part.end.x * LN2 + logf(part.end.y);
    });
}
