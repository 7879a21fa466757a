// Particles, fronts, chance and search trees.

// Densities of particles (n,), place and mass, by the kernel of poly6 over lists of neighbours
// (most, n) of which a particle has `count`.
extern "C" __global__ void sph_density(
    const float4* __restrict__ particle, const int* __restrict__ neighbour,
    const int* __restrict__ count, float* __restrict__ density, int n, float reach)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float4 own = particle[i];
    const float square = reach * reach;
    float sum = own.w * square * square * square;
    const int some = count[i];
    for (int j = 0; j < some; ++j) {
        const float4 other = particle[neighbour[(size_t)j * n + i]];
        const float dx = other.x - own.x, dy = other.y - own.y, dz = other.z - own.z;
        const float apart = square - (dx * dx + dy * dy + dz * dz);
        if (apart > 0.0f) sum += other.w * apart * apart * apart;
    }
    const float third = square * square * square;
    density[i] = sum * (315.0f / (64.0f * 3.14159265f)) / (third * reach * square);
}

// A step of a front that moves at 1 / |slowness|: when it arrives, from the earlier neighbour along
// each axis.
extern "C" __global__ void eikonal_step(
    const float* time, const float* slowness, float* next, int height, int width)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const int i = y * width + x;
    const float far = 1e10f;
    const float left = x > 0 ? time[i - 1] : far, right = x < width - 1 ? time[i + 1] : far;
    const float above = y > 0 ? time[i - width] : far;
    const float below = y < height - 1 ? time[i + width] : far;
    const float a = fminf(left, right), b = fminf(above, below), cost = fabsf(slowness[i]);
    float arrival;
    if (fabsf(a - b) >= cost)
        arrival = fminf(a, b) + cost;
    else
        arrival = 0.5f * (a + b + sqrtf(2.0f * cost * cost - (a - b) * (a - b)));
    next[i] = fminf(time[i], arrival);
}

__device__ unsigned scrambled(unsigned v)
{
    v = (v ^ 61) ^ (v >> 16);
    v *= 9;
    v ^= v >> 4;
    v *= 0x27d4eb2d;
    return v ^ v >> 15;
}

__device__ float next_uniform(unsigned& state)
{
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return ((state >> 8) + 0.5f) / 16777216.0f;
}

// Asian calls: paths of `steps` steps, an even number, from two normal numbers at a time by Box and
// Muller; the mean payoff of each block's 256 paths.
extern "C" __global__ void asian_paths(
    float* payoff, int steps, float strike, float drift, float spread)
{
    __shared__ float part[8];
    unsigned state = scrambled(blockIdx.x * blockDim.x + threadIdx.x) | 1;
    float price = 100.0f, sum = 0.0f;
    for (int s = 0; s < steps; s += 2) {
        const float length = sqrtf(-2.0f * logf(next_uniform(state)));
        float sine, cosine;
        sincospif(2.0f * next_uniform(state), &sine, &cosine);
        price *= expf(drift + spread * length * cosine);
        sum += price;
        price *= expf(drift + spread * length * sine);
        sum += price;
    }
    float value = fmaxf(sum / steps - strike, 0.0f);
    for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xFFFFFFFF, value, step);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < 8; w++) value += part[w];
        payoff[blockIdx.x] = value / 256;
    }
}

// Ways to put `size` queens on a board, at most 16, of which a thread's number gives the first
// four: it walks through the rest with a stack.
extern "C" __global__ void queens(int* ways, int size)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size * size * size * size) return;
    const unsigned all = (1u << size) - 1;
    unsigned columns = 0, left = 0, right = 0;
    int found = 0;
    bool fits = true;
    for (int row = 0, rest = i; row < 4; ++row, rest /= size) {
        const unsigned place = 1u << rest % size;
        if ((columns | left | right) & place) fits = false;
        columns |= place;
        left = (left | place) << 1;
        right = (right | place) >> 1;
    }
    if (fits) {
        unsigned open[16], taken[16], lefts[16], rights[16];
        int depth = 0;
        taken[0] = columns;
        lefts[0] = left;
        rights[0] = right;
        open[0] = all & ~(columns | left | right);
        while (depth >= 0) {
            const unsigned place = open[depth] & -open[depth];
            if (place == 0) {
                --depth;
                continue;
            }
            open[depth] ^= place;
            columns = taken[depth] | place;
            if (columns == all) {
                ++found;
                continue;
            }
            left = (lefts[depth] | place) << 1;
            right = (rights[depth] | place) >> 1;
            ++depth;
            taken[depth] = columns;
            lefts[depth] = left;
            rights[depth] = right;
            open[depth] = all & ~(columns | left | right);
        }
    }
    ways[i] = found;
}
