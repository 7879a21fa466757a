// Steps of image processing, on bytes.

// Sums of each row up to every pixel, width a multiple of 4: a block of 256 takes a row, 1,024
// pixels at a time.
extern "C" __global__ void integral_rows(const uchar4* image, int4* sums, int width)
{
    __shared__ int part[8];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t row = (size_t)blockIdx.x * (width / 4);
    int before = 0;
    for (int first = 0; first < width / 4; first += 256) {
        const int i = first + threadIdx.x;
        const bool inside = i < width / 4;
        const uchar4 v = inside ? image[row + i] : make_uchar4(0, 0, 0, 0);
        const int own = v.x + v.y + v.z + v.w;
        int sum = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(~0u, sum, step);
            if (lane >= step) sum += other;
        }
        if (lane == 31) part[warp] = sum;
        __syncthreads();
        int all = 0;
#pragma unroll
        for (int w = 0; w < 8; ++w) {
            if (w == warp) sum += all;
            all += part[w];
        }
        __syncthreads();
        int4 found;
        found.x = before + sum - own + v.x;
        found.y = found.x + v.y;
        found.z = found.y + v.z;
        found.w = found.z + v.w;
        if (inside) sums[row + i] = found;
        before += all;
    }
}

// The histogram (256,) of an image becomes even: each block makes the table of new values, and a
// thread takes four pixels at a time.
extern "C" __global__ void equalise(
    const int* histogram, const unsigned* image, unsigned* out, int quads)
{
    __shared__ int sum[256];
    __shared__ unsigned char table[256];
    const int t = threadIdx.x;
    sum[t] = histogram[t];
    __syncthreads();
    for (int step = 1; step < 256; step *= 2) {
        const int other = t >= step ? sum[t - step] : 0;
        __syncthreads();
        sum[t] += other;
        __syncthreads();
    }
    const int least = sum[0], range = sum[255] - least;
    table[t] = (long long)(sum[t] - least) * 255 / max(range, 1);
    __syncthreads();
    for (int i = blockIdx.x * 256 + t; i < quads; i += gridDim.x * 256) {
        const unsigned v = image[i];
        out[i] = table[v & 255] | table[v >> 8 & 255] << 8 | table[v >> 16 & 255] << 16
                 | (unsigned)table[v >> 24] << 24;
    }
}

// Histograms of oriented gradients: a cell of 8 x 8 pixels has nine directions of 20 degrees, and a
// pixel counts as much as its gradient is long. A block has four cells.
extern "C" __global__ void hog_cells(
    const unsigned char* image, float* cells, int height, int width)
{
    __shared__ float bins[4][9];
    const int own = threadIdx.y * 16 + threadIdx.x;
    if (own < 36) bins[own / 9][own % 9] = 0.0f;
    __syncthreads();
    const int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    const int left = max(x - 1, 0), right = min(x + 1, width - 1);
    const int above = max(y - 1, 0), below = min(y + 1, height - 1);
    float dx = (float)image[y * width + right] - (float)image[y * width + left];
    float dy = (float)image[below * width + x] - (float)image[above * width + x];
    const float length = sqrtf(dx * dx + dy * dy);
    if (dy < 0.0f || (dy == 0.0f && dx < 0.0f)) {
        dx = -dx;
        dy = -dy;
    }
    const int bin = min((int)(atan2f(dy, dx) * (9.0f / 3.14159265f)), 8);
    const int cell = threadIdx.y / 8 * 2 + threadIdx.x / 8;
    atomicAdd(&bins[cell][bin], length);
    __syncthreads();
    if (own < 36) {
        const int c = own / 9;
        const int row = blockIdx.y * 2 + c / 2, column = blockIdx.x * 2 + c % 2;
        cells[((size_t)row * (width / 8) + column) * 9 + own % 9] = bins[c][own % 9];
    }
}
