// Matrices: halves by mma with tiles that arrive ahead, BLAS's SYRK, two pieces of attention.

#include <cuda_fp16.h>

__device__ __forceinline__ unsigned shared_address(const void* p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void copy_16(void* to, const void* from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
}

// c = a b of halves, a (m, k) and b (k, n) by rows, sums in floats. A block of eight warps takes
// 128 x 128 of c, a warp 64 x 32; tiles of 32 of k come by cp.async, one ahead.
extern "C" __global__ void __launch_bounds__(256) hgemm_mma_two_stages(
    const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ c, int n,
    int k)
{
    __shared__ __align__(16) __half left[2][128][40], right[2][32][136];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const int row = blockIdx.y * 128, column = blockIdx.x * 128;
    const int own_row = warp / 4 * 64, own_column = warp % 4 * 32;
    float sum[4][4][4] = {};
    auto load = [&](int stage, int at) {
#pragma unroll
        for (int i = t; i < 512; i += 256) {
            copy_16(&left[stage][i / 4][i % 4 * 8],
                    &a[(size_t)(row + i / 4) * k + at + i % 4 * 8]);
            copy_16(&right[stage][i / 16][i % 16 * 8],
                    &b[(size_t)(at + i / 16) * n + column + i % 16 * 8]);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    load(0, 0);
    for (int at = 0, stage = 0; at < k; at += 32, stage ^= 1) {
        if (at + 32 < k) {
            load(stage ^ 1, at + 32);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < 32; d += 16) {
            unsigned p[4][4], q[4][2];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                asm volatile(
                    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                    : "=r"(p[i][0]), "=r"(p[i][1]), "=r"(p[i][2]), "=r"(p[i][3])
                    : "r"(shared_address(
                        &left[stage][own_row + i * 16 + lane % 16][d + lane / 16 * 8]))
                    : "memory");
#pragma unroll
            for (int j = 0; j < 4; ++j)
                asm volatile(
                    "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                    : "=r"(q[j][0]), "=r"(q[j][1])
                    : "r"(shared_address(&right[stage][d + lane % 16][own_column + j * 8]))
                    : "memory");
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    asm volatile(
                        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                        : "+f"(sum[i][j][0]), "+f"(sum[i][j][1]), "+f"(sum[i][j][2]),
                          "+f"(sum[i][j][3])
                        : "r"(p[i][0]), "r"(p[i][1]), "r"(p[i][2]), "r"(p[i][3]), "r"(q[j][0]),
                          "r"(q[j][1]));
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int y = row + own_row + i * 16 + lane / 4;
            const int x = column + own_column + j * 8 + lane % 4 * 2;
            *(__half2*)&c[(size_t)y * n + x] = __floats2half2_rn(sum[i][j][0], sum[i][j][1]);
            *(__half2*)&c[(size_t)(y + 8) * n + x] = __floats2half2_rn(sum[i][j][2], sum[i][j][3]);
        }
}

// The lower triangle of c = alpha a a^T + beta c, doubles, a (n, k). A block of 16 x 16 takes
// 32 x 32 of c, a thread 2 x 2; blocks above the diagonal have nothing to do.
extern "C" __global__ void __launch_bounds__(256) dsyrk_lower_tile(
    const double* __restrict__ a, double* __restrict__ c, int n, int k, float alpha, float beta)
{
    __shared__ double left[32][17], right[32][17];
    if (blockIdx.x > blockIdx.y) return;
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * 32, column = blockIdx.x * 32;
    double sum[2][2] = {};
    for (int at = 0; at < k; at += 16) {
#pragma unroll
        for (int i = 0; i < 32; i += 16) {
            left[ty + i][tx] = a[(size_t)(row + ty + i) * k + at + tx];
            right[ty + i][tx] = a[(size_t)(column + ty + i) * k + at + tx];
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < 16; ++d) {
            const double p = left[ty][d], q = left[ty + 16][d];
            const double r = right[tx][d], s = right[tx + 16][d];
            sum[0][0] += p * r;
            sum[0][1] += p * s;
            sum[1][0] += q * r;
            sum[1][1] += q * s;
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int y = row + ty + 16 * i, x = column + tx + 16 * j;
            if (x > y) continue;
            double* to = &c[(size_t)y * n + x];
            *to = alpha * sum[i][j] + beta * *to;
        }
}

// The gradient of the scores of attention: scale p (dp - sum(p dp)), halves, rows of 512 keys. A
// warp takes a row, a lane two times eight numbers.
extern "C" __global__ void softmax_backward_half(
    const __half* __restrict__ p, const __half* __restrict__ dp, __half* __restrict__ ds, int rows,
    float scale)
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const size_t start = (size_t)row * 64 + lane;
    float2 v[8], g[8];
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint4 packed_v = reinterpret_cast<const uint4*>(p)[start + 32 * i];
        const uint4 packed_g = reinterpret_cast<const uint4*>(dp)[start + 32 * i];
        const __half2* halves_v = reinterpret_cast<const __half2*>(&packed_v);
        const __half2* halves_g = reinterpret_cast<const __half2*>(&packed_g);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            v[4 * i + j] = __half22float2(halves_v[j]);
            g[4 * i + j] = __half22float2(halves_g[j]);
            dot += v[4 * i + j].x * g[4 * i + j].x + v[4 * i + j].y * g[4 * i + j].y;
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) dot += __shfl_xor_sync(0xFFFFFFFF, dot, step);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        uint4 out;
        __half2* to = reinterpret_cast<__half2*>(&out);
#pragma unroll
        for (int j = 0; j < 4; ++j)
            to[j] = __floats2half2_rn(scale * v[4 * i + j].x * (g[4 * i + j].x - dot),
                                      scale * v[4 * i + j].y * (g[4 * i + j].y - dot));
        reinterpret_cast<uint4*>(ds)[start + 32 * i] = out;
    }
}

// Attention over a shared prefix and over the rest, as one: outputs (tokens, heads, 128) of halves
// are weighed by their log-sums (heads, tokens). A thread takes eight numbers.
extern "C" __global__ void merge_attention_states(
    const __half* __restrict__ prefix, const float* __restrict__ prefix_lse,
    const __half* __restrict__ suffix, const float* __restrict__ suffix_lse,
    __half* __restrict__ out, float* __restrict__ out_lse, int tokens, int heads)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= tokens * heads * 16) return;
    const int head = i / 16 % heads, token = i / 16 / heads;
    const float p = prefix_lse[head * tokens + token], s = suffix_lse[head * tokens + token];
    const float most = fmaxf(p, s), of_p = expf(p - most), of_s = expf(s - most);
    const float sum = of_p + of_s, weight_p = of_p / sum, weight_s = of_s / sum;
    const uint4 packed_p = reinterpret_cast<const uint4*>(prefix)[i];
    const uint4 packed_s = reinterpret_cast<const uint4*>(suffix)[i];
    const __half2* v = reinterpret_cast<const __half2*>(&packed_p);
    const __half2* w = reinterpret_cast<const __half2*>(&packed_s);
    uint4 packed;
    __half2* to = reinterpret_cast<__half2*>(&packed);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float2 x = __half22float2(v[j]), y = __half22float2(w[j]);
        to[j] = __floats2half2_rn(weight_p * x.x + weight_s * y.x,
                                  weight_p * x.y + weight_s * y.y);
    }
    reinterpret_cast<uint4*>(out)[i] = packed;
    if (i % 16 == 0) out_lse[head * tokens + token] = logf(sum) + most;
}
