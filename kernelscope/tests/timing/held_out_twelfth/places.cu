// Graphs, surfaces, options and genomes.

// What a layer of a graph network gathers: out[to] += weight x[from] for each edge, x and out
// (nodes, 64). A warp takes an edge, a lane two channels.
extern "C" __global__ void gcn_scatter_add(
    const float2* __restrict__ x, const int* __restrict__ from, const int* __restrict__ to,
    const float* __restrict__ weight, float* __restrict__ out, int edges)
{
    const int edge = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (edge >= edges) return;
    const float by = weight[edge];
    const float2 v = x[(size_t)from[edge] * 32 + lane];
    float* own = out + (size_t)to[edge] * 64 + 2 * lane;
    atomicAdd(own, by * v.x);
    atomicAdd(own + 1, by * v.y);
}

// The first pass of marching cubes: which of a cell's eight corners are inside, and how many cells
// have some inside and some outside. A thread takes a cell.
extern "C" __global__ void __launch_bounds__(256) marching_cubes_cases(
    const float* __restrict__ field, unsigned char* __restrict__ cube, int* __restrict__ active,
    int side, float level)
{
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y, z = blockIdx.z;
    int inside = 0;
    if (x < side - 1 && y < side - 1) {
#pragma unroll
        for (int corner = 0; corner < 8; ++corner) {
            const size_t plane = z + (corner >> 2), row = y + (corner >> 1 & 1);
            if (field[(plane * side + row) * side + x + (corner & 1)] < level)
                inside |= 1 << corner;
        }
        cube[((size_t)z * (side - 1) + y) * (side - 1) + x] = inside;
    }
    const int count = __syncthreads_count(inside != 0 && inside != 255);
    if (threadIdx.x == 0 && threadIdx.y == 0 && count) atomicAdd(active, count);
}

// Merton's price of a call at strike 1 on a stock that jumps: a sum over the number of jumps. A
// thread takes an option.
extern "C" __global__ void merton_jump_call(
    const double* __restrict__ money, const double* __restrict__ spread,
    double* __restrict__ price, int options, int terms, float years)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= options) return;
    const double rate = 0.02, often = 0.5, jump = -0.1, wild = 0.15;
    const double x = 0.1 * money[i], sigma = 0.2 + 0.05 * fabs(spread[i]);
    const double stock = exp(x), mean = often * (1.0 + jump) * years, grows = log1p(jump);
    double share = exp(-mean), sum = 0.0;
    for (int n = 0; n < terms; ++n) {
        const double variance = sigma * sigma * years + n * wild * wild;
        const double drift = (rate - often * jump) * years + n * grows, root = sqrt(variance);
        const double d = (x + drift) / root + 0.5 * root;
        sum += share * (stock * normcdf(d) - exp(-drift) * normcdf(d - root));
        share *= mean / (n + 1);
    }
    price[i] = sum;
}

// The likelihood of reads of 128 bases from haplotypes by a pair hidden Markov model, as in GATK's
// caller, in doubles. A warp takes a pair, a lane four bases of the read, one step behind the lane
// before it.
extern "C" __global__ void pair_hmm_warp(
    const unsigned char* __restrict__ read, const unsigned char* __restrict__ haplotype,
    double* __restrict__ likelihood, int pairs, int length)
{
    const int pair = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (pair >= pairs) return;
    const double opens = 0.01, extends = 0.1, error = 0.05;
    haplotype += (size_t)pair * length;
    int base[4];
    double match[4] = {}, insert[4] = {}, gap[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) base[i] = read[(size_t)pair * 128 + lane * 4 + i] & 3;
    double old_match = 0.0, old_insert = 0.0, old_gap = lane == 0 ? 1.0 / length : 0.0, sum = 0.0;
    for (int step = 0; step < length + 31; ++step) {
        const int column = step - lane;
        double up_match = __shfl_up_sync(0xFFFFFFFF, match[3], 1);
        double up_insert = __shfl_up_sync(0xFFFFFFFF, insert[3], 1);
        double up_gap = __shfl_up_sync(0xFFFFFFFF, gap[3], 1);
        if (lane == 0) {
            up_match = up_insert = 0.0;
            up_gap = 1.0 / length;
        }
        if (column < 0 || column >= length) continue;
        const int letter = haplotype[column] & 3;
        double cross_match = old_match, cross_insert = old_insert, cross_gap = old_gap;
        old_match = up_match;
        old_insert = up_insert;
        old_gap = up_gap;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const double fits = letter == base[i] ? 1.0 - error : error / 3.0;
            const double m = fits * ((1.0 - 2.0 * opens) * cross_match +
                                     (1.0 - extends) * (cross_insert + cross_gap));
            const double in = opens * up_match + extends * up_insert;
            const double g = opens * match[i] + extends * gap[i];
            cross_match = match[i];
            cross_insert = insert[i];
            cross_gap = gap[i];
            up_match = match[i] = m;
            up_insert = insert[i] = in;
            gap[i] = g;
        }
        sum += match[3] + insert[3];
    }
    if (lane == 31) likelihood[pair] = log10(sum);
}
