// Layers of networks and their training: an optimiser, a norm, columns of a convolution, a mean.

// A step of the Lion optimiser: the sign of a mean of gradients, decay apart from it. Four numbers
// at a time.
extern "C" __global__ void lion_step(
    const float4* __restrict__ weight, const float4* __restrict__ gradient,
    const float4* __restrict__ mean, float4* __restrict__ next_weight,
    float4* __restrict__ next_mean, int quads, float rate, float decay)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= quads) return;
    const float4 w = weight[i], g = gradient[i], m = mean[i];
    const float beta1 = 0.9f, beta2 = 0.99f;
    auto step = [&](float w, float g, float m) {
        const float c = beta1 * m + (1.0f - beta1) * g;
        const float sign = c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : 0.0f;
        return w - rate * (sign + decay * w);
    };
    auto mixed = [&](float g, float m) { return beta2 * m + (1.0f - beta2) * g; };
    next_weight[i] = make_float4(step(w.x, g.x, m.x), step(w.y, g.y, m.y), step(w.z, g.z, m.z),
                                 step(w.w, g.w, m.w));
    next_mean[i] = make_float4(mixed(g.x, m.x), mixed(g.y, m.y), mixed(g.z, m.z), mixed(g.w, m.w));
}

__device__ __forceinline__ float2 block_sum(float2 v)
{
    __shared__ float2 part[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int step = 16; step > 0; step >>= 1) {
        v.x += __shfl_down_sync(0xFFFFFFFF, v.x, step);
        v.y += __shfl_down_sync(0xFFFFFFFF, v.y, step);
    }
    if (lane == 0) part[warp] = v;
    __syncthreads();
    if (warp == 0) {
        v = lane < warps ? part[lane] : make_float2(0.0f, 0.0f);
        for (int step = 16; step > 0; step >>= 1) {
            v.x += __shfl_down_sync(0xFFFFFFFF, v.x, step);
            v.y += __shfl_down_sync(0xFFFFFFFF, v.y, step);
        }
        if (lane == 0) part[0] = v;
    }
    __syncthreads();
    return part[0];
}

// y = (x - mean) / sqrt(variance + 1e-5) * scale[c] + shift[c] in each plane of x (images,
// channels, size), size a multiple of 4. A block takes a plane and reads it twice.
extern "C" __global__ void instance_norm_plane(
    const float4* __restrict__ x, const float* __restrict__ scale, const float* __restrict__ shift,
    float4* __restrict__ y, int channels, int size)
{
    const int quads = size / 4, c = blockIdx.x % channels;
    x += (size_t)blockIdx.x * quads;
    y += (size_t)blockIdx.x * quads;
    float2 sum = make_float2(0.0f, 0.0f);
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {
        const float4 v = x[i];
        sum.x += v.x + v.y + v.z + v.w;
        sum.y += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    sum = block_sum(sum);
    const float mean = sum.x / size;
    const float by = scale[c] * rsqrtf(sum.y / size - mean * mean + 1e-5f);
    const float add = shift[c] - mean * by;
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {
        const float4 v = x[i];
        y[i] = make_float4(v.x * by + add, v.y * by + add, v.z * by + add, v.w * by + add);
    }
}

// The columns of a modulated deformable convolution with 3 x 3 taps: x (channels, height, width) at
// each tap's place plus an offset (9, 2, height, width), y before x, between four pixels and zero
// outside, times mask (9, height, width); columns (channels, 9, height, width). A thread takes a
// pixel of a channel.
extern "C" __global__ void deformable_columns(
    const float* __restrict__ x, const float* __restrict__ offset, const float* __restrict__ mask,
    float* __restrict__ columns, int channels, int height, int width)
{
    const int size = height * width;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < channels * size;
         i += gridDim.x * blockDim.x) {
        const int c = i / size, pixel = i % size, row = pixel / width, column = pixel % width;
        const float* plane = x + (size_t)c * size;
        auto pixel_at = [&](int h, int w) {
            return h >= 0 && h < height && w >= 0 && w < width ? plane[h * width + w] : 0.0f;
        };
        for (int tap = 0; tap < 9; ++tap) {
            const float h = row - 1 + tap / 3 + offset[(2 * tap) * size + pixel];
            const float w = column - 1 + tap % 3 + offset[(2 * tap + 1) * size + pixel];
            float v = 0.0f;
            if (h > -1.0f && h < height && w > -1.0f && w < width) {
                const int top = floorf(h), left = floorf(w);
                const float down = h - top, right = w - left;
                v = (1.0f - down) * ((1.0f - right) * pixel_at(top, left) +
                                     right * pixel_at(top, left + 1)) +
                    down * ((1.0f - right) * pixel_at(top + 1, left) +
                            right * pixel_at(top + 1, left + 1));
            }
            columns[((size_t)c * 9 + tap) * size + pixel] = v * mask[tap * size + pixel];
        }
    }
}

// RWKV's mean of the past: y[t] is the sum of v[s] with weights exp(k[s] - (t - 1 - s) decay) for
// s < t and exp(bonus + k[t]) for t, over the sum of the weights. k, v, y (batch, length,
// channels). A thread takes a channel of a sequence; the largest exponent is kept apart.
extern "C" __global__ void wkv_forward(
    const float* __restrict__ decay, const float* __restrict__ bonus, const float* __restrict__ k,
    const float* __restrict__ v, float* __restrict__ y, int batch, int length, int channels)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= batch * channels) return;
    const int c = i % channels;
    const size_t start = (size_t)(i / channels) * length * channels + c;
    const float slow = -expf(decay[c]), first = bonus[c];
    float above = 0.0f, below = 0.0f, most = -1e38f;
    for (int t = 0; t < length; ++t) {
        const size_t at = start + (size_t)t * channels;
        const float kt = k[at], vt = v[at];
        float next = fmaxf(most, first + kt);
        float a = expf(most - next), b = expf(first + kt - next);
        y[at] = (a * above + b * vt) / (a * below + b);
        next = fmaxf(most + slow, kt);
        a = expf(most + slow - next);
        b = expf(kt - next);
        above = a * above + b * vt;
        below = a * below + b;
        most = next;
    }
}
