// Idea:          Scores in fragments become weights, and the output leaves fragments, with as many
//                sums and maxima under way at once as the additions need to follow each other.
// Used by:       18_flash_wgmma.cu, 23_decode.cu, 24_backward_mma.cu, 25_backward_wgmma.cu,
//                33_flash_fp16x3.cu, 34_decode_cluster.cu, include/key_rows.cuh
// Explained in:  16_hopper
#pragma once

#include "element.cuh"
#include "fragment_softmax.cuh"
#include "swizzled_tile.cuh"

// Raises the shifts of this lane's two rows to the largest scores, times factor, and the sums with
// them; rescale: what becomes of all that was summed under the old ones. As row_top() and raise(),
// in four chains a row. With a slack a shift rises only where a score passes it by more: the first
// tile of keys sets it, few raise it, and rescale is 1 for the others. No weight is then larger
// than exp2(slack), and the averages are the same, for a row's weights all have its shift.
template <int slack = 0, int tiles>
__device__ __forceinline__ void raise_rows(float (&shift)[2], float (&sum)[2], float (&rescale)[2],
                                           const float (&s)[tiles][4], float factor)
{
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float top[4] = {LOWEST, LOWEST, LOWEST, LOWEST};
#pragma unroll
        for (int x = 0; x < 2 * tiles; ++x) {
            top[x % 4] = fmaxf(top[x % 4], s[x / 2][2 * half + x % 2]);
        }
        const float highest = fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
        const float row_top = warp_max<2, 1>(highest * factor);
        const float old = shift[half];
        if (slack == 0 || row_top > old + slack) shift[half] = fmaxf(old, row_top);
        rescale[half] = exp2f(old - shift[half]);
        sum[half] *= rescale[half];
    }
}

// Each score becomes exp2(score * factor - shift), and is added to the sum of its row.
template <int tiles>
__device__ __forceinline__ void take_exponentials(float (&s)[tiles][4], float factor,
                                                  const float (&shift)[2], float (&sum)[2])
{
    float part[4] = {};
#pragma unroll
    for (int x = 0; x < 4 * tiles; ++x) {
        float& score = s[x / 4][x % 4];
        score = exp2f(score * factor - shift[x % 4 / 2]);
        part[x % 4] += score;
    }
    sum[0] += part[0] + part[1];
    sum[1] += part[2] + part[3];
}

// The weights of 16 keys each as the rows of the next product.
template <int tiles>
__device__ __forceinline__ void pack(unsigned (&p)[tiles / 2][4], const float (&s)[tiles][4])
{
#pragma unroll
    for (int x = 0; x < 2 * tiles; ++x) {
        p[x / 4][x % 4] = to_pair(s[x / 2][x % 2 * 2], s[x / 2][x % 2 * 2 + 1]);
    }
}

// The factor that makes weighted sums of this lane's rows averages. lse: where the log of the first
// row's sum of exponentials goes, or null; left: rows from it on.
__device__ __forceinline__ void end_rows(float (&factor)[2], const float (&shift)[2],
                                         const float (&sum)[2], float* lse, int left)
{
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float total = warp_sum<2, 1>(sum[half]);
        factor[half] = total > 0.0f ? 1.0f / total : 0.0f;  // every key masked: zeros
        if (lse && 8 * half < left && threadIdx.x % 4 == 0) {
            lse[8 * half] = shift[half] * LN2 + logf(total);
        }
    }
}

// Writes a warp's 16 rows, times a factor each, into its rows of a tile (tiles / 8, 64, 128 bytes);
// `first` is the first one.
template <int tiles>
__device__ __forceinline__ void store_rows(unsigned tile, int first, const float (&o)[tiles][4],
                                           const float (&factor)[2])
{
    const int lane = threadIdx.x % 32;  // gives the address of one row of one of four matrices
#pragma unroll
    for (int c = 0; c < tiles / 2; ++c) {
        unsigned r[4];
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            const float(&o2)[4] = o[2 * c + x / 2];
            r[x] = to_pair(o2[x % 2 * 2] * factor[x % 2], o2[x % 2 * 2 + 1] * factor[x % 2]);
        }
        const unsigned to = tile + c / 4 * 64 * 128 +
                            swizzled<128>(first + lane % 16, c % 4 * 2 + lane / 16);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                     :: "r"(to), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
    }
}
