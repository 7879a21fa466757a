// Bits and integers: a cipher, binary descriptors, sums of rows, a column of a table.

__device__ __forceinline__ void quarter_round(unsigned& a, unsigned& b, unsigned& c, unsigned& d)
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

// text XOR the stream of ChaCha20 (RFC 8439): key of 8 words, nonce of 3. A thread takes a block of
// 64 bytes.
extern "C" __global__ void chacha20_xor(
    const unsigned* __restrict__ text, const unsigned* __restrict__ key,
    const unsigned* __restrict__ nonce, unsigned* __restrict__ cipher, int blocks)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= blocks) return;
    unsigned start[16] = {0x61707865, 0x3320646E, 0x79622D32, 0x6B206574};
#pragma unroll
    for (int j = 0; j < 8; ++j) start[4 + j] = key[j];
    start[12] = i + 1;
#pragma unroll
    for (int j = 0; j < 3; ++j) start[13 + j] = nonce[j];
    unsigned v[16];
#pragma unroll
    for (int j = 0; j < 16; ++j) v[j] = start[j];
    for (int round = 0; round < 10; ++round) {
        quarter_round(v[0], v[4], v[8], v[12]);
        quarter_round(v[1], v[5], v[9], v[13]);
        quarter_round(v[2], v[6], v[10], v[14]);
        quarter_round(v[3], v[7], v[11], v[15]);
        quarter_round(v[0], v[5], v[10], v[15]);
        quarter_round(v[1], v[6], v[11], v[12]);
        quarter_round(v[2], v[7], v[8], v[13]);
        quarter_round(v[3], v[4], v[9], v[14]);
    }
    const uint4* from = (const uint4*)text + (size_t)i * 4;
    uint4* to = (uint4*)cipher + (size_t)i * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        uint4 w = from[j];
        w.x ^= v[4 * j] + start[4 * j];
        w.y ^= v[4 * j + 1] + start[4 * j + 1];
        w.z ^= v[4 * j + 2] + start[4 * j + 2];
        w.w ^= v[4 * j + 3] + start[4 * j + 3];
        to[j] = w;
    }
}

// For each binary descriptor of 256 bits, the descriptor of the other image with the fewest other
// bits: (number, bits). Both images have `count`, and blockIdx.y is the pair of images. A thread
// takes a descriptor; the other ones come through shared memory.
extern "C" __global__ void __launch_bounds__(128) orb_match(
    const unsigned* __restrict__ query, const unsigned* __restrict__ train,
    int2* __restrict__ match, int count)
{
    __shared__ __align__(16) unsigned tile[128][8];
    const int i = blockIdx.x * 128 + threadIdx.x;
    const size_t first = (size_t)blockIdx.y * count;
    unsigned own[8];
#pragma unroll
    for (int w = 0; w < 8; ++w) own[w] = i < count ? query[(first + i) * 8 + w] : 0;
    int best = -1, fewest = 257;
    for (int from = 0; from < count; from += 128) {
        const int many = min(128, count - from);
        __syncthreads();
        for (int j = threadIdx.x; j < many * 8; j += 128)
            tile[j / 8][j % 8] = train[(first + from) * 8 + j];
        __syncthreads();
        for (int j = 0; j < many; ++j) {
            const uint4 a = *(const uint4*)&tile[j][0], b = *(const uint4*)&tile[j][4];
            const int bits = __popc(own[0] ^ a.x) + __popc(own[1] ^ a.y) + __popc(own[2] ^ a.z) +
                             __popc(own[3] ^ a.w) + __popc(own[4] ^ b.x) + __popc(own[5] ^ b.y) +
                             __popc(own[6] ^ b.z) + __popc(own[7] ^ b.w);
            if (bits < fewest) {
                fewest = bits;
                best = from + j;
            }
        }
    }
    if (i < count) match[first + i] = make_int2(best, fewest);
}

// Sums of all numbers so far in each row of n integers of 64 bits. A block of 256 takes a row, a
// thread 4 numbers at a time.
extern "C" __global__ void __launch_bounds__(256) cumsum_rows_i64(
    const unsigned long long* __restrict__ x, unsigned long long* __restrict__ y, int n)
{
    __shared__ unsigned long long of_warp[8];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    x += (size_t)blockIdx.x * n;
    y += (size_t)blockIdx.x * n;
    unsigned long long before = 0;
    for (int from = 0; from < n; from += 1024) {
        const int at = from + 4 * t;
        unsigned long long v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = at + i < n ? x[at + i] : 0;
#pragma unroll
        for (int i = 1; i < 4; ++i) v[i] += v[i - 1];
        unsigned long long sum = v[3];
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const unsigned long long lower = __shfl_up_sync(0xFFFFFFFF, sum, step);
            if (lane >= step) sum += lower;
        }
        if (lane == 31) of_warp[warp] = sum;
        __syncthreads();
        unsigned long long add = before + sum - v[3];
        for (int w = 0; w < 8; ++w) {
            if (w < warp) add += of_warp[w];
            before += of_warp[w];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (at + i < n) y[at + i] = add + v[i];
        __syncthreads();
    }
}

// A column of a table, as Parquet keeps it: numbers of `bits` bits, one behind the other, of rows
// of a dictionary of doubles. A thread takes a value.
extern "C" __global__ void dictionary_decode(
    const unsigned* __restrict__ packed, const double* __restrict__ dictionary,
    double* __restrict__ column, int n, int bits)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const long long bit = (long long)i * bits;
    const unsigned* word = packed + bit / 32;
    const unsigned code = __funnelshift_r(word[0], word[1], bit % 32) & ((1u << bits) - 1);
    column[i] = dictionary[code];
}
