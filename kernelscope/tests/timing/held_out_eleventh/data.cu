// Data: words of a genome, bytes as text, a sort by counting, columns of bits.

// How often each word of 8 bases is in a sequence, a base a byte's last two bits: count (65536). A
// thread takes a place.
extern "C" __global__ void kmer_histogram(
    const unsigned char* __restrict__ base, int* __restrict__ count, int words)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= words) return;
    int word = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) word = word << 2 | base[i + j] & 3;
    atomicAdd(&count[word], 1);
}

__device__ __forceinline__ unsigned hex_of_2(unsigned two)
{
    unsigned apart = (two & 0xF0) >> 4 | (two & 0x0F) << 8 | (two & 0xF000) << 4 |
                     (two & 0x0F00) << 16;
    const unsigned letter = (apart + 0x06060606 >> 4) & 0x01010101;
    return apart + 0x30303030 + letter * 39;
}

// Bytes as text of two hexadecimal digits each. A thread takes 8 bytes.
extern "C" __global__ void hex_encode(const uint2* __restrict__ x, uint4* __restrict__ text, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const uint2 v = x[i];
    text[i] = make_uint4(hex_of_2(v.x & 0xFFFF), hex_of_2(v.x >> 16), hex_of_2(v.y & 0xFFFF),
                         hex_of_2(v.y >> 16));
}

// Rows of 1024 floats in order: the place of a number is the count of those before it. A block of
// 256 takes a row, a thread four numbers.
extern "C" __global__ void __launch_bounds__(256) rank_sort_rows(
    const float* __restrict__ x, float* __restrict__ y)
{
    __shared__ float row[1024];
    const int t = threadIdx.x;
    x += (size_t)blockIdx.x * 1024;
    y += (size_t)blockIdx.x * 1024;
    float own[4];
    int rank[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) row[t + 256 * i] = own[i] = x[t + 256 * i];
    __syncthreads();
    for (int j = 0; j < 1024; ++j) {
        const float other = row[j];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            rank[i] += other < own[i] || other == own[i] && j < t + 256 * i;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) y[rank[i]] = own[i];
}

// Of each column of an index of bits, the rows that a filter keeps: column (columns, words of 64
// bits), filter (words). A block takes a column.
extern "C" __global__ void __launch_bounds__(256) bitmap_and_count(
    const unsigned long long* __restrict__ column, const unsigned long long* __restrict__ filter,
    int* __restrict__ count, int words)
{
    __shared__ int of_warp[8];
    column += (size_t)blockIdx.x * words;
    int sum = 0;
    for (int i = threadIdx.x; i < words; i += 256) sum += __popcll(column[i] & filter[i]);
    sum = __reduce_add_sync(0xFFFFFFFF, sum);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < 8; ++w) sum += of_warp[w];
        count[blockIdx.x] = sum;
    }
}
