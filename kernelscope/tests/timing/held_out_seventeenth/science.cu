// Science: Mersenne twisters, barrier options on a grid, linkage of genes, points in a polygon.

__device__ __forceinline__ unsigned twisted(unsigned high, unsigned low)
{
    const unsigned y = (high & 0x80000000u) | (low & 0x7FFFFFFFu);
    return y >> 1 ^ (y & 1 ? 0x9908B0DFu : 0u);
}

// Numbers of MT19937. A block has a state of 624 words, and makes so many numbers a round.
extern "C" __global__ void __launch_bounds__(256) mt19937_blocks(
    const unsigned* __restrict__ state, unsigned* __restrict__ out, int rounds)
{
    __shared__ unsigned words[624];
    const int t = threadIdx.x;
    for (int i = t; i < 624; i += 256) words[i] = state[blockIdx.x * 624 + i];
    __syncthreads();
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
        for (int start = 0; start < 624; start += 227) {
            const int i = start + t;
            const bool works = t < 227 && i < 624;
            unsigned v = 0;
            if (works)
                v = words[i < 227 ? i + 397 : i - 227] ^
                    twisted(words[i], words[i == 623 ? 0 : i + 1]);
            __syncthreads();
            if (works) words[i] = v;
            __syncthreads();
        }
        for (int i = t; i < 624; i += 256) {
            unsigned y = words[i];
            y ^= y >> 11;
            y ^= y << 7 & 0x9D2C5680u;
            y ^= y << 15 & 0xEFC60000u;
            out[((size_t)blockIdx.x * rounds + round) * 624 + i] = y ^ y >> 18;
        }
    }
}

// Down-and-out calls by an explicit scheme of finite differences over the logarithm of the price.
// A block takes an option, a thread a node; node 0 is the barrier.
extern "C" __global__ void __launch_bounds__(256) barrier_explicit_block(
    const float* __restrict__ volatility, const float* __restrict__ strike,
    float* __restrict__ price, int steps, int spot, float barrier, float apart, float rate,
    float maturity)
{
    __shared__ float values[2][256];
    const int t = threadIdx.x;
    const float drawn = fabsf(volatility[blockIdx.x]), other = strike[blockIdx.x];
    const float sigma = 0.1f + 0.1f * drawn / (1.0f + drawn);
    const float k = 1.0f + 0.1f * other / (1.0f + fabsf(other));
    const float variance = sigma * sigma, step = maturity / steps;
    const float diffusion = 0.5f * step * variance / (apart * apart);
    const float drift = 0.5f * step * (rate - 0.5f * variance) / apart;
    const float less = 1.0f / (1.0f + rate * step);
    const float up = (diffusion + drift) * less, down = (diffusion - drift) * less;
    const float stay = (1.0f - 2.0f * diffusion) * less;
    const float at = barrier * expf(t * apart);
    float own = t ? fmaxf(at - k, 0.0f) : 0.0f;
    values[0][t] = own;
    __syncthreads();
    for (int i = 1; i <= steps; ++i) {
        const float* last = values[~i & 1];
        if (t == 255)
            own = at - k * expf(-rate * step * i);
        else if (t)
            own = up * last[t + 1] + stay * own + down * last[t - 1];
        values[i & 1][t] = own;
        __syncthreads();
    }
    if (t == spot) price[blockIdx.x] = own;
}

// Linkage of pairs of sites: r squared of bits, one for each of 64 * words chromosomes. A block
// takes 16 x 16 pairs; those below the diagonal are left out.
extern "C" __global__ void __launch_bounds__(256) linkage_popcounts_tile(
    const unsigned long long* __restrict__ bits, float* __restrict__ out, int sites, int words)
{
    __shared__ unsigned long long rows[16][17], columns[16][17];
    __shared__ int of_row[16], of_column[16];
    if (blockIdx.y > blockIdx.x) return;
    const int x = threadIdx.x, y = threadIdx.y;
    const size_t row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + y;
    int both = 0, first = 0, second = 0;
    for (int start = 0; start < words; start += 16) {
        const bool there = start + x < words;
        const unsigned long long a = there ? bits[row * words + start + x] : 0;
        const unsigned long long b = there ? bits[column * words + start + x] : 0;
        rows[y][x] = a;
        columns[y][x] = b;
        first += __popcll(a);
        second += __popcll(b);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; ++i) both += __popcll(rows[y][i] & columns[x][i]);
        __syncthreads();
    }
    for (int step = 8; step; step /= 2) {
        first += __shfl_down_sync(~0u, first, step, 16);
        second += __shfl_down_sync(~0u, second, step, 16);
    }
    if (x == 0) {
        of_row[y] = first;
        of_column[y] = second;
    }
    __syncthreads();
    const float whole = 64.0f * words, p = of_row[y] / whole, q = of_column[x] / whole;
    const float d = both / whole - p * q, spread = p * (1.0f - p) * q * (1.0f - q);
    out[row * sites + blockIdx.x * 16 + x] = spread > 0.0f ? d * d / spread : 0.0f;
}

// Which points are inside of a polygon, by the edges that a ray along x crosses. A thread takes a
// point; a block has edges in shared memory, 256 at a time.
extern "C" __global__ void __launch_bounds__(256) points_in_polygon(
    const float* __restrict__ x, const float* __restrict__ y, const float* __restrict__ corner_x,
    const float* __restrict__ corner_y, unsigned char* __restrict__ inside, int points,
    int corners)
{
    __shared__ float4 edges[256];
    const int t = threadIdx.x, i = blockIdx.x * 256 + t;
    const float own_x = i < points ? x[i] : 0.0f, own_y = i < points ? y[i] : 0.0f;
    bool odd = false;
    for (int start = 0; start < corners; start += 256) {
        const int j = start + t, next = j + 1 == corners ? 0 : j + 1;
        if (j < corners) {
            const float px = corner_x[j], py = corner_y[j], qx = corner_x[next];
            const float qy = corner_y[next];
            edges[t] = make_float4(py, qy, px, qy == py ? 0.0f : (qx - px) / (qy - py));
        }
        __syncthreads();
        const int count = min(256, corners - start);
        for (int e = 0; e < count; ++e) {
            const float4 edge = edges[e];
            if ((edge.x > own_y) != (edge.y > own_y) &&
                own_x < edge.z + (own_y - edge.x) * edge.w)
                odd = !odd;
        }
        __syncthreads();
    }
    if (i < points) inside[i] = odd;
}
