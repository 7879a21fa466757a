// Idea:          A tile in shared memory without pad: the 16-byte chunks of a row are ordered by
//                the row's number, so that one chunk of 8 rows takes all banks.
// Used by:       14_flash_mma.cu, 15_flash_tf32x3.cu, 29_split_tf32x3.cu, include/fp16x3.cuh,
//                include/fragment_gradients.cuh, include/fragment_products.cuh,
//                include/fragment_weights.cuh, include/tf32x3.cuh, include/warp_keys.cuh
// Explained in:  11_tensor_cores
#pragma once

// Chunk c of row r is at place c ^ (r % 8) within its group of 8 chunks (128 bytes):
//
//    row 0:  0 1 2 3 4 5 6 7        row 1:  1 0 3 2 5 4 7 6        row 2:  2 3 0 1 6 7 4 5   ...
//
// Bytes from the tile's first one to a chunk; stride: bytes of a row, a multiple of 128.
template <int stride>
__device__ __forceinline__ int swizzled(int row, int chunk)
{
    return row * stride + chunk / 8 * 128 + ((chunk ^ row) % 8) * 16;
}

// From a lane's address to the one `chunks` further in its row. The lane's chunk is below 2 or 4,
// chunks a multiple of that, and tiles begin at multiples of 128 bytes: these bits do not meet.
__device__ __forceinline__ unsigned along_row(unsigned address, int chunks)
{
    return (address ^ (chunks % 8 * 16)) + chunks / 8 * 128;
}

__device__ __forceinline__ unsigned shared_address(const void* pointer)
{
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// Starts copying rows [0, rows) of a (.., d) matrix into a tile of `count` rows of width elements;
// the rest of the tile becomes zero. Nothing has arrived until copies_arrived(). vector: rows are
// 16-byte aligned; others are loaded and stored at once, element by element.
template <int width, int stride, int count, int threads, typename T>
__device__ __forceinline__ void start_swizzled_copy(unsigned char* tile,  // (count, stride), shared
                                                    const T* src,         // (rows, d)
                                                    int rows, int d, bool vector)
{
    constexpr int CHUNK = 16 / sizeof(T);  // elements
    constexpr int LANES = width / CHUNK;   // threads a row
    constexpr int STEP = threads / LANES;  // rows the block copies at once
    static_assert(STEP > 0, "a row of a tile is copied at once");
    const int first = threadIdx.x / LANES;
    const int chunk = threadIdx.x % LANES;
    const int col = chunk * CHUNK;
    const int stop = threads % LANES && first == STEP ? 0 : count;  // threads that fill no row
    src += (long long)first * d + col;
    if (rows > 0 && vector) {
        unsigned char* to = tile + swizzled<stride>(first, chunk);
#pragma unroll
        for (int r = 0; r < count; r += STEP, src += STEP * d) {
            // Rows a multiple of 8 apart are swizzled alike.
            if (STEP % 8) to = tile + swizzled<stride>(first + r, chunk) - r * stride;
            const int bytes = first + r < rows && col < d ? 16 : 0;
            if ((count % STEP == 0 && threads % LANES == 0) || first + r < stop) {
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                             :: "r"(shared_address(to + r * stride)), "l"(src), "r"(bytes)
                             : "memory");
            }
        }
    } else if (rows > 0) {
#pragma unroll 1
        for (int row = first; row < stop; row += STEP, src += STEP * d) {
            T* to = reinterpret_cast<T*>(tile + swizzled<stride>(row, chunk));
#pragma unroll 1
            for (int x = 0; x < CHUNK; ++x) {
                to[x] = row < rows && col + x < d ? src[x] : T{};
            }
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");  // this thread's copies, one group a call
}

// Writes `count` rows of a tile to rows [0, rows) of a (.., d) matrix; one warp calls it. vector:
// rows are 16-byte aligned and written chunk by chunk; others element by element.
template <int stride, int count, typename T>
__device__ __forceinline__ void store_swizzled(T* dst,  // (rows, d)
                                               const unsigned char* tile,  // (.., stride), shared
                                               int rows, int d, bool vector)
{
    constexpr int CHUNK = 16 / sizeof(T);  // elements
    constexpr int LANES = stride / 16;     // threads a row
    const int lane = threadIdx.x % 32;
    if (vector) {
#pragma unroll
        for (int x = lane; x < count * LANES; x += 32) {
            const int row = x / LANES;
            const int chunk = x % LANES;
            if (row < rows && chunk * CHUNK < d) {
                *reinterpret_cast<uint4*>(dst + (long long)row * d + chunk * CHUNK) =
                    *reinterpret_cast<const uint4*>(tile + swizzled<stride>(row, chunk));
            }
        }
    } else {
#pragma unroll 1
        for (int row = 0; row < min(count, rows); ++row) {
#pragma unroll 1
            for (int col = lane; col < d; col += 32) {
                const unsigned char* from = tile + swizzled<stride>(row, col / CHUNK);
                dst[(long long)row * d + col] = reinterpret_cast<const T*>(from)[col % CHUNK];
            }
        }
    }
}
