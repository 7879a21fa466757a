// Idea:          Blocks add to the same sums in global memory: in any order, by atomics, or one
//                after the other, which gives the same bits on every run.
// Used by:       24_backward_mma.cu, 25_backward_wgmma.cu, 30_backward_tf32x3.cu
// Explained in:  11_tensor_cores
#pragma once

// Adds to four sums, 16-byte aligned.
__device__ __forceinline__ void add4(float* to, float4 x)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
#else
    atomicAdd(to, x.x);
    atomicAdd(to + 1, x.y);
    atomicAdd(to + 2, x.z);
    atomicAdd(to + 3, x.w);
#endif
}

// Adds a warp's fragments of 16*tiles rows to sums in the order of fragments: a lane's four of 16
// rows and 8 columns side by side, so that a warp adds to 512 bytes at once. Of `width` columns it
// has every `step`-th 16, from the 16 of number `first` on.
template <int width, int step, int tiles, int cols>
__device__ __forceinline__ void add_fragments(float* to,  // (tiles, width/8, 32, 4)
                                              const float (&x)[tiles][cols][4], int first)
{
    to += (first * 64 + threadIdx.x % 32) * 4;
#pragma unroll
    for (int c = 0; c < cols; ++c) {
        if (width / 16 % step && first + c / 2 * step >= width / 16) break;  // there are none left
#pragma unroll
        for (int i = 0; i < tiles; ++i) {
            const float(&x4)[4] = x[i][c];
            add4(to + i * 16 * width + (c / 2 * step * 2 + c % 2) * 128,
                 make_float4(x4[0], x4[1], x4[2], x4[3]));
        }
    }
}

// This block's number in the order in which blocks started: those before it are at work, or done,
// so it may wait for them. The counter is zero again when the last block has its number.
__device__ __forceinline__ int next_ticket(unsigned* counter,
                                           void* place)  // 4 bytes, shared, used after a barrier
{
    unsigned* ticket = static_cast<unsigned*>(place);
    if (threadIdx.x == 0) *ticket = atomicInc(counter, gridDim.x - 1);
    __syncthreads();  // barrier: the number is not there yet
    return *ticket;
}

// A warp waits until `turn` others have passed their turn on, and sees what they added.
__device__ __forceinline__ void wait_for_turn(const unsigned* turns, unsigned turn)
{
    if (threadIdx.x % 32 == 0) {
        unsigned now;
        do {  // acquire: what follows comes after the turn
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(turns) : "memory");
        } while (now != turn);
    }
    __syncwarp();
}

// Passes the turn on; last: to the first of the next launch.
__device__ __forceinline__ void pass_turn(unsigned* turns, bool last)
{
    __syncwarp();
    if (threadIdx.x % 32) return;
    if (last) {
        *(volatile unsigned*)turns = 0;
    } else {  // release: what the warp added comes before it
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(turns) : "memory");
    }
}
