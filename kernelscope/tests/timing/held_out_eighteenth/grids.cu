// Grids and graphs: shortest ways, a colour carried by a flow, a coarser grid, a sparse matrix of
// coordinates.

// A step of Bellman and Ford over the edges that enter a node. Eight lanes take a node.
extern "C" __global__ void __launch_bounds__(256) bellman_ford_pull_8(
    const int* __restrict__ from, const int* __restrict__ source, const int* __restrict__ weight,
    const int* __restrict__ distance, int* __restrict__ out, int nodes)
{
    const int node = (blockIdx.x * 256 + threadIdx.x) / 8, part = threadIdx.x & 7;
    int best = 0x7FFFFFFF;
    if (node < nodes) {
        const int end = from[node + 1];
        for (int i = from[node] + part; i < end; i += 8)
            best = min(best, distance[source[i]] + weight[i]);
    }
    for (int step = 4; step; step /= 2) best = min(best, __shfl_xor_sync(~0u, best, step));
    if (part == 0 && node < nodes) out[node] = min(best, distance[node]);
}

// Carries colours along a flow: each place takes, between four places, the colour of where its
// flow came from.
extern "C" __global__ void __launch_bounds__(256) advect_colours(
    const float4* __restrict__ colour, const float2* __restrict__ flow,
    float4* __restrict__ out, int width, int height, float time, float kept)
{
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
    if (x >= width || y >= height) return;
    const size_t at = (size_t)y * width + x;
    const float2 f = flow[at];
    const float from_x = fminf(fmaxf(x - time * f.x, 0.0f), width - 1.0f);
    const float from_y = fminf(fmaxf(y - time * f.y, 0.0f), height - 1.0f);
    const int left = min((int)from_x, width - 2), top = min((int)from_y, height - 2);
    const float p = from_x - left, q = from_y - top;
    const float4* corner = colour + (size_t)top * width + left;
    const float4 a = corner[0], b = corner[1], c = corner[width], d = corner[width + 1];
    const float wa = (1.0f - p) * (1.0f - q) * kept, wb = p * (1.0f - q) * kept;
    const float wc = (1.0f - p) * q * kept, wd = p * q * kept;
    out[at] = make_float4(wa * a.x + wb * b.x + wc * c.x + wd * d.x,
                          wa * a.y + wb * b.y + wc * c.y + wd * d.y,
                          wa * a.z + wb * b.z + wc * c.z + wd * d.z,
                          wa * a.w + wb * b.w + wc * c.w + wd * d.w);
}

// A multigrid's restriction by 27 weights, to a grid of `side` places from one of 2 side + 1.
extern "C" __global__ void __launch_bounds__(256) restrict_27_double(
    const double* __restrict__ fine, double* __restrict__ coarse, int side)
{
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 4 + threadIdx.y;
    const int z = blockIdx.z * 2 + threadIdx.z, wide = 2 * side + 1;
    if (x >= side || y >= side || z >= side) return;
    const double* from = fine + ((size_t)(2 * z) * wide + 2 * y) * wide + 2 * x;
    double sum = 0.0;
#pragma unroll
    for (int k = 0; k < 3; ++k)
#pragma unroll
        for (int j = 0; j < 3; ++j) {
            const double* row = from + ((size_t)k * wide + j) * wide;
            sum += (2 - (k != 1)) * (2 - (j != 1)) * (row[0] + 2.0 * row[1] + row[2]);
        }
    coarse[((size_t)z * side + y) * side + x] = sum * (1.0 / 64.0);
}

// y += A * x, A by coordinates in the order of rows. A warp takes 32 numbers and adds those of a
// row before it writes them.
extern "C" __global__ void __launch_bounds__(256) spmv_coo_warp(
    const int* __restrict__ row, const int* __restrict__ column,
    const float* __restrict__ number, const float* __restrict__ x, float* __restrict__ y,
    int count)
{
    const int i = blockIdx.x * 256 + threadIdx.x, lane = threadIdx.x & 31;
    int own = -1;
    float sum = 0.0f;
    if (i < count) {
        own = row[i];
        sum = number[i] * x[column[i]];
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float other = __shfl_up_sync(~0u, sum, step);
        const int before = __shfl_up_sync(~0u, own, step);
        if (lane >= step && before == own) sum += other;
    }
    const int after = __shfl_down_sync(~0u, own, 1);
    if (own >= 0 && (lane == 31 || after != own)) atomicAdd(y + own, sum);
}
