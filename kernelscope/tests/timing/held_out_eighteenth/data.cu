// Data: a sort by merges, a stream cipher, runs written out, marks of chunks.

// Sorts each 2048 keys. A thread sorts eight of them in registers; merges follow in shared
// memory, each thread's share of a merge found by bisection.
extern "C" __global__ void __launch_bounds__(256) merge_sort_2048(
    const unsigned* __restrict__ key, unsigned* __restrict__ out)
{
    __shared__ unsigned own[2048];
    const int t = threadIdx.x;
    const size_t first = (size_t)blockIdx.x * 2048;
    for (int i = t; i < 2048; i += 256) own[i] = key[first + i];
    __syncthreads();
    unsigned k[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) k[i] = own[8 * t + i];
#pragma unroll
    for (int pass = 0; pass < 8; ++pass)
#pragma unroll
        for (int i = pass & 1; i < 7; i += 2) {
            const unsigned low = min(k[i], k[i + 1]);
            k[i + 1] = max(k[i], k[i + 1]);
            k[i] = low;
        }
    for (int length = 8; length < 2048; length *= 2) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; ++i) own[8 * t + i] = k[i];
        __syncthreads();
        const int start = 8 * t & ~(2 * length - 1), place = 8 * t - start;
        const unsigned *a = own + start, *b = a + length;
        int low = max(0, place - length), high = min(place, length);
        while (low < high) {
            const int middle = (low + high) / 2;
            if (a[middle] <= b[place - 1 - middle])
                low = middle + 1;
            else
                high = middle;
        }
        int i = low, j = place - low;
#pragma unroll
        for (int l = 0; l < 8; ++l) {
            const bool of_a = j >= length || (i < length && a[i] <= b[j]);
            k[l] = of_a ? a[i++] : b[j++];
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i) own[8 * t + i] = k[i];
    __syncthreads();
    for (int i = t; i < 2048; i += 256) out[first + i] = own[i];
}

__device__ __forceinline__ void quarter(unsigned& a, unsigned& b, unsigned& c, unsigned& d)
{
    a += b;
    d = __funnelshift_l(d ^ a, d ^ a, 16);
    c += d;
    b = __funnelshift_l(b ^ c, b ^ c, 12);
    a += b;
    d = __funnelshift_l(d ^ a, d ^ a, 8);
    c += d;
    b = __funnelshift_l(b ^ c, b ^ c, 7);
}

// ChaCha20, as RFC 8439 has it: a thread takes 64 bytes of the text.
extern "C" __global__ void __launch_bounds__(256) chacha20_xor(
    const uint4* __restrict__ text, const unsigned* __restrict__ key,
    const unsigned* __restrict__ nonce, uint4* __restrict__ out, int blocks, unsigned counter)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= blocks) return;
    unsigned start[16] = {0x61707865u, 0x3320646Eu, 0x79622D32u, 0x6B206574u};
#pragma unroll
    for (int j = 0; j < 8; ++j) start[4 + j] = key[j];
    start[12] = counter + i;
#pragma unroll
    for (int j = 0; j < 3; ++j) start[13 + j] = nonce[j];
    unsigned s[16];
#pragma unroll
    for (int j = 0; j < 16; ++j) s[j] = start[j];
#pragma unroll 2
    for (int round = 0; round < 10; ++round) {
#pragma unroll
        for (int j = 0; j < 4; ++j) quarter(s[j], s[4 + j], s[8 + j], s[12 + j]);
#pragma unroll
        for (int j = 0; j < 4; ++j)
            quarter(s[j], s[4 + (j + 1) % 4], s[8 + (j + 2) % 4], s[12 + (j + 3) % 4]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        uint4 v = text[(size_t)i * 4 + j];
        v.x ^= s[4 * j] + start[4 * j];
        v.y ^= s[4 * j + 1] + start[4 * j + 1];
        v.z ^= s[4 * j + 2] + start[4 * j + 2];
        v.w ^= s[4 * j + 3] + start[4 * j + 3];
        out[(size_t)i * 4 + j] = v;
    }
}

// Writes runs out: number i of the output is of the last run that begins at i or before. A thread
// takes a number and finds its run by bisection.
extern "C" __global__ void expand_runs(
    const int* __restrict__ begin, const float* __restrict__ value, float* __restrict__ out,
    int runs)
{
    const int total = begin[runs];
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        int low = 0, high = runs;
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (begin[middle] <= i)
                low = middle;
            else
                high = middle;
        }
        out[i] = value[low];
    }
}

// Marks the bytes after which a chunk may end, by a gear hash of the last 32 bytes. A thread takes
// 64 bytes; the hash is 0 before the first byte of the text.
extern "C" __global__ void __launch_bounds__(256) gear_chunk_marks(
    const uint4* __restrict__ text, const unsigned* __restrict__ gear,
    unsigned long long* __restrict__ marks, int parts, unsigned mask)
{
    __shared__ unsigned table[256];
    table[threadIdx.x] = gear[threadIdx.x];
    __syncthreads();
    const int part = blockIdx.x * 256 + threadIdx.x;
    if (part >= parts) return;
    unsigned hash = 0;
    unsigned long long found = 0;
    for (int i = part ? -2 : 0; i < 4; ++i) {
        const uint4 v = text[(long long)part * 4 + i];
        const unsigned words[4] = {v.x, v.y, v.z, v.w};
        unsigned hits = 0;
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            hash = (hash << 1) + table[words[j / 4] >> 8 * (j % 4) & 255];
            if (!(hash & mask)) hits |= 1u << j;
        }
        if (i >= 0) found |= (unsigned long long)hits << 16 * i;
    }
    marks[part] = found;
}
