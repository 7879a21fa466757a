// Idea:          Tiles of 16-bit elements: cp.async copies 8 at once from 16-byte aligned rows. It
//                copies no less than 4 bytes, so elements of other rows are loaded one by one.
// Used by:       13_flash_wmma.cu
// Explained in:  10_asynchronous_copies
#pragma once

#include "element.cuh"

// Starts copying rows [0, rows) of a (.., d) matrix into a tile of `count` rows of width elements,
// stride apart; the rest of the tile becomes zero. Nothing has arrived until copies_arrived().
// vector: d is a multiple of 8, src 16-byte aligned.
template <int count, int width, int stride, int threads>
__device__ __forceinline__ void start_element_copy(Element* tile,       // (count, stride), shared
                                                   const Element* src,  // (rows, d)
                                                   int rows, int d, bool vector)
{
    static_assert(threads >= width / 8, "a row of a tile is copied at once");
    if (rows > 0 && vector) {
        constexpr int LANES = width / 8;       // threads a row
        constexpr int STEP = threads / LANES;  // rows the block copies at once
        const int col = threadIdx.x % LANES * 8;
        const int first = threadIdx.x / LANES;
        src += (long long)first * d + col;
        const unsigned to = (unsigned)__cvta_generic_to_shared(tile + first * stride + col);
        const int inside = first < STEP && col < d ? rows - first : 0;  // rows that there are
#pragma unroll
        for (int row = 0; row < count; row += STEP) {
            const int bytes = row < inside ? 16 : 0;
            if (first < STEP && row + first < count) {
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                             :: "r"(to + row * stride * 2), "l"(src), "r"(bytes) : "memory");
            }
            src += STEP * d;
        }
    } else if (rows > 0) {
        for (int i = threadIdx.x; i < count * width; i += threads) {
            const int row = i / width;
            const int col = i % width;
            const bool inside = row < rows && col < d;
            tile[row * stride + col] = inside ? src[(long long)row * d + col] : to_element(0.0f);
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");  // this thread's copies, one group a call
}
