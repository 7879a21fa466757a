// Products: bytes with scales, halves of several experts, doubles, the first convolution of a
// ResNet.

#include <cuda_fp16.h>
#include <mma.h>

__device__ __forceinline__ void mma_bytes(int (&c)[4], const unsigned (&a)[4], unsigned b0,
                                          unsigned b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// C = A * B^T of bytes, a scale for each row of A and of B, halves out. A block takes 128 x 128
// numbers, a warp 64 x 32, in steps of 64.
extern "C" __global__ void __launch_bounds__(256) gemm_s8_mma_scales(
    const uint4* __restrict__ a, const uint4* __restrict__ b, const float* __restrict__ a_scale,
    const float* __restrict__ b_scale, __half2* __restrict__ c, int n, int k,
    float scale)
{
    __shared__ __align__(16) unsigned as[128][20], bs[128][20];
    const int t = threadIdx.x, lane = t & 31, warp = t / 32, words = k / 16;
    const int top = blockIdx.y * 128, left = blockIdx.x * 128;
    const int row = warp / 4 * 64 + lane / 4, column = warp % 4 * 32, in_four = lane & 3;
    int sum[4][4][4] = {};
    uint4 next_a[2], next_b[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int own = t / 4 + 64 * i;
        next_a[i] = a[(size_t)(top + own) * words + t % 4];
        next_b[i] = b[(size_t)(left + own) * words + t % 4];
    }
    for (int step = 4; step <= words; step += 4) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            *reinterpret_cast<uint4*>(&as[t / 4 + 64 * i][t % 4 * 4]) = next_a[i];
            *reinterpret_cast<uint4*>(&bs[t / 4 + 64 * i][t % 4 * 4]) = next_b[i];
        }
        __syncthreads();
        if (step < words) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int own = t / 4 + 64 * i;
                next_a[i] = a[(size_t)(top + own) * words + step + t % 4];
                next_b[i] = b[(size_t)(left + own) * words + step + t % 4];
            }
        }
#pragma unroll
        for (int part = 0; part < 16; part += 8) {
            unsigned fa[4][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                fa[i][0] = as[row + 16 * i][part + in_four];
                fa[i][1] = as[row + 16 * i + 8][part + in_four];
                fa[i][2] = as[row + 16 * i][part + in_four + 4];
                fa[i][3] = as[row + 16 * i + 8][part + in_four + 4];
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const unsigned* from = bs[column + 8 * j + lane / 4];
                const unsigned b0 = from[part + in_four], b1 = from[part + in_four + 4];
#pragma unroll
                for (int i = 0; i < 4; ++i) mma_bytes(sum[i][j], fa[i], b0, b1);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int y = top + row + 16 * i;
        const float high = a_scale[y] * scale, low = a_scale[y + 8] * scale;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int x = left + column + 8 * j + 2 * in_four;
            const float p = b_scale[x], q = b_scale[x + 1];
            c[((size_t)y * n + x) / 2] =
                __floats2half2_rn(sum[i][j][0] * high * p, sum[i][j][1] * high * q);
            c[((size_t)(y + 8) * n + x) / 2] =
                __floats2half2_rn(sum[i][j][2] * low * p, sum[i][j][3] * low * q);
        }
    }
}

// Each token times the matrix of its expert; tokens are in the order of experts. A block takes 64
// tokens of an expert and 64 columns, a warp 32 x 32.
extern "C" __global__ void __launch_bounds__(128) experts_gemm_wmma_half(
    const __half* __restrict__ x, const __half* __restrict__ weight,
    const int* __restrict__ first_token, __half* __restrict__ out, int n, int k)
{
    using namespace nvcuda;
    __shared__ __align__(32) __half xs[64 * 40], ws[32 * 72];
    __shared__ __align__(32) float tile[64 * 68];
    const int t = threadIdx.x, warp = t / 32, left = blockIdx.x * 64;
    const int first = first_token[blockIdx.z] + blockIdx.y * 64;
    const int count = min(64, first_token[blockIdx.z + 1] - first);
    if (count <= 0) return;
    const __half* of_expert = weight + (size_t)blockIdx.z * k * n + left;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2][2];
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) wmma::fill_fragment(sum[i][j], 0.0f);
    for (int start = 0; start < k; start += 32) {
        for (int i = t; i < 256; i += 128) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (i / 4 < count)
                v = *reinterpret_cast<const uint4*>(
                    x + (size_t)(first + i / 4) * k + start + i % 4 * 8);
            *reinterpret_cast<uint4*>(xs + i / 4 * 40 + i % 4 * 8) = v;
            *reinterpret_cast<uint4*>(ws + i / 8 * 72 + i % 8 * 8) =
                *reinterpret_cast<const uint4*>(
                    of_expert + (size_t)(start + i / 8) * n + i % 8 * 8);
        }
        __syncthreads();
#pragma unroll
        for (int part = 0; part < 32; part += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa[2];
            wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> fb[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                wmma::load_matrix_sync(fa[i], xs + (warp / 2 * 32 + 16 * i) * 40 + part, 40);
                wmma::load_matrix_sync(fb[i], ws + part * 72 + warp % 2 * 32 + 16 * i, 72);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j) wmma::mma_sync(sum[i][j], fa[i], fb[j], sum[i][j]);
        }
        __syncthreads();
    }
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j)
            wmma::store_matrix_sync(
                tile + (warp / 2 * 32 + 16 * i) * 68 + warp % 2 * 32 + 16 * j, sum[i][j], 68,
                wmma::mem_row_major);
    __syncthreads();
    for (int i = t; i < count * 32; i += 128) {
        const float* two = tile + i / 32 * 68 + i % 32 * 2;
        *reinterpret_cast<__half2*>(out + (size_t)(first + i / 32) * n + left + i % 32 * 2) =
            __floats2half2_rn(two[0], two[1]);
    }
}

// C = A * B of doubles. A block takes 64 x 64 numbers, a thread 4 x 4.
extern "C" __global__ void __launch_bounds__(256) dgemm_64_tile(
    const double* __restrict__ a, const double* __restrict__ b, double* __restrict__ c, int n,
    int k)
{
    __shared__ double as[16][66], bs[16][64];
    const int t = threadIdx.x, row = t / 16, column = t % 16;
    const int top = blockIdx.y * 64, left = blockIdx.x * 64;
    double sum[4][4] = {};
    for (int start = 0; start < k; start += 16) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            as[t % 16][t / 16 + 16 * i] = a[(size_t)(top + t / 16 + 16 * i) * k + start + t % 16];
            bs[t / 64 + 4 * i][t % 64] = b[(size_t)(start + t / 64 + 4 * i) * n + left + t % 64];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            double p[4], q[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                p[j] = as[i][row + 16 * j];
                q[j] = bs[i][column + 16 * j];
            }
#pragma unroll
            for (int y = 0; y < 4; ++y)
#pragma unroll
                for (int x = 0; x < 4; ++x) sum[y][x] += p[y] * q[x];
        }
        __syncthreads();
    }
#pragma unroll
    for (int y = 0; y < 4; ++y)
#pragma unroll
        for (int x = 0; x < 4; ++x)
            c[(size_t)(top + row + 16 * y) * n + left + column + 16 * x] = sum[y][x];
}

// A 7 x 7 convolution of stride 2 of three planes, with a bias and ReLU. A block takes 16 x 16
// places of 16 channels, a thread a place.
extern "C" __global__ void __launch_bounds__(256) conv_7x7_stem_relu(
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ out, int side, int channels)
{
    __shared__ float tile[3][37][38], factor[147][16];
    const int t = threadIdx.y * 16 + threadIdx.x, after = side / 2, groups = channels / 16;
    const int picture = blockIdx.z / groups, first = blockIdx.z % groups * 16;
    const int top = blockIdx.y * 32 - 3, left = blockIdx.x * 32 - 3;
    for (int i = t; i < 147 * 16; i += 256)
        factor[i % 147][i / 147] = weight[first * 147 + i];
    for (int i = t; i < 3 * 37 * 37; i += 256) {
        const int plane = i / (37 * 37), y = i / 37 % 37, column = i % 37;
        const int from_y = top + y, from_x = left + column;
        float v = 0.0f;
        if (from_y >= 0 && from_y < side && from_x >= 0 && from_x < side)
            v = x[((size_t)(picture * 3 + plane) * side + from_y) * side + from_x];
        tile[plane][y][column] = v;
    }
    __syncthreads();
    float sum[16];
#pragma unroll
    for (int j = 0; j < 16; ++j) sum[j] = bias[first + j];
    for (int plane = 0; plane < 3; ++plane)
        for (int i = 0; i < 7; ++i)
#pragma unroll
            for (int l = 0; l < 7; ++l) {
                const float v = tile[plane][2 * threadIdx.y + i][2 * threadIdx.x + l];
                const float* own = factor[(plane * 7 + i) * 7 + l];
#pragma unroll
                for (int j = 0; j < 16; ++j) sum[j] += v * own[j];
            }
    const int y = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    if (y >= after || column >= after) return;
#pragma unroll
    for (int j = 0; j < 16; ++j)
        out[((size_t)(picture * channels + first + j) * after + y) * after + column] =
            fmaxf(sum[j], 0.0f);
}
