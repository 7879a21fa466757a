// kernelscope: sm_90
// Blocks of a cluster that work on one field.

__device__ __forceinline__ unsigned rank_of_block()
{
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void sync_cluster()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n\t"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ float far_value(const float* own, unsigned rank)
{
    float value;
    asm volatile("{\n\t.reg .u32 far;\n\tmapa.shared::cluster.u32 far, %1, %2;\n\t"
                 "ld.shared::cluster.f32 %0, [far];\n\t}"
                 : "=f"(value)
                 : "r"((unsigned)__cvta_generic_to_shared(own)), "r"(rank)
                 : "memory");
    return value;
}

// Rods of 1,024 cells warm up over `steps` steps: the four blocks of a cluster have 256 cells each
// and read those beyond their ends from each other.
extern "C" __global__ void __cluster_dims__(4, 1, 1) rods_in_clusters(
    const float* before, float* after, int steps, float rate)
{
    __shared__ float cell[2][256];
    const int i = threadIdx.x;
    const unsigned rank = rank_of_block();
    float mine = before[(size_t)blockIdx.x * 256 + i];
    cell[0][i] = mine;
    sync_cluster();
    for (int step = 0; step < steps; ++step) {
        const float* now = cell[step % 2];
        float left = mine, right = mine;
        if (i > 0)
            left = now[i - 1];
        else if (rank > 0)
            left = far_value(now + 255, rank - 1);
        if (i < 255)
            right = now[i + 1];
        else if (rank < 3)
            right = far_value(now, rank + 1);
        mine += rate * (left - 2.0f * mine + right);
        cell[(step + 1) % 2][i] = mine;
        sync_cluster();
    }
    after[(size_t)blockIdx.x * 256 + i] = mine;
}
