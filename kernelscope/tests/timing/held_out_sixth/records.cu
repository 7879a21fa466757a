// Selections, sorts, hashes, codes and alignments.

__device__ __forceinline__ unsigned ordered(float v)
{
    const unsigned bits = __float_as_uint(v);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The k-th largest of each row of x (rows, columns), by a histogram of each 8 bits from the highest
// on. A block of 256 takes a row.
extern "C" __global__ void kth_largest(const float* x, float* value, int columns, int k)
{
    __shared__ int count[256], part[8];
    __shared__ unsigned digit;
    __shared__ int rest;
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    x += (size_t)blockIdx.x * columns;
    unsigned prefix = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        count[t] = 0;
        __syncthreads();
        for (int i = t; i < columns; i += 256) {
            const unsigned key = ordered(x[i]);
            if ((key & mask) == prefix) atomicAdd(&count[key >> shift & 255], 1);
        }
        __syncthreads();
        const int own = count[t];
        int sum = own;
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_down_sync(0xFFFFFFFF, sum, step);
            if (lane + step < 32) sum += other;
        }
        if (lane == 0) part[warp] = sum;
        __syncthreads();
        for (int w = warp + 1; w < 8; ++w) sum += part[w];
        if (sum >= k && sum - own < k) {
            digit = t;
            rest = k - (sum - own);
        }
        __syncthreads();
        prefix |= digit << shift;
        mask |= 255u << shift;
        k = rest;
    }
    if (t == 0) value[blockIdx.x] = __uint_as_float(prefix >> 31 ? prefix ^ 0x80000000u : ~prefix);
}

// Each 32 of n keys of 64 bits are sorted: a warp takes them, by a bitonic network of shuffles.
extern "C" __global__ void sort_pairs_warp(
    const unsigned long long* key, unsigned long long* sorted, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    unsigned long long own = i < n ? key[i] : ~0ull;
#pragma unroll
    for (int size = 2; size <= 32; size *= 2)
#pragma unroll
        for (int step = size / 2; step > 0; step /= 2) {
            const unsigned long long other = __shfl_xor_sync(0xFFFFFFFF, own, step);
            const bool up = (lane & size) == 0, low = (lane & step) == 0;
            own = (up == low) == (own < other) ? own : other;
        }
    if (i < n) sorted[i] = own;
}

__device__ __forceinline__ unsigned long long turned(unsigned long long v, int by)
{
    return v << by | v >> (64 - by);
}

struct Sip {
    unsigned long long a, b, c, d;

    __device__ void round()
    {
        a += b;
        c += d;
        b = turned(b, 13) ^ a;
        d = turned(d, 16) ^ c;
        a = turned(a, 32);
        c += b;
        a += d;
        b = turned(b, 17) ^ c;
        d = turned(d, 21) ^ a;
        c = turned(c, 32);
    }
};

// SipHash-2-4 of the strings from first[i] to first[i + 1], under the key 00 01 .. 0f. A thread
// takes a string.
extern "C" __global__ void siphash_strings(
    const unsigned char* text, const int* first, unsigned long long* hash, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned long long k0 = 0x0706050403020100ull, k1 = 0x0f0e0d0c0b0a0908ull;
    Sip sip = {k0 ^ 0x736f6d6570736575ull, k1 ^ 0x646f72616e646f6dull, k0 ^ 0x6c7967656e657261ull,
               k1 ^ 0x7465646279746573ull};
    const unsigned char* at = text + first[i];
    const int length = first[i + 1] - first[i];
    for (int left = length; left >= 0; left -= 8) {
        unsigned long long word = 0;
        if (left >= 8)
            for (int b = 0; b < 8; ++b) word |= (unsigned long long)at[b] << 8 * b;
        else {
            for (int b = 0; b < left; ++b) word |= (unsigned long long)at[b] << 8 * b;
            word |= (unsigned long long)length << 56;
        }
        at += 8;
        sip.d ^= word;
        sip.round();
        sip.round();
        sip.a ^= word;
    }
    sip.c ^= 0xff;
    for (int r = 0; r < 4; ++r) sip.round();
    hash[i] = sip.a ^ sip.b ^ sip.c ^ sip.d;
}

// Streams of bits (streams, words) in a code of at most 9 bits: code (1024,) has for each 10 bits
// that may follow 8 * symbol + length - 2. A thread decodes `count` bytes, a multiple of 4; words
// are enough for the longest codes and two more.
extern "C" __global__ void huffman_decode(
    const unsigned* __restrict__ stream, const int* __restrict__ code, unsigned* __restrict__ out,
    int streams, int words, int count)
{
    __shared__ unsigned short table[1024];
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) table[i] = code[i];
    __syncthreads();
    const int own = blockIdx.x * blockDim.x + threadIdx.x;
    if (own >= streams) return;
    const unsigned* next = stream + (size_t)own * words;
    unsigned* to = out + (size_t)own * (count / 4);
    unsigned long long bits = 0;
    int have = 0;
    for (int s = 0; s < count / 4; ++s) {
        unsigned four = 0;
        for (int j = 0; j < 4; ++j) {
            if (have < 32) {
                bits |= (unsigned long long)*next++ << (32 - have);
                have += 32;
            }
            const unsigned entry = table[bits >> 54];
            const int length = 2 + (entry & 7);
            four |= entry / 8 << 8 * j;
            bits <<= length;
            have -= length;
        }
        to[s] = four;
    }
}

// The best score of local alignments, by Smith and Waterman with Gotoh's gaps: 2 for equal letters,
// -1 for others, -3 to open a gap, -1 for each letter more. query (pairs, 128), target (pairs,
// length); letters are the lowest two bits of bytes. A warp takes a pair, a lane four letters of
// the query: it is one letter of the target behind the lane before it.
extern "C" __global__ void smith_waterman(
    const char4* query, const char* target, int* score, int pairs, int length)
{
    const int pair = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (pair >= pairs) return;
    const char4 four = query[(size_t)pair * 32 + lane];
    const int letter[4] = {four.x & 3, four.y & 3, four.z & 3, four.w & 3};
    target += (size_t)pair * length;
    const int never = -10000;
    int h[4] = {}, gap[4] = {never, never, never, never};
    int above = 0, bottom = 0, bottom_gap = never, best = 0;
    for (int s = 0; s < length + 31; ++s) {
        int up = __shfl_up_sync(0xFFFFFFFF, bottom, 1);
        int down_gap = __shfl_up_sync(0xFFFFFFFF, bottom_gap, 1);
        if (lane == 0) {
            up = 0;
            down_gap = never;
        }
        const int j = s - lane;
        if (j < 0 || j >= length) continue;
        const int other = target[j] & 3;
        int diagonal = above;
        above = up;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            gap[r] = max(gap[r] - 1, h[r] - 3);
            down_gap = max(down_gap - 1, up - 3);
            const int matched = diagonal + (letter[r] == other ? 2 : -1);
            diagonal = h[r];
            up = max(max(0, matched), max(gap[r], down_gap));
            h[r] = up;
            best = max(best, up);
        }
        bottom = up;
        bottom_gap = down_gap;
    }
    for (int step = 16; step > 0; step /= 2)
        best = max(best, __shfl_xor_sync(0xFFFFFFFF, best, step));
    if (lane == 0) score[pair] = best;
}
