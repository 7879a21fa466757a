// Ciphers, checksums, long integers, and packed data.

__device__ __forceinline__ unsigned turned(unsigned v, int bits)
{
    return __funnelshift_l(v, v, bits);
}

// AES with a table (256,) of a byte's column in each round and keys (44,): a thread takes a block
// of four words.
extern "C" __global__ void aes_rounds(
    const uint4* in, uint4* out, const unsigned* table, const unsigned* key, int n)
{
    __shared__ unsigned t[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) t[i] = table[i];
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const uint4 block = in[i];
        unsigned s[4] = {block.x ^ key[0], block.y ^ key[1], block.z ^ key[2], block.w ^ key[3]};
        for (int round = 1; round < 10; ++round) {
            unsigned next[4];
#pragma unroll
            for (int c = 0; c < 4; ++c)
                next[c] = t[s[c] >> 24] ^ turned(t[s[(c + 1) % 4] >> 16 & 255], 24)
                          ^ turned(t[s[(c + 2) % 4] >> 8 & 255], 16)
                          ^ turned(t[s[(c + 3) % 4] & 255], 8) ^ key[round * 4 + c];
#pragma unroll
            for (int c = 0; c < 4; ++c) s[c] = next[c];
        }
        unsigned last[4];
#pragma unroll
        for (int c = 0; c < 4; ++c)
            last[c] = ((t[s[c] >> 24] & 0xFF00) << 16
                       | (t[s[(c + 1) % 4] >> 16 & 255] & 0xFF00) << 8
                       | (t[s[(c + 2) % 4] >> 8 & 255] & 0xFF00)
                       | (t[s[(c + 3) % 4] & 255] & 0xFF00) >> 8)
                      ^ key[40 + c];
        out[i] = make_uint4(last[0], last[1], last[2], last[3]);
    }
}

__constant__ unsigned ROUND[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// SHA-256 of messages of 13 words, one a thread.
extern "C" __global__ void sha256_short(const unsigned* message, unsigned* digest, int n)
{
    const int m = blockIdx.x * blockDim.x + threadIdx.x;
    if (m >= n) return;
    unsigned w[16];
#pragma unroll
    for (int i = 0; i < 13; ++i) w[i] = message[(size_t)m * 13 + i];
    w[13] = 0x80000000u;
    w[14] = 0;
    w[15] = 13 * 32;
    const unsigned start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                               0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    unsigned a = start[0], b = start[1], c = start[2], d = start[3];
    unsigned e = start[4], f = start[5], g = start[6], h = start[7];
#pragma unroll 16
    for (int i = 0; i < 64; ++i) {
        const unsigned high = turned(e, 26) ^ turned(e, 21) ^ turned(e, 7);
        const unsigned low = turned(a, 30) ^ turned(a, 19) ^ turned(a, 10);
        const unsigned one = h + high + ((e & f) ^ (~e & g)) + ROUND[i] + w[i % 16];
        const unsigned two = low + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
        const unsigned before = w[(i + 1) % 16], late = w[(i + 14) % 16];
        w[i % 16] += (turned(before, 25) ^ turned(before, 14) ^ before >> 3) + w[(i + 9) % 16]
                     + (turned(late, 15) ^ turned(late, 13) ^ late >> 10);
    }
    const unsigned all[8] = {a, b, c, d, e, f, g, h};
#pragma unroll
    for (int i = 0; i < 8; ++i) digest[(size_t)m * 8 + i] = start[i] + all[i];
}

// The prime 2^256 - 2^32 - 977, and minus its inverse modulo 2^32.
__device__ __forceinline__ unsigned prime_limb(int i)
{
    return i == 0 ? 0xFFFFFC2Fu : i == 1 ? 0xFFFFFFFEu : 0xFFFFFFFFu;
}
constexpr unsigned INVERSE = 0xD2253531u;

// a, b, product (8, n): numbers of eight limbs are multiplied `turns` times by b, in Montgomery's
// form modulo the prime.
extern "C" __global__ void montgomery_256(
    const unsigned* a, const unsigned* b, unsigned* product, int n, int turns)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x[8], y[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        x[k] = a[k * n + i];
        y[k] = b[k * n + i];
    }
    for (int turn = 0; turn < turns; ++turn) {
        unsigned t[10] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            unsigned long long carry = 0;
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                carry += (unsigned long long)x[k] * y[j] + t[k];
                t[k] = (unsigned)carry;
                carry >>= 32;
            }
            carry += t[8];
            t[8] = (unsigned)carry;
            t[9] = (unsigned)(carry >> 32);
            const unsigned m = t[0] * INVERSE;
            carry = ((unsigned long long)m * prime_limb(0) + t[0]) >> 32;
#pragma unroll
            for (int k = 1; k < 8; ++k) {
                carry += (unsigned long long)m * prime_limb(k) + t[k];
                t[k - 1] = (unsigned)carry;
                carry >>= 32;
            }
            carry += t[8];
            t[7] = (unsigned)carry;
            t[8] = t[9] + (unsigned)(carry >> 32);
        }
        unsigned less[8];
        long long borrow = 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            borrow += (long long)t[k] - prime_limb(k);
            less[k] = (unsigned)borrow;
            borrow >>= 32;
        }
        const bool reduced = t[8] || borrow == 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) x[k] = reduced ? less[k] : t[k];
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) product[k * n + i] = x[k];
}

// Steps through an index of bits (words,), a power of two, with the ones before every eight words:
// a one at a place goes to the upper half, a zero to the lower half, in order.
extern "C" __global__ void walk_index(
    const uint4* __restrict__ bits, const int* __restrict__ ones, const unsigned* start,
    int* reached, int n, int words, int steps)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned mask = words * 32u - 1;
    unsigned place = start[i] & mask;
    for (int step = 0; step < steps; ++step) {
        const unsigned block = place / 256, inside = place % 256;
        const uint4 low = bits[2 * block], high = bits[2 * block + 1];
        const unsigned w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        unsigned rank = ones[block], bit = 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const int here = (int)inside - 32 * k;
            if (here >= 32)
                rank += __popc(w[k]);
            else if (here >= 0) {
                rank += __popc(w[k] & ((1u << here) - 1));
                bit = w[k] >> here & 1;
            }
        }
        place = (bit ? words * 16u + rank : place - rank) & mask;
    }
    reached[i] = place;
}

// Differences of `width` bits with their sign in the lowest bit, 1,024 to a block: their sums.
extern "C" __global__ void unpack_deltas(
    const unsigned* packed, const int* base, int4* out, int width)
{
    __shared__ unsigned words[1025];
    __shared__ int sums[8];
    const unsigned* from = packed + (size_t)blockIdx.x * 32 * width;
    for (int i = threadIdx.x; i <= 32 * width; i += 256) words[i] = from[i];
    __syncthreads();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int value[4], sum = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int bit = (threadIdx.x * 4 + k) * width;
        const unsigned raw = __funnelshift_r(words[bit / 32], words[bit / 32 + 1], bit % 32);
        const unsigned v = raw & ((1u << width) - 1);
        sum += (int)(v >> 1) ^ -(int)(v & 1);
        value[k] = sum;
    }
    int before = sum;
    for (int step = 1; step < 32; step *= 2) {
        const int lower = __shfl_up_sync(~0u, before, step);
        if (lane >= step) before += lower;
    }
    if (lane == 31) sums[warp] = before;
    __syncthreads();
    before += base[blockIdx.x] - sum;
    for (int w = 0; w < warp; ++w) before += sums[w];
    out[(size_t)blockIdx.x * 256 + threadIdx.x] =
        make_int4(before + value[0], before + value[1], before + value[2], before + value[3]);
}
