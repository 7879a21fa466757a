// Loops of integers and bits.

// seed (n,) u32; mean (n,) float32 of `steps` numbers of a linear congruential generator
extern "C" __global__ void lcg_mean(const unsigned* seed, float* mean, int n, int steps)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned state = seed[i];
    unsigned long long sum = 0;
    for (int j = 0; j < steps; ++j) {
        state = 1664525u * state + 1013904223u;
        sum += state >> 8;
    }
    mean[i] = (float)sum / steps;
}

extern "C" __global__ void xorshift(const unsigned* seed, unsigned* last, int n, int steps)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x = seed[i] | 1u, y = x * 3u, z = x ^ 0x9e3779b9u, w = ~x;
    for (int j = 0; j < steps; ++j) {
        const unsigned t = x ^ (x << 11);
        x = y;
        y = z;
        z = w;
        w = w ^ (w >> 19) ^ t ^ (t >> 8);
    }
    last[i] = w;
}

// Steps of the Collatz sequence of i + 1, at most `most`: warps diverge.
extern "C" __global__ void collatz(int* steps, int n, int most)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned v = i + 1;
    int count = 0;
    while (v != 1 && count < most) {
        v = v & 1 ? 3 * v + 1 : v / 2;
        ++count;
    }
    steps[i] = count;
}

// How often the byte `wanted` is in `words` (n,) u32: four bytes a word, one sum a block.
extern "C" __global__ void count_byte(const unsigned* words, int* counts, int n, int wanted)
{
    __shared__ int sums[8];
    const unsigned pattern = 0x01010101u * wanted;
    int found = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const unsigned apart = words[i] ^ pattern;
        for (int byte = 0; byte < 4; ++byte) found += (apart >> 8 * byte & 255u) == 0;
    }
    for (int step = 16; step > 0; step /= 2) found += __shfl_down_sync(~0u, found, step);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = found;
    __syncthreads();
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int w = 0; w < 8; ++w) sum += sums[w];
        counts[blockIdx.x] = sum;
    }
}

// Hamming distance of each of n keys to each of 64: keys (n, 4), others (64, 4) u32, nearest (n,)
extern "C" __global__ void nearest_code(
    const uint4* keys, const uint4* others, int* nearest, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const uint4 key = keys[i];
    int best = 129, at = 0;
    for (int j = 0; j < 64; ++j) {
        const uint4 other = others[j];
        const int apart = __popc(key.x ^ other.x) + __popc(key.y ^ other.y) +
                          __popc(key.z ^ other.z) + __popc(key.w ^ other.w);
        if (apart < best) {
            best = apart;
            at = j;
        }
    }
    nearest[i] = at;
}

// Mandelbrot's loop in fixed point, 12 bits behind the point.
extern "C" __global__ void mandelbrot_fixed(int* steps, int width, int height, int most)
{
    const int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 8 + threadIdx.y;
    if (c >= width || r >= height) return;
    const int a = -8192 + 12288 * c / width, b = -4915 + 9830 * r / height;
    int x = 0, y = 0, i = 0;
    while (i < most && x * x + y * y < 4 << 24) {
        const int next = ((x * x - y * y) >> 12) + a;
        y = (x * y >> 11) + b;
        x = next;
        ++i;
    }
    steps[r * width + c] = i;
}
