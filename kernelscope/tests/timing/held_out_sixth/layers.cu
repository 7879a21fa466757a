// Forward and backward passes of layers of networks.

#include <cuda_fp16.h>

__device__ __forceinline__ float sum_of_products(const uint4& a, const uint4& b)
{
    const __half2* p = (const __half2*)&a;
    const __half2* q = (const __half2*)&b;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 u = __half22float2(p[i]), v = __half22float2(q[i]);
        sum += u.x * v.x + u.y * v.y;
    }
    return sum;
}

// The gradient of exponentials over their sum, y: dx = scale * y * (dy - sum of y * dy) in each row
// of y, dy, dx (rows, columns) of halves, columns a multiple of 8. A warp takes a row and reads it
// twice.
extern "C" __global__ void shares_backward(
    const __half* __restrict__ y, const __half* __restrict__ dy, __half* __restrict__ dx, int rows,
    int columns, float scale)
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const int width = columns / 8;
    const uint4* from = (const uint4*)y + (size_t)row * width;
    const uint4* slope = (const uint4*)dy + (size_t)row * width;
    uint4* out = (uint4*)dx + (size_t)row * width;
    float sum = 0.0f;
    for (int i = lane; i < width; i += 32) sum += sum_of_products(from[i], slope[i]);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, step);
    for (int i = lane; i < width; i += 32) {
        const uint4 a = from[i], b = slope[i];
        uint4 found;
        const __half2* p = (const __half2*)&a;
        const __half2* q = (const __half2*)&b;
        __half2* to = (__half2*)&found;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 u = __half22float2(p[j]), v = __half22float2(q[j]);
            to[j] = __floats2half2_rn(scale * u.x * (v.x - sum), scale * u.y * (v.y - sum));
        }
        out[i] = found;
    }
}

__device__ __forceinline__ float gelu_slope(float x)
{
    const float c = 0.7978845608f, cubic = 0.044715f;
    const float t = tanhf(c * (x + cubic * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * c * (1.0f + 3.0f * cubic * x * x);
}

// The gradient of GELU, in its form with tanh: four numbers at a time.
extern "C" __global__ void gelu_backward(const float4* x, const float4* dy, float4* dx, int quads)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < quads; i += gridDim.x * blockDim.x) {
        const float4 v = x[i], g = dy[i];
        dx[i] = make_float4(g.x * gelu_slope(v.x), g.y * gelu_slope(v.y), g.z * gelu_slope(v.z),
                            g.w * gelu_slope(v.w));
    }
}

// x (channels, height, width), weight (filters, channels, 3, 3), y (filters, height, width), zeros
// around x. A block takes 16 x 16 pixels of eight filters, four channels at a time.
extern "C" __global__ void __launch_bounds__(256) conv_3x3_direct(
    const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ y,
    int channels, int height, int width)
{
    __shared__ float tile[4][18][19];
    __shared__ __align__(16) float taps[4][9][8];
    const int tx = threadIdx.x, ty = threadIdx.y, t = ty * 16 + tx;
    const int left = blockIdx.x * 16 - 1, top = blockIdx.y * 16 - 1, filter = blockIdx.z * 8;
    float sum[8] = {};
    for (int c = 0; c < channels; c += 4) {
        for (int i = t; i < 4 * 18 * 18; i += 256) {
            const int plane = i / 324, row = i % 324 / 18, column = i % 18;
            const int h = top + row, w = left + column;
            const bool inside = h >= 0 && h < height && w >= 0 && w < width;
            tile[plane][row][column] =
                inside ? x[((size_t)(c + plane) * height + h) * width + w] : 0.0f;
        }
        for (int i = t; i < 4 * 9 * 8; i += 256) {
            const int f = i / 36, rest = i % 36;
            taps[rest / 9][rest % 9][f] = weight[((size_t)(filter + f) * channels + c) * 9 + rest];
        }
        __syncthreads();
#pragma unroll
        for (int plane = 0; plane < 4; ++plane)
#pragma unroll
            for (int k = 0; k < 9; ++k) {
                const float v = tile[plane][ty + k / 3][tx + k % 3];
                const float4 a = *(const float4*)&taps[plane][k][0];
                const float4 b = *(const float4*)&taps[plane][k][4];
                sum[0] += v * a.x;
                sum[1] += v * a.y;
                sum[2] += v * a.z;
                sum[3] += v * a.w;
                sum[4] += v * b.x;
                sum[5] += v * b.y;
                sum[6] += v * b.z;
                sum[7] += v * b.w;
            }
        __syncthreads();
    }
    const int h = blockIdx.y * 16 + ty, w = blockIdx.x * 16 + tx;
    if (h < height && w < width)
        for (int f = 0; f < 8; ++f) y[((size_t)(filter + f) * height + h) * width + w] = sum[f];
}

// h[t] = a[t] h[t - 1] + x[t] with a = sigmoid(gate), in rows of x, gate, h (rows, length), length
// a multiple of 4. A block of 256 takes a row, 1,024 numbers at a time; pairs of factor and sum are
// scanned over the threads.
extern "C" __global__ void __launch_bounds__(256) linear_recurrence(
    const float4* __restrict__ x, const float4* __restrict__ gate, float4* __restrict__ h,
    int length)
{
    __shared__ float factors[8], sums[8];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, width = length / 4;
    const size_t row = (size_t)blockIdx.x * width;
    float carry = 0.0f;
    for (int first = 0; first < width; first += 256) {
        const int i = first + threadIdx.x;
        float a[4] = {1.0f, 1.0f, 1.0f, 1.0f}, b[4] = {};
        if (i < width) {
            const float4 g = gate[row + i], v = x[row + i];
            a[0] = 1.0f / (1.0f + expf(-g.x));
            a[1] = 1.0f / (1.0f + expf(-g.y));
            a[2] = 1.0f / (1.0f + expf(-g.z));
            a[3] = 1.0f / (1.0f + expf(-g.w));
            b[0] = v.x;
            b[1] = v.y;
            b[2] = v.z;
            b[3] = v.w;
        }
#pragma unroll
        for (int j = 1; j < 4; ++j) {
            b[j] += a[j] * b[j - 1];
            a[j] *= a[j - 1];
        }
        float factor = a[3], sum = b[3];
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const float f = __shfl_up_sync(0xFFFFFFFF, factor, step);
            const float s = __shfl_up_sync(0xFFFFFFFF, sum, step);
            if (lane >= step) {
                sum += factor * s;
                factor *= f;
            }
        }
        if (lane == 31) {
            factors[warp] = factor;
            sums[warp] = sum;
        }
        __syncthreads();
        float before = carry;
        for (int w = 0; w < 8; ++w) {
            if (w == warp) before = carry;
            carry = factors[w] * carry + sums[w];
        }
        const float f = __shfl_up_sync(0xFFFFFFFF, factor, 1);
        const float s = __shfl_up_sync(0xFFFFFFFF, sum, 1);
        if (lane > 0) before = f * before + s;
        if (i < width)
            h[row + i] = make_float4(a[0] * before + b[0], a[1] * before + b[1],
                                     a[2] * before + b[2], a[3] * before + b[3]);
        __syncthreads();
    }
}

// Weighted means over each of `splits` parts, partial (splits, heads, 128), each by its own sum of
// exponentials, whose log is lse (splits, heads), become those over all, out (heads, 128). A block
// of 128 takes a head.
extern "C" __global__ void merge_splits(
    const float* partial, const float* lse, __half* out, int splits, int heads)
{
    const int head = blockIdx.x;
    float most = -1e30f;
    for (int s = 0; s < splits; ++s) most = fmaxf(most, lse[s * heads + head]);
    float total = 0.0f, sum = 0.0f;
    for (int s = 0; s < splits; ++s) {
        const float share = expf(lse[s * heads + head] - most);
        total += share;
        sum += share * partial[((size_t)s * heads + head) * 128 + threadIdx.x];
    }
    out[head * 128 + threadIdx.x] = __float2half(sum / total);
}
