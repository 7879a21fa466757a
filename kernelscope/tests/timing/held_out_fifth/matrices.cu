// kernelscope: sm_90
// Products of matrices, eigenvalues, Fourier transforms.

#include <cuda_fp16.h>

// C (m, n) int32 = A (m, k) B (n, k)^T of bytes, four of them in a word: a block takes 64 x 64, a
// thread 4 x 4; k is a multiple of 64.
extern "C" __global__ void __launch_bounds__(256) dp4a_tile(
    const int4* __restrict__ a, const int4* __restrict__ b, int4* __restrict__ c, int n, int k)
{
    __shared__ __align__(16) int left[16][68], right[16][68];
    const int row = threadIdx.x / 4, part = threadIdx.x % 4;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16, pitch = k / 16;
    a += (size_t)(blockIdx.y * 64 + row) * pitch + part;
    b += (size_t)(blockIdx.x * 64 + row) * pitch + part;
    int sum[4][4] = {};
    for (int i = 0; i < pitch; i += 4) {
        const int4 p = a[i], q = b[i];
        __syncthreads();
        left[4 * part + 0][row] = p.x;
        left[4 * part + 1][row] = p.y;
        left[4 * part + 2][row] = p.z;
        left[4 * part + 3][row] = p.w;
        right[4 * part + 0][row] = q.x;
        right[4 * part + 1][row] = q.y;
        right[4 * part + 2][row] = q.z;
        right[4 * part + 3][row] = q.w;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < 16; ++w) {
            const int4 u = *(const int4*)&left[w][4 * y], v = *(const int4*)&right[w][4 * x];
            const int us[4] = {u.x, u.y, u.z, u.w}, vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int r = 0; r < 4; ++r)
#pragma unroll
                for (int s = 0; s < 4; ++s) sum[r][s] = __dp4a(us[r], vs[s], sum[r][s]);
        }
    }
    for (int r = 0; r < 4; ++r)
        c[((size_t)(blockIdx.y * 64 + 4 * y + r) * n + blockIdx.x * 64) / 4 + x] =
            make_int4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
}

__device__ __forceinline__ void load_4(unsigned (&to)[4], const __half* from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((unsigned)__cvta_generic_to_shared(from)));
}

__device__ __forceinline__ void load_4_turned(unsigned (&to)[4], const __half* from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((unsigned)__cvta_generic_to_shared(from)));
}

// C (m, n) = A (m, k) B (k, n) in halves, sums in float: a block takes 128 x 128, 32 deep, a warp
// 64 x 32. The next tile is on its way in registers while one of two in shared memory is used.
extern "C" __global__ void __launch_bounds__(256) hgemm_ldmatrix(
    const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ c, int n,
    int k)
{
    __shared__ __align__(16) __half left[2][128][40], right[2][32][136];
    const int t = threadIdx.x, lane = t % 32, row = t / 128 * 64, column = t / 32 % 4 * 32;
    const __half* from_a = a + (size_t)(blockIdx.y * 128 + t / 4) * k + t % 4 * 8;
    const __half* from_b = b + (size_t)(t / 16) * n + blockIdx.x * 128 + t % 16 * 8;
    uint4 ahead[4];
    float sum[4][4][4] = {};
    for (int i = 0; i <= k; i += 32) {
        const int now = i / 32 % 2;
        if (i < k) {
            ahead[0] = *(const uint4*)(from_a + i);
            ahead[1] = *(const uint4*)(from_a + i + (size_t)64 * k);
            ahead[2] = *(const uint4*)(from_b + (size_t)i * n);
            ahead[3] = *(const uint4*)(from_b + (size_t)(i + 16) * n);
        }
        if (i > 0) {
#pragma unroll
            for (int d = 0; d < 32; d += 16) {
                unsigned p[4][4], q[2][4];
#pragma unroll
                for (int u = 0; u < 4; ++u)
                    load_4(p[u], &left[1 - now][row + u * 16 + lane % 16][d + lane / 16 * 8]);
#pragma unroll
                for (int v = 0; v < 2; ++v)
                    load_4_turned(
                        q[v], &right[1 - now][d + lane % 16][column + v * 16 + lane / 16 * 8]);
#pragma unroll
                for (int u = 0; u < 4; ++u)
#pragma unroll
                    for (int v = 0; v < 4; ++v)
                        asm volatile(
                            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                            : "+f"(sum[u][v][0]), "+f"(sum[u][v][1]), "+f"(sum[u][v][2]),
                              "+f"(sum[u][v][3])
                            : "r"(p[u][0]), "r"(p[u][1]), "r"(p[u][2]), "r"(p[u][3]),
                              "r"(q[v / 2][v % 2 * 2]), "r"(q[v / 2][v % 2 * 2 + 1]));
            }
        }
        if (i < k) {
            *(uint4*)&left[now][t / 4][t % 4 * 8] = ahead[0];
            *(uint4*)&left[now][t / 4 + 64][t % 4 * 8] = ahead[1];
            *(uint4*)&right[now][t / 16][t % 16 * 8] = ahead[2];
            *(uint4*)&right[now][t / 16 + 16][t % 16 * 8] = ahead[3];
        }
        __syncthreads();
    }
    for (int u = 0; u < 4; ++u)
        for (int v = 0; v < 4; ++v) {
            const int to = blockIdx.y * 128 + row + u * 16 + lane / 4;
            __half* first = c + (size_t)to * n + blockIdx.x * 128 + column + v * 8 + lane % 4 * 2;
            *(__half2*)first = __floats2half2_rn(sum[u][v][0], sum[u][v][1]);
            *(__half2*)(first + (size_t)8 * n) = __floats2half2_rn(sum[u][v][2], sum[u][v][3]);
        }
}

// One of Jacobi's rotations: pq becomes zero; rp and rq are the entries of the third row.
__device__ void rotate(float& pp, float& qq, float& pq, float& rp, float& rq)
{
    if (pq == 0.0f) return;
    const float theta = (qq - pp) / (2.0f * pq);
    const float t = copysignf(1.0f, theta) / (fabsf(theta) + sqrtf(theta * theta + 1.0f));
    const float cosine = 1.0f / sqrtf(t * t + 1.0f), sine = t * cosine;
    const float old = rp;
    pp -= t * pq;
    qq += t * pq;
    pq = 0.0f;
    rp = cosine * old - sine * rq;
    rq = sine * old + cosine * rq;
}

// Eigenvalues of symmetric 3 x 3 matrices, ascending: m (6, n) is xx, yy, zz, xy, xz, yz.
extern "C" __global__ void eigen_3x3(const float* m, float* value, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float xx = m[i], yy = m[n + i], zz = m[2 * n + i];
    float xy = m[3 * n + i], xz = m[4 * n + i], yz = m[5 * n + i];
    for (int sweep = 0; sweep < 5; ++sweep) {
        rotate(xx, yy, xy, xz, yz);
        rotate(xx, zz, xz, xy, yz);
        rotate(yy, zz, yz, xy, xz);
    }
    const float low = fminf(xx, yy), high = fmaxf(xx, yy);
    value[i] = fminf(low, zz);
    value[n + i] = fmaxf(low, fminf(high, zz));
    value[2 * n + i] = fmaxf(high, zz);
}

__device__ __forceinline__ float2 times(float2 a, float2 b)
{
    return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

// Fourier transforms of rows of 256 complex numbers in four passes of radix 4: 64 threads take a
// row, a block four rows.
extern "C" __global__ void fft_256(const float2* x, float2* y, int rows)
{
    __shared__ float2 passed[4][256];
    const int j = threadIdx.x, r = blockIdx.x * 4 + threadIdx.y;
    float2* own = passed[threadIdx.y];
    float2 v[4];
    for (int i = 0; i < 4; ++i)
        v[i] = r < rows ? x[(size_t)r * 256 + i * 64 + j] : make_float2(0.0f, 0.0f);
    int to = 0;
#pragma unroll
    for (int size = 1; size < 256; size *= 4) {
        float2 turn;
        sincospif(-0.5f * (j % size) / size, &turn.y, &turn.x);
        const float2 twice = times(turn, turn);
        const float2 b = times(v[1], turn), c = times(v[2], twice);
        const float2 d = times(v[3], times(twice, turn));
        const float2 even = make_float2(v[0].x + c.x, v[0].y + c.y);
        const float2 odd = make_float2(v[0].x - c.x, v[0].y - c.y);
        const float2 sum = make_float2(b.x + d.x, b.y + d.y);
        const float2 apart = make_float2(b.y - d.y, d.x - b.x);
        v[0] = make_float2(even.x + sum.x, even.y + sum.y);
        v[1] = make_float2(odd.x + apart.x, odd.y + apart.y);
        v[2] = make_float2(even.x - sum.x, even.y - sum.y);
        v[3] = make_float2(odd.x - apart.x, odd.y - apart.y);
        to = j / size * size * 4 + j % size;
        if (size < 64) {
            __syncthreads();
            for (int i = 0; i < 4; ++i) own[to + i * size] = v[i];
            __syncthreads();
            for (int i = 0; i < 4; ++i) v[i] = own[i * 64 + j];
        }
    }
    if (r >= rows) return;
    for (int i = 0; i < 4; ++i) y[(size_t)r * 256 + to + i * 64] = v[i];
}
