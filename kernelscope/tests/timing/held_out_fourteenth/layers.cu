// Layers: Mamba's convolution and scan, the regions of a detector, Winograd's tiles.

#include <cuda_fp16.h>

// y = silu of a causal convolution over time, four taps a channel, x (batch, channels, length) in
// halves. A block of 128 takes a row of one channel, a thread eight neighbours of each 1024; the
// last four numbers of a thread go to the next one through shared memory.
extern "C" __global__ void __launch_bounds__(128) causal_conv_1d_silu_half(
    const uint4* __restrict__ x, const float4* __restrict__ weight, const float* __restrict__ bias,
    uint4* __restrict__ y, int channels, int length)
{
    __shared__ uint2 tail[129];
    const int t = threadIdx.x, channel = blockIdx.x;
    const float4 w = weight[channel];
    const float shift = bias[channel];
    const size_t row = ((size_t)blockIdx.y * channels + channel) * (length / 8);
    if (t == 0) tail[0] = make_uint2(0, 0);
    for (int at = t; at < length / 8; at += 128) {
        const uint4 now = x[row + at];
        tail[t + 1] = make_uint2(now.z, now.w);
        __syncthreads();
        const uint2 past = tail[t];
        __syncthreads();
        if (t == 127) tail[0] = make_uint2(now.z, now.w);
        const unsigned word[6] = {past.x, past.y, now.x, now.y, now.z, now.w};
        float v[12];
#pragma unroll
        for (int i = 0; i < 6; ++i) {
            const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&word[i]));
            v[2 * i] = pair.x;
            v[2 * i + 1] = pair.y;
        }
        __half2 out[4];
        float last = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float sum =
                shift + w.x * v[i + 1] + w.y * v[i + 2] + w.z * v[i + 3] + w.w * v[i + 4];
            const float gated = sum / (1.0f + __expf(-sum));
            if (i % 2) out[i / 2] = __floats2half2_rn(last, gated);
            last = gated;
        }
        y[row + at] = *reinterpret_cast<const uint4*>(out);
    }
}

// Mamba's selective scan: 16 states a channel, h = exp(dt a) h + dt b u, y = c h + d u. u and the
// steps are (batch, length, channels), b and c (batch, length, 16). A thread takes a channel.
extern "C" __global__ void __launch_bounds__(64) selective_scan_forward(
    const float* __restrict__ u, const float* __restrict__ delta, const float4* __restrict__ a_log,
    const float4* __restrict__ b, const float4* __restrict__ c, const float* __restrict__ skip,
    const float* __restrict__ bias, float* __restrict__ y, int length, int channels)
{
    __shared__ float4 of_b[32][4], of_c[32][4];
    const int t = threadIdx.x, channel = blockIdx.x * 64 + t;
    const size_t first = (size_t)blockIdx.y * length;
    float a[16], h[16];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float4 v = a_log[channel * 4 + i];
        a[4 * i] = -1.442695f * expf(v.x);
        a[4 * i + 1] = -1.442695f * expf(v.y);
        a[4 * i + 2] = -1.442695f * expf(v.z);
        a[4 * i + 3] = -1.442695f * expf(v.w);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) h[i] = 0.0f;
    const float d = skip[channel], shift = bias[channel];
    for (int tile = 0; tile < length; tile += 32) {
        __syncthreads();
#pragma unroll
        for (int i = t; i < 128; i += 64) {
            of_b[i / 4][i % 4] = b[(first + tile) * 4 + i];
            of_c[i / 4][i % 4] = c[(first + tile) * 4 + i];
        }
        __syncthreads();
        for (int j = 0; j < 32; ++j) {
            const size_t at = (first + tile + j) * channels + channel;
            const float in = u[at], raw = delta[at] + shift;
            const float dt = raw > 20.0f ? raw : log1pf(expf(raw));
            const float step = dt * in;
            float out = d * in;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float4 p = of_b[j][i], q = of_c[j][i];
                h[4 * i] = exp2f(dt * a[4 * i]) * h[4 * i] + step * p.x;
                h[4 * i + 1] = exp2f(dt * a[4 * i + 1]) * h[4 * i + 1] + step * p.y;
                h[4 * i + 2] = exp2f(dt * a[4 * i + 2]) * h[4 * i + 2] + step * p.z;
                h[4 * i + 3] = exp2f(dt * a[4 * i + 3]) * h[4 * i + 3] + step * p.w;
                out += h[4 * i] * q.x + h[4 * i + 1] * q.y + h[4 * i + 2] * q.z +
                       h[4 * i + 3] * q.w;
            }
            y[at] = out;
        }
    }
}

// A number of a plane between its pixels; outside, by more than one, it is zero.
__device__ __forceinline__ float between(
    const float* __restrict__ plane, int height, int width, float y, float x)
{
    if (y < -1.0f || y > height || x < -1.0f || x > width) return 0.0f;
    y = fmaxf(y, 0.0f);
    x = fmaxf(x, 0.0f);
    int top = (int)y, left = (int)x, bottom, right;
    if (top >= height - 1) {
        bottom = top = height - 1;
        y = (float)top;
    } else {
        bottom = top + 1;
    }
    if (left >= width - 1) {
        right = left = width - 1;
        x = (float)left;
    } else {
        right = left + 1;
    }
    const float v = y - top, u = x - left;
    return (1.0f - v) * ((1.0f - u) * plane[top * width + left] + u * plane[top * width + right]) +
           v * ((1.0f - u) * plane[bottom * width + left] + u * plane[bottom * width + right]);
}

// Mask R-CNN's align: 7 x 7 means of each region of each channel, of four samples each. A corner is
// in pixels of the picture; a thread takes one mean.
extern "C" __global__ void roi_align_7x7(
    const float* __restrict__ feature, const int* __restrict__ image, const int4* __restrict__ box,
    float* __restrict__ y, int n, int channels, int height, int width, float scale)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const int u = i % 7, v = i / 7 % 7, channel = i / 49 % channels, region = i / 49 / channels;
        const int4 own = box[region];
        const float left = min(own.x, own.z) * scale - 0.5f;
        const float top = min(own.y, own.w) * scale - 0.5f;
        const float across = abs(own.x - own.z) * scale / 7.0f;
        const float down = abs(own.y - own.w) * scale / 7.0f;
        const float* plane =
            feature + ((size_t)image[region] * channels + channel) * height * width;
        float sum = 0.0f;
#pragma unroll
        for (int p = 0; p < 2; ++p)
#pragma unroll
            for (int q = 0; q < 2; ++q)
                sum += between(plane, height, width, top + (v + 0.25f + 0.5f * p) * down,
                               left + (u + 0.25f + 0.5f * q) * across);
        y[i] = 0.25f * sum;
    }
}

// Winograd's transform of the input for 3 x 3 filters and 2 x 2 outputs: tiles of 4 x 4 that step
// by two, with a border of zeros. v is (16, images * channels, tiles). A thread takes a tile.
extern "C" __global__ void __launch_bounds__(128) winograd_input_tiles(
    const float* __restrict__ x, float* __restrict__ v, int side)
{
    const int half = side / 2, tiles = half * half;
    const int tile = blockIdx.x * blockDim.x + threadIdx.x;
    if (tile >= tiles) return;
    const int planes = gridDim.y * gridDim.z, plane = blockIdx.z * gridDim.y + blockIdx.y;
    const int row = tile / half * 2 - 1, column = tile % half * 2 - 1;
    const float* from = x + (size_t)plane * side * side;
    float d[4][4], m[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int r = row + i, c = column + j;
            const bool inside = r >= 0 && r < side && c >= 0 && c < side;
            d[i][j] = inside ? from[r * side + c] : 0.0f;
        }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        m[0][j] = d[0][j] - d[2][j];
        m[1][j] = d[1][j] + d[2][j];
        m[2][j] = d[2][j] - d[1][j];
        m[3][j] = d[1][j] - d[3][j];
    }
    const size_t apart = (size_t)planes * tiles;
    float* to = v + (size_t)plane * tiles + tile;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        to[(4 * i) * apart] = m[i][0] - m[i][2];
        to[(4 * i + 1) * apart] = m[i][1] + m[i][2];
        to[(4 * i + 2) * apart] = m[i][2] - m[i][1];
        to[(4 * i + 3) * apart] = m[i][1] - m[i][3];
    }
}
