// Data: lower bounds, numbers as text, signatures of documents, compressed series of doubles.

// The place of the first key that is not below each query. A block has 1024 keys, evenly taken
// from the n sorted ones, in shared memory; each thread searches there, and then between two.
extern "C" __global__ void __launch_bounds__(256) lower_bound_splitters(
    const int* __restrict__ key, const int* __restrict__ query, int* __restrict__ place, int n,
    int queries)
{
    __shared__ int splitter[1024];
    const int part = n / 1024;
    for (int i = threadIdx.x; i < 1024; i += 256) splitter[i] = key[i * part];
    __syncthreads();
    for (int i = blockIdx.x * 256 + threadIdx.x; i < queries; i += gridDim.x * 256) {
        const int wanted = query[i];
        int below = 0;
#pragma unroll
        for (int step = 512; step; step /= 2)
            if (splitter[below + step - 1] < wanted) below += step;
        if (splitter[below] < wanted) ++below;
        int low = below ? (below - 1) * part + 1 : 0;
        int high = below < 1024 ? below * part : n;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (key[middle] < wanted)
                low = middle + 1;
            else
                high = middle;
        }
        place[i] = low;
    }
}

// Integers as text: fields of eleven characters, to the right, each with a line's end.
extern "C" __global__ void decimals_from_ints(
    const int* __restrict__ number, uint3* __restrict__ text, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int own = number[i];
    unsigned rest = own < 0 ? 0u - (unsigned)own : (unsigned)own;
    bool sign = own < 0;
    unsigned word[3] = {0, 0, (unsigned)'\n' << 24};
#pragma unroll
    for (int place = 10; place >= 0; --place) {
        unsigned letter = ' ';
        if (rest || place == 10) {
            letter = '0' + rest % 10;
            rest /= 10;
        } else if (sign) {
            letter = '-';
            sign = false;
        }
        word[place / 4] |= letter << place % 4 * 8;
    }
    text[i] = make_uint3(word[0], word[1], word[2]);
}

// Signatures of documents by 128 hash functions: the least hash of a document's tokens. A block
// takes a document, and a thread a function.
extern "C" __global__ void __launch_bounds__(128) minhash_128(
    const unsigned* __restrict__ token, const int* __restrict__ start,
    const unsigned long long* __restrict__ factor, const unsigned long long* __restrict__ addend,
    unsigned* __restrict__ signature)
{
    __shared__ unsigned part[128];
    const int t = threadIdx.x, end = start[blockIdx.x + 1];
    const unsigned long long a = factor[t] | 1, b = addend[t];
    unsigned least = ~0u;
    for (int from = start[blockIdx.x]; from < end; from += 128) {
        const int count = min(128, end - from);
        __syncthreads();
        if (t < count) part[t] = token[from + t];
        __syncthreads();
        for (int i = 0; i < count; ++i) least = min(least, (unsigned)((a * part[i] + b) >> 32));
    }
    signature[blockIdx.x * 128 + t] = least;
}

// The 64 bits of a stream from one of its bits on, highest first; 40 words a stream.
__device__ __forceinline__ unsigned long long bits_from(const unsigned* word, int bit)
{
    const int at = bit >> 5;
    const unsigned a = word[min(at, 39)], b = word[min(at + 1, 39)], c = word[min(at + 2, 39)];
    return (unsigned long long)__funnelshift_l(b, a, bit & 31) << 32 |
           __funnelshift_l(c, b, bit & 31);
}

// Decodes sixteen doubles from each stream, as Gorilla wrote them: a bit says whether a value is
// new, one whether its window is, and a window has its leading zeros and its length. The values'
// bits go to rows of one value of all streams. A thread takes a stream.
extern "C" __global__ void __launch_bounds__(128) gorilla_decode_16(
    const unsigned* __restrict__ stream, unsigned long long* __restrict__ value, int streams)
{
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= streams) return;
    const unsigned* word = stream + (size_t)i * 40;
    unsigned long long last = bits_from(word, 0);
    value[i] = last;
    int bit = 64, leading = 0, length = 64;
    for (int k = 1; k < 16; ++k) {
        const unsigned long long head = bits_from(word, bit);
        if (head >> 63) {
            if (head >> 62 & 1) {
                leading = (int)(head >> 57) & 31;
                length = (int)(head >> 51 & 63) + 1;
                length = min(length, 64 - leading);
                bit += 13;
            } else {
                bit += 2;
            }
            const unsigned long long middle = bits_from(word, bit) >> (64 - length);
            last ^= middle << (64 - leading - length);
            bit += length;
        } else {
            ++bit;
        }
        value[(size_t)k * streams + i] = last;
    }
}
