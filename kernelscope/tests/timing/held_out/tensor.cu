#include <mma.h>
using namespace nvcuda;

// C (m, n) float32 = A (m, k) B (k, n), half, row-major: a warp 16 x 16, from global memory
extern "C" __global__ void hgemm_warp(
    const __half* a, const __half* b, float* c, int m, int n, int k)
{
    const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int row = 16 * (warp / (n / 16)), column = 16 * (warp % (n / 16));
    if (row >= m) return;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> right;
    wmma::fill_fragment(sum, 0.0f);
    for (int i = 0; i < k; i += 16) {
        wmma::load_matrix_sync(left, a + row * k + i, k);
        wmma::load_matrix_sync(right, b + i * n + column, n);
        wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(c + row * n + column, sum, n, wmma::mem_row_major);
}

// Tiles 64 x 64, 32 deep, in shared memory; four warps of 32 x 32.
extern "C" __global__ void __launch_bounds__(128) hgemm_tile(
    const __half* a, const __half* b, float* c, int m, int n, int k)
{
    __shared__ __align__(32) __half left[64][48], right[32][80];
    const int t = threadIdx.x, warp = t / 32, y = 32 * (warp / 2), x = 32 * (warp % 2);
    a += blockIdx.y * 64 * k;
    b += blockIdx.x * 64;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2][2];
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> u[2];
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> v[2];
    for (int r = 0; r < 2; ++r)
        for (int s = 0; s < 2; ++s) wmma::fill_fragment(sum[r][s], 0.0f);
    for (int i = 0; i < k; i += 32) {
        for (int p = t; p < 256; p += 128) {
            *(uint4*)&left[p / 4][8 * (p % 4)] = *(const uint4*)&a[(p / 4) * k + i + 8 * (p % 4)];
            *(uint4*)&right[p / 8][8 * (p % 8)] = *(const uint4*)&b[(i + p / 8) * n + 8 * (p % 8)];
        }
        __syncthreads();
        for (int j = 0; j < 32; j += 16) {
            for (int r = 0; r < 2; ++r) wmma::load_matrix_sync(u[r], &left[y + 16 * r][j], 48);
            for (int s = 0; s < 2; ++s) wmma::load_matrix_sync(v[s], &right[j][x + 16 * s], 80);
            for (int r = 0; r < 2; ++r)
                for (int s = 0; s < 2; ++s) wmma::mma_sync(sum[r][s], u[r], v[s], sum[r][s]);
        }
        __syncthreads();
    }
    for (int r = 0; r < 2; ++r)
        for (int s = 0; s < 2; ++s)
            wmma::store_matrix_sync(
                c + (blockIdx.y * 64 + y + 16 * r) * n + blockIdx.x * 64 + x + 16 * s, sum[r][s], n,
                wmma::mem_row_major);
}
