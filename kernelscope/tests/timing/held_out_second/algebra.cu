// Sparse and dense products.

#include <mma.h>

// Rows first[r] to first[r + 1] of value and column: a warp takes a row.
extern "C" __global__ void spmv_csr(
    const int* first, const int* column, const float* value, const float* x, float* y, int rows)
{
    const int r = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (r >= rows) return;
    float sum = 0.0f;
    for (int j = first[r] + lane; j < first[r + 1]; j += 32) sum += value[j] * x[column[j]];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) y[r] = sum;
}

// y = A^T x of A (rows, columns): a thread takes a column, a block 128 rows.
extern "C" __global__ void gemv_transposed(
    const float* a, const float* x, float* y, int rows, int columns)
{
    const int c = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * 128;
    if (c >= columns) return;
    float sum = 0.0f;
    for (int r = first; r < first + 128 && r < rows; ++r) sum += a[(size_t)r * columns + c] * x[r];
    atomicAdd(&y[c], sum);
}

// Products of 16 x 16 matrices, one a block of 256 threads: (batch, 16, 16) float32
extern "C" __global__ void batched_16(const float* a, const float* b, float* c)
{
    __shared__ float left[16][16], right[16][16];
    const int column = threadIdx.x % 16, row = threadIdx.x / 16;
    const size_t at = (size_t)blockIdx.x * 256 + threadIdx.x;
    left[row][column] = a[at];
    right[row][column] = b[at];
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 16; ++k) sum += left[row][k] * right[k][column];
    c[at] = sum;
}

// point (n, 8), centre (32, 8) float32; nearest (n,): a step of k-means
extern "C" __global__ void assign_clusters(
    const float4* point, const float4* centre, int* nearest, int n)
{
    __shared__ float4 all[64];
    if (threadIdx.x < 64) all[threadIdx.x] = centre[threadIdx.x];
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float4 p = point[2 * i], q = point[2 * i + 1];
    float best = 1e30f;
    int at = 0;
#pragma unroll 4
    for (int k = 0; k < 32; ++k) {
        const float4 a = all[2 * k], b = all[2 * k + 1];
        const float x = p.x - a.x, y = p.y - a.y, z = p.z - a.z, w = p.w - a.w;
        const float s = q.x - b.x, t = q.y - b.y, u = q.z - b.z, v = q.w - b.w;
        const float apart = x * x + y * y + z * z + w * w + s * s + t * t + u * u + v * v;
        if (apart < best) {
            best = apart;
            at = k;
        }
    }
    nearest[i] = at;
}

// C (m, n) int32 = A (m, k) B (n, k)^T of bytes: a warp 16 x 16 by wmma.
extern "C" __global__ void igemm_warp(
    const signed char* a, const signed char* b, int* c, int m, int n, int k)
{
    using namespace nvcuda;
    const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int row = warp / (n / 16) * 16, column = warp % (n / 16) * 16;
    if (row >= m) return;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, int> sum;
    wmma::fill_fragment(sum, 0);
    for (int i = 0; i < k; i += 16) {
        wmma::load_matrix_sync(left, a + (size_t)row * k + i, k);
        wmma::load_matrix_sync(right, b + (size_t)column * k + i, k);
        wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(c + (size_t)row * n + column, sum, n, wmma::mem_row_major);
}

// One pass of radix 4 of a Fourier transform of n = 4 * quarter complex numbers, without twiddles.
extern "C" __global__ void fourier_radix_4(const float2* x, float2* y, int quarter)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= quarter) return;
    const float2 a = x[i], b = x[i + quarter], c = x[i + 2 * quarter], d = x[i + 3 * quarter];
    const float2 p = make_float2(a.x + c.x, a.y + c.y), q = make_float2(a.x - c.x, a.y - c.y);
    const float2 r = make_float2(b.x + d.x, b.y + d.y), s = make_float2(b.x - d.x, b.y - d.y);
    float2* out = y + 4 * i;
    out[0] = make_float2(p.x + r.x, p.y + r.y);
    out[1] = make_float2(q.x + s.y, q.y - s.x);
    out[2] = make_float2(p.x - r.x, p.y - r.y);
    out[3] = make_float2(q.x - s.y, q.y + s.x);
}
