// Products: bf16 by mma in three stages, rows of 8-bit blocks times a vector, pictures' queries
// over the tokens of a text, a convolution's gradient of its weights.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ unsigned in_shared(const void* p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void copy_16(void* to, const void* from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(in_shared(to)), "l"(from)
                 : "memory");
}

__device__ __forceinline__ void load_4(unsigned (&v)[4], const void* from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(in_shared(from))
                 : "memory");
}

__device__ __forceinline__ void load_4_turned(unsigned (&v)[4], const void* from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(in_shared(from))
                 : "memory");
}

// c = a * b of bf16, all row by row, c of floats. A block of four warps makes 128 x 64 of c, a warp
// 64 x 32; tiles of 32 of k come by cp.async, two ahead.
extern "C" __global__ void __launch_bounds__(128) gemm_bf16_mma_three_stages(
    const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b,
    float* __restrict__ c, int n, int k)
{
    __shared__ __align__(16) __nv_bfloat16 left[3][128][40], right[3][32][72];
    const int t = threadIdx.x, lane = t & 31, warp = t / 32;
    const int top = blockIdx.y * 128, side = blockIdx.x * 64;
    const int row = warp / 2 * 64, column = warp % 2 * 32, tiles = k / 32;
    float sum[4][4][4] = {};
    auto fetch = [&](int tile) {
        const int stage = tile % 3, from = tile * 32;
#pragma unroll
        for (int i = t; i < 512; i += 128) {
            const int r = i / 4, d = i % 4 * 8;
            copy_16(&left[stage][r][d], a + (size_t)(top + r) * k + from + d);
        }
#pragma unroll
        for (int i = t; i < 256; i += 128) {
            const int d = i / 8, r = i % 8 * 8;
            copy_16(&right[stage][d][r], b + (size_t)(from + d) * n + side + r);
        }
    };
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
        if (tile < tiles) fetch(tile);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (int tile = 0; tile < tiles; ++tile) {
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        if (tile + 2 < tiles) fetch(tile + 2);
        asm volatile("cp.async.commit_group;" ::: "memory");
        const int stage = tile % 3;
#pragma unroll
        for (int d = 0; d < 32; d += 16) {
            unsigned x[4][4], y[2][4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                load_4(x[i], &left[stage][row + i * 16 + lane % 16][d + lane / 16 * 8]);
#pragma unroll
            for (int j = 0; j < 2; ++j)
                load_4_turned(y[j], &right[stage][d + lane % 16][column + j * 16 + lane / 16 * 8]);
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    float(&s)[4] = sum[i][j];
                    asm volatile(
                        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                        : "r"(x[i][0]), "r"(x[i][1]), "r"(x[i][2]), "r"(x[i][3]),
                          "r"(y[j / 2][j % 2 * 2]), "r"(y[j / 2][j % 2 * 2 + 1]));
                }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            float* to = c + (size_t)(top + row + i * 16 + lane / 4) * n + side + column + j * 8 +
                        lane % 4 * 2;
            *reinterpret_cast<float2*>(to) = make_float2(sum[i][j][0], sum[i][j][1]);
            *reinterpret_cast<float2*>(to + 8 * (size_t)n) =
                make_float2(sum[i][j][2], sum[i][j][3]);
        }
}

// out = w * x, both in blocks of 32 bytes with a scale. A warp takes a row, a lane 16 bytes.
extern "C" __global__ void __launch_bounds__(128) gemv_q8_blocks_dp4a(
    const int4* __restrict__ w, const __half* __restrict__ w_scale, const int4* __restrict__ x,
    const float* __restrict__ x_scale, float* __restrict__ out, int rows, int k)
{
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x & 31, parts = k / 16;
    if (row >= rows) return;
    const int4* own = w + (size_t)row * parts;
    const __half* scale = w_scale + (size_t)row * (parts / 2);
    float sum = 0.0f;
    for (int i = lane; i < parts; i += 32) {
        const int4 p = own[i], q = x[i];
        int dot = __dp4a(p.x, q.x, 0);
        dot = __dp4a(p.y, q.y, dot);
        dot = __dp4a(p.z, q.z, dot);
        dot = __dp4a(p.w, q.w, dot);
        sum += __half2float(scale[i / 2]) * x_scale[i / 2] * dot;
    }
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) out[row] = sum;
}

// Each query's mean of 77 values of a text, weighted by exponentials of products with its keys.
// Heads are 64 wide. A block has the keys and values of a head in shared memory; a thread takes a
// query.
extern "C" __global__ void __launch_bounds__(128) text_keys_77_half(
    const __half* __restrict__ query, const __half* __restrict__ key,
    const __half* __restrict__ value, __half* __restrict__ out, int tokens, int heads, float scale)
{
    constexpr int KEYS = 77, WIDTH = 64;
    __shared__ uint4 keys[KEYS][WIDTH / 8], values[KEYS][WIDTH / 8];
    const int t = threadIdx.x, head = blockIdx.y, picture = blockIdx.z;
    const int token = blockIdx.x * 128 + t;
    for (int i = t; i < KEYS * WIDTH / 8; i += 128) {
        const size_t at = ((size_t)(picture * KEYS + i / 8) * heads + head) * WIDTH + i % 8 * 8;
        keys[i / 8][i % 8] = *reinterpret_cast<const uint4*>(key + at);
        values[i / 8][i % 8] = *reinterpret_cast<const uint4*>(value + at);
    }
    __syncthreads();
    if (token >= tokens) return;
    const size_t from = (((size_t)picture * tokens + token) * heads + head) * WIDTH;
    __half2 q[WIDTH / 2];
    float2 sum[WIDTH / 2];
#pragma unroll
    for (int i = 0; i < WIDTH / 8; ++i) {
        const uint4 v = *reinterpret_cast<const uint4*>(query + from + i * 8);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            q[i * 4 + j] = reinterpret_cast<const __half2*>(&v)[j];
            sum[i * 4 + j] = make_float2(0.0f, 0.0f);
        }
    }
    float most = -1.0e30f, total = 0.0f;
    for (int other = 0; other < KEYS; ++other) {
        float score = 0.0f;
#pragma unroll
        for (int i = 0; i < WIDTH / 8; ++i) {
            const uint4 v = keys[other][i];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float2 x = __half22float2(q[i * 4 + j]);
                const float2 y = __half22float2(reinterpret_cast<const __half2*>(&v)[j]);
                score += x.x * y.x + x.y * y.y;
            }
        }
        score *= scale;
        if (score > most) {
            const float less = __expf(most - score);
            total *= less;
#pragma unroll
            for (int i = 0; i < WIDTH / 2; ++i) {
                sum[i].x *= less;
                sum[i].y *= less;
            }
            most = score;
        }
        const float p = __expf(score - most);
        total += p;
#pragma unroll
        for (int i = 0; i < WIDTH / 8; ++i) {
            const uint4 v = values[other][i];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float2 y = __half22float2(reinterpret_cast<const __half2*>(&v)[j]);
                sum[i * 4 + j].x += p * y.x;
                sum[i * 4 + j].y += p * y.y;
            }
        }
    }
    const float inverse = 1.0f / total;
#pragma unroll
    for (int i = 0; i < WIDTH / 8; ++i) {
        uint4 v;
#pragma unroll
        for (int j = 0; j < 4; ++j)
            reinterpret_cast<__half2*>(&v)[j] =
                __floats2half2_rn(sum[i * 4 + j].x * inverse, sum[i * 4 + j].y * inverse);
        *reinterpret_cast<uint4*>(out + from + i * 8) = v;
    }
}

// The gradient of the weights of a 3x3 convolution, channels first. A block sums over all pixels
// of all pictures for a channel before it and four after it.
extern "C" __global__ void __launch_bounds__(256) conv_3x3_weight_gradient(
    const float* __restrict__ x, const float* __restrict__ gradient, float* __restrict__ out,
    int batch, int before, int after, int side)
{
    __shared__ float of_warp[8][36];
    const int t = threadIdx.x, in = blockIdx.x, first = blockIdx.y * 4, plane = side * side;
    float sum[4][9] = {};
    for (int i = t; i < batch * plane; i += 256) {
        const int picture = i / plane, pixel = i % plane, y = pixel / side, column = pixel % side;
        const float* from = x + ((size_t)picture * before + in) * plane;
        const float* g = gradient + ((size_t)picture * after + first) * plane + pixel;
        float near[9];
#pragma unroll
        for (int j = 0; j < 9; ++j) {
            const int r = y + j / 3 - 1, c = column + j % 3 - 1;
            near[j] = r >= 0 && r < side && c >= 0 && c < side ? from[r * side + c] : 0.0f;
        }
#pragma unroll
        for (int o = 0; o < 4; ++o) {
            const float v = g[(size_t)o * plane];
#pragma unroll
            for (int j = 0; j < 9; ++j) sum[o][j] += v * near[j];
        }
    }
#pragma unroll
    for (int o = 0; o < 4; ++o)
#pragma unroll
        for (int j = 0; j < 9; ++j) {
            float v = sum[o][j];
#pragma unroll
            for (int step = 16; step; step /= 2) v += __shfl_down_sync(~0u, v, step);
            if (t % 32 == 0) of_warp[t / 32][o * 9 + j] = v;
        }
    __syncthreads();
    if (t >= 36) return;
    float v = 0.0f;
    for (int i = 0; i < 8; ++i) v += of_warp[i][t];
    out[((size_t)(first + t / 9) * before + in) * 9 + t % 9] = v;
}
