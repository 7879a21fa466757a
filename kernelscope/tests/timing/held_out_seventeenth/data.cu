// Data: prefix codes, the k-th of a row, marks of JSON, SHA-3.

// Decodes 64 symbols for each thread from codes of at most 12 bits, the first bit first. A table
// has for each 12 bits the symbol in its lowest byte, and above it the code's length less one.
extern "C" __global__ void __launch_bounds__(256) prefix_codes_12_bits(
    const unsigned* __restrict__ word, const int* __restrict__ first_bit,
    const int* __restrict__ table, unsigned* __restrict__ out, int streams)
{
    __shared__ unsigned short codes[4096];
    for (int i = threadIdx.x; i < 4096; i += 256) codes[i] = table[i];
    __syncthreads();
    const int stream = blockIdx.x * 256 + threadIdx.x;
    if (stream >= streams) return;
    const int from = first_bit[stream];
    const unsigned* next = word + from / 32;
    unsigned long long bits = (unsigned long long)*next++ << 32;
    bits = (bits | *next++) << (from & 31);
    int left = 64 - (from & 31);
    for (int i = 0; i < 16; ++i) {
        unsigned four = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (left < 32) {
                bits |= (unsigned long long)*next++ << (32 - left);
                left += 32;
            }
            const unsigned code = codes[bits >> 52];
            const int length = (code >> 8) + 1;
            four |= (code & 255) << (8 * j);
            bits <<= length;
            left -= length;
        }
        out[stream * 16 + i] = four;
    }
}

// The k-th greatest number of each row, and how many are above it, by radix select: four passes
// of eight bits. A block takes a row.
extern "C" __global__ void __launch_bounds__(256) radix_select_rows(
    const float* __restrict__ x, float* __restrict__ kth, int* __restrict__ above, int columns,
    int k)
{
    __shared__ int count[256], of_warp[8];
    __shared__ unsigned chosen;
    __shared__ int passed;
    const int t = threadIdx.x, lane = t & 31, warp = t / 32;
    const float* row = x + (size_t)blockIdx.x * columns;
    unsigned known = 0, mask = 0;
    int before = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        count[t] = 0;
        __syncthreads();
        for (int i = t; i < columns; i += 256) {
            const unsigned b = __float_as_uint(row[i]);
            const unsigned key = b ^ (b >> 31 ? ~0u : 1u << 31);
            if ((key & mask) == known) atomicAdd(&count[key >> shift & 255], 1);
        }
        __syncthreads();
        const int own = count[255 - t];
        int end = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(~0u, end, step);
            if (lane >= step) end += other;
        }
        if (lane == 31) of_warp[warp] = end;
        __syncthreads();
        end += before;
        for (int i = 0; i < warp; ++i) end += of_warp[i];
        if (end >= k && end - own < k) {
            chosen = 255 - t;
            passed = end - own;
        }
        __syncthreads();
        known |= chosen << shift;
        mask |= 255u << shift;
        before = passed;
    }
    if (t) return;
    kth[blockIdx.x] = __uint_as_float(known ^ (known >> 31 ? 1u << 31 : ~0u));
    above[blockIdx.x] = before;
}

__device__ __forceinline__ unsigned long long places_of(const unsigned (&w)[16], unsigned four)
{
    unsigned long long bits = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const unsigned four_bits = (__vcmpeq4(w[i], four) & 0x08040201u) * 0x01010101u >> 24;
        bits |= (unsigned long long)four_bits << (4 * i);
    }
    return bits;
}

// Marks the braces, brackets, colons and commas of JSON that are outside of strings. A warp takes
// a line of 2048 bytes, a lane 64 of them; a backslash hides a quote that follows it.
extern "C" __global__ void __launch_bounds__(256) json_marks_warp(
    const uint4* __restrict__ text, unsigned long long* __restrict__ marks,
    int* __restrict__ count, int lines)
{
    const int line = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (line >= lines) return;
    const size_t part = (size_t)line * 32 + lane;
    unsigned w[16];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint4 v = text[part * 4 + i];
        w[4 * i] = v.x;
        w[4 * i + 1] = v.y;
        w[4 * i + 2] = v.z;
        w[4 * i + 3] = v.w;
    }
    const unsigned long long slashes = places_of(w, 0x5C5C5C5Cu);
    unsigned last = __shfl_up_sync(~0u, (unsigned)(slashes >> 63), 1);
    if (lane == 0) last = 0;
    unsigned long long inside = places_of(w, 0x22222222u) & ~(slashes << 1 | last);
    const unsigned odd = __ballot_sync(~0u, __popcll(inside) & 1);
#pragma unroll
    for (int step = 1; step < 64; step *= 2) inside ^= inside << step;
    if (__popc(odd & ((1u << lane) - 1)) & 1) inside = ~inside;
    unsigned long long found = places_of(w, 0x3A3A3A3Au) | places_of(w, 0x2C2C2C2Cu);
#pragma unroll
    for (int i = 0; i < 16; ++i) w[i] |= 0x20202020u;
    found |= places_of(w, 0x7B7B7B7Bu) | places_of(w, 0x7D7D7D7Du);
    found &= ~inside;
    marks[part] = found;
    const int sum = __reduce_add_sync(~0u, __popcll(found));
    if (lane == 0) count[line] = sum;
}

__constant__ unsigned long long of_round[24] = {
    0x0000000000000001ULL, 0x0000000000008082ULL, 0x800000000000808AULL, 0x8000000080008000ULL,
    0x000000000000808BULL, 0x0000000080000001ULL, 0x8000000080008081ULL, 0x8000000000008009ULL,
    0x000000000000008AULL, 0x0000000000000088ULL, 0x0000000080008009ULL, 0x000000008000000AULL,
    0x000000008000808BULL, 0x800000000000008BULL, 0x8000000000008089ULL, 0x8000000000008003ULL,
    0x8000000000008002ULL, 0x8000000000000080ULL, 0x000000000000800AULL, 0x800000008000000AULL,
    0x8000000080008081ULL, 0x8000000000008080ULL, 0x0000000080000001ULL, 0x8000000080008008ULL};

__device__ __forceinline__ unsigned long long turned(unsigned long long x, int by)
{
    return x << by | x >> (64 - by);
}

// SHA3-256 of messages of 32 bytes. A thread takes a message.
extern "C" __global__ void __launch_bounds__(128) sha3_256_seeds(
    const ulonglong2* __restrict__ seed, ulonglong2* __restrict__ digest, int n)
{
    constexpr int TO[24] = {10, 7,  11, 17, 18, 3, 5,  16, 8,  21, 24, 4,
                            15, 23, 19, 13, 12, 2, 20, 14, 22, 9,  6,  1};
    constexpr int BY[24] = {1,  3,  6,  10, 15, 21, 28, 36, 45, 55, 2,  14,
                            27, 41, 56, 8,  25, 43, 62, 18, 39, 61, 20, 44};
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    const ulonglong2 p = seed[2 * i], q = seed[2 * i + 1];
    unsigned long long a[25] = {p.x, p.y, q.x, q.y, 6};
    a[16] = 1ULL << 63;
#pragma unroll 1
    for (int round = 0; round < 24; ++round) {
        unsigned long long c[5];
#pragma unroll
        for (int x = 0; x < 5; ++x) c[x] = a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20];
#pragma unroll
        for (int x = 0; x < 5; ++x) {
            const unsigned long long d = c[(x + 4) % 5] ^ turned(c[(x + 1) % 5], 1);
#pragma unroll
            for (int y = 0; y < 25; y += 5) a[x + y] ^= d;
        }
        unsigned long long moved = a[1];
#pragma unroll
        for (int j = 0; j < 24; ++j) {
            const unsigned long long there = a[TO[j]];
            a[TO[j]] = turned(moved, BY[j]);
            moved = there;
        }
#pragma unroll
        for (int y = 0; y < 25; y += 5) {
#pragma unroll
            for (int x = 0; x < 5; ++x) c[x] = a[x + y];
#pragma unroll
            for (int x = 0; x < 5; ++x) a[x + y] = c[x] ^ (~c[(x + 1) % 5] & c[(x + 2) % 5]);
        }
        a[0] ^= of_round[round];
    }
    digest[2 * i] = make_ulonglong2(a[0], a[1]);
    digest[2 * i + 1] = make_ulonglong2(a[2], a[3]);
}
