// Idea:          A chain of dependent loads shows what one load costs; many independent ones show
//                how many bytes a level of memory delivers.
// Changes from:  nothing
// Shapes:        order (count,) uint32, a permutation; nodes (count*NODE/8,) uint64; data (count,)
//                float4; out (blocks, THREADS) float32; taken (2,) int64: clocks, nanoseconds
// Launch:        chase_global, chase_shared: grid (1), block (THREADS); the latter static shared
//                4*CHAIN bytes, count <= CHAIN
//                read_l1, read_l2, read_shared: grid (blocks), block (THREADS); the last static
//                shared 16*FLOATS4 bytes
// Needs:         sm_50; steps a multiple of 16; window <= count; FLOATS4 a multiple of THREADS
// Expect:        clocks a step jump where the chain outgrows L1, and again where it outgrows L2
// Limits:        window a multiple of 4*THREADS is fastest; loads are inline PTX, so that the
//                compiler keeps each of them, in order and at its level

#ifndef NODE
#define NODE 128  // bytes from one node of a chain to the next: a cache line each
#endif
#ifndef CHAIN
#define CHAIN 1024  // nodes of the longest chain in shared memory
#endif
#ifndef THREADS
#define THREADS 1024  // of a block that reads
#endif
#ifndef FLOATS4
#define FLOATS4 2048  // float4 of shared memory that a block reads
#endif

typedef unsigned long long u64;

__device__ u64 load_address(u64 at)
{
    u64 next;
    asm volatile("ld.global.ca.u64 %0, [%1];" : "=l"(next) : "l"(at) : "memory");
    return next;
}

__device__ unsigned load_shared(unsigned at)
{
    unsigned next;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(next) : "r"(at) : "memory");
    return next;
}

__device__ u64 nanoseconds()
{
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Each node holds the address of the next one in the order of the permutation; one thread follows.
extern "C" __global__ void __launch_bounds__(THREADS) chase_global(
    const unsigned* order,  // (count,)
    u64* nodes,             // (count, NODE/8)
    u64* last,              // (1,): the node visited last
    long long* taken,       // (2,)
    int count, int warm, int steps)
{
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const size_t next = order[i + 1 == count ? 0 : i + 1];
        nodes[(size_t)order[i] * (NODE / 8)] = (u64)(nodes + next * (NODE / 8));
    }
    __syncthreads();  // barrier: the chain would have holes where a slow warp has not linked yet
    if (threadIdx.x > 0) return;

    u64 at = (u64)(nodes + (size_t)order[0] * (NODE / 8));
    for (int i = 0; i < warm; ++i) at = load_address(at);  // not counted: brings nodes closer
    const u64 since = nanoseconds();
    const long long before = clock64();
#pragma unroll 16
    for (int i = 0; i < steps; ++i) at = load_address(at);
    taken[0] = clock64() - before;
    taken[1] = nanoseconds() - since;
    last[0] = (at - (u64)nodes) / NODE;
}

extern "C" __global__ void __launch_bounds__(THREADS) chase_shared(
    const unsigned* order,  // (count,)
    u64* last,              // (1,): the node visited last
    long long* taken,       // (2,)
    int count, int warm, int steps)
{
    __shared__ unsigned chain[CHAIN];  // each element: shared address of the next one
    const unsigned base = (unsigned)__cvta_generic_to_shared(chain);
    for (int i = threadIdx.x; i < count; i += THREADS) {
        chain[order[i]] = base + 4 * order[i + 1 == count ? 0 : i + 1];
    }
    __syncthreads();  // barrier: the chain would have holes where a slow warp has not linked yet
    if (threadIdx.x > 0) return;

    unsigned at = base + 4 * order[0];
    for (int i = 0; i < warm; ++i) at = load_shared(at);
    const u64 since = nanoseconds();
    const long long before = clock64();
#pragma unroll 16
    for (int i = 0; i < steps; ++i) at = load_shared(at);
    taken[0] = clock64() - before;
    taken[1] = nanoseconds() - since;
    last[0] = (at - base) / 4;
}

template <bool IN_L1>  // false: past L1, from L2 or from device memory
__device__ float4 load4(const float4* at)
{
    float4 x;
    if (IN_L1) {
        asm volatile("ld.global.ca.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(at));
    } else {
        asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(at));
    }
    return x;
}

__device__ float sum4(float4 x) { return (x.x + x.y) + (x.z + x.w); }

// A block adds up its window of the data `passes` times.
template <bool IN_L1>
__device__ void read_window(
    const float4* data, float* out, long long count, int window, int passes)
{
    const float4* mine = data + (long long)blockIdx.x * window % (count - window + 1);
    float sum = 0.0f;
    for (int pass = 0; pass < passes; ++pass) {
#pragma unroll 4
        for (int i = threadIdx.x; i < window; i += THREADS) sum += sum4(load4<IN_L1>(mine + i));
    }
    out[(size_t)blockIdx.x * THREADS + threadIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) read_l1(
    const float4* data,  // (count,)
    float* out,          // (blocks, THREADS)
    long long count, int window, int passes)
{
    read_window<true>(data, out, count, window, passes);
}

extern "C" __global__ void __launch_bounds__(THREADS) read_l2(
    const float4* data,  // (count,)
    float* out,          // (blocks, THREADS)
    long long count, int window, int passes)
{
    read_window<false>(data, out, count, window, passes);
}

extern "C" __global__ void __launch_bounds__(THREADS) read_shared(
    const float4* data,  // (FLOATS4,)
    float* out,          // (blocks, THREADS)
    int passes)
{
    __shared__ float4 tile[FLOATS4];
    for (int i = threadIdx.x; i < FLOATS4; i += THREADS) tile[i] = data[i];
    __syncthreads();  // barrier: a fast warp would read elements that are not stored yet

    const unsigned base = (unsigned)__cvta_generic_to_shared(tile);
    float sum = 0.0f;
#pragma unroll 2
    for (int pass = 0; pass < passes; ++pass) {
        for (int i = threadIdx.x; i < FLOATS4; i += THREADS) {
            float4 x;
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                         : "r"(base + 16 * i));
            sum += sum4(x);
        }
    }
    out[(size_t)blockIdx.x * THREADS + threadIdx.x] = sum;
}
