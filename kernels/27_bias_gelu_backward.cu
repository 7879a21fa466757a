// Idea:          GELU and its derivative share one exponential: it gives the tail and the density
//                of the normal distribution, or the tanh. One pass computes the output again,
//                multiplies by the derivative, and sums columns for the gradient of the bias.
// Changes from:  17_bias_gelu.cu
// Shapes:        x, dout, dx, out (rows, width); bias (width); sums (blocks, width): of dx over
//                each block's rows; row-major float32; bias and out may be null; dx may be dout
// Launch:        bias_gelu_backward: grid (ceil(rows/ROWS) or fewer, ceil(width/(4*LANES))), about
//                BLOCKS blocks at most, block (LANES, ROWS), static shared 16*LANES*ROWS bytes
// Needs:         sm_50; LANES*ROWS <= 1024; approximate 0 (erf) or 1 (tanh)
// Expect:        bound by memory: x and dout are read once, dx is written once; out costs one array
//                more. RESIDENT blocks a multiprocessor keep enough loads in flight
// Limits:        rows < 2^31; 28_column_sums.cu adds the blocks' sums

#ifndef LANES
#define LANES 128  // threads along the columns, four columns each
#endif
#ifndef ROWS
#define ROWS 4  // rows of a block side by side
#endif
#ifndef RESIDENT
#define RESIDENT 3  // blocks that a multiprocessor must have room for
#endif
#ifndef BLOCKS
#define BLOCKS 396  // a grid of as many as run at once: each takes rows in turn
#endif

#include "include/quads.cuh"

struct Gelu {
    float value, slope;
};

// Keeps the exponentials and the slope finite where x is infinite; NaN stays NaN.
__device__ __forceinline__ float within_16(float x)
{
    return fabsf(x) > 16.0f ? copysignf(16.0f, x) : x;
}

// x P(x), where P is the normal distribution function, and its derivative P(x) + x P'(x). P' is
// exp(-x x / 2) / sqrt(2 pi), and the smaller of P(x) and 1 - P(x) is the same exponential times a
// polynomial of t, fitted to a relative error of 1e-7: 1 + erf would lose digits of a small P.
__device__ __forceinline__ Gelu gelu_erf(float x)
{
    const float near = within_16(x), t = __fdividef(1.0f, 1.0f + 0.305f * fabsf(near));
    const float bell = exp2f(-0.7213475204444817f * near * near);  // log2(e) / 2
    constexpr float TERMS[] = {0.036699202f, -0.15298836f, 0.18571697f, -0.037976895f,
                               0.12102171f,  0.10342085f,  0.12246682f, 0.121639736f};
    float p = TERMS[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) p = p * t + TERMS[i];
    const float tail = t * p * bell, share = x > 0.0f ? 1.0f - tail : tail;
    return {x * share, share + near * (0.3989422804014327f * bell)};
}

// x S(2 u), with S(y) = 1 / (1 + exp(-y)) and u = a (x + b x^3), and its derivative: that of S is
// S (1 - S).
__device__ __forceinline__ Gelu gelu_tanh(float x)
{
    const float near = within_16(x), a = 0.7978845608028654f, b = 0.044715f;
    const float u = a * near * (1.0f + b * near * near);
    const float share = 1.0f / (1.0f + expf(-2.0f * u));  // exp may overflow: 1 / inf = 0 is right
    const float du = a * (1.0f + 3.0f * b * near * near);
    return {x * share, share + near * (2.0f * du * share * (1.0f - share))};
}

extern "C" __global__ void __launch_bounds__(LANES * ROWS, RESIDENT) bias_gelu_backward(
    const float* __restrict__ x,     // (rows, width)
    const float* __restrict__ bias,  // (width) or null
    const float* dout,               // (rows, width); may be dx: read before it is written
    float* dx,                       // (rows, width)
    float* __restrict__ out,         // (rows, width) or null: gelu(x + bias)
    float* __restrict__ sums,        // (blocks, width)
    int rows, int width, int approximate)
{
    __shared__ float4 part[ROWS][LANES];
    const int column = 4 * (blockIdx.y * LANES + threadIdx.x), left = width - column;
    const bool vector = rows_aligned(x, width) && rows_aligned(bias, width) &&
                        rows_aligned(dout, width) && rows_aligned(dx, width) &&
                        rows_aligned(out, width) && rows_aligned(sums, width);
    float4 shift = make_float4(0.0f, 0.0f, 0.0f, 0.0f), total = shift;
    if (bias && left > 0) shift = load_quad(bias + column, left, vector);
    unsigned row = blockIdx.x * ROWS + threadIdx.y;  // unsigned: past the last row it may be 2^31
    for (; row < rows && left > 0; row += gridDim.x * ROWS) {
        const long long at = (long long)row * width + column;
        const float4 h = load_quad(x + at, left, vector) + shift;
        const float4 grad = load_quad(dout + at, left, vector);
        const Gelu a = approximate ? gelu_tanh(h.x) : gelu_erf(h.x);
        const Gelu b = approximate ? gelu_tanh(h.y) : gelu_erf(h.y);
        const Gelu c = approximate ? gelu_tanh(h.z) : gelu_erf(h.z);
        const Gelu e = approximate ? gelu_tanh(h.w) : gelu_erf(h.w);
        const float4 down = make_float4(grad.x * a.slope, grad.y * b.slope, grad.z * c.slope,
                                        grad.w * e.slope);
        total = total + down;
        store_quad(dx + at, down, left, vector);
        const float4 active = make_float4(a.value, b.value, c.value, e.value);
        if (out) store_quad(out + at, active, left, vector);
    }
    part[threadIdx.y][threadIdx.x] = total;
    __syncthreads();  // barrier: the first row would add sums that slow warps have not stored
    if (threadIdx.y > 0 || left <= 0) return;
#pragma unroll
    for (int i = 1; i < ROWS; ++i) {
        total = total + part[i][threadIdx.x];
    }
    store_quad(sums + (long long)blockIdx.x * width + column, total, left, vector);
}
