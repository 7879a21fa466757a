// Products: tensor cores in TF32, a Gram matrix, an adapter of low rank, a convolution of volumes.

#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

// C = A B in TF32. A block of four warps takes 64 x 64 of C in steps of 32, and a warp 32 x 32.
extern "C" __global__ void __launch_bounds__(128) gemm_tf32_wmma(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n, int k)
{
    __shared__ __align__(32) float left[64][40], right[32][72];
    const int t = threadIdx.x, warp = t / 32;
    const int top = blockIdx.y * 64, side = blockIdx.x * 64;
    const int row = warp / 2 * 32, column = warp % 2 * 32;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> sum[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) wmma::fill_fragment(sum[i / 2][i % 2], 0.0f);
    for (int step = 0; step < k; step += 32) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int p = t + i * 128;
            const float4 v =
                *reinterpret_cast<const float4*>(a + (size_t)(top + p / 8) * k + step + p % 8 * 4);
            const float4 w = *reinterpret_cast<const float4*>(
                b + (size_t)(step + p / 16) * n + side + p % 16 * 4);
            *reinterpret_cast<float4*>(&left[p / 8][p % 8 * 4]) = v;
            *reinterpret_cast<float4*>(&right[p / 16][p % 16 * 4]) = w;
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < 32; d += 8) {
            wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> x[2];
            wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> y[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                wmma::load_matrix_sync(x[i], &left[row + i * 16][d], 40);
                wmma::load_matrix_sync(y[i], &right[d][column + i * 16], 72);
#pragma unroll
                for (int e = 0; e < x[i].num_elements; ++e)
                    x[i].x[e] = wmma::__float_to_tf32(x[i].x[e]);
#pragma unroll
                for (int e = 0; e < y[i].num_elements; ++e)
                    y[i].x[e] = wmma::__float_to_tf32(y[i].x[e]);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i)
                wmma::mma_sync(sum[i / 2][i % 2], x[i / 2], y[i % 2], sum[i / 2][i % 2]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float* to = c + (size_t)(top + row + i / 2 * 16) * n + side + column + i % 2 * 16;
        wmma::store_matrix_sync(to, sum[i / 2][i % 2], n, wmma::mem_row_major);
    }
}

// Adds the Gram matrix of 32 columns of many rows. A block strides over tiles of 64 rows in shared
// memory; a thread adds to four elements of the 32 x 32.
extern "C" __global__ void __launch_bounds__(256) gram_32_columns(
    const float4* __restrict__ x, float* __restrict__ gram, int rows)
{
    __shared__ float4 tile[64][8];
    const int t = threadIdx.x, i = t & 31, j = t / 32;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int start = blockIdx.x * 64; start < rows; start += gridDim.x * 64) {
        __syncthreads();
#pragma unroll
        for (int p = t; p < 512; p += 256)
            tile[p / 8][p % 8] = start + p / 8 < rows ? x[(size_t)start * 8 + p]
                                                      : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        __syncthreads();
#pragma unroll 8
        for (int r = 0; r < 64; ++r) {
            const float own = reinterpret_cast<const float*>(tile[r])[i];
            const float4 other = tile[r][j];
            sum.x += own * other.x;
            sum.y += own * other.y;
            sum.z += own * other.z;
            sum.w += own * other.w;
        }
    }
    float* to = gram + j * 4 * 32 + i;
    atomicAdd(to, sum.x);
    atomicAdd(to + 32, sum.y);
    atomicAdd(to + 64, sum.z);
    atomicAdd(to + 96, sum.w);
}

// out = y + scale * (x A^T) B^T with an adapter of rank 16, half precision. A block takes eight
// tokens: a warp makes the 16 products of its token, then the threads go over the columns.
extern "C" __global__ void __launch_bounds__(256) lora_rank_16_half(
    const __half* __restrict__ x, const __half* __restrict__ a, const __half* __restrict__ b,
    const __half* __restrict__ y, __half* __restrict__ out, int k, int n, float scale)
{
    __shared__ float middle[8][16];
    const int t = threadIdx.x, warp = t / 32, lane = t & 31, first = blockIdx.x * 8;
    float sum[16];
#pragma unroll
    for (int r = 0; r < 16; ++r) sum[r] = 0.0f;
    for (int i = lane * 8; i < k; i += 256) {
        const uint4 v = *reinterpret_cast<const uint4*>(x + (size_t)(first + warp) * k + i);
        const __half2* p = reinterpret_cast<const __half2*>(&v);
        float2 own[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) own[j] = __half22float2(p[j]);
#pragma unroll
        for (int r = 0; r < 16; ++r) {
            const uint4 w = *reinterpret_cast<const uint4*>(a + (size_t)r * k + i);
            const __half2* q = reinterpret_cast<const __half2*>(&w);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float2 other = __half22float2(q[j]);
                sum[r] += own[j].x * other.x + own[j].y * other.y;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 16; ++r) {
#pragma unroll
        for (int step = 16; step; step /= 2) sum[r] += __shfl_xor_sync(~0u, sum[r], step);
        if (lane == 0) middle[warp][r] = sum[r] * scale;
    }
    __syncthreads();
    for (int column = t; column < n; column += 256) {
        float weight[16];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const uint4 w = *reinterpret_cast<const uint4*>(b + (size_t)column * 16 + h * 8);
            const __half2* q = reinterpret_cast<const __half2*>(&w);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float2 f = __half22float2(q[j]);
                weight[h * 8 + 2 * j] = f.x;
                weight[h * 8 + 2 * j + 1] = f.y;
            }
        }
#pragma unroll
        for (int token = 0; token < 8; ++token) {
            const size_t at = (size_t)(first + token) * n + column;
            float value = __half2float(y[at]);
#pragma unroll
            for (int r = 0; r < 16; ++r) value += middle[token][r] * weight[r];
            out[at] = __float2half(value);
        }
    }
}

// A convolution of volumes by 3 x 3 x 3 with zeros around. A block takes 8 x 8 x 4 voxels of four
// channels; for each channel before, a tile with its border is in shared memory.
extern "C" __global__ void __launch_bounds__(256) conv_3x3x3_volumes(
    const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out,
    int before, int after, int side)
{
    __shared__ float tile[6][10][10], part[4][27];
    const int t = (threadIdx.z * 8 + threadIdx.y) * 8 + threadIdx.x, tiles = side / 8;
    const int left = blockIdx.x % tiles * 8, top = blockIdx.x / tiles * 8, front = blockIdx.y * 4;
    const int volume = blockIdx.z / (after / 4), channel = blockIdx.z % (after / 4) * 4;
    const size_t voxels = (size_t)side * side * side;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int from = 0; from < before; ++from) {
        const float* plane = x + (volume * before + from) * voxels;
        __syncthreads();
        for (int i = t; i < 600; i += 256) {
            const int c = left + i % 10 - 1, r = top + i / 10 % 10 - 1, d = front + i / 100 - 1;
            const bool in = c >= 0 && c < side && r >= 0 && r < side && d >= 0 && d < side;
            tile[i / 100][i / 10 % 10][i % 10] =
                in ? plane[((size_t)d * side + r) * side + c] : 0.0f;
        }
        if (t < 108)
            part[t / 27][t % 27] = weight[((channel + t / 27) * before + from) * 27 + t % 27];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 27; ++i) {
            const float v = tile[threadIdx.z + i / 9][threadIdx.y + i / 3 % 3][threadIdx.x + i % 3];
#pragma unroll
            for (int o = 0; o < 4; ++o) sum[o] += v * part[o][i];
        }
    }
    const size_t at = ((size_t)(front + threadIdx.z) * side + top + threadIdx.y) * side + left;
#pragma unroll
    for (int o = 0; o < 4; ++o)
        out[(volume * after + channel + o) * voxels + at + threadIdx.x] = sum[o];
}
