// Grids and graphs: blocks of 4 x 4, three-diagonal systems, shallow water, attention at edges.

// y = A x, A of blocks of 4 x 4 floats. Half a warp takes a row of blocks, a lane one place of each
// block; four lanes then have the parts of a number.
extern "C" __global__ void spmv_bsr_4x4(
    const int* __restrict__ start, const int* __restrict__ column, const float* __restrict__ value,
    const float* __restrict__ x, float* __restrict__ y, int rows)
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 16, lane = threadIdx.x % 16;
    float sum = 0.0f;
    if (row < rows) {
        const int end = start[row + 1];
        for (int i = start[row]; i < end; ++i)
            sum += value[(size_t)i * 16 + lane] * x[column[i] * 4 + lane % 4];
    }
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
    if (row < rows && lane % 4 == 0) y[row * 4 + lane / 4] = sum;
}

// An implicit step of heat along lines of 256 cells, each with its own conductivity: the system of
// three diagonals by parallel cyclic reduction. A block takes a line, a thread a cell.
extern "C" __global__ void __launch_bounds__(256) pcr_heat_lines(
    const float* __restrict__ conductivity, const float* __restrict__ heat,
    float* __restrict__ next)
{
    __shared__ float lower[256], middle[256], upper[256], right[256];
    const int t = threadIdx.x;
    const size_t at = (size_t)blockIdx.x * 256 + t;
    float a = t > 0 ? -fabsf(conductivity[at]) : 0.0f;
    float c = t < 255 ? -fabsf(conductivity[at + 1]) : 0.0f;
    float b = 1.0f - a - c, d = heat[at];
#pragma unroll
    for (int step = 1; step < 256; step *= 2) {
        lower[t] = a;
        middle[t] = b;
        upper[t] = c;
        right[t] = d;
        __syncthreads();
        float new_a = 0.0f, new_c = 0.0f;
        if (t >= step) {
            const float by = -a / middle[t - step];
            new_a = by * lower[t - step];
            b += by * upper[t - step];
            d += by * right[t - step];
        }
        if (t + step < 256) {
            const float by = -c / middle[t + step];
            new_c = by * upper[t + step];
            b += by * lower[t + step];
            d += by * right[t + step];
        }
        a = new_a;
        c = new_c;
        __syncthreads();
    }
    next[at] = d / b;
}

// The flux through a face between two cells of shallow water: depth, and the momenta across the
// face and along it. Rusanov's.
__device__ __forceinline__ float3 flux(float3 p, float3 q)
{
    constexpr float GRAVITY = 9.81f;
    const float u = p.y / p.x, v = q.y / q.x;
    const float speed = fmaxf(fabsf(u) + sqrtf(GRAVITY * p.x), fabsf(v) + sqrtf(GRAVITY * q.x));
    float3 f;
    f.x = 0.5f * (p.y + q.y - speed * (q.x - p.x));
    f.y = 0.5f * (p.y * u + 0.5f * GRAVITY * p.x * p.x + q.y * v + 0.5f * GRAVITY * q.x * q.x -
                  speed * (q.y - p.y));
    f.z = 0.5f * (p.z * u + q.z * v - speed * (q.z - p.z));
    return f;
}

// A step of shallow water over ten metres, of first order, walls around: the surface's height and
// two momenta. A thread takes a cell.
extern "C" __global__ void __launch_bounds__(256) shallow_water_step(
    const float* __restrict__ surface, const float* __restrict__ along,
    const float* __restrict__ across, float* __restrict__ new_surface,
    float* __restrict__ new_along, float* __restrict__ new_across, int width, int height,
    float ratio)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    auto cell = [&](int u, int v) {
        const int inside_u = min(max(u, 0), width - 1), inside_v = min(max(v, 0), height - 1);
        const int at = inside_v * width + inside_u;
        return make_float3(10.0f + surface[at], u == inside_u ? along[at] : -along[at],
                           v == inside_v ? across[at] : -across[at]);
    };
    auto turned = [](float3 p) { return make_float3(p.x, p.z, p.y); };
    const float3 own = cell(x, y);
    const float3 west = flux(cell(x - 1, y), own), east = flux(own, cell(x + 1, y));
    const float3 south = flux(turned(cell(x, y - 1)), turned(own));
    const float3 north = flux(turned(own), turned(cell(x, y + 1)));
    const int at = y * width + x;
    new_surface[at] = own.x - 10.0f - ratio * (east.x - west.x + north.x - south.x);
    new_along[at] = own.y - ratio * (east.y - west.y + north.z - south.z);
    new_across[at] = own.z - ratio * (east.z - west.z + north.y - south.y);
}

// A graph attention layer's sum: the softmax over a node's edges of a leaky sum of two scores, and
// with it the mean of the neighbours' 64 features. A warp takes a node; lanes have edges for the
// softmax, and two features each for the sum.
extern "C" __global__ void gat_aggregate_warp(
    const int* __restrict__ start, const int* __restrict__ source,
    const float* __restrict__ of_source, const float* __restrict__ of_node,
    const float2* __restrict__ feature, float2* __restrict__ out, int nodes, float slope)
{
    const int node = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (node >= nodes) return;
    const int begin = start[node], end = start[node + 1];
    const float own = of_node[node];
    float most = -1e30f;
    for (int i = begin + lane; i < end; i += 32) {
        const float score = of_source[source[i]] + own;
        most = fmaxf(most, score > 0.0f ? score : slope * score);
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1)
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, lanes));
    float total = 0.0f;
    float2 sum = make_float2(0.0f, 0.0f);
    for (int base = begin; base < end; base += 32) {
        int from = 0;
        float p = 0.0f;
        if (base + lane < end) {
            from = source[base + lane];
            const float score = of_source[from] + own;
            p = __expf((score > 0.0f ? score : slope * score) - most);
        }
        total += p;
        const int edges = min(32, end - base);
        for (int j = 0; j < edges; ++j) {
            const float share = __shfl_sync(0xFFFFFFFF, p, j);
            const int neighbour = __shfl_sync(0xFFFFFFFF, from, j);
            const float2 v = feature[(size_t)neighbour * 32 + lane];
            sum.x += share * v.x;
            sum.y += share * v.y;
        }
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1)
        total += __shfl_xor_sync(0xFFFFFFFF, total, lanes);
    const float by = total > 0.0f ? 1.0f / total : 0.0f;
    out[(size_t)node * 32 + lane] = make_float2(sum.x * by, sum.y * by);
}
