// Bytes, keys and sequences.

// Where a stream of bytes may be cut: at byte i if the hash of the bytes up to it, h = 2 h +
// gear[byte] in 64 bits, has zeros as its first `bits`. cut: a bit for each byte. A thread takes
// 128 bytes, and the 64 before them, which are all that the hash knows.
extern "C" __global__ void gear_boundaries(
    const unsigned char* __restrict__ text, const unsigned long long* __restrict__ gear,
    uint4* __restrict__ cut, int n, int bits)
{
    __shared__ unsigned long long table[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) table[i] = gear[i];
    __syncthreads();
    const int part = blockIdx.x * blockDim.x + threadIdx.x;
    if (part >= n / 128) return;
    unsigned long long h = 0;
    unsigned found[4] = {};
    for (int i = part == 0 ? 0 : -4; i < 8; ++i) {
        const uint4 some = ((const uint4*)text)[part * 8 + i];
        const unsigned word[4] = {some.x, some.y, some.z, some.w};
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            h = (h << 1) + table[word[j / 4] >> j % 4 * 8 & 255];
            if (i >= 0 && h >> (64 - bits) == 0) found[i / 2] |= 1u << (i % 2 * 16 + j);
        }
    }
    cut[part] = make_uint4(found[0], found[1], found[2], found[3]);
}

// Sorts keys of 64 bits 1024 at a time. A block of 128 takes as many: a thread sorts eight in
// registers, then sorted runs are merged, twice as long each time; a thread finds by bisection
// where its eight outputs start in both runs.
extern "C" __global__ void __launch_bounds__(128) merge_sort_block(
    const unsigned long long* __restrict__ key, unsigned long long* __restrict__ sorted)
{
    __shared__ unsigned long long tile[1024];
    const int t = threadIdx.x;
    key += (size_t)blockIdx.x * 1024;
    sorted += (size_t)blockIdx.x * 1024;
    for (int i = t; i < 1024; i += 128) tile[i] = key[i];
    __syncthreads();
    unsigned long long own[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) own[i] = tile[t * 8 + i];
#pragma unroll
    for (int round = 0; round < 8; ++round)
#pragma unroll
        for (int i = round & 1; i + 1 < 8; i += 2)
            if (own[i + 1] < own[i]) {
                const unsigned long long low = own[i + 1];
                own[i + 1] = own[i];
                own[i] = low;
            }
    for (int run = 8; run < 1024; run *= 2) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; ++i) tile[t * 8 + i] = own[i];
        __syncthreads();
        const int start = t * 8 / (2 * run) * (2 * run), diagonal = t * 8 - start;
        const unsigned long long *a = tile + start, *b = a + run;
        int low = max(0, diagonal - run), high = min(diagonal, run);
        while (low < high) {
            const int middle = (low + high) / 2;
            if (b[diagonal - 1 - middle] < a[middle])
                high = middle;
            else
                low = middle + 1;
        }
        int i = low, j = diagonal - low;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const bool left = j >= run || (i < run && a[i] <= b[j]);
            own[k] = left ? a[i++] : b[j++];
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i) tile[t * 8 + i] = own[i];
    __syncthreads();
    for (int i = t; i < 1024; i += 128) sorted[i] = tile[i];
}

__device__ __forceinline__ unsigned long long spread_3(unsigned v)
{
    unsigned long long x = v & 0x1FFFFF;
    x = (x | x << 32) & 0x1F00000000FFFFull;
    x = (x | x << 16) & 0x1F0000FF0000FFull;
    x = (x | x << 8) & 0x100F00F00F00F00Full;
    x = (x | x << 4) & 0x10C30C30C30C30C3ull;
    return (x | x << 2) & 0x1249249249249249ull;
}

// Morton codes of points (n, 3) in a cube from `low` on: 21 bits of each number, in turns.
extern "C" __global__ void morton_codes_63(
    const float* __restrict__ point, unsigned long long* __restrict__ code, int n, float low,
    float cells)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        unsigned long long all = 0;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            const float v = (point[3 * i + axis] - low) * cells;
            all |= spread_3((unsigned)fminf(fmaxf(v, 0.0f), 2097151.0f)) << axis;
        }
        code[i] = all;
    }
}

// Likelihoods of four letters at an inner node of a tree, by Felsenstein: for each site and each of
// four rates, the product of what both children make likely. left, right, node (4 rates, sites) of
// four floats; step_left, step_right (4 rates, 4 from, 4 to). A thread takes a site at a rate.
extern "C" __global__ void felsenstein_sites(
    const float4* __restrict__ left, const float4* __restrict__ right,
    const float4* __restrict__ step_left, const float4* __restrict__ step_right,
    float4* __restrict__ node, int sites)
{
    __shared__ float4 step[2][4];
    const int t = threadIdx.x, rate = blockIdx.y;
    if (t < 8) step[t / 4][t % 4] = (t < 4 ? step_left : step_right)[rate * 4 + t % 4];
    __syncthreads();
    const int site = blockIdx.x * blockDim.x + t;
    if (site >= sites) return;
    const size_t at = (size_t)rate * sites + site;
    const float4 a = left[at], b = right[at];
    float found[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        const float4 p = step[0][s], q = step[1][s];
        found[s] = (p.x * a.x + p.y * a.y + p.z * a.z + p.w * a.w) *
                   (q.x * b.x + q.y * b.y + q.z * b.z + q.w * b.w);
    }
    node[at] = make_float4(found[0], found[1], found[2], found[3]);
}
