// Idea:          A barrier in shared memory that counts arrivals of threads and bytes of copies;
//                who waits names the phase by its parity, and need not be among those that arrive.
// Used by:       include/inbox.cuh, include/ring.cuh
// Explained in:  16_hopper
#pragma once

// Starts barriers, 8 bytes each: a phase of one ends with its `arrivals`-th arrival, once all bytes
// that are expected in it are here.
template <int count>
__device__ __forceinline__ void start_barriers(unsigned first, int arrivals)
{
    for (int i = 0; i < count; ++i) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                     :: "r"(first + 8 * i), "r"(arrivals) : "memory");
    }
}

// After start_barriers(), before others and the copy engine use the barriers.
__device__ __forceinline__ void barriers_started()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

__device__ __forceinline__ void arrive_and_expect(unsigned barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(barrier), "r"(bytes) : "memory");
}

// Waits for the end of the phase of this parity. The phases of a new barrier are 0, 1, 0, ...; the
// one before its first counts as 1 and as over.
__device__ __forceinline__ void wait_for(unsigned barrier, int parity)
{
    for (unsigned over = 0; !over;) {
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
                     "selp.u32 %0, 1, 0, p;}"
                     : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
    }
}
