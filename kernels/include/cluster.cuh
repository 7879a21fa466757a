// Idea:          The blocks of a cluster run at the same time, wait for each other at a barrier of
//                their own and store into each other's shared memory.
// Used by:       19_flash_split.cu, 20_rows_split.cu, 29_split_tf32x3.cu, include/cluster_sum.cuh
// Explained in:  15_clusters
#pragma once

// CLUSTER, the number of blocks, is defined before this file is included.
#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#define STORE "st.shared::cluster"  // into the shared memory of any block of the cluster
#else
#define CLUSTERED  // a block alone: sm_80 has no clusters
#define STORE "st.shared"
#endif

static_assert(8 % CLUSTER == 0, "a cluster has 1, 2, 4 or 8 blocks");

// Says that this block has started: others may store in its shared memory.
__device__ __forceinline__ void cluster_started()
{
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_arrive()
{
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

// Waits until all threads of the cluster have arrived; what they stored before is visible then.
__device__ __forceinline__ void cluster_wait()
{
#if CLUSTER > 1
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();  // barrier: a cluster of one block is the block
#endif
}

// The address of what `mine`, in shared memory, is in block `rank` of the cluster.
__device__ __forceinline__ unsigned address_in(const float* mine, int rank)
{
    unsigned address = (unsigned)__cvta_generic_to_shared(mine);
#if CLUSTER > 1
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
#endif
    return address;
}

__device__ __forceinline__ void send4(unsigned to, float4 x)  // to: from address_in()
{
    asm volatile(STORE ".v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "r"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

__device__ __forceinline__ void send(unsigned to, float x)  // to: from address_in()
{
    asm volatile(STORE ".f32 [%0], %1;" :: "r"(to), "f"(x) : "memory");
}
