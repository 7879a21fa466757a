// Parts of a training step.

template <typename Op>
__device__ float all_of_block(float mine, float* shared, Op op)
{
    for (int step = 16; step > 0; step >>= 1) mine = op(mine, __shfl_xor_sync(~0u, mine, step));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
    __syncthreads();
    float all = shared[0];
    for (int w = 1; w < blockDim.x / 32; ++w) all = op(all, shared[w]);
    __syncthreads();
    return all;
}

struct Add {
    __device__ float operator()(float a, float b) const { return a + b; }
};
struct Most {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// logits (rows, columns), label (rows,): minus the log of the label's share of the
// exponentials; a block takes a row.
extern "C" __global__ void cross_entropy(
    const float* __restrict__ logits, const int* __restrict__ label, float* loss, int columns)
{
    __shared__ float shared[8];
    const float* row = logits + (size_t)blockIdx.x * columns;
    float most = -3.0e38f, sum = 0.0f;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) most = fmaxf(most, row[c]);
    most = all_of_block(most, shared, Most());
    for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += expf(row[c] - most);
    sum = all_of_block(sum, shared, Add());
    if (threadIdx.x == 0) loss[blockIdx.x] = logf(sum) + most - row[label[blockIdx.x]];
}

// x (samples, groups, channels of a group, area): a block takes a group of a sample.
extern "C" __global__ void group_norm(
    const float4* __restrict__ x, const float* gamma, const float* beta, float4* y, int groups,
    int channels, int area)
{
    __shared__ float shared[8];
    const int size = channels * area / 4;
    const size_t first = (size_t)blockIdx.x * size;
    float sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < size; i += blockDim.x) {
        const float4 v = x[first + i];
        sum += v.x + v.y + v.z + v.w;
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    const float mean = all_of_block(sum, shared, Add()) / (4 * size);
    const float variance = all_of_block(squares, shared, Add()) / (4 * size) - mean * mean;
    const float scale = rsqrtf(variance + 1e-5f);
    const int channel = blockIdx.x % groups * channels;
    for (int i = threadIdx.x; i < size; i += blockDim.x) {
        const int c = channel + 4 * i / area;
        const float a = gamma[c] * scale, b = beta[c] - mean * a;
        const float4 v = x[first + i];
        y[first + i] = make_float4(a * v.x + b, a * v.y + b, a * v.z + b, a * v.w + b);
    }
}

// Ten rounds of Philox 4x32 for every four numbers; those below `keep` of 2^32 stay.
extern "C" __global__ void dropout_philox(
    const float4* __restrict__ x, float4* __restrict__ y, int quads, int seed, float share)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= quads) return;
    uint4 c = make_uint4(i, 0, 0, 0);
    uint2 key = make_uint2(seed, 0x5EEDu);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned high = __umulhi(0xD2511F53u, c.x), low = 0xD2511F53u * c.x;
        const unsigned high_2 = __umulhi(0xCD9E8D57u, c.z), low_2 = 0xCD9E8D57u * c.z;
        c = make_uint4(high_2 ^ c.y ^ key.x, low_2, high ^ c.w ^ key.y, low);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    const float scale = 1.0f / share, unit = 1.0f / 4294967296.0f;
    float4 v = x[i];
    v.x = c.x * unit < share ? v.x * scale : 0.0f;
    v.y = c.y * unit < share ? v.y * scale : 0.0f;
    v.z = c.z * unit < share ? v.z * scale : 0.0f;
    v.w = c.w * unit < share ? v.w * scale : 0.0f;
    y[i] = v;
}

extern "C" __global__ void adam_step(
    float* p, float* m, float* v, const float* g, int n, float rate, float decay)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const float grad = g[i] + decay * p[i];
        const float first = 0.9f * m[i] + 0.1f * grad;
        const float second = 0.999f * v[i] + 0.001f * grad * grad;
        m[i] = first;
        v[i] = second;
        p[i] -= rate * first / (sqrtf(second) + 1e-8f);
    }
}

// x, y (channels, height, width), weight (channels, 3, 3), zeros around the image
extern "C" __global__ void depthwise_3x3(
    const float* x, const float* weight, float* y, int height, int width)
{
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    const int channel = blockIdx.z;
    if (row >= height || col >= width) return;
    float sum = 0.0f;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            int r = row + i - 1, c = col + j - 1;
            if (r >= 0 && r < height && c >= 0 && c < width)
                sum += x[(channel * height + r) * width + c] * weight[channel * 9 + i * 3 + j];
        }
    y[(channel * height + row) * width + col] = sum;
}
