// Products: floats as two bfloat16s each, a depthwise convolution, all pairs of features.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

__device__ __forceinline__ void mma_bf16(float (&c)[4], const unsigned (&a)[4],
                                         const unsigned (&b)[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void split(float x, float y, unsigned& high, unsigned& low)
{
    const __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    const float2 back = __bfloat1622float2(h);
    const __nv_bfloat162 l = __floats2bfloat162_rn(x - back.x, y - back.y);
    high = *reinterpret_cast<const unsigned*>(&h);
    low = *reinterpret_cast<const unsigned*>(&l);
}

// C = A * B^T of floats, each as the sum of two bfloat16s: three products of them. A block takes
// 64 x 64 numbers, a warp 32 x 32, in steps of 16.
extern "C" __global__ void __launch_bounds__(128) sgemm_nt_bf16x3_mma(
    const float4* __restrict__ a, const float4* __restrict__ b, float* __restrict__ c, int n,
    int k)
{
    __shared__ unsigned a_high[64][12], a_low[64][12], b_high[64][12], b_low[64][12];
    const int t = threadIdx.x, lane = t & 31, warp = t / 32, fours = k / 4;
    const int top = blockIdx.y * 64, left = blockIdx.x * 64;
    const int row = warp / 2 * 32 + lane / 4, column = warp % 2 * 32 + lane / 4, four = lane & 3;
    float sum[2][4][4] = {};
    for (int start = 0; start < fours; start += 4) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int own = t / 4 + 32 * i, word = t % 4 * 2;
            const float4 p = a[(size_t)(top + own) * fours + start + t % 4];
            const float4 q = b[(size_t)(left + own) * fours + start + t % 4];
            split(p.x, p.y, a_high[own][word], a_low[own][word]);
            split(p.z, p.w, a_high[own][word + 1], a_low[own][word + 1]);
            split(q.x, q.y, b_high[own][word], b_low[own][word]);
            split(q.z, q.w, b_high[own][word + 1], b_low[own][word + 1]);
        }
        __syncthreads();
        unsigned ah[2][4], al[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int y = row + 16 * i + j % 2 * 8, x = four + j / 2 * 4;
                ah[i][j] = a_high[y][x];
                al[i][j] = a_low[y][x];
            }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int y = column + 8 * j;
            const unsigned bh[2] = {b_high[y][four], b_high[y][four + 4]};
            const unsigned bl[2] = {b_low[y][four], b_low[y][four + 4]};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                mma_bf16(sum[i][j], al[i], bh);
                mma_bf16(sum[i][j], ah[i], bl);
                mma_bf16(sum[i][j], ah[i], bh);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int y = top + row + 16 * i, x = left + warp % 2 * 32 + 8 * j + 2 * four;
            *reinterpret_cast<float2*>(c + (size_t)y * n + x) =
                make_float2(sum[i][j][0], sum[i][j][1]);
            *reinterpret_cast<float2*>(c + (size_t)(y + 8) * n + x) =
                make_float2(sum[i][j][2], sum[i][j][3]);
        }
}

// A depthwise convolution of 7 x 7, channels first, with zeros around a picture. A block takes
// 32 x 32 numbers of a plane, a thread four of a column.
extern "C" __global__ void __launch_bounds__(256) depthwise_7x7_planes(
    const float* __restrict__ x, const float* __restrict__ weight,
    const float* __restrict__ bias, float* __restrict__ out, int side, int channels)
{
    __shared__ float tile[38][39], taps[49];
    const int t = threadIdx.y * 32 + threadIdx.x, channel = blockIdx.z % channels;
    const int left = blockIdx.x * 32, top = blockIdx.y * 32;
    const size_t first = (size_t)blockIdx.z * side * side;
    if (t < 49) taps[t] = weight[channel * 49 + t];
    for (int i = t; i < 38 * 38; i += 256) {
        const int row = top + i / 38 - 3, column = left + i % 38 - 3;
        const bool inside = row >= 0 && row < side && column >= 0 && column < side;
        tile[i / 38][i % 38] = inside ? x[first + (size_t)row * side + column] : 0.0f;
    }
    __syncthreads();
    const float base = bias[channel];
    float sum[4] = {base, base, base, base};
#pragma unroll
    for (int q = 0; q < 7; ++q) {
        float v[10];
#pragma unroll
        for (int i = 0; i < 10; ++i) v[i] = tile[threadIdx.y * 4 + i][threadIdx.x + q];
#pragma unroll
        for (int p = 0; p < 7; ++p)
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[i] += taps[p * 7 + q] * v[i + p];
    }
    const int column = left + threadIdx.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = top + threadIdx.y * 4 + i;
        if (row < side && column < side) out[first + (size_t)row * side + column] = sum[i];
    }
}

// Products of all pairs of 27 features of 64 halves, after the first feature itself, as DLRM has
// them: 64 + 351 halves and a zero. A warp takes a sample.
extern "C" __global__ void __launch_bounds__(128) feature_pairs_27_wmma(
    const __half* __restrict__ feature, __half* __restrict__ out, int samples)
{
    using namespace nvcuda;
    __shared__ __align__(32) __half rows[4][32 * 72];
    __shared__ __align__(32) float products[4][32 * 36];
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const int sample = blockIdx.x * 4 + warp;
    if (sample >= samples) return;
    __half* own = rows[warp];
    float* square = products[warp];
    for (int i = lane; i < 256; i += 32) {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (i < 216) v = reinterpret_cast<const uint4*>(feature)[(size_t)sample * 216 + i];
        *reinterpret_cast<uint4*>(own + i / 8 * 72 + i % 8 * 8) = v;
    }
    __syncwarp();
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[3];
    for (int i = 0; i < 3; ++i) wmma::fill_fragment(sum[i], 0.0f);
#pragma unroll
    for (int part = 0; part < 64; part += 16) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a[2];
        wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            wmma::load_matrix_sync(a[i], own + 16 * i * 72 + part, 72);
            wmma::load_matrix_sync(b[i], own + 16 * i * 72 + part, 72);
        }
        wmma::mma_sync(sum[0], a[0], b[0], sum[0]);
        wmma::mma_sync(sum[1], a[1], b[0], sum[1]);
        wmma::mma_sync(sum[2], a[1], b[1], sum[2]);
    }
    wmma::store_matrix_sync(square, sum[0], 36, wmma::mem_row_major);
    wmma::store_matrix_sync(square + 16 * 36, sum[1], 36, wmma::mem_row_major);
    wmma::store_matrix_sync(square + 16 * 36 + 16, sum[2], 36, wmma::mem_row_major);
    __syncwarp();
    __half* to = out + (size_t)sample * 416;
    to[lane] = own[lane];
    to[32 + lane] = own[32 + lane];
    for (int row = 1; row < 27; ++row)
        if (lane < row) to[64 + row * (row - 1) / 2 + lane] = __float2half(square[row * 36 + lane]);
    if (lane == 0) to[415] = __float2half(0.0f);
}
