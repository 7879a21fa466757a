// Strings, bits, hashes and tables.

__constant__ char LETTERS[65] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Three bytes become four letters.
extern "C" __global__ void base64_encode(const unsigned char* in, uchar4* out, int groups)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= groups) return;
    const unsigned all = in[3 * i] << 16 | in[3 * i + 1] << 8 | in[3 * i + 2];
    out[i] = make_uchar4(LETTERS[all >> 18], LETTERS[all >> 12 & 63], LETTERS[all >> 6 & 63],
                         LETTERS[all & 63]);
}

// CRC-32 of messages of `words` words each, one a thread; the block makes the table.
extern "C" __global__ void crc_messages(
    const unsigned* message, unsigned* crc, int messages, int words)
{
    __shared__ unsigned table[256];
    unsigned entry = threadIdx.x;
    for (int bit = 0; bit < 8; ++bit) entry = entry & 1 ? entry >> 1 ^ 0xEDB88320u : entry >> 1;
    table[threadIdx.x] = entry;
    __syncthreads();
    const int m = blockIdx.x * 256 + threadIdx.x;
    if (m >= messages) return;
    unsigned sum = ~0u;
    for (int w = 0; w < words; ++w) {
        unsigned next = message[(size_t)m * words + w];
        for (int byte = 0; byte < 4; ++byte) {
            sum = sum >> 8 ^ table[(sum ^ next) & 255];
            next >>= 8;
        }
    }
    crc[m] = ~sum;
}

// Where a run of equal numbers begins, its length; elsewhere zero.
extern "C" __global__ void run_lengths(const int* x, int* length, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        int count = 0;
        if (i == 0 || x[i - 1] != x[i]) {
            while (i + count < n && x[i + count] == x[i]) count++;
        }
        length[i] = count;
    }
}

// A table of `slots` (a power of two) keys, 0 where it is empty: how far each query must look.
extern "C" __global__ void probe_table(
    const int* key, const int* query, int* looked, int n, int slots)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int wanted = query[i];
    unsigned at = wanted * 2654435761u;
    at = (at ^ at >> 15) & (slots - 1);
    int steps = 0;
    while (steps < 64) {
        const int found = key[at];
        if (found == wanted || found == 0) break;
        at = (at + 1) & (slots - 1);
        ++steps;
    }
    looked[i] = steps;
}

// Numbers go to 16 buckets of `room` (a power of two) places by their highest bits: a block counts
// its own, takes places for all of them, and writes. cursor (16,) grows; it is taken modulo room.
extern "C" __global__ void bucket_scatter(
    const unsigned* x, unsigned* bucket, unsigned* cursor, int n, int room)
{
    __shared__ unsigned count[16], first[16];
    if (threadIdx.x < 16) count[threadIdx.x] = 0;
    __syncthreads();
    unsigned mine[4], place[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int i = (blockIdx.x * 4 + k) * 256 + threadIdx.x;
        if (i >= n) break;
        mine[k] = x[i];
        place[k] = atomicAdd(&count[mine[k] >> 28], 1u);
    }
    __syncthreads();
    if (threadIdx.x < 16) first[threadIdx.x] = atomicAdd(&cursor[threadIdx.x], count[threadIdx.x]);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        if ((blockIdx.x * 4 + k) * 256 + threadIdx.x >= n) break;
        const unsigned to = mine[k] >> 28;
        bucket[(size_t)to * room + ((first[to] + place[k]) & (room - 1))] = mine[k];
    }
}

// Whether all three bits of a key stand in a Bloom filter of 2^log bits.
extern "C" __global__ void bloom_query(
    const unsigned* filter, const unsigned* key, int* there, int n, int log)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned hash = key[i];
    int found = 1;
    for (int k = 0; k < 3 && found; ++k) {
        hash = (hash ^ hash >> 16) * 0x7FEB352Du;
        const unsigned bit = hash >> (32 - log);
        found = filter[bit / 32] >> bit % 32 & 1;
    }
    there[i] = found;
}

// Bit matrices of 32 words of 32 bits: a warp turns one round.
extern "C" __global__ void bit_transpose(const unsigned* in, unsigned* out, int words)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    const unsigned row = i < words ? in[i] : 0;
    unsigned column = 0;
#pragma unroll
    for (int bit = 0; bit < 32; ++bit) {
        const unsigned all = __ballot_sync(~0u, row >> bit & 1);
        if (lane == bit) column = all;
    }
    if (i < words) out[i] = column;
}

// The distance of edits of two strings of 64 letters: a block takes a pair, along diagonals.
extern "C" __global__ void edit_distance(const char* a, const char* b, int* distance)
{
    __shared__ int row[3][65];
    __shared__ char other[64];
    const int t = threadIdx.x, j = t + 1;
    const char mine = a[blockIdx.x * 64 + t] & 7;
    other[t] = b[blockIdx.x * 64 + t] & 7;
    if (t == 0) row[0][0] = 0;
    for (int d = 1; d <= 128; ++d) {
        int *now = row[d % 3], *last = row[(d + 2) % 3], *before = row[(d + 1) % 3];
        __syncthreads();
        if (t == 0) now[0] = d;
        const int i = d - j;
        if (i == 0) now[j] = d;
        if (i >= 1 && i <= 64) {
            const int same = before[j - 1] + (mine != other[i - 1]);
            now[j] = min(min(last[j], last[j - 1]) + 1, same);
        }
    }
    __syncthreads();
    if (t == 0) distance[blockIdx.x] = row[128 % 3][64];
}

__device__ void add_bit(unsigned bit, unsigned& ones, unsigned& twos, unsigned& fours)
{
    const unsigned carry = ones & bit;
    ones ^= bit;
    fours |= twos & carry;
    twos ^= carry;
}

// The game of life on a torus, 32 cells to a word: a thread takes a word.
extern "C" __global__ void life_bits(const unsigned* in, unsigned* out, int height, int words)
{
    const int w = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (w >= words) return;
    const int left = w == 0 ? words - 1 : w - 1, right = w == words - 1 ? 0 : w + 1;
    unsigned ones = 0, twos = 0, fours = 0, own = 0;
    for (int j = -1; j <= 1; ++j) {
        const unsigned* row = in + (size_t)((y + j + height) % height) * words;
        const unsigned here = row[w];
        add_bit(__funnelshift_l(row[left], here, 1), ones, twos, fours);
        add_bit(__funnelshift_r(here, row[right], 1), ones, twos, fours);
        if (j == 0)
            own = here;
        else
            add_bit(here, ones, twos, fours);
    }
    out[(size_t)y * words + w] = twos & ~fours & (ones | own);
}
