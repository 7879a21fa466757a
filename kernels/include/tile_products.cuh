// Idea:          Products of tiles that the copy engine has written, boxes of 64 columns side by
//                side, by steps of 16 columns or rows; each is a group of products under way.
// Used by:       25_backward_wgmma.cu
// Explained in:  16_hopper
#pragma once

#include "wgmma.cuh"

// No value of these is needed any more. A product that does not add starts them anew; for the
// compiler it would read them, and they would keep their registers until then.
template <int tiles>
__device__ __forceinline__ void forget(float (&c)[tiles][4])
{
#pragma unroll
    for (int x = 0; x < 4 * tiles; ++x) asm volatile("" : "=f"(c[x / 4][x % 4]));
}

// What is `bytes` further on in a tile: only the low half of a descriptor has the address.
__device__ __forceinline__ unsigned long long moved(unsigned long long descriptor, int bytes)
{
    return descriptor >> 32 << 32 | ((unsigned)descriptor + (bytes >> 4));
}

// c = a b^T over 64*boxes columns; a_box, b_box: bytes of a box of a and of b.
template <int boxes, int a_box, int b_box, int tiles>
__device__ __forceinline__ void start_scores(float (&c)[tiles][4], unsigned a, unsigned b)
{
    const unsigned long long rows = describe(a, 0), columns = describe(b, 0);
    forget(c);
    registers_ready();
#pragma unroll
    for (int i = 0; i < 4 * boxes; ++i) {  // 16 columns are 32 bytes of a box
        multiply(c, moved(rows, i / 4 * a_box + i % 4 * 32),
                 moved(columns, i / 4 * b_box + i % 4 * 32), i > 0);
    }
    end_of_group();
}

// c = a b + (sum ? c : 0), with a of 16*steps columns in registers; b_box: bytes of a box of b.
template <int b_box, int steps, int tiles>
__device__ __forceinline__ void start_sum(float (&c)[tiles][4], const unsigned (&a)[steps][4],
                                          unsigned b, int sum)
{
    const unsigned long long columns = describe(b, b_box);
    registers_ready();
#pragma unroll
    for (int i = 0; i < steps; ++i) {  // 16 rows are 2048 bytes
        multiply(c, a[i], moved(columns, i * 2048), i > 0 || sum);
    }
    end_of_group();
}

// c = a^T b^T, where a has 64 rows in each a_step bytes and b 64 columns in each b_box.
template <int parts, int a_step, int b_box>
__device__ __forceinline__ void start_turned(float (&c)[8][4], unsigned a, unsigned b)
{
    const unsigned long long first_rows = describe(a, 0), first_columns = describe(b, 0);
    forget(c);
    registers_ready();
#pragma unroll
    for (int i = 0; i < 4 * parts; ++i) {
        const unsigned long long rows = moved(first_rows, i / 4 * a_step + i % 4 * 2048);
        const unsigned long long columns = moved(first_columns, i / 4 * b_box + i % 4 * 32);
        asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0;"
                     "wgmma.mma_async.sync.aligned.m64n64k16" WGMMA_TYPES
                     " {" LIST32 "}, %32, %33, p, 1, 1, 1, 0;}"
                     : C32(0) : "l"(rows), "l"(columns), "r"((int)(i > 0)));
    }
    end_of_group();
}
