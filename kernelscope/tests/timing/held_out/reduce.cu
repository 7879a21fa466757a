// y (1,) or one number a block
extern "C" __global__ void sum_atomic(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(y, x[i]);
}

extern "C" __global__ void sum_divergent(const float* x, float* y, int n)
{
    __shared__ float part[256];
    const int i = blockIdx.x * 256 + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int step = 1; step < 256; step *= 2) {
        if (threadIdx.x % (2 * step) == 0) part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}

extern "C" __global__ void sum_sequential(const float* x, float* y, int n)
{
    __shared__ float part[256];
    const int i = blockIdx.x * 256 + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}

__device__ float warp_sum(float v)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

extern "C" __global__ void sum_shuffle(const float4* x, float* y, int n)
{
    __shared__ float part[8];
    float sum = 0.0f;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) {
        const float4 v = x[i];
        sum += v.x + v.y + v.z + v.w;
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = warp_sum(threadIdx.x < 8 ? part[threadIdx.x] : 0.0f);
        if (threadIdx.x == 0) atomicAdd(y, sum);
    }
}

extern "C" __global__ void row_sum_thread(const float* x, float* y, int rows, int columns)
{
    const int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    float sum = 0.0f;
    for (int c = 0; c < columns; ++c) sum += x[(size_t)r * columns + c];
    y[r] = sum;
}

extern "C" __global__ void row_sum_warp(const float* x, float* y, int rows, int columns)
{
    const int r = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (r >= rows) return;
    float sum = 0.0f;
    for (int c = lane; c < columns; c += 32) sum += x[(size_t)r * columns + c];
    sum = warp_sum(sum);
    if (lane == 0) y[r] = sum;
}

extern "C" __global__ void column_sum(const float* x, float* y, int rows, int columns)
{
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= columns) return;
    float sum = 0.0f;
    for (int r = 0; r < rows; ++r) sum += x[(size_t)r * columns + c];
    y[c] = sum;
}

extern "C" __global__ void layer_norm(
    const float* x, const float* gain, const float* shift, float* y, int columns)
{
    __shared__ float part[2][8];
    const float* row = x + (size_t)blockIdx.x * columns;
    float sum = 0.0f, squares = 0.0f;
    for (int c = threadIdx.x; c < columns; c += 256) {
        sum += row[c];
        squares += row[c] * row[c];
    }
    sum = warp_sum(sum);
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) {
        part[0][threadIdx.x / 32] = sum;
        part[1][threadIdx.x / 32] = squares;
    }
    __syncthreads();
    sum = squares = 0.0f;
    for (int w = 0; w < 8; ++w) {
        sum += part[0][w];
        squares += part[1][w];
    }
    const float mean = sum / columns, scale = rsqrtf(squares / columns - mean * mean + 1e-5f);
    for (int c = threadIdx.x; c < columns; c += 256)
        y[(size_t)blockIdx.x * columns + c] = (row[c] - mean) * scale * gain[c] + shift[c];
}
