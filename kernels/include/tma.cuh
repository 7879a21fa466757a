// Idea:          One thread orders a whole box of a tensor; the copy engine computes the addresses,
//                swizzles, fills with zeros past the edges, and counts the bytes at an mbarrier.
// Used by:       18_flash_wgmma.cu, 25_backward_wgmma.cu
// Explained in:  16_hopper
#pragma once

#include "ring.cuh"

// Where a tensor is, its extents and strides, and the box that a copy moves; made on the host.
struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

// Fills the tile of a step of a ring, once it is free, with rows of matrix `head` of a tensor
// (heads, rows, columns) from `row` on. Boxes of 64 columns stand side by side: (boxes, rows, 128
// bytes). The tile is full when the copy engine is done.
template <int boxes, typename Ring>
__device__ __forceinline__ void fill_tile(const Ring& ring, int step, const TensorMap& from,
                                          int row, int head)
{
    ring.wait_free(step);
    arrive_and_expect(ring.full(step), Ring::TILE_BYTES);
#pragma unroll
    for (int i = 0; i < boxes; ++i) {
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3, %4}], [%5];"
                     :: "r"(ring.tile(step) + i * (Ring::TILE_BYTES / boxes)), "l"(&from),
                        "r"(64 * i), "r"(row), "r"(head), "r"(ring.full(step)) : "memory");
    }
}

// The same of the tile's bytes as they follow each other in global memory.
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

// Copies the tile of a step to such rows, and releases it when it has been read; elements past the
// tensor's edges are left out.
template <int boxes, typename Ring>
__device__ __forceinline__ void store_tile(const Ring& ring, int step, const TensorMap& to, int row,
                                           int head)
{
#pragma unroll
    for (int i = 0; i < boxes; ++i) {
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group "
                     "[%0, {%1, %2, %3}], [%4];"
                     :: "l"(&to), "r"(64 * i), "r"(row), "r"(head),
                        "r"(ring.tile(step) + i * (Ring::TILE_BYTES / boxes)) : "memory");
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    ring.release(step);
}

// Adds a tile of float32, boxes of 32 columns, to rows and columns of a tensor from (row, col) on,
// and releases it when it has been read; sums_done() waits until all is added.
template <int boxes, typename Ring>
__device__ __forceinline__ void add_tile(const Ring& ring, int step, const TensorMap& to, int row,
                                         int col, int head)
{
#pragma unroll
    for (int i = 0; i < boxes; ++i) {
        asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group "
                     "[%0, {%1, %2, %3}], [%4];"
                     :: "l"(&to), "r"(col + 32 * i), "r"(row), "r"(head),
                        "r"(ring.tile(step) + i * (Ring::TILE_BYTES / boxes)) : "memory");
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    ring.release(step);
}

__device__ __forceinline__ void sums_done()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// After a thread's stores to shared memory, before the copy engine or wgmma reads what it stored.
__device__ __forceinline__ void stores_visible()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// After a warp's stores to its part of the tile of a step, which the copy engine or wgmma reads.
template <typename Ring>
__device__ __forceinline__ void part_written(const Ring& ring, int step)
{
    stores_visible();
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(ring.full(step));
}
