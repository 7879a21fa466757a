// Products: floats by tiles of warps, weights of four bits, complex numbers, a sliding window.

#include <cuda_fp16.h>

// c = alpha a b + beta c, floats, (m, k) by (k, n). A block of 128 takes 128 x 128 of c, a warp
// 64 x 64, a thread 8 x 4 of each of four parts of that, 16 of k at a time.
extern "C" __global__ void __launch_bounds__(128) sgemm_warp_tiling(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n, int k,
    float alpha, float beta)
{
    __shared__ __align__(16) float left[16 * 128], right[16 * 128];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const int warp_row = warp / 2 * 64, warp_column = warp % 2 * 64;
    const int own_row = warp_row + lane / 4 * 8, own_column = warp_column + lane % 4 * 4;
    a += (size_t)blockIdx.y * 128 * k;
    b += blockIdx.x * 128;
    float sum[8][16] = {};
    for (int at = 0; at < k; at += 16) {
#pragma unroll
        for (int i = 0; i < 128; i += 32) {
            const int row = i + t / 4, column = t % 4 * 4;
            const float4 v = *reinterpret_cast<const float4*>(&a[(size_t)row * k + at + column]);
            left[(column + 0) * 128 + row] = v.x;
            left[(column + 1) * 128 + row] = v.y;
            left[(column + 2) * 128 + row] = v.z;
            left[(column + 3) * 128 + row] = v.w;
        }
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            const int row = i + t / 32, column = t % 32 * 4;
            *reinterpret_cast<float4*>(&right[row * 128 + column]) =
                *reinterpret_cast<const float4*>(&b[(size_t)(at + row) * n + column]);
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < 16; ++d) {
            float p[8], q[16];
#pragma unroll
            for (int i = 0; i < 8; ++i) p[i] = left[d * 128 + own_row + i];
#pragma unroll
            for (int part = 0; part < 4; ++part)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    q[part * 4 + j] = right[d * 128 + own_column + part * 16 + j];
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 16; ++j) sum[i][j] += p[i] * q[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const size_t row = blockIdx.y * 128 + own_row + i;
            const int column = blockIdx.x * 128 + own_column + part * 16;
            float4* to = reinterpret_cast<float4*>(&c[row * n + column]);
            float4 v = *to;
            v.x = alpha * sum[i][part * 4] + beta * v.x;
            v.y = alpha * sum[i][part * 4 + 1] + beta * v.y;
            v.z = alpha * sum[i][part * 4 + 2] + beta * v.z;
            v.w = alpha * sum[i][part * 4 + 3] + beta * v.w;
            *to = v;
        }
}

// y = x w^T, x (m, k) in halves, w (n, k) in four bits, eight of k in a word, with a scale for each
// 128 of k. A block of 256 takes 64 x 128 of y, a warp 32 x 32, 32 of k at a time; the next ones
// come into registers meanwhile.
extern "C" __global__ void __launch_bounds__(256) w4a16_mma_tile(
    const __half* __restrict__ x, const unsigned* __restrict__ w, const __half* __restrict__ scale,
    __half* __restrict__ y, int n, int k)
{
    __shared__ __align__(16) __half left[64][40], right[128][40];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32, group = lane / 4, pair = lane % 4 * 2;
    const int row = blockIdx.y * 64, column = blockIdx.x * 128;
    const int own_row = warp / 4 * 32, own_column = warp % 4 * 32;
    const __half* from_x = x + (size_t)(row + t / 4) * k + t % 4 * 8;
    const size_t of_w = (size_t)(column + t / 2) * (k / 8) + t % 2 * 2;
    const size_t of_scale = (size_t)(column + t / 2) * (k / 128);
    float sum[2][4][4] = {};
    uint4 next_x = *reinterpret_cast<const uint4*>(from_x);
    uint2 next_w = *reinterpret_cast<const uint2*>(w + of_w);
    __half next_scale = scale[of_scale];
    for (int at = 0; at < k; at += 32) {
        *reinterpret_cast<uint4*>(&left[t / 4][t % 4 * 8]) = next_x;
        const __half2 by = __half2half2(next_scale), zero = __float2half2_rn(1032.0f);
        const unsigned word[2] = {next_w.x, next_w.y};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            __half2 v[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const unsigned eight = word[i] >> 8 * j;
                const unsigned bits = 0x64006400u | (eight & 15) | (eight & 240) << 12;
                v[j] = __hmul2(__hsub2(*reinterpret_cast<const __half2*>(&bits), zero), by);
            }
            *reinterpret_cast<uint4*>(&right[t / 2][t % 2 * 16 + i * 8]) =
                *reinterpret_cast<const uint4*>(v);
        }
        __syncthreads();
        if (at + 32 < k) {
            next_x = *reinterpret_cast<const uint4*>(from_x + at + 32);
            next_w = *reinterpret_cast<const uint2*>(w + of_w + (at + 32) / 8);
            next_scale = scale[of_scale + (at + 32) / 128];
        }
#pragma unroll
        for (int d = 0; d < 32; d += 16) {
            unsigned p[2][4], q[4][2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int r = own_row + i * 16 + group;
                p[i][0] = *reinterpret_cast<const unsigned*>(&left[r][d + pair]);
                p[i][1] = *reinterpret_cast<const unsigned*>(&left[r + 8][d + pair]);
                p[i][2] = *reinterpret_cast<const unsigned*>(&left[r][d + pair + 8]);
                p[i][3] = *reinterpret_cast<const unsigned*>(&left[r + 8][d + pair + 8]);
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int r = own_column + j * 8 + group;
                q[j][0] = *reinterpret_cast<const unsigned*>(&right[r][d + pair]);
                q[j][1] = *reinterpret_cast<const unsigned*>(&right[r][d + pair + 8]);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i)
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
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const size_t r = row + own_row + i * 16 + group;
            const int u = column + own_column + j * 8 + pair;
            *reinterpret_cast<__half2*>(&y[r * n + u]) =
                __floats2half2_rn(sum[i][j][0], sum[i][j][1]);
            *reinterpret_cast<__half2*>(&y[(r + 8) * n + u]) =
                __floats2half2_rn(sum[i][j][2], sum[i][j][3]);
        }
}

// c = a b of square matrices of complex floats, by tiles of 16 x 16, a thread one number.
extern "C" __global__ void __launch_bounds__(256) cgemm_tile(
    const float2* __restrict__ a, const float2* __restrict__ b, float2* __restrict__ c, int n)
{
    __shared__ float2 left[16][16], right[16][16];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * 16 + ty, column = blockIdx.x * 16 + tx;
    float2 sum = make_float2(0.0f, 0.0f);
    for (int at = 0; at < n; at += 16) {
        left[ty][tx] = a[(size_t)row * n + at + tx];
        right[ty][tx] = b[(size_t)(at + ty) * n + column];
        __syncthreads();
#pragma unroll
        for (int d = 0; d < 16; ++d) {
            const float2 p = left[ty][d], q = right[d][tx];
            sum.x += p.x * q.x - p.y * q.y;
            sum.y += p.x * q.y + p.y * q.x;
        }
        __syncthreads();
    }
    c[(size_t)row * n + column] = sum;
}

// Attention to the last `window` keys, heads of 64 floats, (heads, tokens, 64). A block of 128
// takes 32 queries, four lanes a query, and goes over tiles of 32 keys; a lane has 16 numbers.
extern "C" __global__ void __launch_bounds__(128) sliding_window_attention(
    const float4* __restrict__ q, const float4* __restrict__ k, const float4* __restrict__ v,
    float4* __restrict__ o, int tokens, int window, float scale)
{
    __shared__ float4 keys[32][16], values[32][16];
    const int t = threadIdx.x, part = t % 4, first = blockIdx.x * 32, query = first + t / 4;
    const size_t head = (size_t)blockIdx.y * tokens;
    float4 own[4], sum[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        own[i] = q[(head + query) * 16 + i * 4 + part];
        sum[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    float most = -1e30f, total = 0.0f;
    for (int tile = max(first - window, 0); tile <= first; tile += 32) {
        for (int i = t; i < 512; i += 128) {
            keys[i / 16][i % 16] = k[(head + tile) * 16 + i];
            values[i / 16][i % 16] = v[(head + tile) * 16 + i];
        }
        __syncthreads();
        for (int j = 0; j < 32; j += 8) {
            float score[8], larger = most;
#pragma unroll
            for (int u = 0; u < 8; ++u) {
                float dot = 0.0f;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float4 key = keys[j + u][i * 4 + part];
                    dot += own[i].x * key.x + own[i].y * key.y + own[i].z * key.z +
                           own[i].w * key.w;
                }
                dot += __shfl_xor_sync(0xFFFFFFFF, dot, 1);
                dot += __shfl_xor_sync(0xFFFFFFFF, dot, 2);
                const int key = tile + j + u;
                score[u] = key <= query && key + window > query ? dot * scale : -1e30f;
                larger = fmaxf(larger, score[u]);
            }
            const float shrink = __expf(most - larger);
            most = larger;
            total *= shrink;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sum[i].x *= shrink;
                sum[i].y *= shrink;
                sum[i].z *= shrink;
                sum[i].w *= shrink;
            }
#pragma unroll
            for (int u = 0; u < 8; ++u) {
                const float p = __expf(score[u] - most);
                total += p;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float4 value = values[j + u][i * 4 + part];
                    sum[i].x += p * value.x;
                    sum[i].y += p * value.y;
                    sum[i].z += p * value.z;
                    sum[i].w += p * value.w;
                }
            }
        }
        __syncthreads();
    }
    const float by = 1.0f / total;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        o[(head + query) * 16 + i * 4 + part] =
            make_float4(sum[i].x * by, sum[i].y * by, sum[i].z * by, sum[i].w * by);
}
