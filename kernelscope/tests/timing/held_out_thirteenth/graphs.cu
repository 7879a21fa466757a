// Graphs and matrices with few entries: ELLPACK, products at edges, page ranks, a step of CG.

// y = A x, doubles, at most `width` entries a row, by columns of the table. A thread takes a row;
// a column of -1 is no entry.
extern "C" __global__ void spmv_ell_double(
    const double* __restrict__ value, const int* __restrict__ column,
    const double* __restrict__ x, double* __restrict__ y, int rows, int width)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    double sum = 0.0;
    for (int j = 0; j < width; ++j) {
        const size_t at = (size_t)j * rows + row;
        const int c = column[at];
        if (c >= 0) sum += value[at] * x[c];
    }
    y[row] = sum;
}

// The score of each edge: the product of 64 features of its source and of its target. A warp takes
// an edge, a lane two features.
extern "C" __global__ void sddmm_warp(
    const float2* __restrict__ of_source, const float2* __restrict__ of_target,
    const int* __restrict__ source, const int* __restrict__ target, float* __restrict__ score,
    int edges)
{
    const int edge = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (edge >= edges) return;
    const float2 p = of_source[(size_t)source[edge] * 32 + lane];
    const float2 q = of_target[(size_t)target[edge] * 32 + lane];
    float sum = p.x * q.x + p.y * q.y;
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_down_sync(0xFFFFFFFF, sum, step);
    if (lane == 0) score[edge] = sum;
}

// A step of page ranks: a node's is what its links in bring, each the share of a rank, and the sum
// of changes. A thread takes a node.
extern "C" __global__ void __launch_bounds__(256) page_rank_pull(
    const int* __restrict__ start, const int* __restrict__ source,
    const float* __restrict__ share, const float* __restrict__ old_rank,
    float* __restrict__ rank, float* __restrict__ change, int nodes, float damping)
{
    __shared__ float of_warp[8];
    const int node = blockIdx.x * blockDim.x + threadIdx.x;
    float moved = 0.0f;
    if (node < nodes) {
        float sum = 0.0f;
        const int end = start[node + 1];
        for (int e = start[node]; e < end; ++e) sum += share[source[e]];
        const float next = (1.0f - damping) / nodes + damping * sum;
        rank[node] = next;
        moved = fabsf(next - old_rank[node]);
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) moved += __shfl_xor_sync(0xFFFFFFFF, moved, step);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = moved;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < 8; ++w) moved += of_warp[w];
        atomicAdd(change, moved);
    }
}

// The middle of a step of conjugate gradients, doubles: x += alpha p, r -= alpha q, and the new
// r r is added to a sum. A grid of fixed size strides over the unknowns.
extern "C" __global__ void __launch_bounds__(256) cg_update_double(
    double* __restrict__ x, double* __restrict__ r, const double* __restrict__ p,
    const double* __restrict__ q, const double* __restrict__ scalars, double* __restrict__ next,
    int n)
{
    __shared__ double part[256];
    const double alpha = scalars[0] / scalars[1];
    const int t = threadIdx.x;
    double sum = 0.0;
    for (int i = blockIdx.x * 256 + t; i < n; i += gridDim.x * 256) {
        const double left = r[i] - alpha * q[i];
        x[i] += alpha * p[i];
        r[i] = left;
        sum += left * left;
    }
    part[t] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half >>= 1) {
        if (t < half) part[t] += part[t + half];
        __syncthreads();
    }
    if (t == 0) atomicAdd(next, part[0]);
}
