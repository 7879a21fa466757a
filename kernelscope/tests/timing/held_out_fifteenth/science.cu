// Science: spins, warped times, forward rates, clouds of particles.

__device__ __forceinline__ uint4 philox(unsigned first, unsigned second, unsigned key)
{
    uint4 c = make_uint4(first, second, 0, 0);
    unsigned k = key, l = 0;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned high = __umulhi(0xD2511F53u, c.x), low = 0xD2511F53u * c.x;
        const unsigned top = __umulhi(0xCD9E8D57u, c.z), bottom = 0xCD9E8D57u * c.z;
        c = make_uint4(top ^ c.y ^ k, bottom, high ^ c.w ^ l, low);
        k += 0x9E3779B9u;
        l += 0xBB67AE85u;
    }
    return c;
}

__device__ __forceinline__ char flipped(int spin, int around, unsigned random, float beta)
{
    const int own = spin < 0 ? -1 : 1;
    return (random >> 8) * 5.9604645e-8f < __expf(-2.0f * beta * own * around) ? -own : own;
}

__device__ __forceinline__ int4 signs(char4 v)
{
    return make_int4(
        v.x < 0 ? -1 : 1, v.y < 0 ? -1 : 1, v.z < 0 ? -1 : 1, v.w < 0 ? -1 : 1);
}

// Half a sweep over Ising's spins on a torus, as Metropolis has it. Each colour of the chessboard
// is an array of its own, with the signs as spins. A thread takes four spins of a row.
extern "C" __global__ void __launch_bounds__(256) ising_half_sweep(
    const char4* __restrict__ own, const char4* __restrict__ other, char4* __restrict__ out,
    int rows, int fours, int colour, float beta, int seed)
{
    const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (column >= fours) return;
    const int up = (row ? row - 1 : rows - 1) * fours;
    const int down = (row + 1 < rows ? row + 1 : 0) * fours;
    const int at = row * fours + column;
    const char4 spin = own[at];
    const int4 above = signs(other[up + column]), below = signs(other[down + column]);
    const int4 same = signs(other[at]);
    int4 beside;
    if ((row + colour) & 1) {
        const int right = signs(other[row * fours + (column + 1 < fours ? column + 1 : 0)]).x;
        beside = make_int4(same.y, same.z, same.w, right);
    } else {
        const int left = signs(other[row * fours + (column ? column - 1 : fours - 1)]).w;
        beside = make_int4(left, same.x, same.y, same.z);
    }
    const uint4 random = philox(at, colour, seed);
    out[at] = make_char4(
        flipped(spin.x, above.x + below.x + same.x + beside.x, random.x, beta),
        flipped(spin.y, above.y + below.y + same.y + beside.y, random.y, beta),
        flipped(spin.z, above.z + below.z + same.z + beside.z, random.z, beta),
        flipped(spin.w, above.w + below.w + same.w + beside.w, random.w, beta));
}

// Distances between series and a query of 64 by dynamic time warping. A warp takes a series: a
// lane has two points of the query, and is a step of time behind the lane before it.
extern "C" __global__ void __launch_bounds__(256) dtw_query_64_warp(
    const float* __restrict__ series, const float* __restrict__ query,
    float* __restrict__ distance, int count, int length)
{
    const int which = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (which >= count) return;
    const float* own = series + (size_t)which * length;
    const float q = query[2 * lane], r = query[2 * lane + 1], far = 1e30f;
    float first = far, second = far, before = lane ? far : 0.0f, point = 0.0f, coming = 0.0f;
    for (int step = 0; step < length + 31; ++step) {
        if (step % 32 == 0) coming = step + lane < length ? own[step + lane] : 0.0f;
        const float fresh = __shfl_sync(~0u, coming, step % 32);
        const float passed = __shfl_up_sync(~0u, point, 1);
        float left = __shfl_up_sync(~0u, second, 1);
        point = lane ? passed : fresh;
        if (lane == 0) left = far;
        if (step >= lane && step < length + lane) {
            const float here = (point - q) * (point - q) + fminf(fminf(left, before), first);
            const float next = (point - r) * (point - r) + fminf(fminf(here, first), second);
            before = left;
            first = here;
            second = next;
        }
    }
    if (lane == 31) distance[which] = sqrtf(second);
}

// Paths of twenty forward rates over ten steps, by the LIBOR market model, and a swaption's
// discounted payment on each. A thread takes a path.
extern "C" __global__ void __launch_bounds__(128) libor_market_paths(
    const float* __restrict__ normal, const float* __restrict__ spread, float* __restrict__ payment,
    int paths, float delta, float start, float strike)
{
    __shared__ float volatility[20];
    if (threadIdx.x < 20) volatility[threadIdx.x] = 0.2f + 0.02f * spread[threadIdx.x];
    __syncthreads();
    const int path = blockIdx.x * 128 + threadIdx.x;
    if (path >= paths) return;
    float rate[20];
    for (int i = 0; i < 20; ++i) rate[i] = start;
    for (int n = 0; n < 10; ++n) {
        const float shock = sqrtf(delta) * normal[(size_t)n * paths + path];
        float drift = 0.0f;
        for (int i = n + 1; i < 20; ++i) {
            const float own = volatility[i - n - 1], part = delta * own;
            drift += part * rate[i] / (1.0f + delta * rate[i]);
            rate[i] *= expf(part * drift + own * (shock - 0.5f * part));
        }
    }
    float bond = 1.0f, annuity = 0.0f, discount = 1.0f;
    for (int i = 10; i < 20; ++i) {
        bond /= 1.0f + delta * rate[i];
        annuity += delta * bond;
    }
    for (int i = 0; i < 10; ++i) discount /= 1.0f + delta * rate[i];
    payment[path] = 100.0f * discount * fmaxf(1.0f - bond - strike * annuity, 0.0f);
}

// Adds particles to the density of a grid of `side` cells each way, on a torus: a particle's cloud
// is as large as a cell, and goes to eight of them. A thread takes a particle.
extern "C" __global__ void cloud_in_cell_3d(
    const float* __restrict__ x, const float* __restrict__ y, const float* __restrict__ z,
    float* __restrict__ density, int particles, int side, float mass)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= particles) return;
    const float u = (x[i] - floorf(x[i])) * side, v = (y[i] - floorf(y[i])) * side;
    const float w = (z[i] - floorf(z[i])) * side;
    const float a = floorf(u), b = floorf(v), c = floorf(w);
    const float in_x[2] = {1.0f - (u - a), u - a}, in_y[2] = {1.0f - (v - b), v - b};
    const float in_z[2] = {1.0f - (w - c), w - c};
    const int mask = side - 1, column = (int)a, row = (int)b, plane = (int)c;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        const int to = (((plane + k / 4) & mask) * side + ((row + k / 2 % 2) & mask)) * side +
                       ((column + k % 2) & mask);
        atomicAdd(&density[to], mass * in_x[k % 2] * in_y[k / 2 % 2] * in_z[k / 4]);
    }
}
