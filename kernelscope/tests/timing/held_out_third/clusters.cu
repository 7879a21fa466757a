// kernelscope: sm_90
// Blocks of a cluster that read and write each other's shared memory.

__device__ unsigned rank_of_block()
{
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ void sync_cluster()
{
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

// Where a block of the cluster has what this block has at `own`.
template <typename T>
__device__ T* of_rank(T* own, int rank)
{
    unsigned long long far;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(far) : "l"(own), "r"(rank));
    return (T*)far;
}

// Exponentials of rows of 8,192 numbers by their sums: the four blocks of a cluster share a row
// and tell each other their maxima and sums.
extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster_shares(const float4* x, float4* y)
{
    __shared__ float maxima[8], sums[8], most, sum;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t at = (size_t)blockIdx.x * 512 + threadIdx.x;
    float4 a = x[at], b = x[at + 256];
    float high = fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)),
                       fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
    for (int step = 16; step > 0; step /= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, step));
    if (lane == 0) maxima[warp] = high;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 0; w < 8; ++w) high = fmaxf(high, maxima[w]);
        most = high;
    }
    sync_cluster();
    for (int rank = 0; rank < 4; ++rank) high = fmaxf(high, *of_rank(&most, rank));
    a = make_float4(__expf(a.x - high), __expf(a.y - high), __expf(a.z - high), __expf(a.w - high));
    b = make_float4(__expf(b.x - high), __expf(b.y - high), __expf(b.z - high), __expf(b.w - high));
    float all = a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
    for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(~0u, all, step);
    if (lane == 0) sums[warp] = all;
    __syncthreads();
    if (threadIdx.x == 0) {
        all = 0.0f;
        for (int w = 0; w < 8; ++w) all += sums[w];
        sum = all;
    }
    sync_cluster();
    all = 0.0f;
    for (int rank = 0; rank < 4; ++rank) all += *of_rank(&sum, rank);
    const float scale = 1.0f / all;
    y[at] = make_float4(a.x * scale, a.y * scale, a.z * scale, a.w * scale);
    y[at + 256] = make_float4(b.x * scale, b.y * scale, b.z * scale, b.w * scale);
    sync_cluster();
}

// Counts of 4,096 values: each of the two blocks of a cluster keeps half of them.
extern "C" __global__ void __cluster_dims__(2, 1, 1) cluster_counts(
    const unsigned* x, int* counts, int n)
{
    __shared__ int own[2048];
    for (int i = threadIdx.x; i < 2048; i += 256) own[i] = 0;
    sync_cluster();
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) {
        const unsigned value = x[i] >> 20;
        atomicAdd(of_rank(own, value / 2048) + value % 2048, 1);
    }
    sync_cluster();
    for (int i = threadIdx.x; i < 2048; i += 256)
        if (own[i]) atomicAdd(&counts[rank_of_block() * 2048 + i], own[i]);
}
