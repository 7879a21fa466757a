// kernelscope: sm_90
// Products and inverses of matrices.

#include <cuda_fp16.h>

__device__ __forceinline__ unsigned shared_address(const void* at)
{
    return (unsigned)__cvta_generic_to_shared(at);
}

__device__ __forceinline__ void matrices(unsigned (&to)[4], const void* row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row)));
}

__device__ __forceinline__ void matrices_turned(unsigned (&to)[4], const void* row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row)));
}

__device__ __forceinline__ void multiply(
    float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned two_halves(float a, float b)
{
    const __half2 v = __floats2half2_rn(a, b);
    return *(const unsigned*)&v;
}

// 64 rows of 64 halves, by 128 threads.
__device__ __forceinline__ void load_tile(__half (*tile)[72], const __half* from)
{
#pragma unroll
    for (int i = threadIdx.x; i < 512; i += 128)
        *(uint4*)&tile[i / 8][i % 8 * 8] = *(const uint4*)(from + i * 8);
}

// Means of v up to each row, weighted by exp(q k / 8): q, k, v, out (heads, rows, 64) of halves,
// rows a multiple of 64. A block of four warps takes 64 queries; scores and shares stay in the
// registers of a warp.
extern "C" __global__ void __launch_bounds__(128) online_causal_mma(
    const __half* __restrict__ q, const __half* __restrict__ k, const __half* __restrict__ v,
    __half* __restrict__ out, int rows)
{
    __shared__ __align__(16) __half keys[64][72], values[64][72];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int group = lane / 4, pair = lane % 4 * 2;
    const size_t head = (size_t)blockIdx.y * rows * 64;
    const float scale = 0.125f * 1.44269504f;
    load_tile(keys, q + head + (size_t)blockIdx.x * 64 * 64);
    __syncthreads();
    unsigned query[4][4];
#pragma unroll
    for (int d = 0; d < 4; ++d)
        matrices(query[d], &keys[warp * 16 + lane % 16][d * 16 + lane / 16 * 8]);
    float sum[8][4] = {}, most[2] = {-1e30f, -1e30f}, total[2] = {};
    for (int tile = 0; tile <= blockIdx.x; ++tile) {
        __syncthreads();
        load_tile(keys, k + head + (size_t)tile * 64 * 64);
        load_tile(values, v + head + (size_t)tile * 64 * 64);
        __syncthreads();
        float score[8][4] = {};
#pragma unroll
        for (int d = 0; d < 4; ++d)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                unsigned b[4];
                matrices(b, &keys[n * 16 + lane / 16 * 8 + lane % 8][d * 16 + lane / 8 % 2 * 8]);
                multiply(score[2 * n], query[d], b[0], b[1]);
                multiply(score[2 * n + 1], query[d], b[2], b[3]);
            }
        if (tile == blockIdx.x)
#pragma unroll
            for (int n = 0; n < 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (n * 8 + pair + i % 2 > warp * 16 + group + i / 2 * 8) score[n][i] = -1e30f;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float highest = most[h];
#pragma unroll
            for (int n = 0; n < 8; ++n)
                highest = fmaxf(highest, fmaxf(score[n][2 * h], score[n][2 * h + 1]));
            highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, 2));
            const float less = exp2f((most[h] - highest) * scale);
            most[h] = highest;
            total[h] *= less;
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                sum[n][2 * h] *= less;
                sum[n][2 * h + 1] *= less;
                score[n][2 * h] = exp2f((score[n][2 * h] - highest) * scale);
                score[n][2 * h + 1] = exp2f((score[n][2 * h + 1] - highest) * scale);
                total[h] += score[n][2 * h] + score[n][2 * h + 1];
            }
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const unsigned share[4] = {
                two_halves(score[2 * j][0], score[2 * j][1]),
                two_halves(score[2 * j][2], score[2 * j][3]),
                two_halves(score[2 * j + 1][0], score[2 * j + 1][1]),
                two_halves(score[2 * j + 1][2], score[2 * j + 1][3])};
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                unsigned b[4];
                matrices_turned(b, &values[j * 16 + lane % 16][n * 16 + lane / 16 * 8]);
                multiply(sum[2 * n], share, b[0], b[1]);
                multiply(sum[2 * n + 1], share, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        total[h] += __shfl_xor_sync(0xFFFFFFFF, total[h], 1);
        total[h] += __shfl_xor_sync(0xFFFFFFFF, total[h], 2);
        const int row = blockIdx.x * 64 + warp * 16 + group + 8 * h;
        const float part = 1.0f / total[h];
#pragma unroll
        for (int n = 0; n < 8; ++n)
            *(__half2*)(out + head + (size_t)row * 64 + n * 8 + pair) =
                __floats2half2_rn(sum[n][2 * h] * part, sum[n][2 * h + 1] * part);
    }
}

// The lower triangle of C (n, n) = A A^T, A (n, k), n a multiple of 64 and k of 16: blocks above
// the diagonal have nothing to do, the others take 64 x 64, a thread 4 x 4.
extern "C" __global__ void __launch_bounds__(256) syrk_lower(
    const float* __restrict__ a, float* __restrict__ c, int n, int k)
{
    if (blockIdx.x > blockIdx.y) return;
    __shared__ __align__(16) float left[16][68], right[16][68];
    const int t = threadIdx.x, x = t % 16, y = t / 16;
    const float* from = a + (size_t)(blockIdx.y * 64 + t / 4) * k + t % 4 * 4;
    const float* other = a + (size_t)(blockIdx.x * 64 + t / 4) * k + t % 4 * 4;
    float sum[4][4] = {};
    for (int i = 0; i < k; i += 16) {
        const float4 p = *(const float4*)(from + i), q = *(const float4*)(other + i);
        left[t % 4 * 4 + 0][t / 4] = p.x;
        left[t % 4 * 4 + 1][t / 4] = p.y;
        left[t % 4 * 4 + 2][t / 4] = p.z;
        left[t % 4 * 4 + 3][t / 4] = p.w;
        right[t % 4 * 4 + 0][t / 4] = q.x;
        right[t % 4 * 4 + 1][t / 4] = q.y;
        right[t % 4 * 4 + 2][t / 4] = q.z;
        right[t % 4 * 4 + 3][t / 4] = q.w;
        __syncthreads();
#pragma unroll
        for (int d = 0; d < 16; ++d) {
            const float4 u = *(const float4*)&left[d][4 * y], v = *(const float4*)&right[d][4 * x];
            const float us[4] = {u.x, u.y, u.z, u.w}, vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int r = 0; r < 4; ++r)
#pragma unroll
                for (int s = 0; s < 4; ++s) sum[r][s] += us[r] * vs[s];
        }
        __syncthreads();
    }
    for (int r = 0; r < 4; ++r)
        for (int s = 0; s < 4; ++s) {
            const int row = blockIdx.y * 64 + 4 * y + r, column = blockIdx.x * 64 + 4 * x + s;
            if (column <= row) c[(size_t)row * n + column] = sum[r][s];
        }
}

// 128 rows of 64 bytes, by 256 threads: two copies of 16 bytes each.
__device__ __forceinline__ void fetch_bytes(
    signed char (*tile)[80], const signed char* from, int pitch)
{
#pragma unroll
    for (int i = threadIdx.x; i < 512; i += 256)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         shared_address(&tile[i / 4][i % 4 * 16])),
                     "l"(from + (size_t)(i / 4) * pitch + i % 4 * 16));
}

// C (m, n) = scale * of_row of_column A (m, k) B (n, k)^T: A and B are bytes, C halves; m and n are
// multiples of 128, k of 64. A block takes 128 x 128, 64 deep, a warp 64 x 32; the next tile is
// copied while one is used.
extern "C" __global__ void __launch_bounds__(256) w8a8_scaled(
    const signed char* __restrict__ a, const signed char* __restrict__ b,
    const float* __restrict__ of_row, const float* __restrict__ of_column, __half* __restrict__ c,
    int n, int k, float scale)
{
    __shared__ __align__(16) signed char left[2][128][80], right[2][128][80];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp / 4 * 64, column = warp % 4 * 32;
    a += (size_t)blockIdx.y * 128 * k;
    b += (size_t)blockIdx.x * 128 * k;
    int sum[4][4][4] = {};
    fetch_bytes(left[0], a, k);
    fetch_bytes(right[0], b, k);
    for (int i = 0; i < k; i += 64) {
        const int now = i / 64 % 2;
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        if (i + 64 < k) {
            fetch_bytes(left[1 - now], a + i + 64, k);
            fetch_bytes(right[1 - now], b + i + 64, k);
        }
#pragma unroll
        for (int d = 0; d < 64; d += 32) {
            unsigned p[4][4], q[2][4];
#pragma unroll
            for (int u = 0; u < 4; ++u)
                matrices(p[u], &left[now][row + u * 16 + lane % 16][d + lane / 16 * 16]);
#pragma unroll
            for (int v = 0; v < 2; ++v)
                matrices(q[v], &right[now][column + v * 16 + lane / 16 * 8 + lane % 8]
                                     [d + lane / 8 % 2 * 16]);
#pragma unroll
            for (int u = 0; u < 4; ++u)
#pragma unroll
                for (int v = 0; v < 4; ++v)
                    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                                 : "+r"(sum[u][v][0]), "+r"(sum[u][v][1]), "+r"(sum[u][v][2]),
                                   "+r"(sum[u][v][3])
                                 : "r"(p[u][0]), "r"(p[u][1]), "r"(p[u][2]), "r"(p[u][3]),
                                   "r"(q[v / 2][v % 2 * 2]), "r"(q[v / 2][v % 2 * 2 + 1]));
        }
    }
    for (int u = 0; u < 4; ++u)
        for (int v = 0; v < 4; ++v) {
            const int to = blockIdx.x * 128 + column + v * 8 + lane % 4 * 2;
            const float2 t = *(const float2*)(of_column + to);
            for (int h = 0; h < 2; ++h) {
                const int at = blockIdx.y * 128 + row + u * 16 + lane / 4 + 8 * h;
                const float s = scale * of_row[at];
                *(__half2*)(c + (size_t)at * n + to) = __floats2half2_rn(
                    s * t.x * sum[u][v][2 * h], s * t.y * sum[u][v][2 * h + 1]);
            }
        }
}

// Inverses of 4 x 4 matrices (n, 4, 4) in double, one a thread, by products of 2 x 2 minors.
extern "C" __global__ void inverse_4x4(
    const double2* __restrict__ from, double2* __restrict__ to, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double m[16];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const double2 v = from[(size_t)i * 8 + j];
        m[2 * j] = v.x;
        m[2 * j + 1] = v.y;
    }
    const double s0 = m[0] * m[5] - m[4] * m[1], s1 = m[0] * m[6] - m[4] * m[2];
    const double s2 = m[0] * m[7] - m[4] * m[3], s3 = m[1] * m[6] - m[5] * m[2];
    const double s4 = m[1] * m[7] - m[5] * m[3], s5 = m[2] * m[7] - m[6] * m[3];
    const double c5 = m[10] * m[15] - m[14] * m[11], c4 = m[9] * m[15] - m[13] * m[11];
    const double c3 = m[9] * m[14] - m[13] * m[10], c2 = m[8] * m[15] - m[12] * m[11];
    const double c1 = m[8] * m[14] - m[12] * m[10], c0 = m[8] * m[13] - m[12] * m[9];
    const double part =
        1.0 / (s0 * c5 - s1 * c4 + s2 * c3 + s3 * c2 - s4 * c1 + s5 * c0);
    const double found[16] = {
        m[5] * c5 - m[6] * c4 + m[7] * c3,     -m[1] * c5 + m[2] * c4 - m[3] * c3,
        m[13] * s5 - m[14] * s4 + m[15] * s3,  -m[9] * s5 + m[10] * s4 - m[11] * s3,
        -m[4] * c5 + m[6] * c2 - m[7] * c1,    m[0] * c5 - m[2] * c2 + m[3] * c1,
        -m[12] * s5 + m[14] * s2 - m[15] * s1, m[8] * s5 - m[10] * s2 + m[11] * s1,
        m[4] * c4 - m[5] * c2 + m[7] * c0,     -m[0] * c4 + m[1] * c2 - m[3] * c0,
        m[12] * s4 - m[13] * s2 + m[15] * s0,  -m[8] * s4 + m[9] * s2 - m[11] * s0,
        -m[4] * c3 + m[5] * c1 - m[6] * c0,    m[0] * c3 - m[1] * c1 + m[2] * c0,
        -m[12] * s3 + m[13] * s1 - m[14] * s0, m[8] * s3 - m[9] * s1 + m[10] * s0};
#pragma unroll
    for (int j = 0; j < 8; ++j)
        to[(size_t)i * 8 + j] = make_double2(found[2 * j] * part, found[2 * j + 1] * part);
}
