// Waves, heat, spins, and the yields of bonds.

constexpr int REACH = 4;
__constant__ float across[REACH + 1] = {
    -205.0f / 72.0f, 8.0f / 5.0f, -1.0f / 5.0f, 8.0f / 315.0f, -1.0f / 560.0f};

// A step of waves in three dimensions, of order 8 in space: u, before and after have four points
// more at each side than (depth, height, width), which are multiples of 32, 8 and 32. A block of
// 32 x 8 walks through 32 planes: the plane is in shared memory, those around it in registers.
extern "C" __global__ void __launch_bounds__(256) fdtd_radius_4(
    const float* __restrict__ u, const float* __restrict__ before, float* __restrict__ after,
    int height, int width, float speed)
{
    __shared__ float tile[8 + 2 * REACH][32 + 2 * REACH];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int pitch = width + 2 * REACH, plane = pitch * (height + 2 * REACH);
    int at = (blockIdx.z * 32 + REACH) * plane + (blockIdx.y * 8 + ty + REACH) * pitch
             + blockIdx.x * 32 + tx + REACH;
    float queue[2 * REACH + 1];
#pragma unroll
    for (int z = 0; z < 2 * REACH; ++z) queue[z + 1] = u[at + (z - REACH) * plane];
    for (int z = 0; z < 32; ++z, at += plane) {
#pragma unroll
        for (int i = 0; i < 2 * REACH; ++i) queue[i] = queue[i + 1];
        queue[2 * REACH] = u[at + REACH * plane];
        __syncthreads();
        tile[ty + REACH][tx + REACH] = queue[REACH];
        if (tx < REACH) {
            tile[ty + REACH][tx] = u[at - REACH];
            tile[ty + REACH][tx + 32 + REACH] = u[at + 32];
        }
        if (ty < REACH) {
            tile[ty][tx + REACH] = u[at - REACH * pitch];
            tile[ty + 8 + REACH][tx + REACH] = u[at + 8 * pitch];
        }
        __syncthreads();
        float sum = 3.0f * across[0] * queue[REACH];
#pragma unroll
        for (int r = 1; r <= REACH; ++r)
            sum += across[r]
                   * (queue[REACH - r] + queue[REACH + r] + tile[ty + REACH][tx + REACH - r]
                      + tile[ty + REACH][tx + REACH + r] + tile[ty + REACH - r][tx + REACH]
                      + tile[ty + REACH + r][tx + REACH]);
        after[at] = 2.0f * queue[REACH] - before[at] + speed * sum;
    }
}

// An implicit step of heat along rods of 256 cells, (rods, 256) double, by parallel cyclic
// reduction: rate * conduct^2 is what flows between a cell and the one before it. A block takes a
// rod.
extern "C" __global__ void __launch_bounds__(256) heat_implicit_pcr(
    const double* conduct, const double* heat, double* next, float rate)
{
    __shared__ double low[256], middle[256], high[256], right[256];
    const int t = threadIdx.x;
    const size_t i = (size_t)blockIdx.x * 256 + t;
    double a = t > 0 ? -rate * conduct[i] * conduct[i] : 0.0;
    double c = t < 255 ? -rate * conduct[i + 1] * conduct[i + 1] : 0.0;
    double b = 1.0 - a - c, d = heat[i];
    for (int step = 1; step < 256; step *= 2) {
        low[t] = a;
        middle[t] = b;
        high[t] = c;
        right[t] = d;
        __syncthreads();
        if (t >= step) {
            const double share = a / middle[t - step];
            a = -share * low[t - step];
            b -= share * high[t - step];
            d -= share * right[t - step];
        }
        if (t + step < 256) {
            const double share = c / middle[t + step];
            c = -share * high[t + step];
            b -= share * low[t + step];
            d -= share * right[t + step];
        }
        __syncthreads();
    }
    next[i] = d / b;
}

__device__ __forceinline__ unsigned pcg_hash(unsigned v)
{
    const unsigned state = v * 747796405u + 2891336453u;
    const unsigned word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737u;
    return word >> 22 ^ word;
}

// Half a sweep of Metropolis over Ising's model on a torus, in two colours as on a chessboard:
// black and white (height, width) have every second spin of a row each, height is even; a spin is
// down where its byte is negative.
extern "C" __global__ void ising_half_sweep(
    signed char* __restrict__ black, const signed char* __restrict__ white, int height, int width,
    int seed, float coupling)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x >= width) return;
    const int above = y > 0 ? y - 1 : height - 1, below = y < height - 1 ? y + 1 : 0;
    const int left = x > 0 ? x - 1 : width - 1, right = x < width - 1 ? x + 1 : 0;
    const int side = y % 2 ? right : left, i = y * width + x;
    const int down = (white[above * width + x] < 0) + (white[below * width + x] < 0)
                     + (white[i] < 0) + (white[y * width + side] < 0);
    const int spin = black[i] < 0 ? -1 : 1;
    const float chance = expf(-2.0f * coupling * spin * (4 - 2 * down));
    const float drawn = (pcg_hash(pcg_hash(i) + seed) >> 8) * (1.0f / 16777216.0f);
    black[i] = drawn < chance ? -spin : spin;
}

// Yields of bonds that pay coupon percent a year in two parts, for half_years + 1 periods, and cost
// 100 + tick * quote: Newton's steps for the factor of one period, each by Horner's scheme.
extern "C" __global__ void bond_yields(
    const float* quote, const int* coupon, const int* half_years, float* yield, int n, float tick)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float price = 100.0f + tick * quote[i], paid = 0.5f * coupon[i];
    const int periods = half_years[i] + 1;
    float v = 0.97f;
    for (int turn = 0; turn < 20; ++turn) {
        float value = 100.0f + paid, slope = 0.0f;
        for (int p = 1; p < periods; ++p) {
            slope = slope * v + value;
            value = value * v + paid;
        }
        slope = slope * v + value;
        value = value * v;
        const float step = (value - price) / slope;
        v -= step;
        if (fabsf(step) < 2e-6f) break;
    }
    yield[i] = 2.0f * (1.0f / v - 1.0f);
}
