// Products of matrices and of rows, and attention.

#include <cuda_fp16.h>
#include <mma.h>

// Attention of floats, q, k, v, y (heads, n, 64), n a multiple of 64: a thread takes a query, and
// a block of 64 of them goes through the keys and values 32 at a time. These and the scores are in
// shared memory.
extern "C" __global__ void __launch_bounds__(64) flash_minimal(
    const float4* __restrict__ q, const float4* __restrict__ k, const float4* __restrict__ v,
    float4* __restrict__ y, int n, float scale)
{
    __shared__ float4 keys[32][16], values[32][16];
    __shared__ float s[32][64];
    const size_t start = (size_t)blockIdx.y * n * 16;
    const size_t own = start + (size_t)(blockIdx.x * 64 + threadIdx.x) * 16;
    float4 query[16], sum[16];
#pragma unroll
    for (int d = 0; d < 16; ++d) {
        query[d] = q[own + d];
        sum[d] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    float most = -1e30f, total = 0.0f;
    for (int first = 0; first < n; first += 32) {
        __syncthreads();
        for (int i = threadIdx.x; i < 512; i += 64) {
            keys[i / 16][i % 16] = k[start + first * 16 + i];
            values[i / 16][i % 16] = v[start + first * 16 + i];
        }
        __syncthreads();
        float next = most;
#pragma unroll 2
        for (int j = 0; j < 32; ++j) {
            float dot = 0.0f;
#pragma unroll
            for (int d = 0; d < 16; ++d) {
                const float4 w = keys[j][d];
                dot += query[d].x * w.x + query[d].y * w.y + query[d].z * w.z + query[d].w * w.w;
            }
            s[j][threadIdx.x] = scale * dot;
            next = fmaxf(next, scale * dot);
        }
        const float by = __expf(most - next);
        most = next;
        total *= by;
#pragma unroll
        for (int d = 0; d < 16; ++d) {
            sum[d].x *= by;
            sum[d].y *= by;
            sum[d].z *= by;
            sum[d].w *= by;
        }
#pragma unroll 2
        for (int j = 0; j < 32; ++j) {
            const float p = __expf(s[j][threadIdx.x] - most);
            total += p;
#pragma unroll
            for (int d = 0; d < 16; ++d) {
                const float4 w = values[j][d];
                sum[d].x += p * w.x;
                sum[d].y += p * w.y;
                sum[d].z += p * w.z;
                sum[d].w += p * w.w;
            }
        }
    }
    const float by = 1.0f / total;
#pragma unroll
    for (int d = 0; d < 16; ++d)
        y[own + d] = make_float4(by * sum[d].x, by * sum[d].y, by * sum[d].z, by * sum[d].w);
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
    const uint4* __restrict__ x, uint4* __restrict__ y)
{
    __shared__ float row[8][128];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const uint4 packed = x[(size_t)blockIdx.x * 128 + t];
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
    y[(size_t)blockIdx.x * 128 + t] = out;
}

// y[row] = scale[row] * (weight[row] . x): weight (rows, k) of 8-bit integers, x and y of halves,
// k a multiple of 512. A warp takes a row, a lane 16 numbers at a time.
extern "C" __global__ void gemv_int8_half(
    const int4* __restrict__ weight, const float* __restrict__ scale,
    const uint4* __restrict__ x, __half* __restrict__ y, int rows, int k)
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const int4* from = weight + (size_t)row * (k / 16);
    float sum = 0.0f;
    for (int i = lane; i < k / 16; i += 32) {
        const int4 w = from[i];
        const uint4 half[2] = {x[2 * i], x[2 * i + 1]};
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

// c = a b of floats on tensor cores, as TF32: a (m, k), b (k, n), c (m, n), m and n multiples of
// 64, k of 32. A block of four warps takes 64 x 64, a warp 32 x 32.
extern "C" __global__ void __launch_bounds__(128) gemm_tf32(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n, int k)
{
    using namespace nvcuda;
    __shared__ __align__(32) float left[64][36], right[32][68];
    const int t = threadIdx.x, warp = t / 32, row = warp / 2 * 32, column = warp % 2 * 32;
    const int top = blockIdx.y * 64, start = blockIdx.x * 64;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> sum[2][2];
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) wmma::fill_fragment(sum[i][j], 0.0f);
    for (int at = 0; at < k; at += 32) {
        for (int i = t; i < 512; i += 128) {
            const int r = i / 8, s = i % 8 * 4, u = i / 16, w = i % 16 * 4;
            float4 p = *(const float4*)(a + (size_t)(top + r) * k + at + s);
            float4 q = *(const float4*)(b + (size_t)(at + u) * n + start + w);
            *(float4*)&left[r][s] =
                make_float4(wmma::__float_to_tf32(p.x), wmma::__float_to_tf32(p.y),
                            wmma::__float_to_tf32(p.z), wmma::__float_to_tf32(p.w));
            *(float4*)&right[u][w] =
                make_float4(wmma::__float_to_tf32(q.x), wmma::__float_to_tf32(q.y),
                            wmma::__float_to_tf32(q.z), wmma::__float_to_tf32(q.w));
        }
        __syncthreads();
#pragma unroll
        for (int part = 0; part < 32; part += 8) {
            wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> p[2];
            wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> q[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                wmma::load_matrix_sync(p[i], &left[row + i * 16][part], 36);
                wmma::load_matrix_sync(q[i], &right[part][column + i * 16], 68);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j) wmma::mma_sync(sum[i][j], p[i], q[j], sum[i][j]);
        }
        __syncthreads();
    }
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j)
            wmma::store_matrix_sync(
                c + (size_t)(top + row + i * 16) * n + start + column + j * 16, sum[i][j], n,
                wmma::mem_row_major);
}

// The log of the density of a mixture at points x (n, 16): `count` Gaussians of weights whose logs
// with all constants are in log_weight, means (count, 16), and of inverse covariances R R^T of which
// lower (count, 16, 16) has R below and on the diagonal. A thread takes a point.
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
