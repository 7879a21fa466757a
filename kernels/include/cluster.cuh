// Idea:          The blocks of a cluster run at the same time, wait for each other at a barrier of
//                their own and store into each other's shared memory.
// Used by:       include/inbox.cuh
// Explained in:  15_clusters
#pragma once

// CLUSTER, the number of blocks, is defined before this file is included.
#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED  // a block alone: sm_80 has no clusters
#endif

static_assert(8 % CLUSTER == 0, "a cluster has 1, 2, 4 or 8 blocks");

// Says that this block has started: others may store in its shared memory.
__device__ __forceinline__ void cluster_started()
{
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

// Waits until all threads of the cluster have said so.
__device__ __forceinline__ void cluster_wait()
{
#if CLUSTER > 1
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();  // barrier: a cluster of one block is the block
#endif
}

// Of a tile of `rows` rows, `own` for each block and fewer for the last: those of block `rank`.
template <int rows, int own>
__device__ __forceinline__ int own_rows(int rank)
{
    return max(0, min(own, rows - rank * own));
}
