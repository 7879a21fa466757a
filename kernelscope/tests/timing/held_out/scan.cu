// Prefix sums within each block of 512 numbers.
extern "C" __global__ void scan_doubling(const float* x, float* y, int n)
{
    __shared__ float part[2][512];
    const int t = threadIdx.x, i = blockIdx.x * 512 + t;
    int now = 0;
    part[0][t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int step = 1; step < 512; step *= 2) {
        part[1 - now][t] = part[now][t] + (t >= step ? part[now][t - step] : 0.0f);
        now = 1 - now;
        __syncthreads();
    }
    if (i < n) y[i] = part[now][t];
}

extern "C" __global__ void scan_shuffle(const float* x, float* y, int n)
{
    __shared__ float sums[16];
    const int t = threadIdx.x, i = blockIdx.x * 512 + t, lane = t % 32;
    float v = i < n ? x[i] : 0.0f;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float other = __shfl_up_sync(~0u, v, step);
        if (lane >= step) v += other;
    }
    if (lane == 31) sums[t / 32] = v;
    __syncthreads();
    float before = 0.0f;
    for (int w = 0; w < t / 32; ++w) before += sums[w];
    if (i < n) y[i] = v + before;
}

// A thread adds up 64 neighbouring numbers by itself.
extern "C" __global__ void scan_serial(const float* x, float* y, int n)
{
    const int first = 64 * (blockIdx.x * blockDim.x + threadIdx.x);
    float sum = 0.0f;
    for (int i = first; i < first + 64 && i < n; ++i) {
        sum += x[i];
        y[i] = sum;
    }
}

// Sorts 1,024 keys in shared memory.
extern "C" __global__ void bitonic_sort(const unsigned* x, unsigned* y)
{
    __shared__ unsigned keys[1024];
    const int t = threadIdx.x;
    for (int i = t; i < 1024; i += 512) keys[i] = x[blockIdx.x * 1024 + i];
    __syncthreads();
    for (int size = 2; size <= 1024; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            const int i = 2 * t - (t & (step - 1)), j = i + step;
            const unsigned a = keys[i], b = keys[j];
            if ((a > b) == !(i & size)) {
                keys[i] = b;
                keys[j] = a;
            }
            __syncthreads();
        }
    for (int i = t; i < 1024; i += 512) y[blockIdx.x * 1024 + i] = keys[i];
}
