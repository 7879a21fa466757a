// Idea:          A product with [Wq Wk Wv] has the heads of a token side by side, attention wants
//                the tokens of a head: one pass adds the bias, moves, and cuts windows.
// Changes from:  17_bias_gelu.cu
// Shapes:        qkv (rows, 3, heads, d); bias (3*heads*d); q, k, v, x (rows/n, heads, n, d); out
//                (rows, parts*heads*d); row-major float32; token (rows) int32; bias, token null
// Launch:        split_heads: grid (rows), block (THREADS)
//                merge_heads: grid (rows), block (THREADS)
// Needs:         sm_50; THREADS <= 1024; rows a multiple of n; parts 1, or 3 for operands of TF32
//                products; token a permutation of the rows
// Expect:        each element is read once and written once, in runs of d floats
// Limits:        rows < 2^31

#ifndef THREADS
#define THREADS 128
#endif

#include "include/quads.cuh"

// Row r of q, k and v is token r, or token[r]: with windows, the place of that token in the image.
extern "C" __global__ void __launch_bounds__(THREADS) split_heads(
    const float* __restrict__ qkv,   // (rows, 3, heads, d)
    const float* __restrict__ bias,  // (3*heads*d) or null
    const int* __restrict__ token,   // (rows) or null
    float* __restrict__ q,           // (rows/n, heads, n, d)
    float* __restrict__ k,           // (rows/n, heads, n, d)
    float* __restrict__ v,           // (rows/n, heads, n, d)
    int n, int heads, int d)
{
    const long long row = blockIdx.x;
    const int width = heads * d;
    const bool vector = rows_aligned(qkv, d) && rows_aligned(bias, d) && rows_aligned(q, d) &&
                        rows_aligned(k, d) && rows_aligned(v, d);
    const int quads = (d + 3) / 4;  // of a head: a quad never reaches into the next one
    qkv += (token ? token[row] : row) * 3 * width;
    const long long first = row / n * n * width + row % n * d;  // of head 0
    for (int i = threadIdx.x; i < 3 * heads * quads; i += THREADS) {
        const int head = i / quads, column = 4 * (i % quads), left = d - column;  // of 3*heads
        float4 x = load_quad(qkv + head * d + column, left, vector);
        if (bias) x = x + load_quad(bias + head * d + column, left, vector);
        float* to = head < heads ? q : head < 2 * heads ? k : v;
        store_quad(to + first + (long long)(head % heads) * n * d + column, x, left, vector);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) merge_heads(
    const float* __restrict__ x,    // (rows/n, heads, n, d)
    const int* __restrict__ token,  // (rows) or null
    float* __restrict__ out,        // (rows, parts*heads*d)
    int n, int heads, int d, int parts)
{
    const long long row = blockIdx.x;
    const int width = heads * d;
    const bool vector = rows_aligned(x, d) && rows_aligned(out, d);
    const int quads = (d + 3) / 4;
    x += row / n * n * width + row % n * d;
    out += (token ? token[row] : row) * parts * width;
    for (int i = threadIdx.x; i < heads * quads; i += THREADS) {
        const int head = i / quads, column = 4 * (i % quads), left = d - column;
        const float4 value = load_quad(x + (long long)head * n * d + column, left, vector);
        store_parts(out, head * d + column, value, left, width, parts, vector);
    }
}
