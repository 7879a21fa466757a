// Graphs and grids: a search's level from below, slices of rows, an alloy that separates, QR.

// A level of a breadth-first search, bottom up: each node that is not yet visited looks for a
// neighbour in the frontier, and takes the first for its parent. The frontier is a part of the
// visited nodes. A thread takes a node, and a warp writes a word of the next frontier.
extern "C" __global__ void bfs_bottom_up(
    const int* __restrict__ start, const int* __restrict__ neighbour,
    const unsigned* __restrict__ visited, const unsigned* __restrict__ chosen,
    int* __restrict__ parent, unsigned* __restrict__ next, int nodes)
{
    const int node = blockIdx.x * blockDim.x + threadIdx.x;
    int found = -1;
    if (node < nodes && !(visited[node / 32] >> node % 32 & 1)) {
        const int end = start[node + 1];
        for (int i = start[node]; i < end; ++i) {
            const int other = neighbour[i];
            if (visited[other / 32] & chosen[other / 32] & 1u << other % 32) {
                found = other;
                break;
            }
        }
    }
    const unsigned word = __ballot_sync(~0u, found >= 0);
    if (node >= nodes) return;
    if (found >= 0) parent[node] = found;
    if (threadIdx.x % 32 == 0) next[node / 32] = word;
}

// y = A x, with A in slices of 32 rows, each as wide as its longest row. A warp takes a slice.
extern "C" __global__ void __launch_bounds__(256) spmv_sell_32(
    const int* __restrict__ start, const int* __restrict__ column, const float* __restrict__ value,
    const float* __restrict__ x, float* __restrict__ y, int slices)
{
    const int slice = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (slice >= slices) return;
    const int end = start[slice + 1];
    float sum = 0.0f;
    for (int i = start[slice]; i < end; ++i)
        sum += value[i * 32 + lane] * x[column[i * 32 + lane]];
    y[slice * 32 + lane] = sum;
}

// A step of an alloy that separates, by Cahn and Hilliard, in doubles on a torus. A block makes
// the potential of 32 x 8 points and of a border around them in shared memory.
extern "C" __global__ void __launch_bounds__(256) cahn_hilliard_double(
    const double* __restrict__ c, double* __restrict__ out, int width, int height, float kappa,
    float step)
{
    __shared__ double own[12][36], potential[10][34];
    const int t = threadIdx.y * 32 + threadIdx.x, left = blockIdx.x * 32, top = blockIdx.y * 8;
    for (int i = t; i < 12 * 36; i += 256) {
        const int row = (top + i / 36 - 2 + height) % height;
        const int column = (left + i % 36 - 2 + width) % width;
        own[i / 36][i % 36] = c[(size_t)row * width + column];
    }
    __syncthreads();
    for (int i = t; i < 10 * 34; i += 256) {
        const int row = i / 34 + 1, column = i % 34 + 1;
        const double v = own[row][column];
        const double around = own[row - 1][column] + own[row + 1][column] + own[row][column - 1] +
                              own[row][column + 1];
        potential[i / 34][i % 34] = v * v * v - v - kappa * (around - 4.0 * v);
    }
    __syncthreads();
    const int row = threadIdx.y + 1, column = threadIdx.x + 1;
    if (left + threadIdx.x >= width || top + threadIdx.y >= height) return;
    const double around = potential[row - 1][column] + potential[row + 1][column] +
                          potential[row][column - 1] + potential[row][column + 1];
    out[(size_t)(top + threadIdx.y) * width + left + threadIdx.x] =
        own[row + 1][column + 1] + step * (around - 4.0 * potential[row][column]);
}

__device__ __forceinline__ float sum_of_warp(float v)
{
#pragma unroll
    for (int step = 16; step; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

// QR of matrices of 32 x 16 by Householder's reflections, as LAPACK keeps them: R above, the
// reflections below, their factors apart. A warp takes a matrix, and a lane a row in registers.
extern "C" __global__ void __launch_bounds__(128) householder_qr_32x16(
    const float4* __restrict__ from, float4* __restrict__ to, float* __restrict__ factor,
    int matrices)
{
    const int matrix = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (matrix >= matrices) return;
    float a[16];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float4 v = from[((size_t)matrix * 32 + lane) * 4 + j];
        a[4 * j] = v.x;
        a[4 * j + 1] = v.y;
        a[4 * j + 2] = v.z;
        a[4 * j + 3] = v.w;
    }
#pragma unroll
    for (int k = 0; k < 16; ++k) {
        const float head = __shfl_sync(~0u, a[k], k);
        const float below = sum_of_warp(lane > k ? a[k] * a[k] : 0.0f);
        const float beta = -copysignf(sqrtf(head * head + below), head);
        const float tau = below > 0.0f ? (beta - head) / beta : 0.0f;
        const float by = below > 0.0f ? 1.0f / (head - beta) : 0.0f;
        const float v = lane < k ? 0.0f : lane == k ? 1.0f : a[k] * by;
#pragma unroll
        for (int j = k + 1; j < 16; ++j) a[j] -= tau * v * sum_of_warp(v * a[j]);
        if (lane > k) a[k] = v;
        if (lane == k) {
            if (below > 0.0f) a[k] = beta;
            factor[matrix * 16 + k] = tau;
        }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j)
        to[((size_t)matrix * 32 + lane) * 4 + j] =
            make_float4(a[4 * j], a[4 * j + 1], a[4 * j + 2], a[4 * j + 3]);
}
