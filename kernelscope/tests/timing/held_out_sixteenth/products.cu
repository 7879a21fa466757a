// Products: by mma with ldmatrix, of a transposed matrix, states of linear attention, a
// transposed convolution.

#include <cuda_fp16.h>

__device__ __forceinline__ void load_four(unsigned (&r)[4], const uint4* at)
{
    const unsigned address = (unsigned)__cvta_generic_to_shared(at);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

// C = A * transposed(B), of halves; sums are floats. A block has 128x64 of C, a warp 32x64. Tiles
// are 32 deep; an exclusive or of a row's bits spreads its four parts over the banks.
extern "C" __global__ void __launch_bounds__(128) hgemm_nt_ldmatrix_swizzled(
    const __half* __restrict__ a, const __half* __restrict__ b, __half2* __restrict__ c, int n,
    int k)
{
    __shared__ uint4 left[128 * 4], right[64 * 4];
    const int t = threadIdx.x, warp = t / 32, lane = t & 31, parts = k / 8;
    const int row = blockIdx.y * 128, column = blockIdx.x * 64;
    const uint4* x_of = reinterpret_cast<const uint4*>(a);
    const uint4* y_of = reinterpret_cast<const uint4*>(b);
    float sum[2][8][4] = {};
    for (int from = 0; from < parts; from += 4) {
#pragma unroll
        for (int i = t; i < 512; i += 128) {
            const int r = i / 4, part = i % 4;
            left[r * 4 + (part ^ (r / 2 & 3))] = x_of[(size_t)(row + r) * parts + from + part];
        }
#pragma unroll
        for (int i = t; i < 256; i += 128) {
            const int r = i / 4, part = i % 4;
            right[r * 4 + (part ^ (r / 2 & 3))] = y_of[(size_t)(column + r) * parts + from + part];
        }
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            unsigned x[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int r = warp * 32 + i * 16 + lane % 16, part = half * 2 + lane / 16;
                load_four(x[i], left + r * 4 + (part ^ (r / 2 & 3)));
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int r = j * 16 + lane % 8 + lane / 16 * 8, part = half * 2 + lane / 8 % 2;
                unsigned y[4];
                load_four(y, right + r * 4 + (part ^ (r / 2 & 3)));
#pragma unroll
                for (int i = 0; i < 2; ++i)
#pragma unroll
                    for (int s = 0; s < 2; ++s) {
                        float(&d)[4] = sum[i][2 * j + s];
                        asm volatile(
                            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                            : "r"(x[i][0]), "r"(x[i][1]), "r"(x[i][2]), "r"(x[i][3]),
                              "r"(y[2 * s]), "r"(y[2 * s + 1]));
                    }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int r = row + warp * 32 + i * 16 + lane / 4;
            const size_t at = ((size_t)r * n + column + j * 8) / 2 + lane % 4;
            c[at] = __floats2half2_rn(sum[i][j][0], sum[i][j][1]);
            c[at + 4 * (size_t)n] = __floats2half2_rn(sum[i][j][2], sum[i][j][3]);
        }
}

// C = transposed(A) * B, a layer's gradient of its weights: 64x64 of C a block, 4x4 a thread.
extern "C" __global__ void __launch_bounds__(256) sgemm_tn_64_tile(
    const float4* __restrict__ a, const float4* __restrict__ b, float4* __restrict__ c, int m,
    int n, int k)
{
    __shared__ float4 left[16][16], right[16][16];
    const int x = threadIdx.x, y = threadIdx.y, i0 = blockIdx.y * 16, j0 = blockIdx.x * 16;
    float sum[4][4] = {};
    for (int from = 0; from < k; from += 16) {
        left[y][x] = a[(size_t)(from + y) * (m / 4) + i0 + x];
        right[y][x] = b[(size_t)(from + y) * (n / 4) + j0 + x];
        __syncthreads();
#pragma unroll
        for (int p = 0; p < 16; ++p) {
            const float4 u = left[p][y], v = right[p][x];
            const float us[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sum[i][0] += us[i] * v.x;
                sum[i][1] += us[i] * v.y;
                sum[i][2] += us[i] * v.z;
                sum[i][3] += us[i] * v.w;
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
        c[(size_t)((i0 + y) * 4 + i) * (n / 4) + j0 + x] =
            make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
}

// States of linear attention: of each head and chunk of 256 tokens, the sum of outer products of
// elu(key) + 1 and value, 64x64, and the sum of the keys.
extern "C" __global__ void __launch_bounds__(256) linear_attention_states(
    const __half2* __restrict__ key, const __half2* __restrict__ value,
    float* __restrict__ state, float* __restrict__ total, int heads)
{
    __shared__ float keys[32][64], values[32][64];
    const int t = threadIdx.x, x = t % 16, y = t / 16, head = blockIdx.x;
    float sum[4][4] = {}, of_keys = 0.0f;
    for (int from = blockIdx.y * 256; from < blockIdx.y * 256 + 256; from += 32) {
        for (int i = t; i < 1024; i += 256) {
            const int token = i / 32, pair = i % 32;
            const size_t at = ((size_t)(from + token) * heads + head) * 32 + pair;
            const float2 u = __half22float2(key[at]), v = __half22float2(value[at]);
            keys[token][2 * pair] = u.x > 0.0f ? u.x + 1.0f : __expf(u.x);
            keys[token][2 * pair + 1] = u.y > 0.0f ? u.y + 1.0f : __expf(u.y);
            values[token][2 * pair] = v.x;
            values[token][2 * pair + 1] = v.y;
        }
        __syncthreads();
        for (int token = 0; token < 32; ++token) {
            float u[4], v[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                u[i] = keys[token][y + 16 * i];
                v[i] = values[token][x + 16 * i];
            }
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[i][j] += u[i] * v[j];
            if (t < 64) of_keys += keys[token][t];
        }
        __syncthreads();
    }
    const size_t which = (size_t)blockIdx.y * heads + head;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            state[which * 4096 + (y + 16 * i) * 64 + x + 16 * j] = sum[i][j];
    if (t < 64) total[which * 64 + t] = of_keys;
}

// A transposed 4x4 convolution of stride 2, which doubles a picture. A thread takes one pixel of
// four channels; weights, [before][after][4][4], wait in shared memory.
extern "C" __global__ void __launch_bounds__(256) conv_transpose_4x4_stride_2(
    const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out,
    int before, int after, int side)
{
    __shared__ float w[16][4][16];
    const int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    const int group = blockIdx.z % (after / 4) * 4, picture = blockIdx.z / (after / 4);
    const int t = threadIdx.y * 16 + threadIdx.x, top = (row + 1) / 2, left = (column + 1) / 2;
    const int ky = (row + 1) & 1, kx = (column + 1) & 1;
    float sum[4] = {};
    for (int from = 0; from < before; from += 16) {
        for (int i = t; i < 1024; i += 256)
            w[i / 64][i / 16 % 4][i % 16] =
                weight[((size_t)(from + i / 64) * after + group + i / 16 % 4) * 16 + i % 16];
        __syncthreads();
        for (int c = 0; c < 16; ++c) {
            const float* plane = x + ((size_t)picture * before + from + c) * side * side;
#pragma unroll
            for (int tap = 0; tap < 4; ++tap) {
                const int r = top - tap / 2, s = left - tap % 2;
                const bool inside = r >= 0 && r < side && s >= 0 && s < side;
                const float v = inside ? plane[r * side + s] : 0.0f;
                const int at = (ky + tap / 2 * 2) * 4 + kx + tap % 2 * 2;
#pragma unroll
                for (int o = 0; o < 4; ++o) sum[o] += v * w[c][o][at];
            }
        }
        __syncthreads();
    }
    const int wide = 2 * side;
    if (column >= wide || row >= wide) return;
    for (int o = 0; o < 4; ++o)
        out[((size_t)picture * after + group + o) * wide * wide + row * wide + column] = sum[o];
}
