// Searches, prefix sums, joins and strings.

// Where each query would stand in sorted (n,): before all that are not smaller.
extern "C" __global__ void lower_bounds(
    const int* sorted, const int* query, int* place, int n, int queries)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= queries) return;
    int wanted = query[i];
    int low = 0, high = n;
    while (low < high) {
        int middle = (low + high) / 2;
        if (sorted[middle] < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    place[i] = low;
}

// Sums of what stands before each number of a block's 1,024, and the block's total: up a tree in
// shared memory and down again, as by Blelloch.
extern "C" __global__ void scan_blelloch(const int* x, int* y, int* total, int n)
{
    __shared__ int tree[1024];
    int t = threadIdx.x, first = blockIdx.x * 1024;
    tree[2 * t] = first + 2 * t < n ? x[first + 2 * t] : 0;
    tree[2 * t + 1] = first + 2 * t + 1 < n ? x[first + 2 * t + 1] : 0;
    int offset = 1;
    for (int d = 512; d > 0; d >>= 1) {
        __syncthreads();
        if (t < d) tree[offset * (2 * t + 2) - 1] += tree[offset * (2 * t + 1) - 1];
        offset *= 2;
    }
    if (t == 0) {
        total[blockIdx.x] = tree[1023];
        tree[1023] = 0;
    }
    for (int d = 1; d < 1024; d *= 2) {
        offset >>= 1;
        __syncthreads();
        if (t < d) {
            int a = offset * (2 * t + 1) - 1, b = offset * (2 * t + 2) - 1;
            int left = tree[a];
            tree[a] = tree[b];
            tree[b] += left;
        }
    }
    __syncthreads();
    if (first + 2 * t < n) y[first + 2 * t] = tree[2 * t];
    if (first + 2 * t + 1 < n) y[first + 2 * t + 1] = tree[2 * t + 1];
}

// The rows of a table stand in buckets (a power of two) from first[b] to first[b + 1]: the sum of
// the amounts of those with a query's key. The lowest 3 bits are kept as the key, the next ones are
// the bucket.
extern "C" __global__ void join_buckets(
    const unsigned* __restrict__ query, const int* __restrict__ first, const int* __restrict__ key,
    const int* __restrict__ amount, int* __restrict__ sum, int n, int buckets)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const unsigned wanted = query[i], bucket = wanted / 8 & (buckets - 1);
        const int end = first[bucket + 1];
        int found = 0;
        for (int row = first[bucket]; row < end; ++row)
            if (key[row] == wanted % 8) found += amount[row];
        sum[i] = found;
    }
}

// Numbers in decimal, on the right of 11 places, and the end of a line.
extern "C" __global__ void to_decimal(const unsigned* x, char* text, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned v = x[i];
    char* line = text + 12 * (size_t)i;
    int at = 10;
    do {
        line[at--] = '0' + v % 10;
        v /= 10;
    } while (v > 0);
    while (at >= 0) line[at--] = ' ';
    line[11] = '\n';
}

// The least number of edits that turn a pattern of 32 letters into some part of a text, by Myers's
// vectors of bits. A letter has 2 bits: pattern (2, n), text (words, n), one pair a thread.
extern "C" __global__ void edit_bits(
    const unsigned* pattern, const unsigned* text, int* least, int n, int words)
{
    __shared__ unsigned where[4][128];
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    for (int letter = 0; letter < 4; ++letter) where[letter][threadIdx.x] = 0;
    for (int half = 0; half < 2; ++half) {
        unsigned letters = pattern[half * n + i];
        for (int j = 0; j < 16; ++j) {
            where[letters & 3][threadIdx.x] |= 1u << (16 * half + j);
            letters >>= 2;
        }
    }
    unsigned plus = ~0u, minus = 0;
    int score = 32, best = 32;
    for (int w = 0; w < words; ++w) {
        unsigned letters = text[(size_t)w * n + i];
        for (int j = 0; j < 16; ++j) {
            const unsigned same = where[letters & 3][threadIdx.x];
            const unsigned down = same | minus;
            const unsigned across = (((same & plus) + plus) ^ plus) | same;
            unsigned more = minus | ~(across | plus), less = plus & across;
            score += (int)(more >> 31) - (int)(less >> 31);
            more <<= 1;
            less <<= 1;
            plus = less | ~(down | more);
            minus = more & down;
            best = min(best, score);
            letters >>= 2;
        }
    }
    least[i] = best;
}
