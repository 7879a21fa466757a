// Steps of convolutional networks, recommenders and graph networks.

// Tiles of 4 x 4, two apart, of images (channels, height, width) with zeros around them, become the
// factors of Winograd's F(2 x 2, 3 x 3): (16, channels, tiles). A thread takes a tile.
extern "C" __global__ void winograd_input(
    const float* __restrict__ x, float* __restrict__ factors, int channels, int height, int width)
{
    const int tile = blockIdx.x * blockDim.x + threadIdx.x, channel = blockIdx.y;
    const int columns = width / 2, tiles = columns * (height / 2);
    if (tile >= tiles) return;
    const int top = tile / columns * 2 - 1, left = tile % columns * 2 - 1;
    const float* image = x + (size_t)channel * height * width;
    float d[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int r = top + i, c = left + j;
            const bool inside = r >= 0 && r < height && c >= 0 && c < width;
            d[i][j] = inside ? image[r * width + c] : 0.0f;
        }
    float t[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        t[0][j] = d[0][j] - d[2][j];
        t[1][j] = d[1][j] + d[2][j];
        t[2][j] = d[2][j] - d[1][j];
        t[3][j] = d[1][j] - d[3][j];
    }
    float* to = factors + (size_t)channel * tiles + tile;
    const size_t apart = (size_t)channels * tiles;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        to[(4 * i + 0) * apart] = t[i][0] - t[i][2];
        to[(4 * i + 1) * apart] = t[i][1] + t[i][2];
        to[(4 * i + 2) * apart] = t[i][2] - t[i][1];
        to[(4 * i + 3) * apart] = t[i][1] - t[i][3];
    }
}

struct Moments {
    float count, mean, square;
};

__device__ Moments together(Moments a, Moments b)
{
    const float count = a.count + b.count;
    if (count == 0.0f) return a;
    const float apart = b.mean - a.mean, share = b.count / count;
    return {count, a.mean + apart * share, a.square + b.square + apart * apart * a.count * share};
}

__device__ Moments of_the_warp(Moments m)
{
    for (int step = 16; step > 0; step /= 2) {
        Moments other;
        other.count = __shfl_down_sync(0xFFFFFFFF, m.count, step);
        other.mean = __shfl_down_sync(0xFFFFFFFF, m.mean, step);
        other.square = __shfl_down_sync(0xFFFFFFFF, m.square, step);
        m = together(m, other);
    }
    return m;
}

// Mean and variance of each channel of x (samples, channels, area), by Welford: a block of 256
// takes a channel.
extern "C" __global__ void channel_moments(
    const float* x, float* mean, float* variance, int samples, int channels, int area)
{
    __shared__ Moments part[8];
    Moments m = {0.0f, 0.0f, 0.0f};
    for (int s = 0; s < samples; s++) {
        const float* plane = x + ((size_t)s * channels + blockIdx.x) * area;
        for (int i = threadIdx.x; i < area; i += blockDim.x) {
            const float v = plane[i], before = v - m.mean;
            m.count += 1.0f;
            m.mean += before / m.count;
            m.square += before * (v - m.mean);
        }
    }
    m = of_the_warp(m);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = m;
    __syncthreads();
    if (threadIdx.x < 32) {
        m = {0.0f, 0.0f, 0.0f};
        if (threadIdx.x < 8) m = part[threadIdx.x];
        m = of_the_warp(m);
        if (threadIdx.x == 0) {
            mean[blockIdx.x] = m.mean;
            variance[blockIdx.x] = m.square / m.count;
        }
    }
}

// Bags of words from first[b] to first[b + 1]: the mean of their rows of table (words, 64). A warp
// takes a bag.
extern "C" __global__ void bag_mean(
    const float2* __restrict__ table, const int* __restrict__ word, const int* __restrict__ first,
    float2* __restrict__ out, int bags)
{
    const int bag = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (bag >= bags) return;
    const int begin = first[bag], end = first[bag + 1];
    float x = 0.0f, y = 0.0f;
    for (int i = begin; i < end; ++i) {
        const float2 v = table[(size_t)word[i] * 32 + lane];
        x += v.x;
        y += v.y;
    }
    const float scale = end > begin ? 1.0f / (end - begin) : 0.0f;
    out[(size_t)bag * 32 + lane] = make_float2(x * scale, y * scale);
}

__device__ float exp_of_leaky(float v)
{
    return __expf(v > 0.0f ? v : 0.2f * v);
}

// Graph networks of four heads: each edge gets the exponential of what its nodes score, and a node
// the sum over the edges to it. A thread takes an edge.
extern "C" __global__ void edge_exponentials(
    const int* source, const int* target, const float4* source_score, const float4* target_score,
    float4* weight, float* total, int edges)
{
    const int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= edges) return;
    const int to = target[e];
    const float4 a = source_score[source[e]], b = target_score[to];
    const float4 w = make_float4(exp_of_leaky(a.x + b.x), exp_of_leaky(a.y + b.y),
                                 exp_of_leaky(a.z + b.z), exp_of_leaky(a.w + b.w));
    weight[e] = w;
    atomicAdd(&total[4 * to + 0], w.x);
    atomicAdd(&total[4 * to + 1], w.y);
    atomicAdd(&total[4 * to + 2], w.z);
    atomicAdd(&total[4 * to + 3], w.w);
}
