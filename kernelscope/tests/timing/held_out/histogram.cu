// x (n,) int32 in [0, 256); counts (256,)
extern "C" __global__ void histogram_global(const int* x, int* counts, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&counts[x[i]], 1);
}

extern "C" __global__ void histogram_shared(const int* x, int* counts, int n)
{
    __shared__ int own[256];
    own[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&own[x[i]], 1);
    __syncthreads();
    atomicAdd(&counts[threadIdx.x], own[threadIdx.x]);
}

// Eight copies, one a warp.
extern "C" __global__ void histogram_warps(const int* x, int* counts, int n)
{
    __shared__ int own[8][256];
    for (int w = 0; w < 8; ++w) own[w][threadIdx.x] = 0;
    __syncthreads();
    int* mine = own[threadIdx.x / 32];
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&mine[x[i]], 1);
    __syncthreads();
    int sum = 0;
    for (int w = 0; w < 8; ++w) sum += own[w][threadIdx.x];
    atomicAdd(&counts[threadIdx.x], sum);
}
