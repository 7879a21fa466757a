// Science: an option's tree, forces of neighbours, reads by bits, a filter that keeps every
// eighth.

// American puts of strike 1 by a binomial tree of at most 255 steps. A warp takes an option, a
// lane eight nodes that are side by side.
extern "C" __global__ void __launch_bounds__(128) american_put_tree_warp(
    const float* __restrict__ spot, const float* __restrict__ shape, float* __restrict__ price,
    int options, int steps, float rate, float years)
{
    const int option = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (option >= options) return;
    const float strike = 1.0f, start = __expf(0.1f * spot[option]);
    const float volatility = 0.3f + 0.1f * tanhf(shape[option]);
    const float step = years / steps, move = volatility * sqrtf(step);
    const float up = __expf(move), down = 1.0f / up, growth = __expf(rate * step);
    const float chance = (growth - down) / (up - down), less = 1.0f / growth;
    const float of_up = less * chance, of_down = less * (1.0f - chance);
    float at[8], value[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        at[i] = start * __expf(move * (2 * (8 * lane + i) - steps));
        value[i] = fmaxf(strike - at[i], 0.0f);
    }
    for (int left = steps; left > 0; --left) {
        const float beyond = __shfl_down_sync(~0u, value[0], 1);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            at[i] *= up;
            const float above = i < 7 ? value[(i + 1) & 7] : beyond;
            value[i] = fmaxf(of_up * above + of_down * value[i], strike - at[i]);
        }
    }
    if (lane == 0) price[option] = value[0];
}

// Lennard-Jones forces, and a half of the energy, from a list of neighbours for each atom. A
// thread takes an atom; the list of an atom is a column.
extern "C" __global__ void __launch_bounds__(128) lennard_jones_list(
    const float4* __restrict__ place, const int* __restrict__ neighbour,
    float4* __restrict__ force, int atoms, int neighbours, float side, float cut_square)
{
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= atoms) return;
    const float4 own = place[i];
    const float inverse_side = 1.0f / side;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int j = 0; j < neighbours; ++j) {
        const float4 other = place[neighbour[(size_t)j * atoms + i]];
        float dx = own.x - other.x, dy = own.y - other.y, dz = own.z - other.z;
        dx -= side * rintf(dx * inverse_side);
        dy -= side * rintf(dy * inverse_side);
        dz -= side * rintf(dz * inverse_side);
        const float square = dx * dx + dy * dy + dz * dz;
        if (square >= cut_square) continue;
        const float inverse = 1.0f / fmaxf(square, 1.0f), sixth = inverse * inverse * inverse;
        const float pull = 24.0f * inverse * sixth * (2.0f * sixth - 1.0f);
        sum.x += pull * dx;
        sum.y += pull * dy;
        sum.z += pull * dz;
        sum.w += 2.0f * sixth * (sixth - 1.0f);
    }
    force[i] = sum;
}

// The least edits of 64 bases to a part of a longer read, and its end there, by the bit-vectors of
// Myers. Two bits are a base, the lowest first. A thread takes a pair.
extern "C" __global__ void __launch_bounds__(128) myers_64_bases(
    const uint4* __restrict__ pattern, const unsigned* __restrict__ read,
    int* __restrict__ least, int* __restrict__ end, int pairs, int words)
{
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= pairs) return;
    const uint4 p = pattern[i];
    const unsigned four[4] = {p.x, p.y, p.z, p.w};
    unsigned long long equal[4] = {};
#pragma unroll
    for (int j = 0; j < 64; ++j) {
        const unsigned base = four[j / 16] >> 2 * (j % 16) & 3;
#pragma unroll
        for (int b = 0; b < 4; ++b) equal[b] |= (unsigned long long)(base == b) << j;
    }
    unsigned long long plus = ~0ULL, minus = 0;
    int score = 64, best = 64, best_end = 0;
    for (int word = 0; word < words; ++word) {
        unsigned bases = read[(size_t)word * pairs + i];
        for (int j = 0; j < 16; ++j, bases >>= 2) {
            const unsigned long long low = bases & 1 ? equal[1] : equal[0];
            const unsigned long long high = bases & 1 ? equal[3] : equal[2];
            const unsigned long long same = bases & 2 ? high : low;
            const unsigned long long vertical = same | minus;
            const unsigned long long flat = (((same & plus) + plus) ^ plus) | same;
            unsigned long long more = minus | ~(flat | plus), fewer = plus & flat;
            score += (int)(more >> 63) - (int)(fewer >> 63);
            more <<= 1;
            fewer <<= 1;
            plus = fewer | ~(vertical | more);
            minus = more & vertical;
            if (score < best) {
                best = score;
                best_end = word * 16 + j + 1;
            }
        }
    }
    least[i] = best;
    end[i] = best_end;
}

// A filter of 64 taps that keeps every eighth number. A block takes 256 of a channel; shared
// memory has them apart by their place in eight.
extern "C" __global__ void __launch_bounds__(256) fir_64_decimate_8(
    const float* __restrict__ x, const float* __restrict__ tap, float* __restrict__ out,
    int samples)
{
    __shared__ float phase[8][265], taps[64];
    const int t = threadIdx.x, kept = samples / 8;
    const int first = blockIdx.x * 2048 - 56;
    const float* own = x + (size_t)blockIdx.y * samples;
    if (t < 64) taps[t] = tap[t];
    for (int i = t; i < 2104; i += 256) {
        const int from = first + i;
        phase[i & 7][i / 8] = from >= 0 && from < samples ? own[from] : 0.0f;
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += taps[63 - (8 * j + i)] * phase[i][t + j];
    const int at = blockIdx.x * 256 + t;
    if (at < kept) out[(size_t)blockIdx.y * kept + at] = sum;
}
