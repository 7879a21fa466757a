// Idea:          Lanes of a warp exchange values by shuffles: log2 of their number steps, no shared
//                memory, no barrier. 05, 08 and 09 spell the butterfly over a whole warp out: it is
//                the idea of 05, and a stepper shows the lines of a kernel's own file.
// Used by:       10_flash_rows.cu, 21_backward_rows.cu, 26_layernorm_backward.cu,
//                include/fp16x3.cuh, include/online_softmax.cuh, include/row_columns.cuh
// Explained in:  06_softmax_and_reductions
#pragma once

// Every lane gets the maximum over the lanes that differ from it in the bits from low to high of
// their numbers: over the warp, or with <8, 2> over groups of 8 lanes.
template <int high = 16, int low = 1>
__device__ __forceinline__ float warp_max(float value)
{
    for (int offset = high; offset >= low; offset /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, offset));
    }
    return value;
}

// Every lane gets the sum over the same lanes.
template <int high = 16, int low = 1>
__device__ __forceinline__ float warp_sum(float value)
{
    for (int offset = high; offset >= low; offset /= 2) {
        value += __shfl_xor_sync(0xffffffff, value, offset);
    }
    return value;
}
