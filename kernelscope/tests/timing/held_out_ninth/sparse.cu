// Sparse matrices, graphs, and small systems.

// How many neighbours two nodes have in common, for pairs of them in a graph in CSR form, as a sign
// of an edge that is missing. A warp takes a pair: 32 neighbours of each at a time, all with all.
extern "C" __global__ void common_neighbours(
    const int* __restrict__ first, const int* __restrict__ other, const int2* __restrict__ pair,
    int* __restrict__ common, int pairs)
{
    const int i = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (i >= pairs) return;
    const int2 two = pair[i];
    const int a_end = first[two.x + 1], b_start = first[two.y], b_end = first[two.y + 1];
    int count = 0;
    for (int at = first[two.x]; at < a_end; at += 32) {
        const int own = at + lane < a_end ? other[at + lane] : -1;
        for (int from = b_start; from < b_end; from += 32) {
            const int theirs = from + lane < b_end ? other[from + lane] : -2;
            const int many = min(32, b_end - from);
            for (int k = 0; k < many; ++k) count += own == __shfl_sync(0xFFFFFFFF, theirs, k);
        }
    }
    count = __reduce_add_sync(0xFFFFFFFF, count);
    if (lane == 0) common[i] = count;
}

// y = A x by diagonals: value (7, n) of the points of a cube, n = side^3, and of their neighbours
// along x, y and z. A thread takes a row.
extern "C" __global__ void spmv_dia_double(
    const double* __restrict__ value, const double* __restrict__ x, double* __restrict__ y,
    int side)
{
    const int n = side * side * side, row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n) return;
    const int offset[7] = {-side * side, -side, -1, 0, 1, side, side * side};
    double sum = 0.0;
#pragma unroll
    for (int d = 0; d < 7; ++d) {
        const int column = row + offset[d];
        if (column >= 0 && column < n) sum += value[(size_t)d * n + row] * x[column];
    }
    y[row] = sum;
}

__device__ __forceinline__ unsigned next_random(unsigned& state)
{
    state = state * 747796405u + 2891336453u;
    const unsigned word = (state >> (state >> 28) + 4 ^ state) * 277803737u;
    return word >> 22 ^ word;
}

// Walks of `steps` along random edges of a graph in CSR form: path (walks, steps + 1). A walk that
// has no edge to take starts again where it began. A thread takes a walk.
extern "C" __global__ void random_walks(
    const int* __restrict__ first, const int* __restrict__ other, int* __restrict__ path,
    int walks, int steps, int nodes, int seed)
{
    const int walk = blockIdx.x * blockDim.x + threadIdx.x;
    if (walk >= walks) return;
    unsigned state = seed ^ walk * 0x9E3779B9u;
    const int start = next_random(state) % nodes;
    int node = start;
    path += (size_t)walk * (steps + 1);
    path[0] = node;
    for (int s = 1; s <= steps; ++s) {
        const int begin = first[node], edges = first[node + 1] - begin;
        const unsigned draw = next_random(state);
        node = edges > 0 ? other[begin + __umulhi(draw, edges)] : start;
        path[s] = node;
    }
}

// (I + omega L) x = b for 32 right-hand sides: lower, b, x (systems, 32, 32), of `lower` only the
// part below the diagonal. A warp takes a system, a lane a column of b and x.
extern "C" __global__ void __launch_bounds__(128) trsm_32(
    const float4* __restrict__ lower, const float* __restrict__ b, float* __restrict__ x,
    int systems, float omega)
{
    __shared__ float4 tile[4][32][8];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int system = blockIdx.x * 4 + warp;
    if (system >= systems) return;
    for (int i = lane; i < 256; i += 32) tile[warp][i / 8][i % 8] = lower[(size_t)system * 256 + i];
    __syncwarp();
    const float* from = b + (size_t)system * 1024 + lane;
    float* to = x + (size_t)system * 1024 + lane;
    float v[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) v[i] = from[i * 32];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < i; ++j) sum += ((const float*)tile[warp][i])[j] * v[j];
        v[i] -= omega * sum;
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) to[i * 32] = v[i];
}
