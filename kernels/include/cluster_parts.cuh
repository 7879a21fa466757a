// Idea:          The parts of a row are joined twice: of a block's warps where they are, then of
//                the cluster's blocks where the row is finished. So a block sends one part a row.
// Used by:       19_flash_split.cu, 29_split_tf32x3.cu
// Explained in:  15_clusters
#pragma once

#include "inbox.cuh"
#include "parts.cuh"

// Bytes that come to block `rank`: a part of each of its rows from every other block.
template <int rows, int own, int width>
__device__ __forceinline__ int part_bytes(int rank)
{
    return own_rows<rows, own>(rank) * (CLUSTER - 1) * (width + 4) * 4;
}

// Calls finish(row, col, o, top, total) for every four columns of the rows that this block owns:
// row r is row r % own of block r / own. The block has stored its parts, and the cluster started.
template <int width, int warps, int rows, int own, int stride, int threads, class Finish>
__device__ __forceinline__ void join_rows(const float* found,  // (warps, rows, stride), shared
                                          float* parts,        // (CLUSTER, own, stride), shared
                                          const Inbox& inbox,  // counts those of other blocks
                                          int rank, float log2, Finish finish)
{
    float top, total;
    for (int i = threadIdx.x; i < rows * (width / 4); i += threads) {
        const int r = i / (width / 4);
        const int col = i % (width / 4) * 4;
        const float4 o =
            join_parts<width, warps, rows * stride>(found + r * stride, col, top, total, log2);
        if (CLUSTER == 1) {
            finish(r, col, o, top, total);
            continue;
        }
        const Slot to = inbox.in(r / own, rank, parts + (rank * own + r % own) * stride);
        send4(to, col, o);
        if (col == 0) send4(to, width, make_float4(top, total, 0.0f, 0.0f));
    }
    if (CLUSTER == 1) return;
    __syncthreads();  // barrier: a fast warp would join parts that others still store
    inbox.wait(0);    // barrier: a fast block would join parts that are not here yet

    for (int i = threadIdx.x; i < own_rows<rows, own>(rank) * (width / 4); i += threads) {
        const int r = i / (width / 4);
        const int col = i % (width / 4) * 4;
        const float4 o =
            join_parts<width, CLUSTER, own * stride>(parts + r * stride, col, top, total, log2);
        finish(rank * own + r, col, o, top, total);
    }
}
