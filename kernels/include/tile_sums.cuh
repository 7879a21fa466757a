// Idea:          Tiles that warps write and the copy engine takes: it adds them to sums in global
//                memory, where several blocks have a share. And lines, which are no boxes.
// Used by:       25_backward_wgmma.cu
// Explained in:  16_hopper
#pragma once

#include "tma.cuh"

// Where the tiles of a ring end.
template <int stages, int tile_bytes>
__device__ __forceinline__ unsigned end_of(const Ring<stages, tile_bytes>& ring)
{
    return ring.tiles + stages * tile_bytes;
}

// Starts a ring of whose tiles each of `writers` warps fills a part, and `readers` release it.
template <int stages, int tile_bytes>
__device__ __forceinline__ void start_parts(const Ring<stages, tile_bytes>& ring, int writers,
                                            int readers)
{
    start_barriers<stages>(ring.full(0), writers);
    start_barriers<stages>(ring.free(0), readers);
}

// After a warp's stores to its part of the tile of a step, which the copy engine or wgmma reads.
template <typename Ring>
__device__ __forceinline__ void part_written(const Ring& ring, int step)
{
    stores_visible();
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(ring.full(step));
}

// Fills the tile of a step, once it is free, with the bytes from an address on.
template <typename Ring>
__device__ __forceinline__ void fill_line(const Ring& ring, int step, const void* from)
{
    ring.wait_free(step);
    arrive_and_expect(ring.full(step), Ring::TILE_BYTES);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :: "r"(ring.tile(step)), "l"(from), "n"(Ring::TILE_BYTES), "r"(ring.full(step))
                 : "memory");
}

// Adds a tile of float32 to rows of a tensor from `row` on, and releases it when it has been read;
// sums_done() waits until all is added. The tile holds parts of `rows` rows and 64 columns, two
// boxes each, from the part of number `first` on: all `boxes` of the first rows, then of the next.
template <int parts, int boxes, int rows, typename Ring>
__device__ __forceinline__ void add_parts(const Ring& ring, int step, const TensorMap& to,
                                          int first, int row, int head)
{
#pragma unroll
    for (int i = 0; i < 2 * parts; ++i) {
        const int part = first + i / 2;
        asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group "
                     "[%0, {%1, %2, %3}], [%4];"
                     :: "l"(&to), "r"(part % boxes * 64 + i % 2 * 32),
                        "r"(row + part / boxes * rows), "r"(head),
                        "r"(ring.tile(step) + i * (Ring::TILE_BYTES / parts / 2)) : "memory");
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    ring.release(step);
}

__device__ __forceinline__ void sums_done()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
