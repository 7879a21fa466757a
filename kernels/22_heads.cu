// Idea:          A product with [Wq Wk Wv] has the heads of a token side by side, attention wants
//                the tokens of a head: one pass adds the bias, moves, and cuts windows. Each of the
//                two kernels is the other one's gradient.
// Changes from:  17_bias_gelu.cu
// Shapes:        qkv (rows, count, heads, d); bias (count*heads*d); q, k, v (rows/n, heads, n, d);
//                out (rows, count, parts*heads*d); row-major float32; token (rows) int32; bias and
//                token may be null; count is 3, or 1 where k and v are null
// Launch:        split_heads: grid (rows), block (THREADS)
//                merge_heads: grid (rows), block (THREADS)
// Needs:         sm_50; THREADS <= 1024; rows a multiple of n; parts 1, or 3 with count 1 for
//                operands of TF32 products; token a permutation of the rows
// Expect:        each element is read once and written once, in runs of d floats
// Limits:        rows < 2^31

#ifndef THREADS
#define THREADS 128
#endif

#include "include/quads.cuh"

// The first number of a row of (rows/n, heads, n, d), of head 0. No GPU divides 64-bit numbers by
// one instruction, so the division is of 32 bits.
__device__ __forceinline__ long long first_of(int row, int n, int width, int d)
{
    const int sequence = row / n;
    return (long long)sequence * n * width + (long long)(row - sequence * n) * d;
}

// Row r of q, k and v is token r, or token[r]: with windows, the place of that token in the image.
extern "C" __global__ void __launch_bounds__(THREADS) split_heads(
    const float* __restrict__ qkv,   // (rows, count, heads, d)
    const float* __restrict__ bias,  // (count*heads*d) or null
    const int* __restrict__ token,   // (rows) or null
    float* __restrict__ q,           // (rows/n, heads, n, d)
    float* __restrict__ k,           // (rows/n, heads, n, d) or null
    float* __restrict__ v,           // (rows/n, heads, n, d) or null
    int n, int heads, int d)
{
    const int row = blockIdx.x;
    const int width = heads * d, count = k ? 3 : 1;
    const bool vector = rows_aligned(qkv, d) && rows_aligned(bias, d) && rows_aligned(q, d) &&
                        rows_aligned(k, d) && rows_aligned(v, d);
    const int quads = (d + 3) / 4;  // of a head: a quad never reaches into the next one
    qkv += (long long)(token ? token[row] : row) * count * width;
    const long long first = first_of(row, n, width, d);
    for (int i = threadIdx.x; i < count * heads * quads; i += THREADS) {
        const int head = i / quads, column = 4 * (i % quads), left = d - column;  // of count*heads
        float4 x = load_quad(qkv + head * d + column, left, vector);
        if (bias) x = x + load_quad(bias + head * d + column, left, vector);
        const int part = (head >= heads) + (head >= 2 * heads);  // of q, k and v
        float* to = part == 0 ? q : part == 1 ? k : v;
        to += first + (long long)(head - part * heads) * n * d + column;
        store_quad(to, x, left, vector);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) merge_heads(
    const float* __restrict__ q,    // (rows/n, heads, n, d)
    const float* __restrict__ k,    // (rows/n, heads, n, d) or null
    const float* __restrict__ v,    // (rows/n, heads, n, d) or null
    const int* __restrict__ token,  // (rows) or null
    float* __restrict__ out,        // (rows, count, parts*heads*d)
    int n, int heads, int d, int parts)
{
    const int row = blockIdx.x;
    const int width = heads * d, count = k ? 3 : 1;
    const bool vector =
        rows_aligned(q, d) && rows_aligned(k, d) && rows_aligned(v, d) && rows_aligned(out, d);
    const int quads = (d + 3) / 4;
    const long long first = first_of(row, n, width, d);
    out += (long long)(token ? token[row] : row) * count * parts * width;
    for (int i = threadIdx.x; i < count * heads * quads; i += THREADS) {
        const int head = i / quads, column = 4 * (i % quads), left = d - column;
        const int part = (head >= heads) + (head >= 2 * heads);
        const float* from = part == 0 ? q : part == 1 ? k : v;
        from += first + (long long)(head - part * heads) * n * d + column;
        store_parts(out, head * d + column, load_quad(from, left, vector), left, width, parts,
                    vector);
    }
}
