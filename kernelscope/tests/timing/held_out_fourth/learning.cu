// Operators that libraries of machine learning have beside products.

#include <cuda_fp16.h>

__device__ __forceinline__ float silu(float v)
{
    return v / (1.0f + __expf(-v));
}

// x, y (batch, channels, length): y[t] = silu(bias + the sum of weight[i] x[t - 3 + i]). A block
// takes a row, 512 numbers at a time; a thread gets the three before its own from its neighbour.
extern "C" __global__ void causal_conv_4(
    const float4* __restrict__ x, const float4* __restrict__ weight,
    const float* __restrict__ bias, float4* __restrict__ y, int length)
{
    __shared__ float4 passed[129];
    const size_t row = (size_t)(blockIdx.y * gridDim.x + blockIdx.x) * (length / 4);
    const float4 w = weight[blockIdx.x];
    const float b = bias[blockIdx.x];
    if (threadIdx.x == 0) passed[0] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int first = 0; first < length / 4; first += 128) {
        const int i = first + threadIdx.x;
        const bool inside = i < length / 4;
        const float4 v = inside ? x[row + i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        passed[threadIdx.x + 1] = v;
        __syncthreads();
        const float4 u = passed[threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 127) passed[0] = v;
        if (inside)
            y[row + i] = make_float4(silu(b + w.x * u.y + w.y * u.z + w.z * u.w + w.w * v.x),
                                     silu(b + w.x * u.z + w.y * u.w + w.z * v.x + w.w * v.y),
                                     silu(b + w.x * u.w + w.y * v.x + w.z * v.y + w.w * v.z),
                                     silu(b + w.x * v.x + w.y * v.y + w.z * v.z + w.w * v.w));
    }
}

// A state space of eight states for each channel; x, step, y (batch, length, channels), in and out
// (batch, length, 8). A thread takes a channel and walks along the length.
extern "C" __global__ void selective_scan(
    const float* x, const float* step, const float* in, const float* out, float* y, int length,
    int channels)
{
    const int channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    float state[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    for (int t = 0; t < length; ++t) {
        const int token = blockIdx.y * length + t;
        const float delta = log1pf(expf(step[(size_t)token * channels + channel]));
        const float value = delta * x[(size_t)token * channels + channel];
        float sum = 0.0f;
#pragma unroll
        for (int s = 0; s < 8; ++s) {
            state[s] = __expf(-(s + 1) * delta) * state[s] + value * in[token * 8 + s];
            sum += state[s] * out[token * 8 + s];
        }
        y[(size_t)token * channels + channel] = sum;
    }
}

__device__ __forceinline__ float sigmoid_of(float v)
{
    return 1.0f / (1.0f + expf(-v));
}

// Gates (batch, 4, hidden) of the input and of the last output are added; new cell and output.
extern "C" __global__ void lstm_cell(
    const __half* __restrict__ from_input, const __half* __restrict__ from_output,
    const __half* __restrict__ bias, const float* __restrict__ cell, float* __restrict__ new_cell,
    __half* __restrict__ output, int hidden, int total)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        const int row = i / hidden, unit = i % hidden;
        float gate[4];
#pragma unroll
        for (int g = 0; g < 4; ++g) {
            const int at = (row * 4 + g) * hidden + unit;
            gate[g] = __half2float(from_input[at]) + __half2float(from_output[at])
                      + __half2float(bias[g * hidden + unit]);
        }
        const float kept = sigmoid_of(gate[1]) * cell[i];
        const float next = kept + sigmoid_of(gate[0]) * tanhf(gate[2]);
        new_cell[i] = next;
        output[i] = __float2half(sigmoid_of(gate[3]) * tanhf(next));
    }
}

struct Box {
    float left, top, right, bottom;
};

// center (x, y) and size, from an array of four numbers a box
__device__ Box box_of(float4 v)
{
    const float width = 1.0f + fabsf(v.z), height = 1.0f + fabsf(v.w);
    return {2.0f * v.x - width, 2.0f * v.y - height, 2.0f * v.x + width, 2.0f * v.y + height};
}

__device__ float overlap(const Box& a, const Box& b)
{
    const float width = fmaxf(fminf(a.right, b.right) - fmaxf(a.left, b.left), 0.0f);
    const float height = fmaxf(fminf(a.bottom, b.bottom) - fmaxf(a.top, b.top), 0.0f);
    const float common = width * height;
    const float both = (a.right - a.left) * (a.bottom - a.top)
                       + (b.right - b.left) * (b.bottom - b.top);
    return common / (both - common);
}

// Bit j of mask (n, n / 64) of a box: the j-th box of that column comes later and overlaps it by
// more than `limit`. A block takes 64 boxes against 64.
extern "C" __global__ void nms_mask(const float4* box, uint2* mask, int n, float limit)
{
    const int row = blockIdx.y, column = blockIdx.x;
    if (row > column) return;
    __shared__ Box others[64];
    const int rows = min(n - row * 64, 64), columns = min(n - column * 64, 64);
    if (threadIdx.x < columns) others[threadIdx.x] = box_of(box[column * 64 + threadIdx.x]);
    __syncthreads();
    if (threadIdx.x >= rows) return;
    const int own = row * 64 + threadIdx.x;
    const Box mine = box_of(box[own]);
    unsigned long long bits = 0;
    for (int j = row == column ? threadIdx.x + 1 : 0; j < columns; ++j)
        if (overlap(mine, others[j]) > limit) bits |= 1ULL << j;
    mask[(size_t)own * gridDim.x + column] = make_uint2((unsigned)bits, (unsigned)(bits >> 32));
}

__device__ float bilinear_at(const float* plane, int height, int width, float y, float x)
{
    if (y < -1.0f || y > height || x < -1.0f || x > width) return 0.0f;
    y = fmaxf(y, 0.0f);
    x = fmaxf(x, 0.0f);
    int top = (int)y, left = (int)x, bottom = top + 1, right = left + 1;
    if (top >= height - 1) {
        bottom = top = height - 1;
        y = (float)top;
    }
    if (left >= width - 1) {
        right = left = width - 1;
        x = (float)left;
    }
    const float b = y - top, a = x - left;
    return (1.0f - b) * ((1.0f - a) * plane[top * width + left] + a * plane[top * width + right])
           + b * ((1.0f - a) * plane[bottom * width + left] + a * plane[bottom * width + right]);
}

// features (channels, height, width), region (regions, 4), pooled (regions, channels, 7, 7): each
// bin is the mean of 2 x 2 samples between pixels.
extern "C" __global__ void roi_align(
    const float* features, const float* region, float* pooled, int total, int channels, int height,
    int width)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    const int px = i % 7, py = i / 7 % 7, channel = i / 49 % channels, r = i / 49 / channels;
    const float* of = region + 4 * r;
    const float roi_width = fmaxf(1.0f, width * 0.2f * expf(0.3f * of[2]));
    const float roi_height = fmaxf(1.0f, height * 0.2f * expf(0.3f * of[3]));
    const float left = width * (0.5f + 0.15f * of[0]) - roi_width / 2;
    const float top = height * (0.5f + 0.15f * of[1]) - roi_height / 2;
    const float* plane = features + (size_t)channel * height * width;
    float sum = 0.0f;
    for (int j = 0; j < 2; j++) {
        const float y = top + (py + (j + 0.5f) / 2) * roi_height / 7;
        for (int k = 0; k < 2; k++) {
            const float x = left + (px + (k + 0.5f) / 2) * roi_width / 7;
            sum += bilinear_at(plane, height, width, y, x);
        }
    }
    pooled[i] = sum / 4;
}
