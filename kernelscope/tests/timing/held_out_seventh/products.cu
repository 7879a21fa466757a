// Products of matrices, and shares of rows.

#include <cuda_fp16.h>
#include <mma.h>

// Dot products of four queries of each sequence, query (sequences, 4, 128), with its keys: those
// stand in pages of 16, key (pages, 16, 128) of halves, by table (sequences, length / 16). score
// (sequences, 4, length), length a multiple of 128. A warp takes a page, two lanes a key.
extern "C" __global__ void __launch_bounds__(256) paged_scores(
    const __half* __restrict__ query, const __half* __restrict__ key,
    const int* __restrict__ table, float* __restrict__ score, int length, float scale)
{
    __shared__ __align__(16) float q[4][128];
    const int sequence = blockIdx.y, t = threadIdx.x;
    for (int i = t; i < 512; i += 256)
        q[i / 128][i % 128] = scale * __half2float(query[(size_t)sequence * 512 + i]);
    __syncthreads();
    const int slot = blockIdx.x * 8 + t / 32, token = t % 32 / 2, part = t % 2;
    const int page = table[sequence * (length / 16) + slot];
    const uint4* from = (const uint4*)(key + ((size_t)page * 16 + token) * 128) + part * 8;
    float sum[4] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const uint4 eight = from[i];
        const __half2* two = (const __half2*)&eight;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 v = __half22float2(two[j]);
            const int d = part * 64 + i * 8 + j * 2;
#pragma unroll
            for (int h = 0; h < 4; ++h) {
                const float2 w = *(const float2*)&q[h][d];
                sum[h] += v.x * w.x + v.y * w.y;
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 4; ++h) {
        const float all = sum[h] + __shfl_xor_sync(0xFFFFFFFF, sum[h], 1);
        if (part == 0) score[((size_t)sequence * 4 + h) * length + slot * 16 + token] = all;
    }
}

// Shares of each row up to its own column: exp(scale * score - slope * distance) over their sum,
// with ALiBi's slopes 2^(-8 (head + 1) / heads), zeros after it. score, share (heads, n, n) of
// halves, n a multiple of 2. A warp takes a row.
extern "C" __global__ void alibi_rows(
    const __half2* __restrict__ score, __half2* __restrict__ share, int heads, int n, float scale)
{
    const int all = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (all >= heads * n) return;
    const int head = all / n, row = all % n;
    const float slope = exp2f(-8.0f * (head + 1) / heads);
    score += (size_t)all * (n / 2);
    share += (size_t)all * (n / 2);
    float most = -1e30f, sum = 0.0f;
    for (int i = lane; 2 * i <= row; i += 32) {
        const float2 s = __half22float2(score[i]);
        const float a = scale * s.x - slope * (row - 2 * i);
        const float b = 2 * i < row ? scale * s.y - slope * (row - 2 * i - 1) : -1e30f;
        const float next = fmaxf(most, fmaxf(a, b));
        sum = sum * __expf(most - next) + __expf(a - next) + __expf(b - next);
        most = next;
    }
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xFFFFFFFF, most, step);
        const float part = __shfl_xor_sync(0xFFFFFFFF, sum, step);
        const float next = fmaxf(most, other);
        sum = sum * __expf(most - next) + part * __expf(other - next);
        most = next;
    }
    const float by = 1.0f / sum;
    for (int i = lane; i < n / 2; i += 32) {
        float a = 0.0f, b = 0.0f;
        if (2 * i <= row) {
            const float2 s = __half22float2(score[i]);
            a = by * __expf(scale * s.x - slope * (row - 2 * i) - most);
            if (2 * i < row) b = by * __expf(scale * s.y - slope * (row - 2 * i - 1) - most);
        }
        share[i] = __floats2half2_rn(a, b);
    }
}

__device__ __forceinline__ unsigned in_shared(const void* p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void copy_16(void* to, const void* from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(in_shared(to)), "l"(from));
}

__device__ __forceinline__ void load_4(unsigned (&r)[4], const void* p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(in_shared(p)));
}

// y = max(x w^T + bias, 0): x (m, k), w (n, k), y (m, n) of halves; m and n multiples of 128, k of
// 32. A block of eight warps takes 128 x 128, a warp 64 x 32; the next 32 of k are on their way.
extern "C" __global__ void __launch_bounds__(256) linear_relu_async(
    const __half* __restrict__ x, const __half* __restrict__ w, const float* __restrict__ bias,
    __half* __restrict__ y, int n, int k)
{
    __shared__ __align__(16) __half tile[2][2][128][40];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const int top = blockIdx.y * 128, left = blockIdx.x * 128;
    const int down = warp / 4 * 64, across = warp % 4 * 32;
    auto fetch = [&](int stage, int at) {
#pragma unroll
        for (int i = t; i < 512; i += 256) {
            const int row = i / 4, column = i % 4 * 8;
            copy_16(&tile[stage][0][row][column], x + (size_t)(top + row) * k + at + column);
            copy_16(&tile[stage][1][row][column], w + (size_t)(left + row) * k + at + column);
        }
        asm volatile("cp.async.commit_group;");
    };
    float sum[4][4][4] = {};
    fetch(0, 0);
    for (int at = 0, stage = 0; at < k; at += 32, stage ^= 1) {
        if (at + 32 < k) {
            fetch(stage ^ 1, at + 32);
            asm volatile("cp.async.wait_group 1;");
        } else
            asm volatile("cp.async.wait_group 0;");
        __syncthreads();
#pragma unroll
        for (int part = 0; part < 32; part += 16) {
            unsigned a[4][4], b[2][4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                load_4(a[i], &tile[stage][0][down + i * 16 + lane % 16][part + lane / 16 * 8]);
#pragma unroll
            for (int j = 0; j < 2; ++j)
                load_4(b[j], &tile[stage][1][across + j * 16 + lane / 16 * 8 + lane % 8]
                                  [part + lane / 8 % 2 * 8]);
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                        : "+f"(sum[i][j][0]), "+f"(sum[i][j][1]), "+f"(sum[i][j][2]),
                          "+f"(sum[i][j][3])
                        : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]),
                          "r"(b[j / 2][j % 2 * 2]), "r"(b[j / 2][j % 2 * 2 + 1]));
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int row = top + down + i * 16 + lane / 4;
            const int column = left + across + j * 8 + lane % 4 * 2;
            const float2 more = *(const float2*)&bias[column];
#pragma unroll
            for (int h = 0; h < 2; ++h)
                *(__half2*)&y[(size_t)(row + 8 * h) * n + column] =
                    __floats2half2_rn(fmaxf(sum[i][j][2 * h] + more.x, 0.0f),
                                      fmaxf(sum[i][j][2 * h + 1] + more.y, 0.0f));
        }
}

// The first half of a low-rank change of a layer: y = scale * x a, x (m, k) and a (k, 16) of
// halves, y (m, 16); m a multiple of 64, k of 16. A warp takes 16 rows, its matrices from global
// memory.
extern "C" __global__ void lora_down(
    const __half* __restrict__ x, const __half* __restrict__ a, float* __restrict__ y, int k,
    float scale)
{
    using namespace nvcuda;
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * 16;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int i = 0; i < k; i += 16) {
        wmma::load_matrix_sync(left, x + (size_t)row * k + i, k);
        wmma::load_matrix_sync(right, a + i * 16, 16);
        wmma::mma_sync(sum, left, right, sum);
    }
    for (int e = 0; e < sum.num_elements; ++e) sum.x[e] *= scale;
    wmma::store_matrix_sync(y + (size_t)row * 16, sum, 16, wmma::mem_row_major);
}

// c = a b of complex numbers: a (m, k), b (k, n); m and n multiples of 32, k of 16. A block of 16 x
// 16 takes 32 x 32, a thread four of them.
extern "C" __global__ void __launch_bounds__(256) complex_tile(
    const float2* __restrict__ a, const float2* __restrict__ b, float2* __restrict__ c, int n,
    int k)
{
    __shared__ float2 left[32][17], right[16][33];
    const int tx = threadIdx.x, ty = threadIdx.y, t = ty * 16 + tx;
    const int top = blockIdx.y * 32, side = blockIdx.x * 32;
    float2 sum[2][2] = {};
    for (int at = 0; at < k; at += 16) {
        for (int i = t; i < 512; i += 256) {
            left[i / 16][i % 16] = a[(size_t)(top + i / 16) * k + at + i % 16];
            right[i / 32][i % 32] = b[(size_t)(at + i / 32) * n + side + i % 32];
        }
        __syncthreads();
#pragma unroll
        for (int p = 0; p < 16; ++p)
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const float2 u = left[ty + 16 * i][p], v = right[p][tx + 16 * j];
                    sum[i][j].x += u.x * v.x - u.y * v.y;
                    sum[i][j].y += u.x * v.y + u.y * v.x;
                }
        __syncthreads();
    }
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j)
            c[(size_t)(top + ty + 16 * i) * n + side + tx + 16 * j] = sum[i][j];
}
