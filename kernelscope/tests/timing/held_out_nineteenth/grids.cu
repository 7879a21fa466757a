// Grids and equations: a sparse product by columns, labels of a graph, waves in solids, small
// inverses, a triangle's equations.

// y += A x, A sparse by columns. 16 lanes take a column.
extern "C" __global__ void __launch_bounds__(256) spmv_csc_atomic_16(
    const int* __restrict__ start, const int* __restrict__ row, const float* __restrict__ number,
    const float* __restrict__ x, float* __restrict__ y, int columns)
{
    const int column = blockIdx.x * 16 + threadIdx.x / 16;
    if (column >= columns) return;
    const float factor = x[column];
    for (int i = start[column] + (threadIdx.x & 15); i < start[column + 1]; i += 16)
        atomicAdd(y + row[i], number[i] * factor);
}

// Each node takes the label that most of its neighbours have, of equal ones the least. A warp
// takes a node of at most 32 neighbours.
extern "C" __global__ void __launch_bounds__(256) label_vote_32(
    const int* __restrict__ start, const int* __restrict__ neighbour,
    const int* __restrict__ label, int* __restrict__ out, int nodes)
{
    const int node = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (node >= nodes) return;
    const int first = start[node], degree = start[node + 1] - first;
    int own = -1;
    if (lane < degree) own = label[neighbour[first + lane]];
    const unsigned votes = __popc(__match_any_sync(~0u, own));
    const unsigned key = own < 0 ? 0 : votes << 24 | (0xFFFFFF - own);
    const unsigned most = __reduce_max_sync(~0u, key);
    if (lane == 0) out[node] = most ? 0xFFFFFF - (most & 0xFFFFFF) : label[node];
}

// The stresses of an elastic wave in two dimensions, one step, on a staggered grid of fourth
// order. A thread takes a cell.
extern "C" __global__ void __launch_bounds__(256) elastic_stress_step(
    const float* __restrict__ vx, const float* __restrict__ vz, const float* __restrict__ lame,
    const float* __restrict__ shear, float* __restrict__ xx, float* __restrict__ zz,
    float* __restrict__ xz, int width, int height, float step)
{
    const int x = blockIdx.x * 32 + threadIdx.x, z = blockIdx.y * 8 + threadIdx.y;
    if (x < 2 || z < 2 || x >= width - 2 || z >= height - 2) return;
    const int i = z * width + x, w = width;
    const float near = 1.125f, far = -1.0f / 24.0f;
    const float dx = near * (vx[i] - vx[i - 1]) + far * (vx[i + 1] - vx[i - 2]);
    const float dz = near * (vz[i] - vz[i - w]) + far * (vz[i + w] - vz[i - 2 * w]);
    const float across = near * (vx[i + w] - vx[i]) + far * (vx[i + 2 * w] - vx[i - w]);
    const float down = near * (vz[i + 1] - vz[i]) + far * (vz[i + 2] - vz[i - 1]);
    const float l = lame[i], m = shear[i];
    xx[i] += step * ((l + 2.0f * m) * dx + l * dz);
    zz[i] += step * ((l + 2.0f * m) * dz + l * dx);
    xz[i] += step * m * (across + down);
}

// Inverses of matrices of 16 x 16, by Gauss and Jordan with pivots. A block takes a matrix, a
// thread a number of it.
extern "C" __global__ void __launch_bounds__(256) inverse_16_pivots(
    const float* __restrict__ matrix, float* __restrict__ out)
{
    __shared__ float a[16][17], b[16][17];
    __shared__ int pivot;
    const int column = threadIdx.x, row = threadIdx.y, t = row * 16 + column;
    const size_t place = (size_t)blockIdx.x * 256 + t;
    a[row][column] = matrix[place];
    b[row][column] = row == column;
    __syncthreads();
    for (int k = 0; k < 16; ++k) {
        if (t < 16) {
            float size = t >= k ? fabsf(a[t][k]) : -1.0f;
            int best = t;
            for (int step = 8; step; step /= 2) {
                const float other = __shfl_xor_sync(0xFFFF, size, step);
                const int other_row = __shfl_xor_sync(0xFFFF, best, step);
                if (other > size || (other == size && other_row < best)) {
                    size = other;
                    best = other_row;
                }
            }
            if (t == 0) pivot = best;
        }
        __syncthreads();
        const int from = pivot;
        if (row == k && from != k) {
            const float p = a[k][column], q = b[k][column];
            a[k][column] = a[from][column];
            b[k][column] = b[from][column];
            a[from][column] = p;
            b[from][column] = q;
        }
        __syncthreads();
        const float inverse = 1.0f / a[k][k], factor = a[row][k];
        const float above = a[k][column] * inverse, right = b[k][column] * inverse;
        __syncthreads();
        a[row][column] = row == k ? above : a[row][column] - factor * above;
        b[row][column] = row == k ? right : b[row][column] - factor * right;
        __syncthreads();
    }
    out[place] = b[row][column];
}

// Solves (I + scale * L) X = B, with L strictly lower, 32 x 32. A thread takes a column.
extern "C" __global__ void __launch_bounds__(128) strsm_unit_lower_32(
    const float* __restrict__ lower, const float* __restrict__ right, float* __restrict__ out,
    int columns, float scale)
{
    __shared__ __align__(16) float turned[32][36];
    const float* of_matrix = lower + (size_t)blockIdx.y * 1024;
    for (int i = threadIdx.x; i < 1024; i += 128)
        turned[i % 32][i / 32] = of_matrix[i] * scale;
    __syncthreads();
    const int column = blockIdx.x * 128 + threadIdx.x;
    if (column >= columns) return;
    const size_t first = (size_t)blockIdx.y * 32 * columns + column;
    float x[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) x[i] = right[first + (size_t)i * columns];
#pragma unroll
    for (int j = 0; j < 32; ++j) {
        out[first + (size_t)j * columns] = x[j];
#pragma unroll
        for (int i = j + 1; i < 32; ++i) x[i] -= turned[j][i] * x[j];
    }
}
