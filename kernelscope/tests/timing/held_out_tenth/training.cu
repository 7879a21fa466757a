// Steps of training: gradients of a gate and of a norm, a depthwise convolution, a shuffle.

#include <cuda_fp16.h>

// The gradients of y = silu(gate) * up. A thread takes eight halves of each.
extern "C" __global__ void swiglu_backward_half(
    const __half* __restrict__ gate, const __half* __restrict__ up, const __half* __restrict__ dy,
    __half* __restrict__ dgate, __half* __restrict__ dup, int eights)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= eights) return;
    const uint4 a = ((const uint4*)gate)[i], b = ((const uint4*)up)[i], c = ((const uint4*)dy)[i];
    const __half2 *g2 = (const __half2*)&a, *u2 = (const __half2*)&b, *d2 = (const __half2*)&c;
    uint4 to_gate, to_up;
    __half2 *dg2 = (__half2*)&to_gate, *du2 = (__half2*)&to_up;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float2 g = __half22float2(g2[j]), u = __half22float2(u2[j]);
        const float2 d = __half22float2(d2[j]);
        const float s = 1.0f / (1.0f + __expf(-g.x)), t = 1.0f / (1.0f + __expf(-g.y));
        dg2[j] = __floats2half2_rn(d.x * u.x * s * (1.0f + g.x * (1.0f - s)),
                                   d.y * u.y * t * (1.0f + g.y * (1.0f - t)));
        du2[j] = __floats2half2_rn(d.x * g.x * s, d.y * g.y * t);
    }
    ((uint4*)dgate)[i] = to_gate;
    ((uint4*)dup)[i] = to_up;
}

__device__ __forceinline__ float warp_sum(float v)
{
    for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(0xFFFFFFFF, v, step);
    return v;
}

// The gradient of y = x / |x| in rows of 768: dx = (dy - y (y . dy)) / |x|. A warp takes a row and
// keeps it in registers.
extern "C" __global__ void l2_normalise_backward(
    const float4* __restrict__ x, const float4* __restrict__ dy, float4* __restrict__ dx, int rows)
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const size_t start = (size_t)row * 192 + lane;
    float4 v[6], d[6];
    float square = 0.0f, dot = 0.0f;
#pragma unroll
    for (int i = 0; i < 6; ++i) {
        v[i] = x[start + 32 * i];
        d[i] = dy[start + 32 * i];
        square += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
        dot += v[i].x * d[i].x + v[i].y * d[i].y + v[i].z * d[i].z + v[i].w * d[i].w;
    }
    square = warp_sum(square);
    dot = warp_sum(dot);
    const float over = rsqrtf(square + 1e-12f), by = dot * over * over;
#pragma unroll
    for (int i = 0; i < 6; ++i)
        dx[start + 32 * i] =
            make_float4((d[i].x - by * v[i].x) * over, (d[i].y - by * v[i].y) * over,
                        (d[i].z - by * v[i].z) * over, (d[i].w - by * v[i].w) * over);
}

// A depthwise convolution with 7 x 7 taps, as in ConvNeXt, plus a bias: x and y (images, height,
// width, channels), weight (7, 7, channels), zeros outside. A thread takes two channels of a pixel.
extern "C" __global__ void depthwise_7x7_nhwc(
    const __half2* __restrict__ x, const __half2* __restrict__ weight,
    const __half2* __restrict__ bias, __half2* __restrict__ y, int images, int height, int width,
    int channels)
{
    const int pairs = channels / 2, i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= images * height * width * pairs) return;
    const int c = i % pairs, column = i / pairs % width, row = i / pairs / width % height;
    const __half2* plane = x + (size_t)(i / pairs / width / height) * height * width * pairs;
    float2 sum = __half22float2(bias[c]);
    for (int dy = 0; dy < 7; ++dy) {
        const int h = row + dy - 3;
        if (h < 0 || h >= height) continue;
#pragma unroll
        for (int dx = 0; dx < 7; ++dx) {
            const int w = column + dx - 3;
            if (w < 0 || w >= width) continue;
            const float2 a = __half22float2(plane[(h * width + w) * pairs + c]);
            const float2 b = __half22float2(weight[(dy * 7 + dx) * pairs + c]);
            sum.x += a.x * b.x;
            sum.y += a.y * b.y;
        }
    }
    y[i] = __floats2half2_rn(sum.x, sum.y);
}

// Sub-pixel upsampling by 2: x (batch, 4 * channels, height, width) to y (batch, channels, 2 *
// height, 2 * width). A grid-stride loop over y.
extern "C" __global__ void pixel_shuffle_2(
    const float* __restrict__ x, float* __restrict__ y, int total, int height, int width)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        const int column = i % (2 * width), above = i / (2 * width);
        const int row = above % (2 * height), plane = above / (2 * height);
        const int from = 4 * plane + row % 2 * 2 + column % 2;
        y[i] = x[((size_t)from * height + row / 2) * width + column / 2];
    }
}
