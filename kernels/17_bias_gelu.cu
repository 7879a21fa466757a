// Idea:          The steps between two matrix products are bound by memory, so each is one pass:
//                four columns a thread, blocks in the order of memory, a bias that is read once
//                for all rows of a thread, no division for an index.
// Changes from:  16_layernorm.cu
// Shapes:        x, residual (rows, width); bias (width); out (rows, parts*width); row-major
//                float32; residual and bias may be null; out may be x where parts is 1
// Launch:        bias_gelu, bias_add: block (lanes, groups), lanes along the columns; grid
//                (ceil(width/(4*lanes)), ceil(rows/(ROWS*groups)) or less): few blocks loop
// Needs:         sm_50; ROWS >= 1; approximate 0 (erf) or 1 (tanh); parts 1, or 3 for operands of
//                TF32 products; with PLAIN a bias, parts 1, width a multiple of 4, arrays that
//                begin at multiples of 16 bytes
// Expect:        as long as a copy of x takes, or of its three parts
// Limits:        rows < 2^31

#ifndef ROWS
#define ROWS 2  // rows that a thread has in flight
#endif
#ifndef PLAIN
#define PLAIN 0  // 1: bias_gelu has no code for parts and odd rows
#endif

#include "include/quads.cuh"

constexpr int THREADS = 128;  // of a block, at most
constexpr int BUSY = 12;      // blocks that an SM must have room for: enough loads are in flight

// By one instruction: __fdividef scales x as well, lest the result be subnormal.
__device__ __forceinline__ float reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// x times the normal distribution function of x. 1 + erf would lose the digits of a small sum, so
// the smaller tail, erfc(|x| / sqrt(2)) / 2, is t exp(-x x / 2 + a polynomial of t), which was
// fitted to a relative error of 1e-7. The exponent is in powers of two.
__device__ __forceinline__ float gelu_erf(float x)
{
    const float t = reciprocal(1.0f + 0.4f * fabsf(x));
    constexpr float TERMS[] = {0.27391273f, -1.4027088f, 2.8009355f,
                               -2.5148947f, 0.77402031f, -0.25837141f,
                               0.53601563f, 1.438614f, -2.6475229f};
    float p = TERMS[0];
#pragma unroll
    for (int i = 1; i < 9; ++i) p = p * t + TERMS[i];
    const float tail = t * exp2f(p - 0.7213475204444817f * x * x);
    return x * (x > 0.0f ? 1.0f - tail : tail);
}

// The approximation 0.5 x (1 + tanh(u)) is x / (1 + exp(-2u)): one exponential, no cancellation.
__device__ __forceinline__ float gelu_tanh(float x)
{
    const float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return x * reciprocal(1.0f + expf(-2.0f * u));  // exp may overflow: x / inf = 0 is right
}

// A thread takes ROWS rows from first_row() on, and the same again rows_at_once() further down.
__device__ __forceinline__ long long first_row()
{
    return ((long long)blockIdx.y * blockDim.y + threadIdx.y) * ROWS;
}

__device__ __forceinline__ long long rows_at_once()
{
    return (long long)gridDim.y * blockDim.y * ROWS;
}

// vector: all rows begin at multiples of 16 bytes. Known when compiled: else each store would stand
// twice in the loop over the rows.
template <bool vector>
__device__ __forceinline__ void gelu_rows(const float* x, const float* bias, float* out, int rows,
                                          int width, int column, int approximate, int parts)
{
    const int left = width - column;
    float4 shift = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (PLAIN || bias) shift = load_quad(bias + column, left, vector);
    for (long long row = first_row(); row < rows; row += rows_at_once()) {
        float4 value[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {  // all loads first: they are in flight together
            if (row + i < rows) value[i] = load_quad(x + (row + i) * width + column, left, vector);
        }
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            if (row + i >= rows) return;
            const float4 h = value[i] + shift;
            const float4 g =
                approximate
                    ? make_float4(gelu_tanh(h.x), gelu_tanh(h.y), gelu_tanh(h.z), gelu_tanh(h.w))
                    : make_float4(gelu_erf(h.x), gelu_erf(h.y), gelu_erf(h.z), gelu_erf(h.w));
            store_parts(out + (row + i) * parts * width, column, g, left, width, parts, vector);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BUSY) bias_gelu(
    const float* x,     // (rows, width); may be out: a thread reads its columns before it writes
    const float* bias,  // (width) or null
    float* out,         // (rows, parts*width)
    int rows, int width, int approximate, int parts)
{
    const int column = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (column >= width) return;
    if (PLAIN) {
        gelu_rows<true>(x, bias, out, rows, width, column, approximate, 1);
    } else if (rows_aligned(x, width) && rows_aligned(bias, width) && rows_aligned(out, width)) {
        gelu_rows<true>(x, bias, out, rows, width, column, approximate, parts);
    } else {
        gelu_rows<false>(x, bias, out, rows, width, column, approximate, parts);
    }
}

// out = x + residual + bias: the end of a branch, or with nothing to add the parts of x.
extern "C" __global__ void __launch_bounds__(THREADS, BUSY) bias_add(
    const float* x,         // (rows, width); may be out
    const float* residual,  // (rows, width) or null; may be out
    const float* bias,      // (width) or null
    float* out,             // (rows, parts*width)
    int rows, int width, int parts)
{
    const int column = 4 * (blockIdx.x * blockDim.x + threadIdx.x), left = width - column;
    if (left <= 0) return;
    const bool vector = rows_aligned(x, width) && rows_aligned(residual, width) &&
                        rows_aligned(bias, width) && rows_aligned(out, width);
    float4 shift = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (bias) shift = load_quad(bias + column, left, vector);
    for (long long row = first_row(); row < rows; row += rows_at_once()) {
        float4 value[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const long long at = (row + i) * width + column;
            if (row + i >= rows) continue;
            value[i] = load_quad(x + at, left, vector);
            if (residual) value[i] = value[i] + load_quad(residual + at, left, vector);
        }
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            if (row + i >= rows) return;
            store_parts(out + (row + i) * parts * width, column, value[i] + shift, left, width,
                        parts, vector);
        }
    }
}
