// Idea:          The rounding error of a float32 sum grows with its number of terms. A long row is
//                summed in spans of tiles, and a second sum, in local memory, adds up the spans.
// Used by:       11_flash_fp32.cu, 12_flash_async.cu, 19_flash_split.cu
// Explained in:  09_flash_attention
#pragma once

#include "online_softmax.cuh"

// What the spans before this one have found of a thread's rows: for each row o, m and l.
template <int rows, int cols>
struct SpanSums {
    float of_row[rows][4 * cols + 2];
};

// A pointer that the compiler knows nothing of, so that the sums stay in local memory: there they
// take no registers from the loop over tiles, and only the last tile of a span touches them.
template <int rows, int cols>
__device__ __forceinline__ float* in_memory(SpanSums<rows, cols>& sums)
{
    float* first = sums.of_row[0];
    asm volatile("" : "+l"(first) :: "memory");
    return first;
}

// Adds the sums of earlier spans, where there are any, rescaled to the maximum of now.
template <int span, int rows, int cols>
__device__ __forceinline__ void add_spans(SpanSums<rows, cols>& sums, bool any,
                                          float (&o)[rows][cols][4], const float (&row_m)[rows],
                                          float (&row_l)[rows])
{
    if (span == 0 || !any) return;
    const float* sum = in_memory(sums);
#pragma unroll
    for (int i = 0; i < rows; ++i, sum += 4 * cols + 2) {
        const float factor = log2_factor(row_m[i]);
        const float shift = __fmul_rn(row_m[i], factor);
        const float rescale = exp2f(__fmul_rn(sum[4 * cols], factor) - shift);
        row_l[i] += rescale * sum[4 * cols + 1];
#pragma unroll
        for (int x = 0; x < 4 * cols; ++x) {
            o[i][x / 4][x % 4] += rescale * sum[x];
        }
    }
}

// After the last tile of a span: sets its sums and those of the spans before it aside; new ones
// begin at zero. span: tiles of keys, 0: the row is one span.
template <int span, int rows, int cols>
__device__ __forceinline__ void end_tile(SpanSums<rows, cols>& sums, int tile,
                                         float (&o)[rows][cols][4], const float (&row_m)[rows],
                                         float (&row_l)[rows])
{
    if constexpr (span > 0) {
        if (tile % span != span - 1) return;
        add_spans<span>(sums, tile >= span, o, row_m, row_l);
        float* sum = in_memory(sums);
#pragma unroll
        for (int i = 0; i < rows; ++i, sum += 4 * cols + 2) {
            sum[4 * cols] = row_m[i];
            sum[4 * cols + 1] = row_l[i];
            row_l[i] = 0.0f;
#pragma unroll
            for (int x = 0; x < 4 * cols; ++x) {
                sum[x] = o[i][x / 4][x % 4];
                o[i][x / 4][x % 4] = 0.0f;
            }
        }
    }
}
