// Products of matrices, and attention within windows of a picture.

#include <cuda_fp16.h>
#include <mma.h>

// c = a b^T + bias: a (m, k), b (n, k), m and n multiples of 64, k of 16. A block of 256 takes
// 64 x 64, a thread 4 x 4; the next tiles are loaded while one pair is multiplied.
extern "C" __global__ void __launch_bounds__(256) linear_nt_double_buffer(
    const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ bias,
    float* __restrict__ c, int n, int k)
{
    __shared__ __align__(16) float left[2][16][68], right[2][16][68];
    const int t = threadIdx.x, x = t % 16, y = t / 16, row = t / 4, part = t % 4 * 4;
    a += ((size_t)blockIdx.y * 64 + row) * k + part;
    b += ((size_t)blockIdx.x * 64 + row) * k + part;
    float4 u = *(const float4*)a, v = *(const float4*)b;
    float sum[4][4] = {};
    auto put = [&](int now) {
        left[now][part][row] = u.x;
        left[now][part + 1][row] = u.y;
        left[now][part + 2][row] = u.z;
        left[now][part + 3][row] = u.w;
        right[now][part][row] = v.x;
        right[now][part + 1][row] = v.y;
        right[now][part + 2][row] = v.z;
        right[now][part + 3][row] = v.w;
    };
    put(0);
    __syncthreads();
    int now = 0;
    for (int at = 0; at < k; at += 16) {
        if (at + 16 < k) {
            u = *(const float4*)(a + at + 16);
            v = *(const float4*)(b + at + 16);
        }
#pragma unroll
        for (int d = 0; d < 16; ++d) {
            const float4 p = *(const float4*)&left[now][d][y * 4];
            const float4 q = *(const float4*)&right[now][d][x * 4];
            const float ps[4] = {p.x, p.y, p.z, p.w}, qs[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[i][j] += ps[i] * qs[j];
        }
        if (at + 16 < k) put(1 - now);
        __syncthreads();
        now = 1 - now;
    }
    const int column = blockIdx.x * 64 + x * 4;
    const float4 add = *(const float4*)(bias + column);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        *(float4*)(c + ((size_t)blockIdx.y * 64 + y * 4 + i) * n + column) = make_float4(
            sum[i][0] + add.x, sum[i][1] + add.y, sum[i][2] + add.z, sum[i][3] + add.w);
}

// y = relu(x weight + bias) in halves: x (m, k), weight (k, n), m and n multiples of 128, k of 32.
// A block of eight warps takes 128 x 128, a warp 32 x 64.
extern "C" __global__ void __launch_bounds__(256) hgemm_wmma_bias_relu(
    const __half* __restrict__ x, const __half* __restrict__ weight,
    const __half* __restrict__ bias, __half* __restrict__ y, int n, int k)
{
    using namespace nvcuda;
    __shared__ __align__(32) __half left[128][40], right[32][136];
    __shared__ __align__(32) float scratch[8][16][16];
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    const int row = warp / 2 * 32, column = warp % 2 * 64;
    const int top = blockIdx.y * 128, start = blockIdx.x * 128;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) wmma::fill_fragment(sum[i][j], 0.0f);
    for (int at = 0; at < k; at += 32) {
        for (int i = t; i < 512; i += 256) {
            const int r = i / 4, s = i % 4 * 8, u = i / 16, v = i % 16 * 8;
            *(uint4*)&left[r][s] = *(const uint4*)(x + (size_t)(top + r) * k + at + s);
            *(uint4*)&right[u][v] = *(const uint4*)(weight + (size_t)(at + u) * n + start + v);
        }
        __syncthreads();
#pragma unroll
        for (int part = 0; part < 32; part += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a[2];
            wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b[4];
#pragma unroll
            for (int i = 0; i < 2; ++i)
                wmma::load_matrix_sync(a[i], &left[row + i * 16][part], 40);
#pragma unroll
            for (int j = 0; j < 4; ++j)
                wmma::load_matrix_sync(b[j], &right[part][column + j * 16], 136);
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) wmma::mma_sync(sum[i][j], a[i], b[j], sum[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            wmma::store_matrix_sync(&scratch[warp][0][0], sum[i][j], 16, wmma::mem_row_major);
            __syncwarp();
            const int first = start + column + j * 16;
            for (int e = lane; e < 256; e += 32) {
                const float v = scratch[warp][e / 16][e % 16] + __half2float(bias[first + e % 16]);
                y[(size_t)(top + row + i * 16 + e / 16) * n + first + e % 16] =
                    __float2half(fmaxf(v, 0.0f));
            }
            __syncwarp();
        }
}

// c = a b in doubles: a (m, k), b (k, n), m and n multiples of 32, k of 16. A block of 16 x 16
// takes 32 x 32, a thread 2 x 2.
extern "C" __global__ void __launch_bounds__(256) dgemm_register_2x2(
    const double* __restrict__ a, const double* __restrict__ b, double* __restrict__ c, int n,
    int k)
{
    __shared__ double left[32][17], right[16][33];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * 32 + y, column = blockIdx.x * 32 + x;
    double s00 = 0.0, s01 = 0.0, s10 = 0.0, s11 = 0.0;
    for (int at = 0; at < k; at += 16) {
        left[y][x] = a[(size_t)row * k + at + x];
        left[y + 16][x] = a[(size_t)(row + 16) * k + at + x];
        right[y][x] = b[(size_t)(at + y) * n + column];
        right[y][x + 16] = b[(size_t)(at + y) * n + column + 16];
        __syncthreads();
#pragma unroll
        for (int d = 0; d < 16; ++d) {
            const double p = left[y][d], q = left[y + 16][d];
            const double u = right[d][x], v = right[d][x + 16];
            s00 += p * u;
            s01 += p * v;
            s10 += q * u;
            s11 += q * v;
        }
        __syncthreads();
    }
    c[(size_t)row * n + column] = s00;
    c[(size_t)row * n + column + 16] = s01;
    c[(size_t)(row + 16) * n + column] = s10;
    c[(size_t)(row + 16) * n + column + 16] = s11;
}

// Attention within windows of 7 x 7 tokens of 32 numbers, as in Swin: q, k, v and out (windows,
// heads, 49, 32), bias (heads, 49, 49). A block takes a head of a window.
extern "C" __global__ void __launch_bounds__(128) swin_window_attention(
    const __half* __restrict__ q, const __half* __restrict__ k, const __half* __restrict__ v,
    const float* __restrict__ bias, __half* __restrict__ out, float scale)
{
    __shared__ float query[49][33], key[49][33], value[49][33], score[49][50];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const size_t start = ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * 1568;
    for (int i = t; i < 1568; i += 128) {
        query[i / 32][i % 32] = scale * __half2float(q[start + i]);
        key[i / 32][i % 32] = __half2float(k[start + i]);
        value[i / 32][i % 32] = __half2float(v[start + i]);
    }
    __syncthreads();
    for (int i = t; i < 2401; i += 128) {
        const int row = i / 49, column = i % 49;
        float sum = bias[(size_t)blockIdx.x * 2401 + i];
#pragma unroll
        for (int d = 0; d < 32; ++d) sum += query[row][d] * key[column][d];
        score[row][column] = sum;
    }
    __syncthreads();
    for (int row = warp; row < 49; row += 4) {
        const float a = score[row][lane], b = lane < 17 ? score[row][lane + 32] : -1e30f;
        float most = fmaxf(a, b);
        for (int step = 16; step > 0; step >>= 1)
            most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, step));
        const float p = __expf(a - most), r = __expf(b - most);
        float sum = p + r;
        for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xFFFFFFFF, sum, step);
        score[row][lane] = p / sum;
        if (lane < 17) score[row][lane + 32] = r / sum;
    }
    __syncthreads();
    for (int i = t; i < 1568; i += 128) {
        float sum = 0.0f;
        for (int j = 0; j < 49; ++j) sum += score[i / 32][j] * value[j][i % 32];
        out[start + i] = __float2half(sum);
    }
}
