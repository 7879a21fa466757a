// Grids and graphs: a sparse matrix times 64 columns, random walks, a reaction with diffusion,
// lines of five diagonals.

// out = A * x of 64 columns, A by rows. A warp takes a row, a lane two columns; the lanes share
// what they load of the row.
extern "C" __global__ void __launch_bounds__(256) spmm_csr_64_columns(
    const int* __restrict__ from, const int* __restrict__ column,
    const float* __restrict__ number, const float2* __restrict__ x, float2* __restrict__ out,
    int rows)
{
    const int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (row >= rows) return;
    const int end = from[row + 1];
    float2 sum = make_float2(0.0f, 0.0f);
    for (int start = from[row]; start < end; start += 32) {
        int own = 0;
        float factor = 0.0f;
        if (start + lane < end) {
            own = column[start + lane];
            factor = number[start + lane];
        }
        const int count = min(32, end - start);
        for (int i = 0; i < count; ++i) {
            const float a = __shfl_sync(~0u, factor, i);
            const float2 v = x[(size_t)__shfl_sync(~0u, own, i) * 32 + lane];
            sum.x += a * v.x;
            sum.y += a * v.y;
        }
    }
    out[(size_t)row * 32 + lane] = sum;
}

// Random walks over a graph, as DeepWalk takes them: a thread a walk. A node without neighbours
// keeps its walk.
extern "C" __global__ void random_walks_csr(
    const int* __restrict__ from, const int* __restrict__ neighbour,
    const int* __restrict__ start, int* __restrict__ walk, int walks, int length, unsigned seed)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= walks) return;
    unsigned state = (i + seed) * 0x9E3779B9u;
    int node = start[i];
    walk[i] = node;
    for (int step = 1; step < length; ++step) {
        const int first = from[node], degree = from[node + 1] - first;
        state = state * 747796405u + 2891336453u;
        unsigned draw = (state >> ((state >> 28) + 4) ^ state) * 277803737u;
        draw ^= draw >> 22;
        if (degree) node = neighbour[first + __umulhi(draw, degree)];
        walk[step * walks + i] = node;
    }
}

// A step of the Gray-Scott reaction on a torus. A block has 32 x 8 cells and their rim in shared
// memory.
extern "C" __global__ void __launch_bounds__(256) gray_scott_tile(
    const float* __restrict__ u, const float* __restrict__ v, float* __restrict__ u_out,
    float* __restrict__ v_out, int width, int height, float feed, float kill)
{
    __shared__ float us[10][34], vs[10][34];
    const int t = threadIdx.y * 32 + threadIdx.x, left = blockIdx.x * 32, top = blockIdx.y * 8;
    for (int i = t; i < 340; i += 256) {
        int x = left + i % 34 - 1, y = top + i / 34 - 1;
        x = x < 0 ? x + width : x >= width ? x - width : x;
        y = y < 0 ? y + height : y >= height ? y - height : y;
        us[i / 34][i % 34] = u[(size_t)y * width + x];
        vs[i / 34][i % 34] = v[(size_t)y * width + x];
    }
    __syncthreads();
    const int x = threadIdx.x + 1, y = threadIdx.y + 1;
    const float p = us[y][x], q = vs[y][x], pqq = p * q * q;
    const float around_p =
        0.2f * (us[y - 1][x] + us[y + 1][x] + us[y][x - 1] + us[y][x + 1]) +
        0.05f * (us[y - 1][x - 1] + us[y - 1][x + 1] + us[y + 1][x - 1] + us[y + 1][x + 1]);
    const float around_q =
        0.2f * (vs[y - 1][x] + vs[y + 1][x] + vs[y][x - 1] + vs[y][x + 1]) +
        0.05f * (vs[y - 1][x - 1] + vs[y - 1][x + 1] + vs[y + 1][x - 1] + vs[y + 1][x + 1]);
    const size_t at = (size_t)(top + threadIdx.y) * width + left + threadIdx.x;
    u_out[at] = p + (around_p - p) - pqq + feed * (1.0f - p);
    v_out[at] = q + 0.5f * (around_q - q) + pqq - (feed + kill) * q;
}

// Solves (I + S D) x = y along lines, D the fourth difference and S a diagonal of squares: an
// implicit step of fourth-order diffusion. A thread takes a line, and lines are side by side.
extern "C" __global__ void __launch_bounds__(128) pentadiagonal_lines_double(
    const double* __restrict__ strength, const double* __restrict__ y,
    double* __restrict__ first, double* __restrict__ second, double* __restrict__ x, int lines,
    int rows)
{
    const int line = blockIdx.x * 128 + threadIdx.x;
    if (line >= lines) return;
    double p = 0.0, p_before = 0.0, q = 0.0, q_before = 0.0, z = 0.0, z_before = 0.0;
    for (int row = 0; row < rows; ++row) {
        const size_t at = (size_t)row * lines + line;
        const double root = strength[at], s = root * root;
        const double below = -4.0 * s - s * p_before;
        const double inverse = 1.0 / (1.0 + 6.0 * s - s * q_before - below * p);
        const double next_z = (y[at] - s * z_before - below * z) * inverse;
        p_before = p;
        p = (-4.0 * s - below * q) * inverse;
        q_before = q;
        q = s * inverse;
        z_before = z;
        z = next_z;
        first[at] = p;
        second[at] = q;
        x[at] = z;
    }
    double after = 0.0, after_that = 0.0;
    for (int row = rows - 1; row >= 0; --row) {
        const size_t at = (size_t)row * lines + line;
        const double own = x[at] - first[at] * after - second[at] * after_that;
        after_that = after;
        after = own;
        x[at] = own;
    }
}
