// Idea:          Matrices of 16 x 16 elements in a warp's registers: fragments of the wmma API.
//                Which lane has which element is the hardware's choice.
// Used by:       13_flash_wmma.cu
// Explained in:  11_tensor_cores
#pragma once

#include <mma.h>

#include "element.cuh"

namespace wmma = nvcuda::wmma;

using Left = wmma::fragment<wmma::matrix_a, 16, 16, 16, Element, wmma::row_major>;
using Right = wmma::fragment<wmma::matrix_b, 16, 16, 16, Element, wmma::row_major>;
using Transposed = wmma::fragment<wmma::matrix_b, 16, 16, 16, Element, wmma::col_major>;
using Sums = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

// load_matrix(): 16 rows of a tile, stride apart; `from` in shared memory, 32-byte aligned.
#if BFLOAT16
// wmma::load_matrix_sync of bfloat16 becomes 4-byte loads from a generic address; with the address
// space in the instruction it becomes one ldmatrix, as that of float16 does.
#define LOAD_MATRIX(Matrix, operand)                                                             \
    __device__ __forceinline__ void load_matrix(Matrix& to, const Element* from, unsigned stride) \
    {                                                                                            \
        unsigned* x = reinterpret_cast<unsigned*>(to.x);                                         \
        asm volatile("wmma.load." operand ".m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"   \
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])                            \
                     : "r"((unsigned)__cvta_generic_to_shared(from)), "r"(stride) : "memory");   \
    }
LOAD_MATRIX(Left, "a.sync.aligned.row")
LOAD_MATRIX(Right, "b.sync.aligned.row")
LOAD_MATRIX(Transposed, "b.sync.aligned.col")
#undef LOAD_MATRIX
#else
template <class Matrix>
__device__ __forceinline__ void load_matrix(Matrix& to, const Element* from, unsigned stride)
{
    wmma::load_matrix_sync(to, from, stride);
}
#endif

// Stores the scores q k^T, not yet scaled: tiles x 16 rows by keys columns.
template <int width, int stride, int tiles, int keys, int s_stride>
__device__ __forceinline__ void store_scores(float* s,          // (16*tiles, s_stride), shared
                                             const Element* q,  // (16*tiles, stride), shared
                                             const Element* k)  // (keys, stride), shared
{
    Sums sums[tiles][keys / 16];
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
#pragma unroll
        for (int j = 0; j < keys / 16; ++j) {
            wmma::fill_fragment(sums[i][j], 0.0f);
        }
    }
#pragma unroll
    for (int c = 0; c < width; c += 16) {
        Left q16[tiles];  // each is used keys/16 times, each k16 `tiles` times
#pragma unroll
        for (int i = 0; i < tiles; ++i) {
            load_matrix(q16[i], q + 16 * i * stride + c, stride);
        }
#pragma unroll
        for (int j = 0; j < keys / 16; ++j) {
            Transposed k16;
            load_matrix(k16, k + 16 * j * stride + c, stride);
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
                wmma::mma_sync(sums[i][j], q16[i], k16, sums[i][j]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
#pragma unroll
        for (int j = 0; j < keys / 16; ++j) {
            wmma::store_matrix_sync(s + 16 * (i * s_stride + j), sums[i][j], s_stride,
                                    wmma::mem_row_major);
        }
    }
}

// Adds p v over keys to the outputs of tiles x 16 rows.
template <int keys, int stride, int p_stride, int tiles, int cols>
__device__ __forceinline__ void add_values(Sums (&o)[tiles][cols],
                                           const Element* p,  // (16*tiles, p_stride), shared
                                           const Element* v)  // (keys, stride), shared
{
#pragma unroll
    for (int j = 0; j < keys; j += 16) {
        Left p16[tiles];
#pragma unroll
        for (int i = 0; i < tiles; ++i) {
            load_matrix(p16[i], p + 16 * i * p_stride + j, p_stride);
        }
#pragma unroll
        for (int c = 0; c < cols; ++c) {
            Right v16;
            load_matrix(v16, v + j * stride + 16 * c, stride);
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
                wmma::mma_sync(o[i][c], p16[i], v16, o[i][c]);
            }
        }
    }
}

// Which row of a matrix of sums has element x of this lane: read off a matrix of row numbers.
template <int stride>
__device__ __forceinline__ void rows_of_elements(int (&rows)[Sums::num_elements],
                                                 float* place)  // (16, stride), shared
{
    for (int i = threadIdx.x % 32; i < 256; i += 32) {
        place[i / 16 * stride + i % 16] = (float)(i / 16);
    }
    __syncwarp();  // barrier: a fast lane would read numbers that are not stored yet
    Sums numbers;
    wmma::load_matrix_sync(numbers, place, stride, wmma::mem_row_major);
    __syncwarp();  // barrier: a fast lane would overwrite numbers that others still read
#pragma unroll
    for (int x = 0; x < Sums::num_elements; ++x) {
        rows[x] = (int)numbers.x[x];
    }
}

// Multiplies each row of the outputs by its factor.
template <int tiles, int cols>
__device__ __forceinline__ void rescale_rows(Sums (&o)[tiles][cols],
                                             const int (&rows)[Sums::num_elements],
                                             const float* factors)  // (16*tiles), shared
{
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
#pragma unroll
        for (int x = 0; x < Sums::num_elements; ++x) {
            const float factor = factors[16 * i + rows[x]];
#pragma unroll
            for (int c = 0; c < cols; ++c) {
                o[i][c].x[x] *= factor;
            }
        }
    }
}
