// Idea:          The gradient of a bias is a sum over rows. A block adds SPAN rows of 32 columns,
//                each warp every GROUPS-th row; a second launch adds the blocks' sums. The order is
//                fixed by the shape: no atomics, and the same bits in every run.
// Changes from:  06_output_tiled.cu
// Shapes:        x (rows, width); out (spans, width), spans = ceil(rows/SPAN); row-major float32
// Launch:        column_sums: grid (spans, ceil(width/32)), block (32, GROUPS), static shared
//                128*GROUPS bytes; again over out until it is one row
// Needs:         sm_50; GROUPS 1 to 32
// Expect:        x is read once: bound by memory for large x, by latency for small x
// Limits:        rows < 2^31; width <= 32*65535

#ifndef SPAN
#define SPAN 512  // rows of a block
#endif
#ifndef GROUPS
#define GROUPS 32  // warps of a block
#endif

extern "C" __global__ void __launch_bounds__(32 * GROUPS) column_sums(
    const float* __restrict__ x,  // (rows, width)
    float* __restrict__ out,      // (spans, width)
    int rows, int width)
{
    __shared__ float part[GROUPS][32];
    const int column = 32 * blockIdx.y + threadIdx.x;
    const long long first = (long long)blockIdx.x * SPAN;
    const int count = column < width ? (int)min(rows - first, (long long)SPAN) : 0;  // of its rows
    x += first * width + column;
    float sum = 0.0f;
#pragma unroll 4
    for (int row = threadIdx.y; row < count; row += GROUPS) {
        sum += x[(long long)row * width];
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();  // barrier: the first warp would add sums that slow warps have not stored
    if (threadIdx.y > 0 || column >= width) return;
#pragma unroll
    for (int group = 1; group < GROUPS; ++group) {
        sum += part[group][threadIdx.x];
    }
    out[(long long)blockIdx.x * width + column] = sum;
}
