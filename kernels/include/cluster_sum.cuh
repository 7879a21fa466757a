// Idea:          A sum over the warps of a cluster: each block adds up the parts of its warps and
//                sends the result to the block that owns the row, which adds up the results.
// Used by:       20_rows_split.cu
// Explained in:  15_clusters
#pragma once

#include "inbox.cuh"
#include "vector.cuh"

// Sends each row's sum over the block's warps to the block that owns the row; row r is row r % own
// of block r / own.
template <int warps, int rows, int own, int cols, int stride, int threads>
__device__ __forceinline__ void send_sums(const float* parts,  // (warps, rows, stride), shared
                                          float* sums,  // (blocks, own, stride), in each block
                                          const Inbox& inbox,  // counts those of other blocks
                                          int rank)     // of this block in the cluster
{
    for (int i = threadIdx.x; i < rows * cols / 4; i += threads) {
        const int r = i / (cols / 4);
        const int col = i % (cols / 4) * 4;
        float4 sum = load4(parts + r * stride + col);
#pragma unroll
        for (int w = 1; w < warps; ++w) {
            const float4 part = load4(parts + (w * rows + r) * stride + col);
            sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
        }
        send4(inbox.in(r / own, rank, sums + (rank * own + r % own) * stride), col, sum);
    }
}

// Adds up what the blocks have sent of one element.
template <int blocks, int distance>
__device__ __forceinline__ float sum_of(const float* first)  // block b at b*distance, shared
{
    float sum = 0.0f;
#pragma unroll
    for (int b = 0; b < blocks; ++b) {
        sum += first[b * distance];
    }
    return sum;
}
