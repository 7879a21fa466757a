// Stencils, filters and images.

extern "C" __global__ void jacobi_2d(const float* x, float* y, int height, int width)
{
    const int c = blockIdx.x * 32 + threadIdx.x + 1, r = blockIdx.y * 8 + threadIdx.y + 1;
    if (c >= width - 1 || r >= height - 1) return;
    const int i = r * width + c;
    y[i] = 0.25f * (x[i - 1] + x[i + 1] + x[i - width] + x[i + width]);
}

// 27 neighbours of each point of (n, n, n)
extern "C" __global__ void box_3d(const float* x, float* y, int n)
{
    const int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 4 + threadIdx.y;
    const int z = blockIdx.z;
    if (c < 1 || r < 1 || z < 1 || c >= n - 1 || r >= n - 1 || z >= n - 1) return;
    float sum = 0.0f;
#pragma unroll
    for (int dz = -1; dz <= 1; ++dz)
#pragma unroll
        for (int dy = -1; dy <= 1; ++dy)
#pragma unroll
            for (int dx = -1; dx <= 1; ++dx) sum += x[((z + dz) * n + r + dy) * n + c + dx];
    y[(z * n + r) * n + c] = sum / 27.0f;
}

// Mean of 2 * radius + 1 rows, as a running sum: a thread walks down 64 rows of a column.
extern "C" __global__ void box_columns(
    const float* x, float* y, int height, int width, int radius)
{
    const int c = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * 64;
    if (c >= width) return;
    float sum = 0.0f;
    for (int r = first - radius; r < first + radius; ++r)
        if (r >= 0 && r < height) sum += x[r * width + c];
    for (int r = first; r < first + 64 && r < height; ++r) {
        if (r + radius < height) sum += x[(r + radius) * width + c];
        y[r * width + c] = sum / (2 * radius + 1);
        if (r >= radius) sum -= x[(r - radius) * width + c];
    }
}

// image (channels, height, width) -> columns (channels * 9, height * width), zeros outside
extern "C" __global__ void im2col_3x3(const float* image, float* columns, int height, int width)
{
    const int p = blockIdx.x * blockDim.x + threadIdx.x, channel = blockIdx.y;
    if (p >= height * width) return;
    const int r = p / width, c = p % width;
    for (int k = 0; k < 9; ++k) {
        const int y = r + k / 3 - 1, x = c + k % 3 - 1;
        const bool inside = y >= 0 && y < height && x >= 0 && x < width;
        columns[((size_t)channel * 9 + k) * height * width + p] =
            inside ? image[((size_t)channel * height + y) * width + x] : 0.0f;
    }
}

// Bilinear sampling of x (height, width) at `scale` times smaller steps, (4 * n,) of which n a row
extern "C" __global__ void upsample_2(const float* x, float* y, int height, int width)
{
    const int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 8 + threadIdx.y;
    if (c >= 2 * width || r >= 2 * height) return;
    const float fx = fmaxf(0.5f * c - 0.25f, 0.0f), fy = fmaxf(0.5f * r - 0.25f, 0.0f);
    const int x0 = (int)fx, y0 = (int)fy;
    const int x1 = min(x0 + 1, width - 1), y1 = min(y0 + 1, height - 1);
    const float ax = fx - x0, ay = fy - y0;
    const float top = x[y0 * width + x0] * (1.0f - ax) + x[y0 * width + x1] * ax;
    const float low = x[y1 * width + x0] * (1.0f - ax) + x[y1 * width + x1] * ax;
    y[r * 2 * width + c] = top * (1.0f - ay) + low * ay;
}

// (a, b, 64) -> (b, a, 64): rows of 64 change their order.
extern "C" __global__ void permute_rows(const float4* x, float4* y, int a, int b)
{
    const int i = blockIdx.x * 16 + threadIdx.x / 16, part = threadIdx.x % 16;
    if (i < a * b) y[((size_t)(i % b) * a + i / b) * 16 + part] = x[(size_t)i * 16 + part];
}
