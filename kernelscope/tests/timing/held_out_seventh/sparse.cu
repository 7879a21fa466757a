// Sparse matrices and graphs.

// Y = A X of 32 columns: row r of A has the entries first[r] to first[r + 1]. A warp takes a row, a
// lane a column.
extern "C" __global__ void spmm_csr_32(
    const int* __restrict__ first, const int* __restrict__ column, const float* __restrict__ value,
    const float* __restrict__ x, float* __restrict__ y, int rows)
{
    const int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    if (row >= rows) return;
    const int end = first[row + 1];
    float sum = 0.0f;
    for (int e = first[row]; e < end; ++e) sum += value[e] * x[(size_t)column[e] * 32 + lane];
    y[(size_t)row * 32 + lane] = sum;
}

// y = A x in ELLPACK's form: entry j of row r stands at j * rows + r. A thread takes a row.
extern "C" __global__ void spmv_ell_double(
    const int* __restrict__ column, const double* __restrict__ value, const double* __restrict__ x,
    double* __restrict__ y, int rows, int width)
{
    const int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    double sum = 0.0;
    for (int j = 0; j < width; ++j) {
        const size_t at = (size_t)j * rows + r;
        sum += value[at] * x[column[at]];
    }
    y[r] = sum;
}

__device__ __forceinline__ unsigned priority_of(unsigned v, unsigned seed)
{
    v = (v ^ seed) * 0x9E3779B1u;
    v = (v ^ v >> 15) * 0x85EBCA77u;
    return v ^ v >> 13;
}

// A round of Luby's independent set: a node that no neighbour of is before it by its priority is
// in, chosen[i] = 1. Neighbours are next[first[i]] to next[first[i + 1]]; the search ends at the
// first that is before it.
extern "C" __global__ void luby_round(
    const int* __restrict__ first, const int* __restrict__ next, int* __restrict__ chosen,
    int nodes, int seed)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= nodes) return;
    const unsigned own = priority_of(i, seed);
    int in = 1;
    for (int e = first[i]; e < first[i + 1]; ++e) {
        const int j = next[e];
        const unsigned other = priority_of(j, seed);
        if (other > own || (other == own && j > i)) {
            in = 0;
            break;
        }
    }
    chosen[i] = in;
}
