// Products: halves with a split k, attention as first taught, a 1 x 1 convolution, BLAS's GER.

#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

// c += a b, a (m, k) and b (k, n) of halves, c of floats. A block of four warps takes 64 x 64 of c
// and a part of k, a warp 32 x 32.
extern "C" __global__ void __launch_bounds__(128) hgemm_wmma_split_k(
    const __half* __restrict__ a, const __half* __restrict__ b, float* __restrict__ c, int n,
    int k)
{
    __shared__ __align__(32) __half left[64][40], right[32][72];
    __shared__ __align__(32) float own[4][16][20];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const int row = blockIdx.y * 64, column = blockIdx.x * 64;
    const int part = k / gridDim.z, first = blockIdx.z * part;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2][2];
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) wmma::fill_fragment(sum[i][j], 0.0f);
    for (int at = first; at < first + part; at += 32) {
#pragma unroll
        for (int i = t; i < 256; i += 128) {
            *(uint4*)&left[i / 4][i % 4 * 8] =
                *(const uint4*)&a[(size_t)(row + i / 4) * k + at + i % 4 * 8];
            *(uint4*)&right[i / 8][i % 8 * 8] =
                *(const uint4*)&b[(size_t)(at + i / 8) * n + column + i % 8 * 8];
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < 32; d += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> p[2];
            wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> q[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                wmma::load_matrix_sync(p[i], &left[warp / 2 * 32 + i * 16][d], 40);
                wmma::load_matrix_sync(q[i], &right[d][warp % 2 * 32 + i * 16], 72);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j) wmma::mma_sync(sum[i][j], p[i], q[j], sum[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            wmma::store_matrix_sync(&own[warp][0][0], sum[i][j], 20, wmma::mem_row_major);
            __syncwarp();
            const int y = row + warp / 2 * 32 + i * 16, x = column + warp % 2 * 32 + j * 16;
            for (int e = lane; e < 256; e += 32)
                atomicAdd(&c[(size_t)(y + e / 16) * n + x + e % 16], own[warp][e / 16][e % 16]);
            __syncwarp();
        }
}

// Attention of heads of 64 numbers, float, by tiles of 32 keys in shared memory: q, k, v and out
// (heads, tokens, 64). A block is one warp and takes 32 queries, a thread one of them.
extern "C" __global__ void __launch_bounds__(32) flash_minimal_forward(
    const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
    float* __restrict__ out, int tokens, float scale)
{
    __shared__ float4 key[32][16], value[32][16];
    __shared__ float score[32][33];
    const int t = threadIdx.x;
    const size_t head = (size_t)blockIdx.y * tokens, own = head + blockIdx.x * 32 + t;
    float4 query[16], sum[16];
#pragma unroll
    for (int d = 0; d < 16; ++d) {
        query[d] = ((const float4*)q)[own * 16 + d];
        sum[d] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    float most = -1e30f, total = 0.0f;
    for (int first = 0; first < tokens; first += 32) {
        for (int i = t; i < 512; i += 32) {
            (&key[0][0])[i] = ((const float4*)k)[(head + first) * 16 + i];
            (&value[0][0])[i] = ((const float4*)v)[(head + first) * 16 + i];
        }
        __syncthreads();
        float new_most = most;
        for (int j = 0; j < 32; ++j) {
            float dot = 0.0f;
#pragma unroll
            for (int d = 0; d < 16; ++d) {
                const float4 w = key[j][d];
                dot += query[d].x * w.x + query[d].y * w.y + query[d].z * w.z + query[d].w * w.w;
            }
            score[t][j] = dot *= scale;
            new_most = fmaxf(new_most, dot);
        }
        const float old = __expf(most - new_most);
        total *= old;
#pragma unroll
        for (int d = 0; d < 16; ++d) {
            sum[d].x *= old;
            sum[d].y *= old;
            sum[d].z *= old;
            sum[d].w *= old;
        }
        for (int j = 0; j < 32; ++j) {
            const float p = __expf(score[t][j] - new_most);
            total += p;
#pragma unroll
            for (int d = 0; d < 16; ++d) {
                const float4 w = value[j][d];
                sum[d].x += p * w.x;
                sum[d].y += p * w.y;
                sum[d].z += p * w.z;
                sum[d].w += p * w.w;
            }
        }
        most = new_most;
        __syncthreads();
    }
    const float over = 1.0f / total;
#pragma unroll
    for (int d = 0; d < 16; ++d)
        ((float4*)out)[own * 16 + d] =
            make_float4(sum[d].x * over, sum[d].y * over, sum[d].z * over, sum[d].w * over);
}

// A convolution of 1 x 1 with a bias: x (batch, from, pixels), weight (to, from), y (batch, to,
// pixels). A block of 256 takes 64 channels of 64 pixels, a thread 4 x 4.
extern "C" __global__ void __launch_bounds__(256) conv_1x1_nchw(
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ y, int from, int pixels)
{
    __shared__ float by[16][68], seen[16][64];
    const int t = threadIdx.x, pixel = blockIdx.x * 64, channel = blockIdx.y * 64;
    const int tx = t % 16, ty = t / 16;
    x += (size_t)blockIdx.z * from * pixels + pixel;
    y += ((size_t)blockIdx.z * gridDim.y * 64 + channel) * pixels + pixel;
    float sum[4][4] = {};
    for (int at = 0; at < from; at += 16) {
        for (int i = t; i < 1024; i += 256) {
            by[i % 16][i / 16] = weight[(size_t)(channel + i / 16) * from + at + i % 16];
            seen[i / 64][i % 64] = x[(size_t)(at + i / 64) * pixels + i % 64];
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < 16; ++d) {
            const float4 w = *(const float4*)&by[d][ty * 4], v = *(const float4*)&seen[d][tx * 4];
            const float ws[4] = {w.x, w.y, w.z, w.w}, vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[i][j] += ws[i] * vs[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float b = bias[channel + ty * 4 + i];
        *(float4*)&y[(size_t)(ty * 4 + i) * pixels + tx * 4] =
            make_float4(sum[i][0] + b, sum[i][1] + b, sum[i][2] + b, sum[i][3] + b);
    }
}

// a += alpha x y^T, a (m, 2 pairs) of doubles. A thread takes two numbers of a row.
extern "C" __global__ void dger_rank_1(
    double2* __restrict__ a, const double* __restrict__ x, const double2* __restrict__ y, int m,
    int pairs, float alpha)
{
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m || column >= pairs) return;
    const double by = alpha * x[row];
    const double2 v = y[column];
    double2 old = a[(size_t)row * pairs + column];
    old.x += by * v.x;
    old.y += by * v.y;
    a[(size_t)row * pairs + column] = old;
}
