// Idea:          A row is read once and stays in registers: its mean, its variance and the result
//                are computed from there. Few threads share a row, 8 lanes to a block: a number
//                that a thread adds up itself needs no exchange.
// Changes from:  05_softmax_warp.cu
// Shapes:        x, residual, sum (rows, d); bias, gamma, beta (d); y (rows, parts*d); row-major
//                float32; residual, bias, gamma, beta and sum may be null
// Launch:        layernorm_warp: grid (ceil(rows/(ROWS*32/LANES))), block (32, ROWS)
//                layernorm_block: grid (rows), block (32, WARPS), static shared 3*WARPS*4 bytes
// Needs:         sm_50; d <= 4*LANES*VECTORS (layernorm_warp) or 128*VECTORS*WARPS
//                (layernorm_block); ROWS and WARPS 1 to 32; LANES a power of two, 1 to 32; parts 1,
//                or 3 for operands of TF32 products; with PLAIN gamma and beta, no residual, bias
//                and sum, parts 1, d a multiple of 4, arrays that begin at multiples of 16 bytes;
//                with PLAIN=2 d is 4*VECTORS times the threads of a row, LANES 32
// Expect:        y is written once, x read once (PLAIN=2: a row with a far-off first number twice):
//                bound by memory, small x by a row's latency; residual and sum are an array more
// Limits:        rows < 2^31; forward only

#ifndef ROWS
#define ROWS 2  // warps a block of layernorm_warp
#endif
#ifndef LANES
#define LANES 32  // lanes of layernorm_warp that share a row
#endif
#ifndef WARPS
#define WARPS 8  // warps of layernorm_block: they share a row
#endif
#ifndef VECTORS
#define VECTORS 4  // groups of four columns that a thread holds
#endif
#ifndef PLAIN
#define PLAIN 0  // 1: no code for added arrays, parts, odd rows; 2: d is known, one round of sums
#endif

#include "include/row_columns.cuh"

#define INFINITE __int_as_float(0x7f800000)  // NVRTC has no <math.h>
static_assert(PLAIN != 2 || LANES == 32, "a row has whole warps");
// Whether gamma and beta are loaded before x: after the sums they would be waited for once more.
constexpr bool EARLY = VECTORS <= 2 || PLAIN;  // else there are too few registers
// Warps that an SM must have room for, so that some load while others wait for their sums.
constexpr int BUSY_WARPS = VECTORS > 4 ? 16 : VECTORS == 4 && PLAIN ? 24 : 32;
constexpr int LEAST_BLOCKS = BUSY_WARPS < 2 * WARPS ? 1 : BUSY_WARPS / WARPS;
constexpr int LEAST_OF_ROWS = PLAIN && ROWS <= 16 ? 16 / ROWS : 1;  // blocks of layernorm_warp

struct Row {  // null: no such array
    const float *x, *residual, *bias;  // (d), added up
    const float *gamma, *beta;         // (d); null: ones, zeros
    float* sum;                        // (d): x + residual + bias
    float* y;                          // (parts*d)
    int held, d, parts;                // columns: d, or none of a row past the last one
};

// value = x + residual + bias, stored where sum is an array.
template <int threads, bool vector>
__device__ __forceinline__ void load_sum(float4 (&value)[VECTORS], const Row& row, int thread)
{
    float4 more[VECTORS] = {}, shift[VECTORS] = {};
    load_columns<threads, vector>(value, row.x, thread, row.held);
    if (PLAIN) return;
    if (row.residual) load_columns<threads, vector>(more, row.residual, thread, row.held);
    if (row.bias) load_columns<threads, vector>(shift, row.bias, thread, row.held);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int column = 4 * (thread + threads * i), left = row.held - column;
        value[i] = value[i] + more[i] + shift[i];
        if (row.sum && left > 0) store_quad(row.sum + column, value[i], left, vector);
    }
}

// Replaces a row's numbers by their deviations from its mean; returns 1 / sqrt(variance + eps).
template <int warps, int lanes, bool vector>
__device__ __forceinline__ float deviations(float4 (&value)[VECTORS], int thread, const Row& row,
                                            float eps, float (*part)[warps])  // (3, warps), shared
{
    const float share = 1.0f / row.d;
    if (PLAIN == 2) {
        const float squares = full_row_deviations<warps, lanes>(value, row.x[0], part);
        if (squares >= 0.0f) return rsqrtf(squares * share + eps);
        if (warps > 1) __syncthreads();  // barrier: slow warps still read the parts of these sums
        const float* x = row.x;          // read again, and not kept in registers for this case:
        asm volatile("" : "+l"(x));
        load_columns<lanes * warps, true>(value, x, thread, row.held);
    }
    float total[1] = {0.0f};
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        total[0] += sum_of(value[i]);
    }
    row_sums<warps, lanes>(total, part);
    const float mean = total[0] * share;

    // Where the mean is large beside the deviations, it is rounded by as much as they are. Their
    // own mean, moments[0], is what the rounding left out.
    float moments[2] = {0.0f, 0.0f};  // of the deviations: sum, sum of squares
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int left = row.held - 4 * (thread + lanes * warps * i);
        value[i].x = left > 0 ? value[i].x - mean : 0.0f;  // past the row: no deviation
        value[i].y = left > (vector ? 0 : 1) ? value[i].y - mean : 0.0f;
        value[i].z = left > (vector ? 0 : 2) ? value[i].z - mean : 0.0f;
        value[i].w = left > (vector ? 0 : 3) ? value[i].w - mean : 0.0f;
        moments[0] += sum_of(value[i]);
        moments[1] += sum_of(value[i] * value[i]);
    }
    row_sums<warps, lanes>(moments, part + 1);
    const float rest = moments[0] * share;
    const float variance = fmaxf(moments[1] * share - rest * rest, 0.0f);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        value[i] = value[i] - rest;
    }
    // Where the squares overflow, 1 / sqrt(inf) = 0 would pass for a result: NaN is none.
    return moments[1] < INFINITE ? rsqrtf(variance + eps) : nanf("");
}

template <int threads, bool vector>
__device__ __forceinline__ void load_affine(float4 (&scale)[VECTORS], float4 (&shift)[VECTORS],
                                            const Row& row, int thread)
{
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        scale[i] = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
        shift[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    if (PLAIN || row.gamma) load_columns<threads, vector>(scale, row.gamma, thread, row.held);
    if (PLAIN || row.beta) load_columns<threads, vector>(shift, row.beta, thread, row.held);
}

// Normalises one row by lanes*warps threads. vector: all arrays begin at multiples of 16 bytes.
template <int warps, int lanes, bool vector>
__device__ __forceinline__ void normalise(const Row& row, int thread, float eps,
                                          float (*part)[warps])  // null for one warp
{
    constexpr int THREADS = lanes * warps;
    float4 value[VECTORS] = {}, scale[VECTORS], shift[VECTORS];  // zeros past the row
    if (EARLY) load_affine<THREADS, vector>(scale, shift, row, thread);
    load_sum<THREADS, vector>(value, row, thread);
    const float inverse = deviations<warps, lanes, vector>(value, thread, row, eps, part);
    if (!EARLY) load_affine<THREADS, vector>(scale, shift, row, thread);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int column = 4 * (thread + THREADS * i), left = row.held - column;
        if (left <= 0) continue;
        const float4 out = inverse * value[i] * scale[i] + shift[i];
        store_parts(row.y, column, out, left, row.d, row.parts, vector);
    }
}

// Normalises row `at` of the arrays whose row 0 is `row`.
template <int warps, int lanes>
__device__ __forceinline__ void normalise_row(Row row, long long at, int thread, float eps,
                                              float (*part)[warps])
{
    const size_t starts = (size_t)row.x | (size_t)row.residual | (size_t)row.bias |
                          (size_t)row.gamma | (size_t)row.beta | (size_t)row.sum | (size_t)row.y;
    if (PLAIN) row.parts = 1;
    if (PLAIN == 2) row.d = row.held = 4 * VECTORS * lanes * warps;
    row.x += at * row.d;
    if (row.residual) row.residual += at * row.d;
    if (row.sum) row.sum += at * row.d;
    row.y += at * row.d * row.parts;
    if (PLAIN || (starts % 16 == 0 && row.d % 4 == 0)) {
        normalise<warps, lanes, true>(row, thread, eps, part);
    } else {
        normalise<warps, lanes, false>(row, thread, eps, part);
    }
}

extern "C" __global__ void __launch_bounds__(32 * ROWS, LEAST_OF_ROWS) layernorm_warp(
    const float* __restrict__ x,         // (rows, d)
    const float* __restrict__ residual,  // (rows, d) or null
    const float* __restrict__ bias,      // (d) or null
    const float* __restrict__ gamma,     // (d) or null
    const float* __restrict__ beta,      // (d) or null
    float* __restrict__ sum,             // (rows, d) or null
    float* __restrict__ y,               // (rows, parts*d)
    int rows, int d, int parts, float eps)
{
    const long long first = ((long long)blockIdx.x * ROWS + threadIdx.y) * (32 / LANES);
    if (first >= rows) return;  // the whole warp leaves: a shuffle waits for all of its lanes
    const long long row = first + threadIdx.x / LANES;
    const Row first_row = {x, residual, bias, gamma, beta, sum, y, row < rows ? d : 0, d, parts};
    normalise_row<1, LANES>(first_row, row, threadIdx.x % LANES, eps, nullptr);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, LEAST_BLOCKS) layernorm_block(
    const float* __restrict__ x,         // (rows, d)
    const float* __restrict__ residual,  // (rows, d) or null
    const float* __restrict__ bias,      // (d) or null
    const float* __restrict__ gamma,     // (d) or null
    const float* __restrict__ beta,      // (d) or null
    float* __restrict__ sum,             // (rows, d) or null
    float* __restrict__ y,               // (rows, parts*d)
    int rows, int d, int parts, float eps)
{
    __shared__ float part[3][WARPS];  // an array for each sum: no barrier between their uses
    const int thread = threadIdx.y * 32 + threadIdx.x;
    const Row first_row = {x, residual, bias, gamma, beta, sum, y, d, d, parts};
    normalise_row<WARPS, 32>(first_row, blockIdx.x, thread, eps, part);
}
