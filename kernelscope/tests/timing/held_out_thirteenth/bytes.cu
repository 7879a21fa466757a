// Bytes: a scan by a tree, a radix sort of a block, hashes of strings and of messages, deltas.

// Blelloch's exclusive scan, up and down a tree in shared memory, with a pad against conflicts. A
// block of 512 takes 1024 numbers and leaves their sum for a next scan.
extern "C" __global__ void __launch_bounds__(512) blelloch_scan_block(
    const int* __restrict__ x, int* __restrict__ y, int* __restrict__ total)
{
    __shared__ int tree[1024 + 32];
    const int t = threadIdx.x;
    const size_t start = (size_t)blockIdx.x * 1024;
    tree[t + t / 32] = x[start + t];
    tree[t + 512 + (t + 512) / 32] = x[start + t + 512];
    int apart = 1;
    for (int pairs = 512; pairs > 0; pairs >>= 1) {
        __syncthreads();
        if (t < pairs) {
            const int p = apart * (2 * t + 1) - 1, q = apart * (2 * t + 2) - 1;
            tree[q + q / 32] += tree[p + p / 32];
        }
        apart *= 2;
    }
    if (t == 0) {
        total[blockIdx.x] = tree[1023 + 31];
        tree[1023 + 31] = 0;
    }
    for (int pairs = 1; pairs < 1024; pairs *= 2) {
        apart >>= 1;
        __syncthreads();
        if (t < pairs) {
            const int p = apart * (2 * t + 1) - 1, q = apart * (2 * t + 2) - 1;
            const int left = tree[p + p / 32];
            tree[p + p / 32] = tree[q + q / 32];
            tree[q + q / 32] += left;
        }
    }
    __syncthreads();
    y[start + t] = tree[t + t / 32];
    y[start + t + 512] = tree[t + 512 + (t + 512) / 32];
}

// Sorts each 1024 keys, four bits at a time. A block of 256 takes them, a thread four neighbours; a
// column of 16 counts belongs to a thread, and a scan of all counts gives the places.
extern "C" __global__ void __launch_bounds__(256) radix_sort_block_4bit(
    const unsigned* __restrict__ from, unsigned* __restrict__ to)
{
    __shared__ unsigned short count[16 * 256];
    __shared__ unsigned key[1024];
    __shared__ int of_warp[8];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const uint4 first = reinterpret_cast<const uint4*>(from)[(size_t)blockIdx.x * 256 + t];
    unsigned own[4] = {first.x, first.y, first.z, first.w};
    for (int bit = 0; bit < 32; bit += 4) {
#pragma unroll
        for (int d = 0; d < 16; ++d) count[d * 256 + t] = 0;
        int before[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) before[i] = count[(own[i] >> bit & 15) * 256 + t]++;
        __syncthreads();
        int sum = 0;
#pragma unroll
        for (int i = 0; i < 16; ++i) sum += count[16 * t + i];
        int scan = sum;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(0xFFFFFFFF, scan, step);
            if (lane >= step) scan += other;
        }
        if (lane == 31) of_warp[warp] = scan;
        __syncthreads();
        int place = scan - sum;
        for (int w = 0; w < warp; ++w) place += of_warp[w];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const int here = count[16 * t + i];
            count[16 * t + i] = (unsigned short)place;
            place += here;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; ++i)
            key[count[(own[i] >> bit & 15) * 256 + t] + before[i]] = own[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; ++i) own[i] = key[4 * t + i];
    }
    reinterpret_cast<uint4*>(to)[(size_t)blockIdx.x * 256 + t] =
        make_uint4(own[0], own[1], own[2], own[3]);
}

__device__ __forceinline__ unsigned turn_left(unsigned v, int by)
{
    return __funnelshift_l(v, v, by);
}

// MurmurHash3 of 32 bits of strings of a column: string i is the bytes from offset[i] to the next
// one. A thread takes a string.
extern "C" __global__ void murmur3_strings(
    const unsigned char* __restrict__ text, const int* __restrict__ offset,
    unsigned* __restrict__ hash, int n, int seed)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned char* p = text + offset[i];
    const int length = offset[i + 1] - offset[i];
    unsigned h = seed;
    int at = 0;
    for (; at + 4 <= length; at += 4) {
        unsigned k = p[at] | p[at + 1] << 8 | p[at + 2] << 16 | (unsigned)p[at + 3] << 24;
        k = turn_left(k * 0xCC9E2D51u, 15) * 0x1B873593u;
        h = turn_left(h ^ k, 13) * 5 + 0xE6546B64u;
    }
    if (at < length) {
        unsigned k = p[at];
        if (at + 1 < length) k |= p[at + 1] << 8;
        if (at + 2 < length) k |= p[at + 2] << 16;
        h ^= turn_left(k * 0xCC9E2D51u, 15) * 0x1B873593u;
    }
    h ^= length;
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    hash[i] = h ^ h >> 16;
}

// Unpacks a column of numbers in blocks of 128 differences, all of a block in as many bits as the
// largest needs: start counts units of 16 bytes. A warp takes a block, a lane four neighbours.
extern "C" __global__ void unpack_128_deltas(
    const unsigned* __restrict__ packed, const int* __restrict__ start,
    const int* __restrict__ base, int4* __restrict__ number, int blocks)
{
    const int block = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (block >= blocks) return;
    const int first = start[block], bits = start[block + 1] - first;
    const unsigned* from = packed + (size_t)first * 4;
    const unsigned mask = (1u << bits) - 1;
    int v[4], sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int at = (4 * lane + i) * bits, word = at / 32;
        sum += __funnelshift_r(from[word], from[word + 1], at % 32) & mask;
        v[i] = sum;
    }
    int scan = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xFFFFFFFF, scan, step);
        if (lane >= step) scan += other;
    }
    const int before = base[block] + scan - sum;
    number[(size_t)block * 32 + lane] =
        make_int4(before + v[0], before + v[1], before + v[2], before + v[3]);
}

__constant__ unsigned ROUND[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

__device__ __forceinline__ void compress(unsigned* state, unsigned* w)
{
    unsigned a = state[0], b = state[1], c = state[2], d = state[3];
    unsigned e = state[4], f = state[5], g = state[6], h = state[7];
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        if (i >= 16) {
            const unsigned p = w[(i + 1) & 15], q = w[(i + 14) & 15];
            w[i & 15] += (turn_left(p, 25) ^ turn_left(p, 14) ^ p >> 3) + w[(i + 9) & 15] +
                         (turn_left(q, 15) ^ turn_left(q, 13) ^ q >> 10);
        }
        const unsigned s = h + (turn_left(e, 26) ^ turn_left(e, 21) ^ turn_left(e, 7)) +
                           (e & f ^ ~e & g) + ROUND[i] + w[i & 15];
        const unsigned m = (turn_left(a, 30) ^ turn_left(a, 19) ^ turn_left(a, 10)) +
                           (a & b ^ a & c ^ b & c);
        h = g;
        g = f;
        f = e;
        e = d + s;
        d = c;
        c = b;
        b = a;
        a = s + m;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
}

// SHA-256 of messages of 64 bytes, the nodes of a Merkle tree over their pairs. A thread takes a
// message: its words and then the padding.
extern "C" __global__ void __launch_bounds__(128) sha256_64_bytes(
    const uint4* __restrict__ message, uint4* __restrict__ digest, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    unsigned w[16];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const uint4 v = message[(size_t)i * 4 + j];
        w[4 * j] = __byte_perm(v.x, 0, 0x0123);
        w[4 * j + 1] = __byte_perm(v.y, 0, 0x0123);
        w[4 * j + 2] = __byte_perm(v.z, 0, 0x0123);
        w[4 * j + 3] = __byte_perm(v.w, 0, 0x0123);
    }
    compress(state, w);
#pragma unroll
    for (int j = 1; j < 15; ++j) w[j] = 0;
    w[0] = 0x80000000;
    w[15] = 512;
    compress(state, w);
#pragma unroll
    for (int j = 0; j < 8; ++j) state[j] = __byte_perm(state[j], 0, 0x0123);
    digest[(size_t)i * 2] = make_uint4(state[0], state[1], state[2], state[3]);
    digest[(size_t)i * 2 + 1] = make_uint4(state[4], state[5], state[6], state[7]);
}
