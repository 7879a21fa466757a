// Physics, finance, and small dense matrices.

// Density of nine directions, less what they have at rest: flow to the next node, and collision.
// f, g (9, height, width), periodic, in parts of `unit`.
extern "C" __global__ void lattice_boltzmann(
    const float* __restrict__ f, float* __restrict__ g, int height, int width, float unit,
    float relax)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x >= width) return;
    constexpr int DX[9] = {0, 1, 0, -1, 0, 1, -1, -1, 1}, DY[9] = {0, 0, 1, 0, -1, 1, 1, -1, -1};
    constexpr float WEIGHT[9] = {4.0f / 9,  1.0f / 9,  1.0f / 9,  1.0f / 9, 1.0f / 9,
                                 1.0f / 36, 1.0f / 36, 1.0f / 36, 1.0f / 36};
    const size_t plane = (size_t)height * width;
    float here[9], density = 1.0f, u = 0.0f, v = 0.0f;
#pragma unroll
    for (int i = 0; i < 9; ++i) {
        int from_x = x - DX[i], from_y = y - DY[i];
        from_x = from_x < 0 ? width - 1 : from_x == width ? 0 : from_x;
        from_y = from_y < 0 ? height - 1 : from_y == height ? 0 : from_y;
        here[i] = unit * f[i * plane + (size_t)from_y * width + from_x];
        density += here[i];
        u += DX[i] * here[i];
        v += DY[i] * here[i];
    }
    u /= density;
    v /= density;
    const float square = 1.5f * (u * u + v * v);
#pragma unroll
    for (int i = 0; i < 9; ++i) {
        const float along = 3.0f * (DX[i] * u + DY[i] * v);
        const float moving = density * (1.0f + along + 0.5f * along * along - square);
        const float rest = WEIGHT[i] * (moving - 1.0f);
        g[i * plane + (size_t)y * width + x] = (here[i] + relax * (rest - here[i])) / unit;
    }
}

// Sums of waves at points (3, points): samples (samples, 4) are wave numbers and a size.
extern "C" __global__ void wave_sums(
    const float* point, const float4* sample, float* real, float* imaginary, int points,
    int samples)
{
    __shared__ float4 some[128];
    const int i = blockIdx.x * 128 + threadIdx.x;
    float x = 0, y = 0, z = 0, re = 0, im = 0;
    if (i < points) {
        x = point[i];
        y = point[points + i];
        z = point[2 * points + i];
    }
    for (int first = 0; first < samples; first += 128) {
        __syncthreads();
        if (first + threadIdx.x < samples) some[threadIdx.x] = sample[first + threadIdx.x];
        __syncthreads();
        const int count = min(128, samples - first);
        for (int k = 0; k < count; k++) {
            float angle = 6.2831853f * (some[k].x * x + some[k].y * y + some[k].z * z);
            re += some[k].w * cosf(angle);
            im += some[k].w * sinf(angle);
        }
    }
    if (i < points) {
        real[i] = re;
        imaginary[i] = im;
    }
}

// American puts by a tree of `steps` steps, at most 255: a block takes one, a thread an end of it.
extern "C" __global__ void put_tree(const float* spot, float* price, int steps, float move)
{
    __shared__ float value[257];
    const int node = threadIdx.x;
    const float start = 100.0f * expf(0.2f * spot[blockIdx.x]);
    const float up = expf(move), rate = 1.0001f;
    const float share = (rate - 1.0f / up) / (up - 1.0f / up);
    float at = start * expf(move * (2 * node - steps));
    if (node <= steps) value[node] = fmaxf(100.0f - at, 0.0f);
    __syncthreads();
    for (int last = steps - 1; last >= 0; last--) {
        float kept = 0.0f;
        at *= up;
        if (node <= last) {
            kept = (share * value[node + 1] + (1.0f - share) * value[node]) / rate;
            kept = fmaxf(kept, 100.0f - at);
        }
        __syncthreads();
        if (node <= last) value[node] = kept;
        __syncthreads();
    }
    if (node == 0) price[blockIdx.x] = value[0];
}

// Paths of forward rates of `rates` periods, at most 40, over `steps` of them: a thread walks one
// and prices a swap at its end. normals (steps, paths)
extern "C" __global__ void forward_rates(
    const float* normals, float* payoff, int paths, int steps, int rates)
{
    const int path = blockIdx.x * blockDim.x + threadIdx.x;
    if (path >= paths) return;
    const float delta = 0.25f, vol = 0.2f;
    float forward[40];
    for (int i = 0; i < rates; i++) forward[i] = 0.05f;
    for (int n = 0; n < steps; n++) {
        float shock = sqrtf(delta) * normals[n * paths + path], drift = 0.0f;
        for (int i = n + 1; i < rates; i++) {
            float grown = delta * vol * forward[i];
            drift += grown / (1.0f + delta * forward[i]);
            forward[i] *= expf(drift * vol + vol * (shock - 0.5f * delta * vol));
        }
    }
    float bond = 1.0f, annuity = 0.0f, value = 0.0f;
    for (int i = steps; i < rates; i++) {
        bond /= 1.0f + delta * forward[i];
        annuity += delta * bond;
        value += fmaxf(bond + 0.045f * annuity - 1.0f, 0.0f);
    }
    payoff[path] = value;
}

template <typename T>
__device__ T sum_of_warp(T mine)
{
    for (int step = 16; step > 0; step >>= 1) mine += __shfl_xor_sync(~0u, mine, step);
    return mine;
}

// Matrices (count, 32, 8) become their triangles R by reflections: a warp takes one, a lane a row.
extern "C" __global__ void householder_warp(const float4* in, float4* out, int count)
{
    const int matrix = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (matrix >= count) return;
    const size_t at = ((size_t)matrix * 32 + lane) * 2;
    const float4 first = in[at], second = in[at + 1];
    float row[8] = {first.x,  first.y,  first.z,  first.w,
                    second.x, second.y, second.z, second.w};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        float mine = lane >= k ? row[k] : 0.0f;
        const float length = sqrtf(sum_of_warp(mine * mine));
        const float top = __shfl_sync(~0u, row[k], k);
        const float end = top > 0.0f ? -length : length;
        if (lane == k) mine -= end;
        const float scale = 1.0f / (length * (length + fabsf(top)));
#pragma unroll
        for (int j = k; j < 8; ++j) row[j] -= scale * mine * sum_of_warp(mine * row[j]);
    }
    out[at] = make_float4(row[0], row[1], row[2], row[3]);
    out[at + 1] = make_float4(row[4], row[5], row[6], row[7]);
}

// Particles give their charge to the four nearest points of a periodic grid (cells, cells).
extern "C" __global__ void deposit_charge(
    const float* px, const float* py, float* grid, int particles, int cells)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= particles) return;
    float x = 0.25f * px[i], y = 0.25f * py[i];
    x = (x - floorf(x)) * cells;
    y = (y - floorf(y)) * cells;
    int left = (int)x, top = (int)y;
    float a = x - left, b = y - top;
    int right = (left + 1) % cells, bottom = (top + 1) % cells;
    left %= cells;
    top %= cells;
    atomicAdd(&grid[top * cells + left], (1 - a) * (1 - b));
    atomicAdd(&grid[top * cells + right], a * (1 - b));
    atomicAdd(&grid[bottom * cells + left], (1 - a) * b);
    atomicAdd(&grid[bottom * cells + right], a * b);
}
