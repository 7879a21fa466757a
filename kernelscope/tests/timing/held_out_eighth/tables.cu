// Texts, hashes, and the sort and compression of bytes.

__device__ __forceinline__ unsigned bits_of(unsigned four, unsigned letter)
{
    const unsigned same = __vcmpeq4(four, letter * 0x01010101u) & 0x01010101u;
    return same * 0x10204080u >> 28;
}

// What of a text is in quotes, and where outside of them a comma or a colon is: a bit a letter,
// quoted and mark (n). Records are 2048 letters and begin outside. A warp takes a record, a lane 64
// letters; n counts lanes and is a multiple of 32.
extern "C" __global__ void quote_masks(
    const uint4* __restrict__ text, unsigned long long* __restrict__ quoted,
    unsigned long long* __restrict__ mark, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    if (i >= n) return;
    unsigned long long quotes = 0, marks = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const uint4 v = text[(size_t)i * 4 + j];
        const unsigned word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int by = 16 * j + 4 * k;
            quotes |= (unsigned long long)bits_of(word[k], '"') << by;
            marks |= (unsigned long long)(bits_of(word[k], ',') | bits_of(word[k], ':')) << by;
        }
    }
    const unsigned odd = __ballot_sync(0xFFFFFFFF, __popcll(quotes) & 1);
    for (int step = 1; step < 64; step *= 2) quotes ^= quotes << step;
    if (__popc(odd & ((1u << lane) - 1)) & 1) quotes = ~quotes;
    quoted[i] = quotes;
    mark[i] = marks & ~quotes;
}

// The 4096 registers of HyperLogLog: the hash's upper 12 bits are the register, and the zeros that
// lead the others, plus one, its least value.
extern "C" __global__ void __launch_bounds__(512) hyper_log_log(
    const unsigned long long* __restrict__ key, int* registers, int n)
{
    __shared__ int own[4096];
    for (int i = threadIdx.x; i < 4096; i += blockDim.x) own[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        unsigned long long h = key[i];
        h = (h ^ h >> 32) * 0xd6e8feb86659fd93ull;
        h = (h ^ h >> 32) * 0xd6e8feb86659fd93ull;
        h ^= h >> 32;
        atomicMax(&own[h >> 52], __clzll(h << 12 | 1ull << 11) + 1);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 4096; i += blockDim.x)
        if (own[i] > 0) atomicMax(&registers[i], own[i]);
}

// Each 4096 of the bytes are sorted by counting. A block of 256 takes them: a thread counts 16,
// then has the count of one value in a scan, then writes 16, whose values it searches.
extern "C" __global__ void __launch_bounds__(256) sort_bytes_block(
    const uint4* __restrict__ byte, uint4* __restrict__ sorted)
{
    __shared__ int count[256], end[256], part[8];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const size_t at = (size_t)blockIdx.x * 256 + t;
    count[t] = 0;
    __syncthreads();
    const uint4 v = byte[at];
    const unsigned word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 16; ++i) atomicAdd(&count[word[i / 4] >> 8 * (i % 4) & 255], 1);
    __syncthreads();
    int sum = count[t];
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xFFFFFFFF, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) part[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; ++w) sum += part[w];
    end[t] = sum;
    __syncthreads();
    int value = 0;  // the least whose end is behind place 16 t
    for (int step = 128; step > 0; step /= 2)
        if (end[value + step - 1] <= 16 * t) value += step;
    unsigned out[4] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        while (end[value] <= 16 * t + i) ++value;
        out[i / 4] |= (unsigned)value << 8 * (i % 4);
    }
    sorted[at] = make_uint4(out[0], out[1], out[2], out[3]);
}

// The longest match of the letters from each place on with those from up to `window` places before
// on, of at most 32 letters: length << 16 | distance, the nearest of the longest, 0 where there is
// none. Letters are the lowest two bits of bytes; n places have n + 256 + 32, the first 256 of them
// before the first place. A thread takes a place; window <= 256.
extern "C" __global__ void __launch_bounds__(256) lz_longest_match(
    const unsigned char* __restrict__ text, int* __restrict__ match, int n, int window)
{
    __shared__ unsigned char near[256 + 256 + 32];
    const int start = blockIdx.x * 256, t = threadIdx.x;
    for (int i = t; i < 544; i += 256) near[i] = start + i < n + 288 ? text[start + i] & 3 : 4;
    __syncthreads();
    if (start + t >= n) return;
    const unsigned char* own = near + 256 + t;
    int longest = 0, distance = 0;
    for (int d = 1; d <= window; ++d) {
        int length = 0;
        while (length < 32 && own[length] == own[length - d]) ++length;
        if (length > longest) {
            longest = length;
            distance = d;
        }
    }
    match[start + t] = longest << 16 | distance;
}
