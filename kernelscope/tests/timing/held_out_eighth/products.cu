// Products of matrices, and filters of tracks.

#include <cuda_fp16.h>
#include <mma.h>

// Shares times values of each head: share (heads, n, n), value (heads, n, 64) of halves, y (heads,
// n, 64), n a multiple of 64. A block of four warps takes 64 rows, a warp 16 of them.
extern "C" __global__ void __launch_bounds__(128) values_wmma(
    const __half* __restrict__ share, const __half* __restrict__ value, float* __restrict__ y,
    int n)
{
    using namespace nvcuda;
    __shared__ __align__(16) __half left[64][40];
    __shared__ __align__(16) __half right[32][72];
    const int t = threadIdx.x, warp = t / 32;
    share += ((size_t)blockIdx.y * n + blockIdx.x * 64) * n;
    value += (size_t)blockIdx.y * n * 64;
    y += ((size_t)blockIdx.y * n + blockIdx.x * 64 + warp * 16) * 64;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[4];
    for (int j = 0; j < 4; ++j) wmma::fill_fragment(sum[j], 0.0f);
    for (int k = 0; k < n; k += 32) {
        for (int i = t; i < 256; i += 128) {
            const int r = i / 4, s = i % 4 * 8, u = i / 8, v = i % 8 * 8;
            *(uint4*)&left[r][s] = *(const uint4*)&share[(size_t)r * n + k + s];
            *(uint4*)&right[u][v] = *(const uint4*)&value[(size_t)(k + u) * 64 + v];
        }
        __syncthreads();
        for (int p = 0; p < 32; p += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
            wmma::load_matrix_sync(a, &left[warp * 16][p], 40);
            for (int j = 0; j < 4; ++j) {
                wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b;
                wmma::load_matrix_sync(b, &right[p][j * 16], 72);
                wmma::mma_sync(sum[j], a, b, sum[j]);
            }
        }
        __syncthreads();
    }
    for (int j = 0; j < 4; ++j)
        wmma::store_matrix_sync(y + j * 16, sum[j], 64, wmma::mem_row_major);
}

// c = a b of halves, two columns at a time and summed as halves: a (m, k), b (k, n), m a multiple
// of 32, n of 64, k of 16. A block of 16 x 16 takes 32 x 64, a thread four pairs.
extern "C" __global__ void __launch_bounds__(256) hfma2_tile(
    const __half* __restrict__ a, const __half2* __restrict__ b, __half2* __restrict__ c, int n,
    int k)
{
    __shared__ __half2 left[32][17], right[16][32];
    const int tx = threadIdx.x, ty = threadIdx.y, t = ty * 16 + tx, pairs = n / 2;
    const int top = blockIdx.y * 32, side = blockIdx.x * 32;
    __half2 sum[2][2];
    for (int i = 0; i < 4; ++i) sum[i / 2][i % 2] = __float2half2_rn(0.0f);
    for (int at = 0; at < k; at += 16) {
        for (int i = t; i < 512; i += 256) {
            left[i / 16][i % 16] = __half2half2(a[(size_t)(top + i / 16) * k + at + i % 16]);
            right[i / 32][i % 32] = b[(size_t)(at + i / 32) * pairs + side + i % 32];
        }
        __syncthreads();
#pragma unroll
        for (int p = 0; p < 16; ++p)
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j)
                    sum[i][j] = __hfma2(left[ty + 16 * i][p], right[p][tx + 16 * j], sum[i][j]);
        __syncthreads();
    }
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j)
            c[(size_t)(top + ty + 16 * i) * pairs + side + tx + 16 * j] = sum[i][j];
}

// Products of rows of signs, 32 in a word: a (m, words), b (n, words), c (m, n), m and n multiples
// of 32, words of 16. A block of 16 x 16 takes 32 x 32, a thread four of them.
extern "C" __global__ void __launch_bounds__(256) xnor_tile(
    const unsigned* __restrict__ a, const unsigned* __restrict__ b, int* __restrict__ c, int n,
    int words)
{
    __shared__ unsigned left[32][17], right[32][17];
    const int tx = threadIdx.x, ty = threadIdx.y, t = ty * 16 + tx;
    const int top = blockIdx.y * 32, side = blockIdx.x * 32;
    int apart[2][2] = {};
    for (int at = 0; at < words; at += 16) {
        for (int i = t; i < 512; i += 256) {
            left[i / 16][i % 16] = a[(size_t)(top + i / 16) * words + at + i % 16];
            right[i / 16][i % 16] = b[(size_t)(side + i / 16) * words + at + i % 16];
        }
        __syncthreads();
#pragma unroll
        for (int p = 0; p < 16; ++p)
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j)
                    apart[i][j] += __popc(left[ty + 16 * i][p] ^ right[tx + 16 * j][p]);
        __syncthreads();
    }
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j)
            c[(size_t)(top + ty + 16 * i) * n + side + tx + 16 * j] = 32 * words - 2 * apart[i][j];
}

// A step of a Kalman filter for each of n tracks with the state x, y and their speeds: state (4,
// n), factor (10, n), the rows of the lower Cholesky factor of the covariance, seen (2, n). A
// thread takes a track; covariance (10, n) has the rows of the lower half.
extern "C" __global__ void kalman_double(
    const double* __restrict__ state, const double* __restrict__ factor,
    const double* __restrict__ seen, double* __restrict__ next, double* __restrict__ covariance,
    int n, float dt, float drift, float noise)
{
    const int track = blockIdx.x * blockDim.x + threadIdx.x;
    if (track >= n) return;
    double l[4][4], p[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            l[i][j] = j <= i ? factor[(size_t)(i * (i + 1) / 2 + j) * n + track] : 0.0;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) l[i][j] += dt * l[i + 2][j];  // the factor, moved on by dt
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            p[i][j] = i == j ? drift : 0.0;
#pragma unroll
            for (int q = 0; q < 4; ++q) p[i][j] += l[i][q] * l[j][q];
        }
    double s[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = state[(size_t)i * n + track];
    s[0] += dt * s[2];
    s[1] += dt * s[3];
    const double a = p[0][0] + noise, b = p[0][1], c = p[1][1] + noise, by = 1.0 / (a * c - b * b);
    const double off_x = seen[track] - s[0], off_y = seen[n + track] - s[1];
    double gain[4][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        gain[i][0] = by * (p[i][0] * c - p[i][1] * b);
        gain[i][1] = by * (p[i][1] * a - p[i][0] * b);
        next[(size_t)i * n + track] = s[i] + gain[i][0] * off_x + gain[i][1] * off_y;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j <= i; ++j)
            covariance[(size_t)(i * (i + 1) / 2 + j) * n + track] =
                p[i][j] - gain[i][0] * p[0][j] - gain[i][1] * p[1][j];
}
