// Bytes: a merge of sorted keys, a cipher, an automaton over lines, minimizers of a genome.

// How many of the first `diagonal` keys of the merge of a and b come from a.
__device__ __forceinline__ int from_a(
    const int* a, int count_a, const int* b, int count_b, int diagonal)
{
    int low = max(0, diagonal - count_b), high = min(diagonal, count_a);
    while (low < high) {
        const int middle = (low + high) / 2;
        if (a[middle] <= b[diagonal - 1 - middle])
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Merges two sorted arrays by merge path. A block of 128 takes 1024 keys of the result, a thread
// eight: two threads find the block's parts in the arrays, then each its own in shared memory.
extern "C" __global__ void __launch_bounds__(128) merge_path_sorted(
    const int* __restrict__ a, const int* __restrict__ b, int* __restrict__ c, int count_a,
    int count_b)
{
    __shared__ int key[1024], bound[2];
    const int t = threadIdx.x, start = blockIdx.x * 1024;
    const int count = min(1024, count_a + count_b - start);
    if (t < 2) bound[t] = from_a(a, count_a, b, count_b, start + t * count);
    __syncthreads();
    const int first_a = bound[0], of_a = bound[1] - first_a;
    const int first_b = start - first_a, of_b = count - of_a;
    for (int i = t; i < count; i += 128)
        key[i] = i < of_a ? a[first_a + i] : b[first_b + i - of_a];
    __syncthreads();
    const int diagonal = min(t * 8, count);
    int p = from_a(key, of_a, key + of_a, of_b, diagonal), q = diagonal - p;
    int merged[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const bool left = q >= of_b || (p < of_a && key[p] <= key[of_a + q]);
        const int at = left ? p++ : of_a + q++;
        merged[i] = key[min(at, 1023)];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i) key[t * 8 + i] = merged[i];
    __syncthreads();
    for (int i = t; i < count; i += 128) c[start + i] = key[i];
}

__constant__ unsigned char S_BOX[256] = {
    0x63, 0x7c, 0x77, 0x7b, 0xf2, 0x6b, 0x6f, 0xc5, 0x30, 0x01, 0x67, 0x2b, 0xfe, 0xd7, 0xab, 0x76,
    0xca, 0x82, 0xc9, 0x7d, 0xfa, 0x59, 0x47, 0xf0, 0xad, 0xd4, 0xa2, 0xaf, 0x9c, 0xa4, 0x72, 0xc0,
    0xb7, 0xfd, 0x93, 0x26, 0x36, 0x3f, 0xf7, 0xcc, 0x34, 0xa5, 0xe5, 0xf1, 0x71, 0xd8, 0x31, 0x15,
    0x04, 0xc7, 0x23, 0xc3, 0x18, 0x96, 0x05, 0x9a, 0x07, 0x12, 0x80, 0xe2, 0xeb, 0x27, 0xb2, 0x75,
    0x09, 0x83, 0x2c, 0x1a, 0x1b, 0x6e, 0x5a, 0xa0, 0x52, 0x3b, 0xd6, 0xb3, 0x29, 0xe3, 0x2f, 0x84,
    0x53, 0xd1, 0x00, 0xed, 0x20, 0xfc, 0xb1, 0x5b, 0x6a, 0xcb, 0xbe, 0x39, 0x4a, 0x4c, 0x58, 0xcf,
    0xd0, 0xef, 0xaa, 0xfb, 0x43, 0x4d, 0x33, 0x85, 0x45, 0xf9, 0x02, 0x7f, 0x50, 0x3c, 0x9f, 0xa8,
    0x51, 0xa3, 0x40, 0x8f, 0x92, 0x9d, 0x38, 0xf5, 0xbc, 0xb6, 0xda, 0x21, 0x10, 0xff, 0xf3, 0xd2,
    0xcd, 0x0c, 0x13, 0xec, 0x5f, 0x97, 0x44, 0x17, 0xc4, 0xa7, 0x7e, 0x3d, 0x64, 0x5d, 0x19, 0x73,
    0x60, 0x81, 0x4f, 0xdc, 0x22, 0x2a, 0x90, 0x88, 0x46, 0xee, 0xb8, 0x14, 0xde, 0x5e, 0x0b, 0xdb,
    0xe0, 0x32, 0x3a, 0x0a, 0x49, 0x06, 0x24, 0x5c, 0xc2, 0xd3, 0xac, 0x62, 0x91, 0x95, 0xe4, 0x79,
    0xe7, 0xc8, 0x37, 0x6d, 0x8d, 0xd5, 0x4e, 0xa9, 0x6c, 0x56, 0xf4, 0xea, 0x65, 0x7a, 0xae, 0x08,
    0xba, 0x78, 0x25, 0x2e, 0x1c, 0xa6, 0xb4, 0xc6, 0xe8, 0xdd, 0x74, 0x1f, 0x4b, 0xbd, 0x8b, 0x8a,
    0x70, 0x3e, 0xb5, 0x66, 0x48, 0x03, 0xf6, 0x0e, 0x61, 0x35, 0x57, 0xb9, 0x86, 0xc1, 0x1d, 0x9e,
    0xe1, 0xf8, 0x98, 0x11, 0x69, 0xd9, 0x8e, 0x94, 0x9b, 0x1e, 0x87, 0xe9, 0xce, 0x55, 0x28, 0xdf,
    0x8c, 0xa1, 0x89, 0x0d, 0xbf, 0xe6, 0x42, 0x68, 0x41, 0x99, 0x2d, 0x0f, 0xb0, 0x54, 0xbb, 0x16,
};

__device__ __forceinline__ unsigned byte_of(unsigned word, int place)
{
    return word >> 8 * place & 255;
}

// AES-128 in counter mode; the key's eleven rounds are given. A block makes the table of a round in
// shared memory, and a thread takes 16 bytes of the text.
extern "C" __global__ void __launch_bounds__(256) aes_128_ctr(
    const uint4* __restrict__ text, const uint4* __restrict__ round_key, uint4* __restrict__ out,
    int n, int nonce)
{
    __shared__ unsigned table[256];
    __shared__ uint4 key[11];
    const int t = threadIdx.x, i = blockIdx.x * 256 + t;
    const unsigned s = S_BOX[t], twice = (s << 1 ^ (s >> 7) * 0x1B) & 255;
    table[t] = twice | s << 8 | s << 16 | (twice ^ s) << 24;
    if (t < 11) key[t] = round_key[t];
    __syncthreads();
    if (i >= n) return;
    unsigned a = (unsigned)nonce ^ key[0].x, b = key[0].y, c = key[0].z;
    unsigned d = __byte_perm(i, 0, 0x0123) ^ key[0].w;
#pragma unroll
    for (int round = 1; round < 10; ++round) {
        const uint4 k = key[round];
        auto column = [&](unsigned p, unsigned q, unsigned r, unsigned v, unsigned of_key) {
            const unsigned second = table[byte_of(q, 1)], third = table[byte_of(r, 2)];
            const unsigned fourth = table[byte_of(v, 3)];
            return table[byte_of(p, 0)] ^ __funnelshift_l(second, second, 8) ^
                   __funnelshift_l(third, third, 16) ^ __funnelshift_l(fourth, fourth, 24) ^ of_key;
        };
        const unsigned w = column(a, b, c, d, k.x), x = column(b, c, d, a, k.y);
        const unsigned y = column(c, d, a, b, k.z), z = column(d, a, b, c, k.w);
        a = w;
        b = x;
        c = y;
        d = z;
    }
    auto column = [&](unsigned p, unsigned q, unsigned r, unsigned v, unsigned of_key) {
        return (byte_of(table[byte_of(p, 0)], 1) | byte_of(table[byte_of(q, 1)], 1) << 8 |
                byte_of(table[byte_of(r, 2)], 1) << 16 | byte_of(table[byte_of(v, 3)], 1) << 24) ^
               of_key;
    };
    uint4 v = text[i];
    v.x ^= column(a, b, c, d, key[10].x);
    v.y ^= column(b, c, d, a, key[10].y);
    v.z ^= column(c, d, a, b, key[10].z);
    v.w ^= column(d, a, b, c, key[10].w);
    out[i] = v;
}

// Runs an automaton of 16 states over lines of 64 bytes, and counts how often each line comes to
// state 0. The table of states by bytes is in shared memory; a thread takes a line.
extern "C" __global__ void __launch_bounds__(256) automaton_lines(
    const uint4* __restrict__ text, const int* __restrict__ next, int* __restrict__ matches, int n)
{
    __shared__ unsigned char table[4096];
    for (int i = threadIdx.x; i < 4096; i += 256) table[i] = (unsigned char)next[i];
    __syncthreads();
    const int line = blockIdx.x * 256 + threadIdx.x;
    if (line >= n) return;
    int state = 1, found = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint4 v = text[(size_t)line * 4 + i];
        const unsigned word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            state = table[state * 256 + (word[j / 4] >> j % 4 * 8 & 255)];
            found += state == 0;
        }
    }
    matches[line] = found;
}

// The minimizers of a genome: in each window of ten neighbours, the place of the 15-mer with the
// least hash, the same for both strands. A block takes 256 windows, and a thread a 15-mer or two.
extern "C" __global__ void __launch_bounds__(256) minimizers_10_15(
    const unsigned char* __restrict__ genome, int* __restrict__ place, int windows)
{
    __shared__ unsigned char base[280];
    __shared__ unsigned hash[265];
    const int t = threadIdx.x, start = blockIdx.x * 256, bases = windows + 23;
    for (int i = t; i < 279; i += 256) base[i] = start + i < bases ? genome[start + i] & 3 : 0;
    __syncthreads();
    for (int i = t; i < 265; i += 256) {
        unsigned forward = 0, backward = 0;
#pragma unroll
        for (int j = 0; j < 15; ++j) {
            const unsigned own = base[i + j];
            forward = forward << 2 | own;
            backward = backward >> 2 | (3 - own) << 28;
        }
        unsigned h = min(forward, backward);
        h = (h ^ h >> 16) * 0x7FEB352Du;
        h = (h ^ h >> 15) * 0x846CA68Bu;
        hash[i] = h ^ h >> 16;
    }
    __syncthreads();
    if (start + t >= windows) return;
    unsigned least = hash[t];
    int at = t;
#pragma unroll
    for (int j = 1; j < 10; ++j)
        if (hash[t + j] < least) {
            least = hash[t + j];
            at = t + j;
        }
    place[start + t] = start + at;
}
