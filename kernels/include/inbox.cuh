// Idea:          Blocks of a cluster send into each other's shared memory, and an mbarrier in each
//                counts the bytes that come: a block waits for what it needs, not for the others.
// Used by:       20_rows_split.cu, 34_decode_cluster.cu, include/cluster_parts.cuh,
//                include/cluster_sum.cuh
// Explained in:  15_clusters
#pragma once

#include "cluster.cuh"
#include "mbarrier.cuh"

struct Slot {  // a place in the shared memory of a block, and the mbarrier there; 0: this block's
    unsigned at, counter;
};

__device__ __forceinline__ unsigned address_in(const void* mine, int rank)  // of another block
{
    unsigned address = (unsigned)__cvta_generic_to_shared(mine);
#if CLUSTER > 1
    asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
#endif
    return address;
}

// In shared memory. It counts what other blocks send; what a block stores for itself, a barrier of
// the block orders. A block alone sends nothing.
struct Inbox {
    unsigned long long counter;

    // Opens it for the bytes that come first; before cluster_started().
    __device__ __forceinline__ void open(int bytes)
    {
#if CLUSTER > 1
        if (threadIdx.x == 0) start_barriers<1>((unsigned)__cvta_generic_to_shared(this), 1);
        if (threadIdx.x == 0) barriers_started();
#endif
        expect(bytes);
    }
    __device__ __forceinline__ void expect(int bytes)  // those that come next
    {
#if CLUSTER > 1
        if (threadIdx.x == 0) arrive_and_expect((unsigned)__cvta_generic_to_shared(this), bytes);
#endif
    }
    __device__ __forceinline__ void wait(int round) const  // 0, 1, ...: all bytes of it are here
    {
#if CLUSTER > 1
        wait_for((unsigned)__cvta_generic_to_shared(this), round & 1);
#endif
    }
    // Where `mine`, in shared memory, is in block `to`; this block is `rank`.
    __device__ __forceinline__ Slot in(int to, int rank, const float* mine) const
    {
        if (to == rank) return {(unsigned)__cvta_generic_to_shared(mine), 0};
        return {address_in(mine, to), address_in(this, to)};
    }
};

// Stores into another block by st.async, which counts the bytes there; into this one, for which
// st.async is not defined, as usual.
__device__ __forceinline__ void send4(Slot to, int column, float4 x)  // 16-byte aligned
{
#if CLUSTER > 1
    asm volatile("{.reg .pred other; setp.ne.u32 other, %1, 0;"
                 "@other st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32"
                 " [%0], {%2, %3, %4, %5}, [%1];"
                 "@!other st.shared.v4.f32 [%0], {%2, %3, %4, %5};}"
                 :: "r"(to.at + 4 * column), "r"(to.counter),
                    "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
#else
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "r"(to.at + 4 * column), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
#endif
}

__device__ __forceinline__ void send(Slot to, float x)
{
#if CLUSTER > 1
    asm volatile("{.reg .pred other; setp.ne.u32 other, %1, 0;"
                 "@other st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32"
                 " [%0], %2, [%1];"
                 "@!other st.shared.f32 [%0], %2;}"
                 :: "r"(to.at), "r"(to.counter), "f"(x) : "memory");
#else
    asm volatile("st.shared.f32 [%0], %1;" :: "r"(to.at), "f"(x) : "memory");
#endif
}
