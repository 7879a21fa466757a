// Data: keyed hashes, lengths of strings, sorted blocks of pairs, compressed differences.

__device__ __forceinline__ unsigned long long turned(unsigned long long x, int by)
{
    return x << by | x >> (64 - by);
}

__device__ __forceinline__ void sip_round(unsigned long long (&v)[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = turned(v[1], 13) ^ v[0];
    v[3] = turned(v[3], 16) ^ v[2];
    v[0] = turned(v[0], 32) + v[3];
    v[2] += v[1];
    v[3] = turned(v[3], 21) ^ v[0];
    v[1] = turned(v[1], 17) ^ v[2];
    v[2] = turned(v[2], 32);
}

// SipHash-2-4 of words of eight bytes, by one key.
extern "C" __global__ void siphash_24_words(
    const unsigned long long* __restrict__ word, const unsigned long long* __restrict__ key,
    unsigned long long* __restrict__ out, int n)
{
    const unsigned long long k0 = key[0], k1 = key[1], last = 8ULL << 56;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const unsigned long long m = word[i];
        unsigned long long v[4] = {
            k0 ^ 0x736f6d6570736575ULL, k1 ^ 0x646f72616e646f6dULL, k0 ^ 0x6c7967656e657261ULL,
            k1 ^ 0x7465646279746573ULL};
        v[3] ^= m;
        sip_round(v);
        sip_round(v);
        v[0] ^= m;
        v[3] ^= last;
        sip_round(v);
        sip_round(v);
        v[0] ^= last;
        v[2] ^= 0xff;
#pragma unroll
        for (int round = 0; round < 4; ++round) sip_round(v);
        out[i] = v[0] ^ v[1] ^ v[2] ^ v[3];
    }
}

// Code points of strings of UTF-8, and their length in UTF-16. A warp takes a string.
extern "C" __global__ void __launch_bounds__(256) utf8_lengths_warp(
    const unsigned char* __restrict__ text, const int* __restrict__ from, int* __restrict__ points,
    int* __restrict__ units, int strings)
{
    const int which = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (which >= strings) return;
    const int end = from[which + 1];
    int starts = 0, fours = 0;
    for (int i = from[which] + lane; i < end; i += 32) {
        const unsigned char c = text[i];
        starts += (c & 0xC0) != 0x80;
        fours += c >= 0xF0;
    }
    starts = __reduce_add_sync(~0u, starts);
    fours = __reduce_add_sync(~0u, fours);
    if (lane == 0) {
        points[which] = starts;
        units[which] = starts + fours;
    }
}

// Batcher's odd-even merge sort of 1024 keys with their values, a block each.
extern "C" __global__ void __launch_bounds__(512) batcher_sort_1024_pairs(
    const unsigned* __restrict__ key, const unsigned* __restrict__ value,
    unsigned* __restrict__ keys_out, unsigned* __restrict__ values_out)
{
    __shared__ unsigned keys[1024], values[1024];
    const int t = threadIdx.x;
    const size_t first = (size_t)blockIdx.x * 1024;
    for (int i = t; i < 1024; i += 512) {
        keys[i] = key[first + i];
        values[i] = value[first + i];
    }
    for (int size = 2; size <= 1024; size *= 2) {
        const int offset = t & (size / 2 - 1);
        for (int stride = size / 2; stride; stride /= 2) {
            __syncthreads();
            const int position = 2 * t - (t & (stride - 1));
            const bool merges = stride < size / 2;
            const int low = merges ? position - stride : position, high = low + stride;
            if (merges && offset < stride) continue;
            const unsigned a = keys[low], b = keys[high];
            if (a > b) {
                const unsigned v = values[low];
                keys[low] = b;
                keys[high] = a;
                values[low] = values[high];
                values[high] = v;
            }
        }
    }
    __syncthreads();
    for (int i = t; i < 1024; i += 512) {
        keys_out[first + i] = keys[i];
        values_out[first + i] = values[i];
    }
}

// Differences of numbers in zigzag order, as bytes of seven bits. A block packs 256 of them: a
// scan says where each one starts.
extern "C" __global__ void __launch_bounds__(256) zigzag_varint_256(
    const int* __restrict__ number, unsigned* __restrict__ out, int* __restrict__ length, int n)
{
    __shared__ unsigned words[320];
    __shared__ int of_warp[8], whole;
    const int t = threadIdx.x, lane = t & 31, i = blockIdx.x * 256 + t;
    unsigned char* bytes = reinterpret_cast<unsigned char*>(words);
    for (int j = t; j < 320; j += 256) words[j] = 0;
    unsigned left = 0;
    int size = 0;
    if (i < n) {
        const int apart = number[i] - (t ? number[i - 1] : 0);
        left = (unsigned)apart << 1 ^ (unsigned)(apart >> 31);
        size = 1 + (31 - __clz(left | 1)) / 7;
    }
    int end = size;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, end, step);
        if (lane >= step) end += other;
    }
    if (lane == 31) of_warp[t / 32] = end;
    __syncthreads();
    for (int j = 0; j < t / 32; ++j) end += of_warp[j];
    int at = end - size;
    if (i < n) {
        for (; left >= 0x80; left >>= 7) bytes[at++] = left | 0x80;
        bytes[at] = left;
    }
    if (t == 255) whole = end;
    __syncthreads();
    if (t == 0) length[blockIdx.x] = whole;
    for (int j = t; j < (whole + 3) / 4; j += 256) out[blockIdx.x * 320 + j] = words[j];
}
