// kernelscope: sm_90
// Products of tiles in tensor cores.

#include <cuda_fp16.h>
#include <mma.h>

constexpr int STAGES = 3, DEPTH = 16, PITCH = DEPTH + 4;

__device__ __forceinline__ unsigned tf32_of(float v)
{
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(v));
    return rounded;
}

// 64 rows of 16 numbers go to a tile: two copies of 16 bytes a thread.
__device__ __forceinline__ void fetch(float (*tile)[PITCH], const float* from, int pitch)
{
#pragma unroll
    for (int t = threadIdx.x; t < 256; t += 128) {
        const unsigned to = (unsigned)__cvta_generic_to_shared(&tile[t / 4][t % 4 * 4]);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to),
                     "l"(from + (size_t)(t / 4) * pitch + t % 4 * 4));
    }
}

// C (m, n) = A (m, k) B^T, B (n, k), in TF32: a block takes 64 x 64, a warp 32 x 32; two tiles are
// under way while one is used.
extern "C" __global__ void __launch_bounds__(128) tf32_staged(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n, int k)
{
    __shared__ __align__(16) float left[STAGES][64][PITCH], right[STAGES][64][PITCH];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, place = lane % 4;
    const int row = warp / 2 * 32, column = warp % 2 * 32;
    a += (size_t)blockIdx.y * 64 * k;
    b += (size_t)blockIdx.x * 64 * k;
    float sum[2][4][4] = {};
    for (int s = 0; s < STAGES - 1; ++s) {
        fetch(left[s], a + s * DEPTH, k);
        fetch(right[s], b + s * DEPTH, k);
        asm volatile("cp.async.commit_group;");
    }
    for (int i = 0; i < k / DEPTH; ++i) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        const int ahead = i + STAGES - 1;
        if (ahead < k / DEPTH) {
            fetch(left[ahead % STAGES], a + ahead * DEPTH, k);
            fetch(right[ahead % STAGES], b + ahead * DEPTH, k);
        }
        asm volatile("cp.async.commit_group;");
        const int s = i % STAGES;
#pragma unroll
        for (int d = 0; d < DEPTH; d += 8) {
            unsigned p[2][4], q[4][2];
#pragma unroll
            for (int u = 0; u < 2; ++u)
#pragma unroll
                for (int v = 0; v < 4; ++v)
                    p[u][v] = tf32_of(
                        left[s][row + u * 16 + group + v % 2 * 8][d + place + v / 2 * 4]);
#pragma unroll
            for (int u = 0; u < 4; ++u)
#pragma unroll
                for (int v = 0; v < 2; ++v)
                    q[u][v] = tf32_of(right[s][column + u * 8 + group][d + place + v * 4]);
#pragma unroll
            for (int u = 0; u < 2; ++u)
#pragma unroll
                for (int v = 0; v < 4; ++v)
                    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                                 : "+f"(sum[u][v][0]), "+f"(sum[u][v][1]), "+f"(sum[u][v][2]),
                                   "+f"(sum[u][v][3])
                                 : "r"(p[u][0]), "r"(p[u][1]), "r"(p[u][2]), "r"(p[u][3]),
                                   "r"(q[v][0]), "r"(q[v][1]));
        }
    }
    for (int u = 0; u < 2; ++u)
        for (int v = 0; v < 4; ++v) {
            const int to = blockIdx.y * 64 + row + u * 16 + group;
            float* first = c + (size_t)to * n + blockIdx.x * 64 + column + v * 8 + place * 2;
            *(float2*)first = make_float2(sum[u][v][0], sum[u][v][1]);
            *(float2*)(first + 8 * (size_t)n) = make_float2(sum[u][v][2], sum[u][v][3]);
        }
}

// C (m, n) = A (m, k) B (k, n) in double: a warp takes 16 x 16, from global memory.
extern "C" __global__ void dmma_product(const double* a, const double* b, double* c, int n, int k)
{
    const int lane = threadIdx.x % 32, group = lane / 4, place = lane % 4, warp = threadIdx.x / 32;
    const int row = blockIdx.y * 32 + warp / 2 * 16, column = blockIdx.x * 32 + warp % 2 * 16;
    double sum[2][2][2] = {};
    for (int i = 0; i < k; i += 4) {
        double p[2], q[2];
        for (int u = 0; u < 2; u++) {
            p[u] = a[(size_t)(row + u * 8 + group) * k + i + place];
            q[u] = b[(size_t)(i + place) * n + column + u * 8 + group];
        }
        for (int u = 0; u < 2; u++)
            for (int v = 0; v < 2; v++)
                asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 "
                             "{%0,%1}, {%2}, {%3}, {%0,%1};"
                             : "+d"(sum[u][v][0]), "+d"(sum[u][v][1])
                             : "d"(p[u]), "d"(q[v]));
    }
    for (int u = 0; u < 2; u++)
        for (int v = 0; v < 2; v++)
            for (int w = 0; w < 2; w++)
                c[(size_t)(row + u * 8 + group) * n + column + v * 8 + place * 2 + w] =
                    sum[u][v][w];
}

// y (images, height, 64, 64) from x of the same extents, channels last, and weight (9, 64, 64):
// a block takes a row of 64 pixels, and for each of the nine places a product of 64 x 64.
extern "C" __global__ void __launch_bounds__(128) implicit_conv(
    const __half* x, const __half* weight, float* y, int height)
{
    using namespace nvcuda;
    __shared__ __align__(32) __half pixels[66][80], weights[64][80];
    const int warp = threadIdx.x / 32, row = blockIdx.x;
    const size_t image = (size_t)blockIdx.y * height;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[4];
    for (int j = 0; j < 4; ++j) wmma::fill_fragment(sum[j], 0.0f);
    for (int dy = -1; dy <= 1; ++dy) {
        if (row + dy < 0 || row + dy >= height) continue;
        __syncthreads();
        for (int t = threadIdx.x; t < 66 * 8; t += 128) {
            const int pixel = t / 8 - 1;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (pixel >= 0 && pixel < 64)
                v = *(const uint4*)&x[((image + row + dy) * 64 + pixel) * 64 + t % 8 * 8];
            *(uint4*)&pixels[t / 8][t % 8 * 8] = v;
        }
        for (int dx = 0; dx < 3; ++dx) {
            __syncthreads();
            for (int t = threadIdx.x; t < 64 * 8; t += 128)
                *(uint4*)&weights[t / 8][t % 8 * 8] =
                    *(const uint4*)&weight[((dy + 1) * 3 + dx) * 4096 + t * 8];
            __syncthreads();
            for (int i = 0; i < 64; i += 16) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> p;
                wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> q;
                wmma::load_matrix_sync(p, &pixels[warp * 16 + dx][i], 80);
                for (int j = 0; j < 4; ++j) {
                    wmma::load_matrix_sync(q, &weights[i][j * 16], 80);
                    wmma::mma_sync(sum[j], p, q, sum[j]);
                }
            }
        }
    }
    float* to = y + ((image + row) * 64 + warp * 16) * 64;
    for (int j = 0; j < 4; ++j)
        wmma::store_matrix_sync(to + j * 16, sum[j], 64, wmma::mem_row_major);
}
