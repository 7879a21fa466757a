// Products of matrices and of rows, and attention.

#include <cuda_fp16.h>
#include <mma.h>

// Causal attention without exponentials: y[t] = sum over s <= t of (q[t] . k[s]) v[s], q, k, v, y
// (heads, n, 64), n a multiple of 16. A block of 64 takes a head; a thread has a column of the sum
// of k v^T in registers.
extern "C" __global__ void __launch_bounds__(64) linear_attention_causal(
    const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
    float* __restrict__ y, int n)
{
    __shared__ __align__(16) float query[16][64], key[16][64];
    const int column = threadIdx.x;
    const size_t start = (size_t)blockIdx.x * n * 64;
    float state[64] = {};
    for (int first = 0; first < n; first += 16) {
        __syncthreads();
        for (int i = 0; i < 16; ++i) {
            query[i][column] = q[start + (first + i) * 64 + column];
            key[i][column] = k[start + (first + i) * 64 + column];
        }
        __syncthreads();
        for (int i = 0; i < 16; ++i) {
            const float value = v[start + (first + i) * 64 + column];
            float sum = 0.0f;
#pragma unroll
            for (int d = 0; d < 64; d += 4) {
                const float4 a = *(const float4*)&key[i][d], b = *(const float4*)&query[i][d];
                state[d] += a.x * value;
                state[d + 1] += a.y * value;
                state[d + 2] += a.z * value;
                state[d + 3] += a.w * value;
                sum += b.x * state[d] + b.y * state[d + 1] + b.z * state[d + 2] +
                       b.w * state[d + 3];
            }
            y[start + (first + i) * 64 + column] = sum;
        }
    }
}

// dot[row] = the sum of dy * y in each row of 64 halves: what the gradient of attention needs
// first. A warp takes a row, a lane two numbers.
extern "C" __global__ void rows_dot_half(
    const __half2* __restrict__ dy, const __half2* __restrict__ y, float* __restrict__ dot,
    int rows)
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float2 a = __half22float2(dy[(size_t)row * 32 + lane]);
    const float2 b = __half22float2(y[(size_t)row * 32 + lane]);
    float sum = a.x * b.x + a.y * b.y;
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xFFFFFFFF, sum, step);
    if (lane == 0) dot[row] = sum;
}

// The Walsh-Hadamard transform of rows of 1024 halves, over 32. A block of 128 takes a row: three
// steps in registers, five between lanes, two between warps.
extern "C" __global__ void __launch_bounds__(128) hadamard_rows(
    const __half* __restrict__ x, __half* __restrict__ y)
{
    __shared__ float row[8][128];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const uint4 packed = ((const uint4*)x)[(size_t)blockIdx.x * 128 + t];
    const __half2* two = (const __half2*)&packed;
    float v[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 f = __half22float2(two[i]);
        v[2 * i] = f.x;
        v[2 * i + 1] = f.y;
    }
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (!(i & step)) {
                const float a = v[i], b = v[i + step];
                v[i] = a + b;
                v[i + step] = a - b;
            }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float sign = lane & step ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = sign * v[i] + __shfl_xor_sync(0xFFFFFFFF, v[i], step);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) row[i][t] = v[i];
    __syncthreads();
    const float one = warp & 1 ? -1.0f : 1.0f, two_of = warp & 2 ? -1.0f : 1.0f;
    uint4 out;
    __half2* to = (__half2*)&out;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float low = row[i][lane] + one * row[i][32 + lane];
        const float high = row[i][64 + lane] + one * row[i][96 + lane];
        v[i] = (low + two_of * high) * 0.03125f;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
    ((uint4*)y)[(size_t)blockIdx.x * 128 + t] = out;
}

// y[row] = scale[row] * (weight[row] . x): weight (rows, k) of 8-bit integers, x and y of halves,
// k a multiple of 512. A warp takes a row, a lane 16 numbers at a time.
extern "C" __global__ void gemv_int8_half(
    const signed char* __restrict__ weight, const float* __restrict__ scale,
    const __half* __restrict__ x, __half* __restrict__ y, int rows, int k)
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const int4* from = (const int4*)(weight + (size_t)row * k);
    const uint4* numbers = (const uint4*)x;
    float sum = 0.0f;
    for (int i = lane; i < k / 16; i += 32) {
        const int4 w = from[i];
        const uint4 half[2] = {numbers[2 * i], numbers[2 * i + 1]};
        const char4* four = (const char4*)&w;
        const __half2* two = (const __half2*)half;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 a = __half22float2(two[2 * j]), b = __half22float2(two[2 * j + 1]);
            sum += four[j].x * a.x + four[j].y * a.y + four[j].z * b.x + four[j].w * b.y;
        }
    }
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_down_sync(0xFFFFFFFF, sum, step);
    if (lane == 0) y[row] = __float2half(scale[row] * sum);
}

// The gradient of a linear layer's weight, dw = dy^T x: dy (tokens, m) and x (tokens, n) of halves,
// dw (m, n) of floats, m and n multiples of 64, tokens of 32. A block of four warps takes 64 x 64,
// a warp 32 x 32.
extern "C" __global__ void __launch_bounds__(128) weight_gradient_wmma(
    const __half* __restrict__ dy, const __half* __restrict__ x, float* __restrict__ dw,
    int tokens, int m, int n)
{
    using namespace nvcuda;
    __shared__ __align__(32) __half left[32][72], right[32][72];
    const int t = threadIdx.x, warp = t / 32, row = warp / 2 * 32, column = warp % 2 * 32;
    const int top = blockIdx.y * 64, start = blockIdx.x * 64;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2][2];
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) wmma::fill_fragment(sum[i][j], 0.0f);
    for (int at = 0; at < tokens; at += 32) {
        for (int i = t; i < 256; i += 128) {
            const int r = i / 8, s = i % 8 * 8;
            *(uint4*)&left[r][s] = *(const uint4*)(dy + (size_t)(at + r) * m + top + s);
            *(uint4*)&right[r][s] = *(const uint4*)(x + (size_t)(at + r) * n + start + s);
        }
        __syncthreads();
#pragma unroll
        for (int part = 0; part < 32; part += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::col_major> a[2];
            wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                wmma::load_matrix_sync(a[i], &left[part][row + i * 16], 72);
                wmma::load_matrix_sync(b[i], &right[part][column + i * 16], 72);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j) wmma::mma_sync(sum[i][j], a[i], b[j], sum[i][j]);
        }
        __syncthreads();
    }
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j)
            wmma::store_matrix_sync(
                dw + (size_t)(top + row + i * 16) * n + start + column + j * 16, sum[i][j], n,
                wmma::mem_row_major);
}

// The log of the density of a mixture at points x (n, 16): `count` Gaussians of weights whose logs
// with all constants are in log_weight, means (count, 16), and of inverse covariances R R^T, of
// which lower (count, 16, 16) has R below and on the diagonal. A thread takes a point.
extern "C" __global__ void __launch_bounds__(128) mixture_density(
    const float4* __restrict__ x, const float* __restrict__ log_weight,
    const float* __restrict__ mean, const float* __restrict__ lower, float* __restrict__ density,
    int n, int count)
{
    __shared__ float middle[16], root[16][16];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float own[16] = {};
    if (i < n) {
#pragma unroll
        for (int d = 0; d < 4; ++d) {
            const float4 v = x[(size_t)i * 4 + d];
            own[4 * d] = v.x;
            own[4 * d + 1] = v.y;
            own[4 * d + 2] = v.z;
            own[4 * d + 3] = v.w;
        }
    }
    float most = -1e30f, sum = 0.0f;
    for (int g = 0; g < count; ++g) {
        __syncthreads();
        for (int j = threadIdx.x; j < 256; j += blockDim.x)
            root[j / 16][j % 16] = lower[g * 256 + j];
        if (threadIdx.x < 16) middle[threadIdx.x] = mean[g * 16 + threadIdx.x];
        __syncthreads();
        float square = 0.0f;
#pragma unroll
        for (int column = 0; column < 16; ++column) {
            float dot = 0.0f;
#pragma unroll
            for (int row = column; row < 16; ++row)
                dot += root[row][column] * (own[row] - middle[row]);
            square += dot * dot;
        }
        const float log_part = log_weight[g] - 0.5f * square;
        const float next = fmaxf(most, log_part);
        sum = sum * expf(most - next) + expf(log_part - next);
        most = next;
    }
    if (i < n) density[i] = most + logf(sum);
}
