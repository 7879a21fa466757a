// Idea:          A warp copies and reads keys of its own, 16 at a time: no other warp waits for it.
//                Of wide keys the copy engine takes a whole one for an instruction of a lane.
// Used by:       23_decode.cu, 34_decode_cluster.cu
// Explained in:  17_decoding
#pragma once

#include "async_copy.cuh"
#include "element.cuh"
#include "swizzled_tile.cuh"
#include "tma.cuh"

// Ends this thread's group of copies, which may be empty.
__device__ __forceinline__ void end_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Tiles of K and V, 16 keys each, that a warp fills and reads in turns. Lanes copy 16 bytes each,
// and swizzle; bulk: the copy engine copies whole keys, so that a pad follows each instead. Either
// way the 8 rows that ldmatrix reads have banks of their own.
template <int width, int stages, bool bulk>
struct WarpKeys {
    static constexpr int ROW = bulk ? 2 * width + 16 : (width + 63) / 64 * 128;  // bytes of a key
    static constexpr int TILE = 16 * ROW;
    static constexpr int BYTES = stages * 2 * TILE;

    unsigned char* tiles;  // (stages, 2, TILE), shared: K, V
    unsigned barriers;     // (stages), shared: the bytes of a stage have arrived
    int stride, d;         // elements from key to key, and of a key
    bool vector;           // keys are 16-byte aligned
    bool engine;           // the copy engine fills the tiles

    __device__ __forceinline__ WarpKeys(unsigned char* tiles, unsigned barriers, int stride, int d,
                                        bool vector)
        : tiles(tiles), barriers(barriers), stride(stride), d(d), vector(vector),
          engine(bulk && vector && d == width)
    {
        if (bulk && threadIdx.x % 32 == 0) {
            start_barriers<stages>(barriers, 1);
            barriers_started();
        }
        __syncwarp();  // lanes would use an mbarrier that is not there yet
    }

    // Bytes from a tile's first one to a chunk of 16 bytes, of a row.
    static __device__ __forceinline__ int place(int row, int chunk)
    {
        return bulk ? row * ROW + chunk * 16 : swizzled<ROW>(row, chunk);
    }

    // From a lane's address to the one `chunks` further in its row; as along_row().
    static __device__ __forceinline__ unsigned along(unsigned address, int chunks)
    {
        return bulk ? address + chunks * 16 : along_row(address, chunks);
    }

    // Where this warp's step 0, 1, 2, ... has its tiles.
    __device__ __forceinline__ unsigned char* stage(int step) const
    {
        return tiles + step % stages * 2 * TILE;
    }

    // Starts the copy of the first `left` of 16 keys at k and v; zeros follow.
    __device__ __forceinline__ void start(int step, const Element* k, const Element* v,
                                          int left) const
    {
        for (int x = 0; x < 2 && !engine; ++x) {
            copy(stage(step) + x * TILE, x ? v : k, left);
        }
        if (!engine) return;
        const int x = threadIdx.x % 32 / 16, row = threadIdx.x % 16;  // a key a lane
        const unsigned barrier = barriers + step % stages * 8;
        if (threadIdx.x % 32 == 0) arrive_and_expect(barrier, min(16, left) * 4 * width);
        unsigned char* to = stage(step) + x * TILE + row * ROW;
        if (row < left) {
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                         "[%0], [%1], %2, [%3];"
                         :: "r"(shared_address(to)), "l"((x ? v : k) + (long long)row * stride),
                            "r"(2 * width), "r"(barrier) : "memory");
        } else {
            for (int i = 0; i < width / 8; ++i) reinterpret_cast<uint4*>(to)[i] = uint4{};
            stores_visible();  // to the copy that comes here next
        }
    }

    // Waits for the tiles of a step, which the whole warp may read then; it is done with those of
    // the step before.
    __device__ __forceinline__ void wait(int step) const
    {
        if (engine) {
            wait_for(barriers + step % stages * 8, step / stages & 1);
        } else {
            copies_arrived<stages - 2>();  // this lane's; a group a step, which may be empty
        }
        __syncwarp();
    }

    // By lanes: 16 bytes at a time, or elements that are loaded and stored at once; zeros follow.
    __device__ __forceinline__ void copy(unsigned char* tile, const Element* from, int left) const
    {
        constexpr int LANES = width / 8;  // chunks of a key
        constexpr int STEP = 32 / LANES;  // keys at once
        constexpr bool even = 32 % LANES == 0;  // else a lane's chunks are not under each other
        const int lane = threadIdx.x % 32;
        const Element* src = from + (long long)(lane / LANES) * stride + lane % LANES * 8;
#pragma unroll(width > 128 ? 2 : 8)  // all of 16 would take registers that O and Q have
        for (int i = 0; i < width / 16; ++i, src += STEP * stride) {
            const int chunk = even ? lane % LANES : (i * 32 + lane) % LANES;
            const int row = even ? lane / LANES + i * STEP : (i * 32 + lane) / LANES;
            if (!even) src = from + (long long)row * stride + chunk * 8;
            unsigned char* to = tile + place(row, chunk);
            if (vector) {
                const int bytes = row < left && chunk * 8 < d ? 16 : 0;
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                             :: "r"(shared_address(to)), "l"(src), "r"(bytes) : "memory");
            } else {
#pragma unroll 1
                for (int e = 0; e < 8; ++e) {
                    const bool inside = row < left && chunk * 8 + e < d;
                    reinterpret_cast<Element*>(to)[e] = inside ? src[e] : Element{};
                }
            }
        }
    }
};

// The first two of `left` elements of a row; zeros past them. vector: 4-byte aligned, left even.
__device__ __forceinline__ unsigned load_pair(const Element* from, int left, bool vector)
{
    if (vector) return left > 0 ? *reinterpret_cast<const unsigned*>(from) : 0;
    return to_pair(left > 0 ? (float)from[0] : 0.0f, left > 1 ? (float)from[1] : 0.0f);
}
