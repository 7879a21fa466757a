// Fields on grids, particles in them, and series.

// A step of Gray and Scott's reaction of u and v (height, width), periodic, with Laplacians of nine
// points. A block of 32 x 8 shares its tiles of both.
extern "C" __global__ void __launch_bounds__(256) gray_scott_tile(
    const float* __restrict__ u, const float* __restrict__ v, float* __restrict__ next_u,
    float* __restrict__ next_v, int height, int width, float feed, float kill)
{
    __shared__ float some_u[10][34], some_v[10][34];
    const int left = blockIdx.x * 32, top = blockIdx.y * 8, t = threadIdx.y * 32 + threadIdx.x;
    for (int i = t; i < 340; i += 256) {
        const int x = (left + i % 34 - 1 + width) % width;
        const int y = (top + i / 34 - 1 + height) % height;
        some_u[i / 34][i % 34] = u[(size_t)y * width + x];
        some_v[i / 34][i % 34] = v[(size_t)y * width + x];
    }
    __syncthreads();
    const int x = threadIdx.x + 1, y = threadIdx.y + 1;
    if (left + x > width || top + y > height) return;
    const float a = some_u[y][x], b = some_v[y][x], reacts = a * b * b;
    const float spread_u =
        0.2f * (some_u[y][x - 1] + some_u[y][x + 1] + some_u[y - 1][x] + some_u[y + 1][x]) +
        0.05f * (some_u[y - 1][x - 1] + some_u[y - 1][x + 1] + some_u[y + 1][x - 1] +
                 some_u[y + 1][x + 1]) - a;
    const float spread_v =
        0.2f * (some_v[y][x - 1] + some_v[y][x + 1] + some_v[y - 1][x] + some_v[y + 1][x]) +
        0.05f * (some_v[y - 1][x - 1] + some_v[y - 1][x + 1] + some_v[y + 1][x - 1] +
                 some_v[y + 1][x + 1]) - b;
    const size_t i = (size_t)(top + y - 1) * width + left + x - 1;
    next_u[i] = a + spread_u - reacts + feed * (1.0f - a);
    next_v[i] = b + 0.5f * spread_v + reacts - (feed + kill) * b;
}

// The value between c and d by the weighted mean of three parabolas (WENO of fifth order).
__device__ __forceinline__ double between(double a, double b, double c, double d, double e)
{
    const double one = a - 2 * b + c, two = b - 2 * c + d, three = c - 2 * d + e;
    const double p = a - 4 * b + 3 * c, q = b - d, r = 3 * c - 4 * d + e;
    const double rough_p = 1e-6 + 13.0 / 12.0 * one * one + 0.25 * p * p;
    const double rough_q = 1e-6 + 13.0 / 12.0 * two * two + 0.25 * q * q;
    const double rough_r = 1e-6 + 13.0 / 12.0 * three * three + 0.25 * r * r;
    const double of_p = 0.1 / (rough_p * rough_p), of_q = 0.6 / (rough_q * rough_q);
    const double of_r = 0.3 / (rough_r * rough_r);
    const double value = of_p * (2 * a - 7 * b + 11 * c) + of_q * (5 * c - b + 2 * d) +
                         of_r * (2 * c + 5 * d - e);
    return value / (6 * (of_p + of_q + of_r));
}

// change[i] = (value at i - 1/2 - value at i + 1/2) * by, u periodic and moving to the right. A
// thread takes a cell.
extern "C" __global__ void weno_5(
    const double* __restrict__ u, double* __restrict__ change, int n, float by)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double v[6];
#pragma unroll
    for (int j = 0; j < 6; ++j) {
        int at = i + j - 3;
        if (at < 0) at += n;
        if (at >= n) at -= n;
        v[j] = u[at];
    }
    change[i] = by * (between(v[0], v[1], v[2], v[3], v[4]) -
                      between(v[1], v[2], v[3], v[4], v[5]));
}

// A coarse grid (n, n, n) from a fine one (2n, 2n, 2n), periodic: the mean of 27 points around each
// second, weighted by 1 2 1 in each direction. A thread takes a coarse point.
extern "C" __global__ void restrict_3d(
    const float* __restrict__ fine, float* __restrict__ coarse, int n)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y, z = blockIdx.z, wide = 2 * n;
    if (x >= n || y >= n) return;
    const int left = x == 0 ? wide - 1 : 2 * x - 1;
    float sum = 0.0f;
#pragma unroll
    for (int k = -1; k <= 1; ++k) {
        const int plane = (2 * z + k + wide) % wide;
#pragma unroll
        for (int j = -1; j <= 1; ++j) {
            const int line = (2 * y + j + wide) % wide;
            const float* row = fine + ((size_t)plane * wide + line) * wide;
            const float weight = (k == 0 ? 2.0f : 1.0f) * (j == 0 ? 2.0f : 1.0f);
            sum += weight * (row[left] + 2.0f * row[2 * x] + row[2 * x + 1]);
        }
    }
    coarse[((size_t)z * n + y) * n + x] = sum / 64.0f;
}

__device__ __forceinline__ float4 mix(float4 a, float4 b, float s)
{
    return make_float4(a.x + s * (b.x - a.x), a.y + s * (b.y - a.y), a.z + s * (b.z - a.z),
                       a.w + s * (b.w - a.w));
}

// A step of Boris for charged particles: the place of one is its cell of a periodic grid of size x
// size, and a distance from it in cells; speed has the ratio of charge to mass as its last. field
// (size, size) has the electric field and the magnetic one along z. Cells are left as they are.
extern "C" __global__ void boris_push(
    const int* __restrict__ cell, const float2* __restrict__ apart,
    const float4* __restrict__ speed, const float4* __restrict__ field,
    float2* __restrict__ next_apart, float4* __restrict__ next_speed, int n, int size, float dt)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float2 from = apart[i];
    float4 v = speed[i];
    const int mask = size - 1, own = cell[i];
    const float fx = floorf(from.x), fy = floorf(from.y);
    const int x = own % size + (int)fx & mask, y = own / size + (int)fy & mask;
    const int right = x + 1 & mask, below = y + 1 & mask;
    const float4 f = mix(mix(field[y * size + x], field[y * size + right], from.x - fx),
                         mix(field[below * size + x], field[below * size + right], from.x - fx),
                         from.y - fy);
    const float half = 0.5f * dt * v.w;
    v.x += half * f.x;
    v.y += half * f.y;
    v.z += half * f.z;
    const float t = half * f.w, s = 2.0f * t / (1.0f + t * t);
    const float along = v.x + v.y * t, across = v.y - v.x * t;
    v.x += across * s + half * f.x;
    v.y += half * f.y - along * s;
    v.z += half * f.z;
    next_speed[i] = v;
    next_apart[i] = make_float2(from.x + dt * v.x, from.y + dt * v.y);
}

// How many deviations each price is above the mean of the last `window` of its series, 0 before
// there are so many: price and score (days, series). A thread takes a series.
extern "C" __global__ void rolling_zscore(
    const float* __restrict__ price, float* __restrict__ score, int days, int series, int window)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= series) return;
    const float by = 1.0f / window;
    float sum = 0.0f, squares = 0.0f;
    for (int day = 0; day < days; ++day) {
        const float v = price[(size_t)day * series + i];
        sum += v;
        squares += v * v;
        if (day >= window) {
            const float old = price[(size_t)(day - window) * series + i];
            sum -= old;
            squares -= old * old;
        }
        const float mean = by * sum, variance = by * squares - mean * mean;
        score[(size_t)day * series + i] =
            day >= window - 1 ? (v - mean) * rsqrtf(fmaxf(variance, 1e-6f)) : 0.0f;
    }
}
