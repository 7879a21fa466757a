// Solvers, random paths and points.

struct Water {
    float h, u, v;  // height, and height times each speed
};

__device__ __forceinline__ Water water_at(
    const float* rise, const float* u, const float* v, int i, float depth)
{
    return {depth + rise[i], u[i], v[i]};
}

// A step of shallow water by Lax and Friedrichs: rise over `depth`, and momenta u and v, all
// (height, width), periodic. by: gravity is 9.81, and this is dt / (2 dx).
extern "C" __global__ void shallow_water(
    const float* __restrict__ rise, const float* __restrict__ u, const float* __restrict__ v,
    float* __restrict__ next_rise, float* __restrict__ next_u, float* __restrict__ next_v,
    int height, int width, float depth, float by)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const int left = x == 0 ? width - 1 : x - 1, right = x == width - 1 ? 0 : x + 1;
    const int above = y == 0 ? height - 1 : y - 1, below = y == height - 1 ? 0 : y + 1;
    const Water l = water_at(rise, u, v, y * width + left, depth);
    const Water r = water_at(rise, u, v, y * width + right, depth);
    const Water a = water_at(rise, u, v, above * width + x, depth);
    const Water b = water_at(rise, u, v, below * width + x, depth);
    const float g = 0.5f * 9.81f;
    const int i = y * width + x;
    next_rise[i] = 0.25f * (l.h + r.h + a.h + b.h) - depth - by * (r.u - l.u + b.v - a.v);
    const float along = r.u * r.u / r.h + g * r.h * r.h - l.u * l.u / l.h - g * l.h * l.h;
    const float down = b.v * b.v / b.h + g * b.h * b.h - a.v * a.v / a.h - g * a.h * a.h;
    next_u[i] = 0.25f * (l.u + r.u + a.u + b.u) -
                by * (along + b.u * b.v / b.h - a.u * a.v / a.h);
    next_v[i] = 0.25f * (l.v + r.v + a.v + b.v) -
                by * (down + r.u * r.v / r.h - l.u * l.v / l.h);
}

__device__ __forceinline__ unsigned long long split_mix(unsigned long long& state)
{
    state += 0x9E3779B97F4A7C15ull;
    unsigned long long v = state;
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9ull;
    v = (v ^ v >> 27) * 0x94D049BB133111EBull;
    return v ^ v >> 31;
}

// What a call pays at the end of each of n paths of Heston's model over a year, from a price of 100
// with a variance of 0.04. A thread takes a path.
extern "C" __global__ void heston_paths(
    float* __restrict__ pays, int n, int steps, int seed, float strike)
{
    const int path = blockIdx.x * blockDim.x + threadIdx.x;
    if (path >= n) return;
    const float rate = 0.03f, back = 2.0f, level = 0.04f, vol = 0.3f, rho = -0.7f;
    const float dt = 1.0f / steps, across = sqrtf(1.0f - rho * rho);
    unsigned long long state = (unsigned long long)seed << 32 | (unsigned)path;
    float price = 0.0f, variance = 0.04f;
    for (int s = 0; s < steps; ++s) {
        const unsigned long long bits = split_mix(state);
        const float one = ((unsigned)bits >> 9) * 0x1p-23f + 0x1p-24f;
        const float two = ((unsigned)(bits >> 32) >> 9) * 0x1p-23f;
        float sine, cosine;
        sincospif(2.0f * two, &sine, &cosine);
        const float radius = sqrtf(-2.0f * logf(one));
        const float z = radius * cosine, w = rho * z + across * radius * sine;
        const float swing = sqrtf(variance * dt);
        price += (rate - 0.5f * variance) * dt + swing * z;
        variance = fmaxf(variance + back * (level - variance) * dt + vol * swing * w, 0.0f);
    }
    pays[path] = fmaxf(100.0f * expf(price) - strike, 0.0f);
}

// A step of conjugate gradients: x + a p, r - a q, and the sum of the squares of the latter is
// added to total[0]. Two numbers at a time.
extern "C" __global__ void __launch_bounds__(256) cg_update(
    const double2* __restrict__ x, const double2* __restrict__ p, const double2* __restrict__ r,
    const double2* __restrict__ q, double2* __restrict__ next_x, double2* __restrict__ next_r,
    double* total, int pairs, float rate)
{
    __shared__ double part[8];
    const double a = rate;
    double sum = 0.0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < pairs; i += gridDim.x * blockDim.x) {
        const double2 u = x[i], d = p[i], v = r[i], w = q[i];
        const double2 left = make_double2(v.x - a * w.x, v.y - a * w.y);
        next_x[i] = make_double2(u.x + a * d.x, u.y + a * d.y);
        next_r[i] = left;
        sum += left.x * left.x + left.y * left.y;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xFFFFFFFF, sum, step);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < 8; ++w) sum += part[w];
        atomicAdd(total, sum);
    }
}

// Points of a Sobol sequence as normal numbers: direction (dimensions, 32), normal (dimensions, n).
// A thread takes a point in one dimension.
extern "C" __global__ void sobol_normals(
    const unsigned* __restrict__ direction, float* __restrict__ normal, int n)
{
    __shared__ unsigned own[32];
    if (threadIdx.x < 32) own[threadIdx.x] = direction[blockIdx.y * 32 + threadIdx.x];
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned v = 0;
    int b = 0;
    for (unsigned gray = i ^ i >> 1; gray != 0; gray >>= 1, ++b)
        if (gray & 1) v ^= own[b];
    normal[(size_t)blockIdx.y * n + i] = normcdfinvf(((v >> 9) + 0.5f) * 0x1p-23f);
}
