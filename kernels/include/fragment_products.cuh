// Idea:          Products of 16-bit matrices on the tensor cores, by where the factors are: rows of
//                swizzled tiles, columns of them, or a warp's own registers.
// Used by:       24_backward_mma.cu
// Explained in:  11_tensor_cores
#pragma once

#include "element.cuh"
#include "mma.cuh"
#include "swizzled_tile.cuh"

// A lane's offset for load_matrices() in a tile of rows of `stride` bytes: the second of its four
// matrices is of the next rows,
template <int stride>
__device__ __forceinline__ int rows_next()
{
    const int lane = threadIdx.x % 32;
    return swizzled<stride>(lane % 16, lane / 16);
}

// or of the next columns.
template <int stride>
__device__ __forceinline__ int columns_next()
{
    const int lane = threadIdx.x % 32;
    return swizzled<stride>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

// s += a b^T over `width` columns; a: 16*tiles rows, as rows_next(); b: 8*cols rows, as
// columns_next().
template <int width, int stride, int tiles, int cols>
__device__ __forceinline__ void add_rows_by_rows(float (&s)[tiles][cols][4], unsigned a, unsigned b)
{
#pragma unroll
    for (int c = 0; c < width / 16; ++c) {
        unsigned a16[tiles][4];  // 16 columns
#pragma unroll
        for (int i = 0; i < tiles; ++i) {
            load_matrices(a16[i], along_row(a, 2 * c) + i * 16 * stride);
        }
#pragma unroll
        for (int j = 0; j < cols / 2; ++j) {
            unsigned b16[4];  // 16 columns of 16 rows
            load_matrices(b16, along_row(b, 2 * c) + j * 16 * stride);
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
                mma16<BFLOAT16>(s[i][2 * j], a16[i], b16[0], b16[1]);
                mma16<BFLOAT16>(s[i][2 * j + 1], a16[i], b16[2], b16[3]);
            }
        }
    }
}

// sum += p c; p: 16*tiles rows of 16*count columns, in registers; c: 16*count rows, as rows_next().
template <int stride, int tiles, int count, int cols>
__device__ __forceinline__ void add_weighted(float (&sum)[tiles][cols][4],
                                             const unsigned (&p)[tiles][count][4], unsigned c)
{
#pragma unroll
    for (int j = 0; j < count; ++j) {
#pragma unroll
        for (int x = 0; x < cols / 2; ++x) {
            unsigned c16[4];  // 16 rows of 16 columns
            load_transposed(c16, along_row(c, 2 * x) + j * 16 * stride);
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
                mma16<BFLOAT16>(sum[i][2 * x], p[i][j], c16[0], c16[1]);
                mma16<BFLOAT16>(sum[i][2 * x + 1], p[i][j], c16[2], c16[3]);
            }
        }
    }
}

// sum += a^T b over `rows` rows. a: from 16-byte chunk a_chunk on, as columns_next() of rows of
// a_stride bytes; b: of every `step`-th 16 columns below `width`, from the 16 of number `first` on,
// as rows_next().
template <int rows, int a_stride, int stride, int width, int step, int tiles, int cols>
__device__ __forceinline__ void add_columns_by_columns(float (&sum)[tiles][cols][4], unsigned a,
                                                       int a_chunk, unsigned b, int first)
{
#pragma unroll 4  // all of 8 and more would take registers that other sums have
    for (int j = 0; j < rows / 16; ++j) {
        unsigned a16[tiles][4];  // 16 rows
#pragma unroll
        for (int i = 0; i < tiles; ++i) {
            load_transposed(a16[i], along_row(a, a_chunk + 2 * i) + j * 16 * a_stride);
        }
#pragma unroll
        for (int x = 0; x < cols / 2; ++x) {
            const int column = first + x * step;
            if (width / 16 % step && column >= width / 16) break;  // there are none left
            unsigned b16[4];  // 16 rows of 16 columns
            load_transposed(b16, along_row(b, 2 * column) + j * 16 * stride);
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
                mma16<BFLOAT16>(sum[i][2 * x], a16[i], b16[0], b16[1]);
                mma16<BFLOAT16>(sum[i][2 * x + 1], a16[i], b16[2], b16[3]);
            }
        }
    }
}
