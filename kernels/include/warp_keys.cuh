// Idea:          A warp copies and reads keys of its own, 16 at a time: no other warp waits for it.
// Used by:       23_decode.cu
// Explained in:  17_decoding
#pragma once

#include "async_copy.cuh"
#include "element.cuh"
#include "swizzled_tile.cuh"

// Starts this warp's copy of the first `left` of 16 keys; zeros follow them. vector: keys are
// 16-byte aligned; others are loaded and stored at once, element by element.
template <int width, int row_bytes>
__device__ __forceinline__ void start_keys(unsigned char* tile,  // (16, row_bytes), shared
                                           const Element* from,  // key i at i * stride
                                           int stride, int left, int d, bool vector)
{
    constexpr int LANES = width / 8;  // chunks of a key
    constexpr int STEP = 32 / LANES;  // keys at once
    constexpr bool even = 32 % LANES == 0;  // else a lane's chunks are not under each other
    const int lane = threadIdx.x % 32;
    const Element* src = from + (long long)(lane / LANES) * stride + lane % LANES * 8;
#pragma unroll(width > 128 ? 2 : 8)  // all of 16 would take registers that O and Q have
    for (int x = 0; x < width / 16; ++x, src += STEP * stride) {
        const int chunk = even ? lane % LANES : (x * 32 + lane) % LANES;
        const int row = even ? lane / LANES + x * STEP : (x * 32 + lane) / LANES;
        unsigned char* to = tile + swizzled<row_bytes>(row, chunk);
        if (!even) src = from + (long long)row * stride + chunk * 8;
        if (vector) {
            const int bytes = row < left && chunk * 8 < d ? 16 : 0;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                         :: "r"(shared_address(to)), "l"(src), "r"(bytes) : "memory");
        } else {
#pragma unroll 1
            for (int i = 0; i < 8; ++i) {
                const bool inside = row < left && chunk * 8 + i < d;
                reinterpret_cast<Element*>(to)[i] = inside ? src[i] : Element{};
            }
        }
    }
}

// Ends this thread's group of copies, which may be empty.
__device__ __forceinline__ void end_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// The first two of `left` elements of a row; zeros past them. vector: 4-byte aligned, left even.
__device__ __forceinline__ unsigned load_pair(const Element* from, int left, bool vector)
{
    if (vector) return left > 0 ? *reinterpret_cast<const unsigned*>(from) : 0;
    return to_pair(left > 0 ? (float)from[0] : 0.0f, left > 1 ? (float)from[1] : 0.0f);
}
