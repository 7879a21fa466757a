// Kernels whose time is one property of a GPU each. `measure.py` launches and times them.
// The loads of the chains, and what is counted in clocks, are inline PTX: the compiler keeps all.

typedef unsigned long long u64;

#define UNROLLED 16  // steps of a loop whose clocks are read

extern "C" __global__ void empty() {}

// -- bandwidth
// data (count,) float4, count a multiple of 4 * threads of the grid
extern "C" __global__ void copy(const float4* __restrict__ from, float4* __restrict__ to)
{
    const size_t first = (size_t)blockIdx.x * blockDim.x * 4 + threadIdx.x;
    float4 part[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) part[i] = from[first + i * blockDim.x];
#pragma unroll
    for (int i = 0; i < 4; ++i) to[first + i * blockDim.x] = part[i];
}

// data (threads of the grid,) float4
extern "C" __global__ void copy_one(const float4* __restrict__ from, float4* __restrict__ to)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = from[i];
}

// Every block reads 4 * steps float4 a thread past L1, again and again those of its own window:
// `window` float4, not fewer than threads, which begins `apart` behind that of the block before.
extern "C" __global__ void read(
    const float4* data, float* out, unsigned window, unsigned apart, int steps)
{
    const float4* mine = data + (size_t)blockIdx.x * apart;
    unsigned at = threadIdx.x;
    float sum = 0.0f;
    for (int i = 0; i < steps; ++i) {
        float x[4][4];
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const float4* place = mine + at;
            asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(x[part][0]), "=f"(x[part][1]), "=f"(x[part][2]), "=f"(x[part][3])
                         : "l"(place));
            at += blockDim.x;
            if (at >= window) at -= window;
        }
#pragma unroll
        for (int part = 0; part < 4; ++part) {  // all four: ptxas splits a load with unread parts
            sum += (x[part][0] + x[part][1]) + (x[part][2] + x[part][3]);
        }
    }
    if (sum == 1.5f) out[0] = sum;  // never, but the compiler does not know
}

// -- latencies: thread 0 follows a chain of addresses
// next (nodes * 16,) u64: every 16th is the address of another node; clocks (1,)
extern "C" __global__ void chase(u64 start, long long* clocks, u64* last, int warm, int steps)
{
    u64 at = start;
    for (int i = 0; i < warm; ++i) asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(at));
    const long long before = clock64();
#pragma unroll 16
    for (int i = 0; i < steps; ++i) asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(at));
    clocks[0] = clock64() - before;
    last[0] = at;
}

extern "C" __global__ void chase_shared(long long* clocks, unsigned* last, int steps)
{
    __shared__ unsigned next[256];
    const unsigned start = (unsigned)__cvta_generic_to_shared(next);
    for (int i = threadIdx.x; i < 256; i += blockDim.x) next[i] = start + 4 * ((i + 33) % 256);
    __syncthreads();
    unsigned at = start;
    const long long before = clock64();
#pragma unroll 16
    for (int i = 0; i < steps; ++i) asm volatile("ld.shared.u32 %0, [%0];" : "+r"(at));
    clocks[0] = clock64() - before;
    last[0] = at;
}

// -- rates of one SM: clocks (blocks,) of a block's `steps` rounds
// UNROLLED * 32-lane requests of one wavefront each
extern "C" __global__ void shared_rate(long long* clocks, float* out, int steps)
{
    __shared__ float words[1024];
    words[threadIdx.x % 1024] = threadIdx.x;
    const unsigned at = (unsigned)__cvta_generic_to_shared(words + threadIdx.x % 32);
    float sum = 0.0f;
    __syncthreads();
    const long long before = clock64();
    for (int i = 0; i < steps; ++i) {
        float x[UNROLLED];
#pragma unroll
        for (int j = 0; j < UNROLLED; ++j)
            asm volatile("ld.volatile.shared.f32 %0, [%1];" : "=f"(x[j]) : "r"(at + 128 * j));
#pragma unroll
        for (int j = 0; j < UNROLLED; ++j) sum += x[j];
    }
    __syncthreads();
    if (threadIdx.x == 0) clocks[blockIdx.x] = clock64() - before;
    if (sum == 1.5f) out[0] = sum;
}

// 16 multiply-adds a round, in 8 chains
extern "C" __global__ void fma_rate(long long* clocks, float* out, float factor, int steps)
{
    float x[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = threadIdx.x + j;
    __syncthreads();
    const long long before = clock64();
    for (int i = 0; i < steps; ++i) {
#pragma unroll
        for (int j = 0; j < UNROLLED; ++j) x[j % 8] = fmaf(x[j % 8], factor, 0.5f);
    }
    __syncthreads();
    if (threadIdx.x == 0) clocks[blockIdx.x] = clock64() - before;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += x[j];
    if (sum == 1.5f) out[0] = sum;
}

// 16 exponentials a round, in 8 chains
extern "C" __global__ void mufu_rate(long long* clocks, float* out, int steps)
{
    float x[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = -1.0f * threadIdx.x - j;
    __syncthreads();
    const long long before = clock64();
    for (int i = 0; i < steps; ++i) {
#pragma unroll
        for (int j = 0; j < UNROLLED; ++j)
            asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[j % 8]));
    }
    __syncthreads();
    if (threadIdx.x == 0) clocks[blockIdx.x] = clock64() - before;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += x[j];
    if (sum == 1.5f) out[0] = sum;
}

// 16 barriers a round
extern "C" __global__ void barrier_cost(long long* clocks, int steps)
{
    __syncthreads();
    const long long before = clock64();
    for (int i = 0; i < steps; ++i) {
#pragma unroll
        for (int j = 0; j < UNROLLED; ++j) __syncthreads();
    }
    if (threadIdx.x == 0) clocks[blockIdx.x] = clock64() - before;
}

// Every lane of the grid adds to one address, `steps` times.
extern "C" __global__ void same_address(float* sum, int steps)
{
    for (int i = 0; i < steps; ++i)
        asm volatile("red.global.add.f32 [%0], %1;" : : "l"(sum), "f"(1.0f) : "memory");
}

// Every warp of the grid adds to the 32 words of one line, `steps` times.
extern "C" __global__ void same_line(float* sums, int steps)
{
    for (int i = 0; i < steps; ++i)
        asm volatile("red.global.add.f32 [%0], %1;"
                     :
                     : "l"(sums + threadIdx.x % 32), "f"(1.0f)
                     : "memory");
}

// 8 matrix products m16n8k16 a round, in 8 chains; KIND 0: f16, 1: bf16, 2: tf32 (m16n8k8)
template <int KIND>
__device__ void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    if (KIND == 0)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    if (KIND == 1)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    if (KIND == 2)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <int KIND>
__device__ void mma_rate(long long* clocks, float* out, int steps)
{
    float c[8][4] = {};
    unsigned a[4] = {0, 0, 0, 0}, b[2] = {0, 0};
    __syncthreads();
    const long long before = clock64();
    for (int i = 0; i < steps; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) multiply<KIND>(c[j], a, b);
    }
    __syncthreads();
    if (threadIdx.x == 0) clocks[blockIdx.x] = clock64() - before;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += c[j][0] + c[j][1] + c[j][2] + c[j][3];
    if (sum == 1.5f) out[0] = sum;
}

extern "C" __global__ void mma_f16(long long* clocks, float* out, int steps)
{
    mma_rate<0>(clocks, out, steps);
}

extern "C" __global__ void mma_bf16(long long* clocks, float* out, int steps)
{
    mma_rate<1>(clocks, out, steps);
}

extern "C" __global__ void mma_tf32(long long* clocks, float* out, int steps)
{
    mma_rate<2>(clocks, out, steps);
}
