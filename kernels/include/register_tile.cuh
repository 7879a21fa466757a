// Idea:          A thread has rows x keys scores and rows x 4*cols outputs in registers, so it uses
//                each float4 that it reads from shared memory several times.
// Used by:       11_flash_fp32.cu, 12_flash_async.cu, 19_flash_split.cu, 20_rows_split.cu
// Explained in:  09_flash_attention
#pragma once

#include "vector.cuh"

// Adds q k^T over width columns to the scores of this thread's rows and keys: rows are 4, keys 8
// rows of a tile apart.
template <int width, int stride, int rows, int keys>
__device__ __forceinline__ void scores(float (&s)[rows][keys],
                                       const float* q_mine,  // row i at 4*i*stride, shared
                                       const float* k_mine)  // key j at 8*j*stride, shared
{
#pragma unroll 4
    for (int c = 0; c < width; c += 4) {
        float4 q4[rows];  // each is used `keys` times, each k4 `rows` times
#pragma unroll
        for (int i = 0; i < rows; ++i) {
            q4[i] = load4(q_mine + 4 * i * stride + c);
        }
#pragma unroll
        for (int j = 0; j < keys; ++j) {
            const float4 k4 = load4(k_mine + 8 * j * stride + c);
#pragma unroll
            for (int i = 0; i < rows; ++i) {
                s[i][j] += q4[i].x * k4.x;
                s[i][j] += q4[i].y * k4.y;
                s[i][j] += q4[i].z * k4.z;
                s[i][j] += q4[i].w * k4.w;
            }
        }
    }
}

// Adds p v over count keys to the outputs of this thread's rows and columns.
template <int count, int stride, int p_stride, int rows, int cols>
__device__ __forceinline__ void add_values(float (&o)[rows][cols][4],
                                           const float* p_mine,  // row i at 4*i*p_stride, shared
                                           const float* v_mine)  // key j at j*stride, shared
{
#pragma unroll 2
    for (int j = 0; j < count; j += 4) {
        float4 p4[rows];  // weights of keys j to j + 3
#pragma unroll
        for (int i = 0; i < rows; ++i) {
            p4[i] = load4(p_mine + 4 * i * p_stride + j);
        }
#pragma unroll
        for (int y = 0; y < 4; ++y) {
#pragma unroll
            for (int c = 0; c < cols; ++c) {
                const float4 v4 = load4(v_mine + (j + y) * stride + 32 * c);
                // Down the rows and up again: neighbours share v4's element, or at the turn the
                // weight, and so ask the register file for one value less.
#pragma unroll
                for (int i = 0; i < rows; ++i) o[i][c][0] += element(p4[i], y) * v4.x;
#pragma unroll
                for (int i = rows - 1; i >= 0; --i) o[i][c][1] += element(p4[i], y) * v4.y;
#pragma unroll
                for (int i = 0; i < rows; ++i) o[i][c][2] += element(p4[i], y) * v4.z;
#pragma unroll
                for (int i = rows - 1; i >= 0; --i) o[i][c][3] += element(p4[i], y) * v4.w;
            }
        }
    }
}
