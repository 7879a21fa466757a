// kernelscope: sm_80
// Tiles in shared memory and in tensor cores.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

// C (m, n) = A (m, k) B (k, n) in bfloat16, sums in float: 128 threads take 64 x 64.
extern "C" __global__ void bf16_tile(
    const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int n, int k)
{
    using namespace nvcuda;
    __shared__ __align__(32) __nv_bfloat16 left[64][48], right[32][80];
    const int row = blockIdx.y * 64, column = blockIdx.x * 64, warp = threadIdx.x / 32;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[4];
    for (int j = 0; j < 4; ++j) wmma::fill_fragment(sum[j], 0.0f);
    for (int i = 0; i < k; i += 32) {
        for (int t = threadIdx.x; t < 256; t += 128) {
            *(uint4*)&left[t / 4][t % 4 * 8] =
                *(const uint4*)&a[(size_t)(row + t / 4) * k + i + t % 4 * 8];
            *(uint4*)&right[t / 8][t % 8 * 8] =
                *(const uint4*)&b[(size_t)(i + t / 8) * n + column + t % 8 * 8];
        }
        __syncthreads();
        for (int j = 0; j < 32; j += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> p;
            wmma::load_matrix_sync(p, &left[warp * 16][j], 48);
            for (int q = 0; q < 4; ++q) {
                wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> r;
                wmma::load_matrix_sync(r, &right[j][q * 16], 80);
                wmma::mma_sync(sum[q], p, r, sum[q]);
            }
        }
        __syncthreads();
    }
    for (int q = 0; q < 4; ++q)
        wmma::store_matrix_sync(&c[(size_t)(row + warp * 16) * n + column + q * 16], sum[q], n,
                                wmma::mem_row_major);
}

// S = Q K^T / 8 for each head, (heads, rows, 64) halves: a warp takes 16 rows and all keys, with
// fragments read from global memory.
extern "C" __global__ void mma_scores(const __half* q, const __half* k, __half* s, int rows)
{
    const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4 * 2;
    const int first = (blockIdx.x * 4 + threadIdx.x / 32) * 16;
    if (first >= rows) return;
    const size_t head = (size_t)blockIdx.y * rows;
    unsigned a[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            a[i][j] = *(const unsigned*)&q[(head + first + group + j % 2 * 8) * 64 + i * 16 + pair
                                           + j / 2 * 8];
    for (int key = 0; key < rows; key += 8) {
        float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned* b = (const unsigned*)&k[(head + key + group) * 64 + i * 16 + pair];
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                         "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                         : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                         : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]), "r"(b[0]),
                           "r"(b[4]));
        }
        __half* to = s + (head + first + group) * rows + key + pair;
        *(__half2*)to = __floats2half2_rn(0.125f * c[0], 0.125f * c[1]);
        *(__half2*)(to + 8 * rows) = __floats2half2_rn(0.125f * c[2], 0.125f * c[3]);
    }
}

__device__ void copy_16_bytes(void* to, const void* from)
{
    const unsigned shared = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from));
}

// Squared distances of points (n, 256) from one point: a block takes 32 rows, eight at a time,
// and copies the next eight while a warp sums up one.
extern "C" __global__ void distances_ahead(const float4* point, const float4* from, float* apart)
{
    __shared__ float4 tile[2][8][64];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float4* rows = point + (size_t)blockIdx.x * 32 * 64;
    const float4 a = from[lane], b = from[lane + 32];
    for (int i = threadIdx.x; i < 512; i += 256)
        copy_16_bytes(&tile[0][i / 64][i % 64], rows + i);
    asm volatile("cp.async.commit_group;");
    for (int part = 0; part < 4; ++part) {
        if (part < 3)
            for (int i = threadIdx.x; i < 512; i += 256)
                copy_16_bytes(&tile[(part + 1) % 2][i / 64][i % 64], rows + (part + 1) * 512 + i);
        asm volatile("cp.async.commit_group;");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        const float4 p = tile[part % 2][warp][lane], q = tile[part % 2][warp][lane + 32];
        float sum = (p.x - a.x) * (p.x - a.x) + (p.y - a.y) * (p.y - a.y);
        sum += (p.z - a.z) * (p.z - a.z) + (p.w - a.w) * (p.w - a.w);
        sum += (q.x - b.x) * (q.x - b.x) + (q.y - b.y) * (q.y - b.y);
        sum += (q.z - b.z) * (q.z - b.z) + (q.w - b.w) * (q.w - b.w);
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        if (lane == 0) apart[blockIdx.x * 32 + part * 8 + warp] = sum;
        __syncthreads();
    }
}

struct Body {
    float x, y, z, mass, charge;
};

// An array of structures becomes five arrays, through shared memory.
extern "C" __global__ void structs_apart(const float* in, float* out, int n)
{
    __shared__ Body bodies[256];
    const int first = blockIdx.x * 256, count = min(256, n - first);
    for (int i = threadIdx.x; i < 5 * count; i += 256)
        ((float*)bodies)[i] = in[(size_t)5 * first + i];
    __syncthreads();
    if (threadIdx.x >= count) return;
    const Body mine = bodies[threadIdx.x];
    const int i = first + threadIdx.x;
    out[i] = mine.x;
    out[n + i] = mine.y;
    out[2 * n + i] = mine.z;
    out[3 * n + i] = mine.mass;
    out[4 * n + i] = mine.charge;
}

// Numbers above a limit, packed to the front of each block's 1,024 places; the lanes of a warp
// take their places by one atomic.
extern "C" __global__ void pack_above(const float* x, float* y, int* count, int n, float limit)
{
    __shared__ int taken;
    if (threadIdx.x == 0) taken = 0;
    __syncthreads();
    const int lane = threadIdx.x % 32, first = blockIdx.x * 1024;
    for (int i = first + threadIdx.x; i < first + 1024; i += 256) {
        const float value = i < n ? x[i] : limit;
        const unsigned above = __ballot_sync(~0u, value > limit);
        int place = 0;
        if (lane == 0 && above) place = atomicAdd(&taken, __popc(above));
        place = __shfl_sync(~0u, place, 0) + __popc(above & ((1u << lane) - 1));
        if (value > limit) y[first + place] = value;
    }
    __syncthreads();
    if (threadIdx.x == 0) count[blockIdx.x] = taken;
}
