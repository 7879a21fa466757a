// Idea:          One thread orders a whole box of a tensor; the copy engine computes the addresses,
//                swizzles, fills with zeros past the edges, and counts the bytes at an mbarrier.
// Used by:       18_flash_wgmma.cu, 33_flash_fp16x3.cu, include/tile_sums.cuh,
//                include/warp_keys.cuh
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

// After a thread's stores to shared memory, before the copy engine or wgmma reads what it stored.
__device__ __forceinline__ void stores_visible()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
