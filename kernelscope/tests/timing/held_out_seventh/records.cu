// Hashes, letters of genomes, packed numbers and a sort.

__device__ __forceinline__ unsigned turned(unsigned v, int by)
{
    return v << by | v >> (32 - by);
}

__device__ __forceinline__ unsigned mixed_in(unsigned hash, unsigned word)
{
    word = turned(word * 0xcc9e2d51u, 15) * 0x1b873593u;
    return turned(hash ^ word, 13) * 5 + 0xe6546b64u;
}

// MurmurHash3 of 32 bits of each record of 64 bytes. A thread takes a record.
extern "C" __global__ void murmur_records(
    const uint4* record, unsigned* hash, int n, unsigned seed)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned h = seed;
    for (int j = 0; j < 4; ++j) {
        const uint4 four = record[(size_t)i * 4 + j];
        h = mixed_in(mixed_in(mixed_in(mixed_in(h, four.x), four.y), four.z), four.w);
    }
    h ^= 64;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    hash[i] = h ^ h >> 16;
}

__device__ __forceinline__ unsigned long long scattered(unsigned long long v)
{
    v = (v ^ v >> 33) * 0xff51afd7ed558ccdull;
    v = (v ^ v >> 33) * 0xc4ceb9fe1a85ec53ull;
    return v ^ v >> 33;
}

// The least hash of the 11 words from each place of a genome on: words of 21 letters, or their
// complements read backwards, the lesser. Letters are the lowest two bits of bytes; n windows have
// n + 30 letters. A thread takes a window, its block shares letters and hashes.
extern "C" __global__ void __launch_bounds__(256) minimisers(
    const unsigned char* __restrict__ letter, unsigned long long* __restrict__ least, int n)
{
    __shared__ unsigned char near[256 + 30];
    __shared__ unsigned long long hash[256 + 10];
    const int start = blockIdx.x * 256, t = threadIdx.x;
    for (int i = t; i < 286; i += 256)
        near[i] = start + i < n + 30 ? letter[start + i] & 3 : 0;
    __syncthreads();
    for (int i = t; i < 266; i += 256) {
        unsigned long long ahead = 0, back = 0;
        for (int j = 0; j < 21; ++j) {
            const unsigned long long one = near[i + j];
            ahead = ahead << 2 | one;
            back = back >> 2 | (3 - one) << 40;
        }
        hash[i] = scattered(ahead < back ? ahead : back);
    }
    __syncthreads();
    if (start + t >= n) return;
    unsigned long long best = hash[t];
    for (int j = 1; j < 11; ++j) best = min(best, hash[t + j]);
    least[start + t] = best;
}

// Ascending numbers, 128 at a time, as differences from the number before in as few bits as the
// largest needs: packed (blocks, 128) has for each fourth of them a word of each bit, bits[b] how
// many. n a multiple of 128. A warp takes 128 numbers, a lane one of each fourth.
extern "C" __global__ void delta_pack_warp(
    const int* __restrict__ number, unsigned* __restrict__ packed, int* __restrict__ bits, int n)
{
    const int own = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (own * 128 >= n) return;
    unsigned apart[4], all = 0;
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        const int i = own * 128 + g * 32 + lane;
        const int v = number[i];
        int before = __shfl_up_sync(0xFFFFFFFF, v, 1);
        if (lane == 0) before = i > 0 ? number[i - 1] : 0;
        apart[g] = v - before;
        all |= apart[g];
    }
    all = __reduce_or_sync(0xFFFFFFFF, all);
    const int width = 32 - __clz(all);
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        unsigned word = 0;
        for (int b = 0; b < width; ++b) {
            const unsigned vote = __ballot_sync(0xFFFFFFFF, apart[g] >> b & 1);
            if (lane == b) word = vote;
        }
        if (lane < width) packed[own * 128 + g * width + lane] = word;
    }
    if (lane == 0) bits[own] = width;
}

// Each 2048 of the keys are sorted, by four bits at a time: a block of 256, a thread takes eight
// keys in order, counts its digits, and a scan of all counts has their places.
extern "C" __global__ void __launch_bounds__(256) radix_sort_block(
    const unsigned* __restrict__ key, unsigned* __restrict__ sorted)
{
    __shared__ unsigned some[2048];
    __shared__ unsigned short count[16 * 256];
    __shared__ int part[8];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    key += (size_t)blockIdx.x * 2048;
    sorted += (size_t)blockIdx.x * 2048;
    for (int i = t; i < 2048; i += 256) some[i] = key[i];
    for (int shift = 0; shift < 32; shift += 4) {
        for (int d = 0; d < 16; ++d) count[d * 256 + t] = 0;
        __syncthreads();
        unsigned own[8];
        int place[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            own[i] = some[t * 8 + i];
            place[i] = count[(own[i] >> shift & 15) * 256 + t]++;
        }
        __syncthreads();
        int sum = 0;
        for (int i = 0; i < 16; ++i) {
            const int v = count[t * 16 + i];
            count[t * 16 + i] = sum;
            sum += v;
        }
        int up_to = sum;
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(0xFFFFFFFF, up_to, step);
            if (lane >= step) up_to += other;
        }
        if (lane == 31) part[warp] = up_to;
        __syncthreads();
        int before = up_to - sum;
        for (int w = 0; w < warp; ++w) before += part[w];
        for (int i = 0; i < 16; ++i) count[t * 16 + i] += before;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; ++i)
            some[count[(own[i] >> shift & 15) * 256 + t] + place[i]] = own[i];
        __syncthreads();
    }
    for (int i = t; i < 2048; i += 256) sorted[i] = some[i];
}
