// Idea:          One number out of THREADS: each thread adds its own to one word with an atomic
//                operation, or each warp reduces by shuffles and only warps meet in shared memory.
// Changes from:  nothing
// Shapes:        x (blocks, THREADS), out (blocks,) float32
// Launch:        sum_atomic, sum_shuffle, max_atomic, max_shuffle: grid (blocks), block (THREADS);
//                static shared 4 bytes (atomic), THREADS/8 + 4 bytes (shuffle)
// Needs:         sm_50; THREADS a multiple of 32, at most 1024
// Expect:        atomic operations on one word take turns; shuffles need log2 of 32 steps a warp
// Limits:        x is not negative: atomicMax compares the bits as integers

#ifndef THREADS
#define THREADS 256  // numbers that become one
#endif

#define WARPS (THREADS / 32)

struct Sum {
    static __device__ float join(float a, float b) { return a + b; }
    static __device__ void into(float* total, float x) { atomicAdd(total, x); }
};

struct Max {
    static __device__ float join(float a, float b) { return fmaxf(a, b); }
    static __device__ void into(float* total, float x)
    {
        atomicMax((int*)total, __float_as_int(x));
    }
};

template <class Operation>
__device__ __forceinline__ float by_atomics(float x)
{
    __shared__ float total;
    __syncthreads();  // barrier: the last round's total may still be read
    if (threadIdx.x == 0) total = 0.0f;
    __syncthreads();  // barrier: a thread could add to a total that is set to 0 after it
    Operation::into(&total, x);
    __syncthreads();  // barrier: the total would lack the threads that are behind
    return total;
}

template <class Operation>
__device__ __forceinline__ float over_warp(float x)
{
    for (int offset = 16; offset > 0; offset /= 2) {
        x = Operation::join(x, __shfl_xor_sync(0xffffffff, x, offset));
    }
    return x;
}

template <class Operation>
__device__ __forceinline__ float by_shuffles(float x)
{
    __shared__ float parts[WARPS];  // one a warp
    __shared__ float total;
    x = over_warp<Operation>(x);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();  // barrier: a part would be missing
    if (threadIdx.x < 32) {
        x = over_warp<Operation>(threadIdx.x < WARPS ? parts[threadIdx.x] : 0.0f);
        if (threadIdx.x == 0) total = x;
    }
    __syncthreads();  // barrier: others would read the total before it is there
    return total;
}

// Each round's numbers depend on the total of the round before, so that rounds cannot overlap.
template <class Operation, float (*reduce)(float)>
__device__ __forceinline__ void rounds_of(const float* x, float* out, int rounds)
{
    const float own = x[(long long)blockIdx.x * THREADS + threadIdx.x];
    float total = 0.0f;
    for (int round = 0; round < rounds; ++round) {
        total = reduce(own + total * (1.0f / 1024));
    }
    if (threadIdx.x == 0) out[blockIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_atomic(
    const float* x,  // (blocks, THREADS)
    float* out,      // (blocks,)
    int rounds)
{
    rounds_of<Sum, by_atomics<Sum>>(x, out, rounds);
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_shuffle(
    const float* x,  // (blocks, THREADS)
    float* out,      // (blocks,)
    int rounds)
{
    rounds_of<Sum, by_shuffles<Sum>>(x, out, rounds);
}

extern "C" __global__ void __launch_bounds__(THREADS) max_atomic(
    const float* x,  // (blocks, THREADS)
    float* out,      // (blocks,)
    int rounds)
{
    rounds_of<Max, by_atomics<Max>>(x, out, rounds);
}

extern "C" __global__ void __launch_bounds__(THREADS) max_shuffle(
    const float* x,  // (blocks, THREADS)
    float* out,      // (blocks,)
    int rounds)
{
    rounds_of<Max, by_shuffles<Max>>(x, out, rounds);
}
