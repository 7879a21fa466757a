// Edges of graphs, grids of several sizes, and inverses.

// y += A x by entries (row, column, value) in any order. A thread takes an entry.
extern "C" __global__ void spmv_coo_atomic(
    const int* __restrict__ row, const int* __restrict__ column, const float* __restrict__ value,
    const float* __restrict__ x, float* __restrict__ y, int entries)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < entries) atomicAdd(&y[row[i]], value[i] * x[column[i]]);
}

// A step of matching and of coarsening: of each node that is not taken, the neighbour along the
// heaviest edge that is not taken, or -1; a graph in CSR form. Eight lanes take a node.
extern "C" __global__ void heaviest_neighbour(
    const int* __restrict__ first, const int* __restrict__ other, const float* __restrict__ weight,
    const int* __restrict__ taken, int* __restrict__ best, int nodes)
{
    const int node = (blockIdx.x * blockDim.x + threadIdx.x) / 8, lane = threadIdx.x % 8;
    float most = -1e30f;
    int at = -1;
    if (node < nodes && !taken[node]) {
        const int end = first[node + 1];
        for (int e = first[node] + lane; e < end; e += 8) {
            const float w = weight[e];
            const int to = other[e];
            if (w > most && !taken[to] && to != node) {
                most = w;
                at = to;
            }
        }
    }
    for (int step = 4; step > 0; step >>= 1) {
        const float w = __shfl_xor_sync(0xFFFFFFFF, most, step);
        const int to = __shfl_xor_sync(0xFFFFFFFF, at, step);
        if (w > most || w == most && to > at) {
            most = w;
            at = to;
        }
    }
    if (node < nodes && lane == 0) best[node] = at;
}

// The correction of a multigrid cycle: fine + the coarse cube of side^3 cells between its cells'
// centres, to a cube of (2 side)^3, in doubles. A thread takes a fine cell.
extern "C" __global__ void prolong_3d_double(
    const double* __restrict__ coarse, const double* __restrict__ fine,
    double* __restrict__ corrected, int side)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y, z = blockIdx.z;
    if (x >= 2 * side || y >= 2 * side) return;
    auto beside = [&](int v) { return min(max(v / 2 + (v % 2 ? 1 : -1), 0), side - 1); };
    const int x0 = x / 2, x1 = beside(x), y0 = y / 2, y1 = beside(y), z0 = z / 2, z1 = beside(z);
    auto row = [&](int k, int j) {
        const double* from = coarse + ((size_t)k * side + j) * side;
        return 0.75 * from[x0] + 0.25 * from[x1];
    };
    auto plane = [&](int k) { return 0.75 * row(k, y0) + 0.25 * row(k, y1); };
    const size_t i = ((size_t)z * 2 * side + y) * 2 * side + x;
    corrected[i] = fine[i] + 0.75 * plane(z0) + 0.25 * plane(z1);
}

// Inverses of shift I + A of 16 x 16, by Gauss and Jordan without a search for pivots: matrix and
// inverse (systems, 16, 16). A block of 16 x 16 takes a system.
extern "C" __global__ void __launch_bounds__(256) gauss_jordan_16(
    const float* __restrict__ matrix, float* __restrict__ inverse, float shift)
{
    __shared__ float wide[16][33];
    const int x = threadIdx.x, y = threadIdx.y;
    const size_t i = (size_t)blockIdx.x * 256 + y * 16 + x;
    wide[y][x] = matrix[i] + (x == y ? shift : 0.0f);
    wide[y][x + 16] = x == y ? 1.0f : 0.0f;
    __syncthreads();
    for (int p = 0; p < 16; ++p) {
        const float over = 1.0f / wide[p][p], by = wide[y][p];
        const float a = wide[p][x] * over, b = wide[p][x + 16] * over;
        __syncthreads();
        wide[y][x] = y == p ? a : wide[y][x] - by * a;
        wide[y][x + 16] = y == p ? b : wide[y][x + 16] - by * b;
        __syncthreads();
    }
    inverse[i] = wide[y][x + 16];
}
