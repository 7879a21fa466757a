// Idea:          A block copies rows of a matrix into shared memory, neighbouring threads
//                neighbouring columns; what is past the matrix becomes zero.
// Used by:       10_flash_rows.cu, 11_flash_fp32.cu, 21_backward_rows.cu
// Explained in:  02_threads_blocks_tiles, 03_memory_traffic
#pragma once

// Copies rows [0, rows) of a (.., d) matrix into a tile of `count` rows of width floats, stride
// apart; the rest of the tile becomes zero. vector: d is a multiple of 4, src 16-byte aligned.
template <int width, int stride, int threads>
__device__ __forceinline__ void load_tile(float* tile,       // (count, stride), shared
                                          const float* src,  // (rows, d)
                                          int count, int rows, int d, bool vector)
{
    static_assert(threads >= width / 4, "a row of a tile is loaded at once");
    constexpr int LANES = width / 4;       // threads a row
    constexpr int STEP = threads / LANES;  // rows the block loads at once
    const int col = threadIdx.x % LANES * 4;
    int row = threadIdx.x / LANES;
    if (row == STEP) return;  // where LANES does not divide threads, the last ones are left
    src += (long long)row * d + col;
    for (; row < count; row += STEP, src += STEP * d) {
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (row < rows) {
            if (vector) {
                if (col < d) x = *reinterpret_cast<const float4*>(src);
            } else {
                if (col < d) x.x = src[0];
                if (col + 1 < d) x.y = src[1];
                if (col + 2 < d) x.z = src[2];
                if (col + 3 < d) x.w = src[3];
            }
        }
        *reinterpret_cast<float4*>(tile + row * stride + col) = x;
    }
}
