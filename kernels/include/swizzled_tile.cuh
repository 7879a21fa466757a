// Idea:          A tile of 16-bit rows in shared memory without pad: the 16-byte chunks of a row
//                change places with the row's number, so that a chunk of 8 rows takes all banks.
// Used by:       14_flash_mma.cu
// Explained in:  10_asynchronous_copies
#pragma once

// Chunk c of row r is at place c ^ (r % 8) within its group of 8 chunks (128 bytes):
//
//    row 0:  0 1 2 3 4 5 6 7        row 1:  1 0 3 2 5 4 7 6        row 2:  2 3 0 1 6 7 4 5   ...
//
// The address of an element, from the tile's first byte on; stride: bytes of a row, a multiple of
// 128; column: a multiple of 8.
template <int stride>
__device__ __forceinline__ unsigned swizzled(int row, int column)
{
    return row * stride + column / 64 * 128 + ((column / 8 ^ row) % 8) * 16;
}

// From a lane's address at a column below 16 to its address `columns` further; columns: a multiple
// of 16. The tile begins at a multiple of 128 bytes, so only the chunk's number is in these bits.
__device__ __forceinline__ unsigned along_row(unsigned address, int columns)
{
    return (address ^ (columns % 64 * 2)) + columns / 64 * 128;
}

// Starts copying rows [0, rows) of a (.., d) matrix of 16-bit elements into a tile of `count` rows
// of width columns; the rest of the tile becomes zero. Nothing has arrived until copies_arrived().
// vector: d is a multiple of 8, src 16-byte aligned; other rows are loaded and stored at once.
template <int width, int stride, int count, int threads, typename T>
__device__ __forceinline__ void start_swizzled_copy(unsigned tile,  // (count, stride bytes), shared
                                                    const T* src,  // (rows, d)
                                                    int rows, int d, bool vector)
{
    static_assert(threads >= width / 8, "a row of a tile is copied at once");
    constexpr int LANES = width / 8;       // threads a row
    constexpr int STEP = threads / LANES;  // rows the block copies at once
    const int first = threadIdx.x / LANES;
    const int col = threadIdx.x % LANES * 8;
    const int stop = threads % LANES && first == STEP ? 0 : count;  // threads that fill no row
    src += (long long)first * d + col;
    const unsigned to = tile + swizzled<stride>(first, col);
    if (rows > 0 && vector) {
#pragma unroll
        for (int r = 0; r < count; r += STEP, src += STEP * d) {
            // Rows a multiple of 8 apart are swizzled alike.
            const unsigned at =
                STEP % 8 ? tile + swizzled<stride>(first + r, col) : to + r * stride;
            const int bytes = first + r < rows && col < d ? 16 : 0;
            if ((count % STEP == 0 && threads % LANES == 0) || first + r < stop) {
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                             :: "r"(at), "l"(src), "r"(bytes) : "memory");
            }
        }
    } else if (rows > 0) {
#pragma unroll 1
        for (int row = first; row < stop; row += STEP, src += STEP * d) {
#pragma unroll 1
            for (int x = 0; x < 8; ++x) {
                const bool inside = row < rows && col + x < d;
                const unsigned short value =
                    inside ? reinterpret_cast<const unsigned short*>(src)[x] : 0;
                asm volatile("st.shared.u16 [%0], %1;"
                             :: "r"(tile + swizzled<stride>(row, col) + 2 * x), "h"(value)
                             : "memory");
            }
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");  // this thread's copies, one group a call
}
