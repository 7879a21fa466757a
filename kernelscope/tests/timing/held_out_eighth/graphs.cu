// Graphs, trees and genomes.

#include <cuda_fp16.h>

// The largest of each of 64 features over a node and its neighbours, next[first[i]] to
// next[first[i + 1]]: x and y (nodes, 64) of halves. A warp takes a node, a lane two features.
extern "C" __global__ void sage_max_half2(
    const int* __restrict__ first, const int* __restrict__ next, const __half2* __restrict__ x,
    __half2* __restrict__ y, int nodes)
{
    const int node = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (node >= nodes) return;
    __half2 most = x[(size_t)node * 32 + lane];
    const int end = first[node + 1];
    for (int e = first[node]; e < end; ++e) most = __hmax2(most, x[(size_t)next[e] * 32 + lane]);
    y[(size_t)node * 32 + lane] = most;
}

// How many steps each node is from its root, and the root: nodes before `roots` are roots, of the
// others parent[i] is the next. -1 where 64 steps do not lead to a root.
extern "C" __global__ void depth_of_nodes(
    const int* __restrict__ parent, int* __restrict__ depth, int* __restrict__ root, int n,
    int roots)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int at = i, steps = 0;
    while (at >= roots && steps < 64) {
        at = parent[at];
        ++steps;
    }
    depth[i] = at < roots ? steps : -1;
    root[i] = at < roots ? at : -1;
}

// The better of the scores of a motif at each place of a genome, ahead and as the complement read
// backwards: weight (16, 4). Letters are the lowest two bits of bytes; n places have n + 15.
extern "C" __global__ void __launch_bounds__(256) motif_scores(
    const unsigned char* __restrict__ letter, const float* __restrict__ weight,
    float* __restrict__ score, int n)
{
    __shared__ float table[16][4];
    __shared__ unsigned char near[256 + 15];
    const int start = blockIdx.x * 256, t = threadIdx.x;
    if (t < 64) table[t / 4][t % 4] = weight[t];
    for (int i = t; i < 271; i += 256) near[i] = start + i < n + 15 ? letter[start + i] & 3 : 0;
    __syncthreads();
    if (start + t >= n) return;
    float ahead = 0.0f, back = 0.0f;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
        const int one = near[t + j];
        ahead += table[j][one];
        back += table[15 - j][3 - one];
    }
    score[start + t] = fmaxf(ahead, back);
}
