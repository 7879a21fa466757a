// Idea:          Products of tiles that the copy engine has written, boxes of 64 columns side by
//                side, step by step of 16 columns or rows; whoever waits ends the group.
// Used by:       25_backward_wgmma.cu
// Explained in:  16_hopper
#pragma once

#include "wgmma.cuh"

// c = a b^T over 64*boxes columns; a_box, b_box: bytes of a box of a and of b.
template <int boxes, int a_box, int b_box, int tiles>
__device__ __forceinline__ void start_scores(float (&c)[tiles][4], unsigned a, unsigned b)
{
    forget(c);
    registers_ready();
#pragma unroll
    for (int i = 0; i < 4 * boxes; ++i) {  // 16 columns are 32 bytes of a box
        multiply(c, describe(a, 0, i / 4 * a_box + i % 4 * 32),
                 describe(b, 0, i / 4 * b_box + i % 4 * 32), i > 0);
    }
    end_of_group();
}

// c = a b + (sum ? c : 0), with a of 16*steps columns in registers; b_box: bytes of a box of b.
template <int b_box, int steps, int tiles>
__device__ __forceinline__ void start_sum(float (&c)[tiles][4], const unsigned (&a)[steps][4],
                                          unsigned b, int sum)
{
    registers_ready();
#pragma unroll
    for (int i = 0; i < steps; ++i) {  // 16 rows are 2048 bytes
        multiply(c, a[i], describe(b, b_box, i * 2048), i > 0 || sum);
    }
    end_of_group();
}

// c = a^T b^T, with 64 rows of a in each a_step bytes and, of b, 64 columns in each box.
template <int parts, int a_step, int b_box, int tiles>
__device__ __forceinline__ void start_turned(float (&c)[tiles][4], unsigned a, unsigned b)
{
    forget(c);
    registers_ready();
#pragma unroll
    for (int i = 0; i < 4 * parts; ++i) {
        multiply_turned(c, describe(a, 0, i / 4 * a_step + i % 4 * 2048),
                        describe(b, 0, i / 4 * b_box + i % 4 * 32), i > 0);
    }
    end_of_group();
}
