// Products in networks: a small perceptron, a split sum, experts, and additive attention.

#include <cuda_fp16.h>
#include <mma.h>

// A perceptron of layers that are 64 wide, without biases: v = relu(scale * v W) for each of weight
// (layers, 64, 64), x and y (n, 64), n a multiple of 64. A block takes 64 rows, a warp 16 of them.
extern "C" __global__ void __launch_bounds__(128) mlp_fused_wmma(
    const __half* __restrict__ x, const __half* __restrict__ weight, __half* __restrict__ y,
    int layers, float scale)
{
    using namespace nvcuda;
    __shared__ __align__(32) __half rows[64][72], matrix[64][72];
    __shared__ __align__(32) float sums[64][68];
    const int t = threadIdx.x, lane = t % 32, top = t / 32 * 16;
    const size_t start = (size_t)blockIdx.x * 64 * 64;
    for (int i = t; i < 512; i += 128)
        *(uint4*)&rows[i / 8][i % 8 * 8] = ((const uint4*)(x + start))[i];
    for (int layer = 0; layer < layers; ++layer) {
        __syncthreads();
        for (int i = t; i < 512; i += 128)
            *(uint4*)&matrix[i / 8][i % 8 * 8] = ((const uint4*)(weight + layer * 4096))[i];
        __syncthreads();
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) wmma::load_matrix_sync(a[k], &rows[top][k * 16], 72);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
            wmma::fill_fragment(sum, 0.0f);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b;
                wmma::load_matrix_sync(b, &matrix[k * 16][j * 16], 72);
                wmma::mma_sync(sum, a[k], b, sum);
            }
            wmma::store_matrix_sync(&sums[top][j * 16], sum, 68, wmma::mem_row_major);
        }
        __syncwarp();
        for (int r = 0; r < 16; ++r) {
            const float2 v = *(const float2*)&sums[top + r][2 * lane];
            *(__half2*)&rows[top + r][2 * lane] =
                __floats2half2_rn(fmaxf(scale * v.x, 0.0f), fmaxf(scale * v.y, 0.0f));
        }
    }
    __syncthreads();
    for (int i = t; i < 512; i += 128)
        ((uint4*)(y + start))[i] = *(const uint4*)&rows[i / 8][i % 8 * 8];
}

// c += a b with a long sum: a (m, k), b (k, n), c (m, n), m and n multiples of 64. Block z takes
// k / gridDim.z steps of the sum, a multiple of 16, of 64 x 64 results; a thread has 4 x 4.
extern "C" __global__ void __launch_bounds__(256) sgemm_split_k(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n,
    int k)
{
    __shared__ float left[16][65], right[16][64];
    const int t = threadIdx.x, x = t % 16, y = t / 16;
    const int top = blockIdx.y * 64, start = blockIdx.x * 64, part = k / gridDim.z;
    const int end = (blockIdx.z + 1) * part;
    float sum[4][4] = {};
    for (int at = blockIdx.z * part; at < end; at += 16) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            left[x][y + 16 * i] = a[(size_t)(top + y + 16 * i) * k + at + x];
            right[t / 64 + 4 * i][t % 64] = b[(size_t)(at + t / 64 + 4 * i) * n + start + t % 64];
        }
        __syncthreads();
#pragma unroll
        for (int s = 0; s < 16; ++s) {
            float u[4], v[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                u[i] = left[s][y + 16 * i];
                v[i] = right[s][x + 16 * i];
            }
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[i][j] += u[i] * v[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j)
            atomicAdd(&c[(size_t)(top + y + 16 * i) * n + start + x + 16 * j], sum[i][j]);
}

// Scores of additive attention: score[q, k] = sum over d of v[d] tanh(query[q, d] + key[k, d]):
// query (batch, queries, depth), key (batch, keys, depth), depth a multiple of 32. A block takes
// 16 x 16 scores of a batch.
extern "C" __global__ void additive_scores(
    const float* __restrict__ query, const float* __restrict__ key, const float* __restrict__ v,
    float* __restrict__ score, int queries, int keys, int depth)
{
    __shared__ float left[16][33], right[16][33], by[32];
    const int x = threadIdx.x, y = threadIdx.y, t = y * 16 + x;
    const int row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
    query += (size_t)blockIdx.z * queries * depth;
    key += (size_t)blockIdx.z * keys * depth;
    float sum = 0.0f;
    for (int at = 0; at < depth; at += 32) {
        for (int i = t; i < 512; i += 256) {
            const int q = min(blockIdx.y * 16 + i / 32, queries - 1);
            const int k = min(blockIdx.x * 16 + i / 32, keys - 1);
            left[i / 32][i % 32] = query[(size_t)q * depth + at + i % 32];
            right[i / 32][i % 32] = key[(size_t)k * depth + at + i % 32];
        }
        if (t < 32) by[t] = v[at + t];
        __syncthreads();
#pragma unroll 8
        for (int d = 0; d < 32; ++d) sum += by[d] * tanhf(left[y][d] + right[x][d]);
        __syncthreads();
    }
    if (row < queries && column < keys)
        score[((size_t)blockIdx.z * queries + row) * keys + column] = sum;
}

// A layer of a mixture of experts: y[row] = x[index[row]] weight[expert[row / 64]]: x (tokens, k),
// weight (experts, k, n), y (rows, n), n a multiple of 64, k of 32. A block of four warps takes 64
// rows of one expert and 64 columns, a warp 32 x 32.
extern "C" __global__ void __launch_bounds__(128) moe_gather_wmma(
    const __half* __restrict__ x, const int* __restrict__ index, const int* __restrict__ expert,
    const __half* __restrict__ weight, float* __restrict__ y, int k, int n)
{
    using namespace nvcuda;
    __shared__ __align__(32) __half left[64][40], right[32][72];
    __shared__ int token[64];
    const int t = threadIdx.x, warp = t / 32, row = warp / 2 * 32, column = warp % 2 * 32;
    const int top = blockIdx.y * 64, start = blockIdx.x * 64;
    if (t < 64) token[t] = index[top + t];
    weight += (size_t)expert[blockIdx.y] * k * n;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) wmma::fill_fragment(sum[i][j], 0.0f);
    for (int at = 0; at < k; at += 32) {
        __syncthreads();
        for (int i = t; i < 256; i += 128) {
            const int r = i / 4, s = i % 4 * 8, u = i / 8, v = i % 8 * 8;
            *(uint4*)&left[r][s] = *(const uint4*)(x + (size_t)token[r] * k + at + s);
            *(uint4*)&right[u][v] = *(const uint4*)(weight + (size_t)(at + u) * n + start + v);
        }
        __syncthreads();
#pragma unroll
        for (int part = 0; part < 32; part += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a[2];
            wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                wmma::load_matrix_sync(a[i], &left[row + i * 16][part], 40);
                wmma::load_matrix_sync(b[i], &right[part][column + i * 16], 72);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j) wmma::mma_sync(sum[i][j], a[i], b[j], sum[i][j]);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j)
            wmma::store_matrix_sync(
                y + (size_t)(top + row + i * 16) * n + start + column + j * 16, sum[i][j], n,
                wmma::mem_row_major);
}
