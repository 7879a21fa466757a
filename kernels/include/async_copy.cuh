// Idea:          cp.async copies from global to shared memory past the registers: a thread starts a
//                copy, computes, and waits only when it needs the data.
// Used by:       12_flash_async.cu, 13_flash_wmma.cu, 14_flash_mma.cu, 15_flash_tf32x3.cu,
//                19_flash_split.cu, 20_rows_split.cu, 24_backward_mma.cu, 29_split_tf32x3.cu,
//                30_backward_tf32x3.cu, include/warp_keys.cuh
// Explained in:  10_asynchronous_copies
#pragma once

// Starts copying rows [0, rows) x columns [0, cols) of a (.., d) matrix into a tile of `count` rows
// of width floats, stride apart; a copy that reads 0 bytes fills its place with zeros. Nothing has
// arrived until copies_arrived(). vector: d and cols are multiples of 4, src 16-byte aligned.
template <int width, int stride, int threads>
__device__ __forceinline__ void start_copy(float* tile,       // (count, stride), shared
                                           const float* src,  // (rows, d)
                                           int count, int rows, int cols, int d, bool vector)
{
    static_assert(threads >= width / 4, "a row of a tile is copied at once");
    unsigned to = (unsigned)__cvta_generic_to_shared(tile);
    if (rows <= 0) count = 0;  // past the last tile there is nothing to copy, only a group to end
    if (vector) {
        constexpr int LANES = width / 4;       // threads a row
        constexpr int STEP = threads / LANES;  // rows the block copies at once
        const int col = threadIdx.x % LANES * 4;
        int row = threadIdx.x / LANES;
        src += (long long)row * d + col;
        to += (row * stride + col) * 4;
        if (threads % LANES && row == STEP) row = count;  // threads that fill no row are left
        for (; row < count; row += STEP, src += STEP * d, to += STEP * stride * 4) {
            const int bytes = row < rows && col < cols ? 16 : 0;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                         :: "r"(to), "l"(src), "r"(bytes) : "memory");
        }
    } else {
        for (int i = threadIdx.x; i < count * width; i += threads) {
            const int row = i / width;
            const int col = i % width;
            const int bytes = row < rows && col < cols ? 4 : 0;
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                         :: "r"(to + (row * stride + col) * 4), "l"(src + (long long)row * d + col),
                            "r"(bytes) : "memory");
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");  // this thread's copies, one group a call
}

// Waits until at most `newer` of this thread's groups, the newest, are still under way.
template <int newer>
__device__ __forceinline__ void copies_arrived()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(newer) : "memory");
}
