// Histograms, sorts, scans and selections.

// keys (n,) u32; counts (blocks, 16) of four bits from `shift` on
extern "C" __global__ void radix_histogram(const unsigned* keys, int* counts, int n, int shift)
{
    __shared__ int own[16];
    if (threadIdx.x < 16) own[threadIdx.x] = 0;
    __syncthreads();
    const int first = blockIdx.x * 2048 + threadIdx.x;
    for (int i = first; i < first + 2048 && i < n; i += 256)
        atomicAdd(&own[keys[i] >> shift & 15u], 1);
    __syncthreads();
    if (threadIdx.x < 16) counts[blockIdx.x * 16 + threadIdx.x] = own[threadIdx.x];
}

// Counts by a hash of the key in global memory: as many addresses as `bins`.
extern "C" __global__ void hash_counts(const unsigned* keys, int* counts, int n, int bins)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&counts[keys[i] * 2654435761u % bins], 1);
}

// One step of a bitonic sort of n keys, n a power of two, in global memory.
extern "C" __global__ void bitonic_step(unsigned* keys, int n, int size, int step)
{
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n / 2) return;
    const int i = 2 * t - (t & (step - 1)), j = i + step;
    const unsigned a = keys[i], b = keys[j];
    if ((a > b) == !(i & size)) {
        keys[i] = b;
        keys[j] = a;
    }
}

// Prefix sums that begin again where head is odd: a warp takes 32 numbers.
extern "C" __global__ void segmented_scan(const float* x, const int* head, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    float v = i < n ? x[i] : 0.0f;
    int begun = i < n ? head[i] & 1 : 1;
    for (int step = 1; step < 32; step *= 2) {
        const float other = __shfl_up_sync(~0u, v, step);
        const int before = __shfl_up_sync(~0u, begun, step);
        if (lane >= step) {
            if (!begun) v += other;
            begun |= before;
        }
    }
    if (i < n) y[i] = v;
}

// x (rows, columns); at (rows,): where a row is largest. A warp takes a row.
extern "C" __global__ void argmax_rows(const float* x, int* at, int rows, int columns)
{
    const int r = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (r >= rows) return;
    float most = -1e30f;
    int where = 0;
    for (int c = lane; c < columns; c += 32) {
        const float v = x[(size_t)r * columns + c];
        if (v > most) {
            most = v;
            where = c;
        }
    }
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(~0u, most, step);
        const int place = __shfl_xor_sync(~0u, where, step);
        if (other > most || (other == most && place < where)) {
            most = other;
            where = place;
        }
    }
    if (lane == 0) at[r] = where;
}

// The 8 largest of each row of x (rows, columns): a thread takes a column of a transposed x.
extern "C" __global__ void top_8(const float* x, float* best, int rows, int columns)
{
    const int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    float kept[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) kept[k] = -1e30f;
    for (int c = 0; c < columns; ++c) {
        float v = x[(size_t)c * rows + r];
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const float larger = fmaxf(kept[k], v);
            v = fminf(kept[k], v);
            kept[k] = larger;
        }
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) best[k * rows + r] = kept[k];
}
