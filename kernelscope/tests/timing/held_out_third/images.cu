// Images of bytes or floats.

__device__ void order(int& a, int& b)
{
    const int low = min(a, b);
    b = max(a, b);
    a = low;
}

// The median of 3 x 3 bytes, the border repeated: columns sorted, then the median of three.
extern "C" __global__ void median_3x3(
    const unsigned char* in, unsigned char* out, int height, int width)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    int v[3][3];
    for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j) {
            const int row = min(max(y + j - 1, 0), height - 1);
            const int column = min(max(x + i - 1, 0), width - 1);
            v[i][j] = in[row * width + column];
        }
    for (int i = 0; i < 3; ++i) {
        order(v[i][0], v[i][1]);
        order(v[i][1], v[i][2]);
        order(v[i][0], v[i][1]);
    }
    int a = max(max(v[0][0], v[1][0]), v[2][0]);
    int b = max(min(v[0][1], v[1][1]), min(max(v[0][1], v[1][1]), v[2][1]));
    int c = min(min(v[0][2], v[1][2]), v[2][2]);
    order(a, b);
    order(b, c);
    order(a, b);
    out[y * width + x] = b;
}

// Weights fall with distance and with the difference of values, in a window of 5 x 5.
extern "C" __global__ void bilateral(
    const float* in, float* out, int height, int width, float space, float range)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const float centre = in[y * width + x];
    float sum = 0.0f, weights = 0.0f;
    for (int dy = -2; dy <= 2; ++dy)
        for (int dx = -2; dx <= 2; ++dx) {
            const int row = min(max(y + dy, 0), height - 1);
            const int column = min(max(x + dx, 0), width - 1);
            const float value = in[row * width + column], apart = value - centre;
            const float weight = expf(-space * (dx * dx + dy * dy) - range * apart * apart);
            sum += weight * value;
            weights += weight;
        }
    out[y * width + x] = sum / weights;
}

// The length of the gradient by Sobel; a block of 16 x 16 loads a tile with its halo.
extern "C" __global__ void sobel_tile(
    const unsigned char* in, unsigned char* out, int height, int width)
{
    __shared__ unsigned char tile[18][18];
    const int x0 = blockIdx.x * 16 - 1, y0 = blockIdx.y * 16 - 1;
    for (int i = threadIdx.y * 16 + threadIdx.x; i < 18 * 18; i += 256) {
        const int x = x0 + i % 18, y = y0 + i / 18;
        tile[i / 18][i % 18] =
            x >= 0 && x < width && y >= 0 && y < height ? in[(size_t)y * width + x] : 0;
    }
    __syncthreads();
    const int c = threadIdx.x + 1, r = threadIdx.y + 1, x = x0 + c, y = y0 + r;
    if (x >= width || y >= height) return;
    const int gx = tile[r - 1][c + 1] + 2 * tile[r][c + 1] + tile[r + 1][c + 1]
        - tile[r - 1][c - 1] - 2 * tile[r][c - 1] - tile[r + 1][c - 1];
    const int gy = tile[r + 1][c - 1] + 2 * tile[r + 1][c] + tile[r + 1][c + 1]
        - tile[r - 1][c - 1] - 2 * tile[r - 1][c] - tile[r - 1][c + 1];
    const float length = sqrtf((float)(gx * gx + gy * gy));
    out[(size_t)y * width + x] = (unsigned char)fminf(length, 255.0f);
}

// The image turned by an angle about its middle; zero where nothing was.
extern "C" __global__ void turn_bilinear(
    const float* in, float* out, int height, int width, float cosine, float sine)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const float dx = x - 0.5f * width, dy = y - 0.5f * height;
    const float u = cosine * dx - sine * dy + 0.5f * width;
    const float v = sine * dx + cosine * dy + 0.5f * height;
    const int left = (int)floorf(u), top = (int)floorf(v);
    float found = 0.0f;
    if (left >= 0 && left + 1 < width && top >= 0 && top + 1 < height) {
        const float* at = in + (size_t)top * width + left;
        const float a = u - left, b = v - top;
        const float upper = (1 - a) * at[0] + a * at[1];
        found = (1 - b) * upper + b * ((1 - a) * at[width] + a * at[width + 1]);
    }
    out[(size_t)y * width + x] = found;
}

// A step of jump flooding: seed (height, width) is the number of the nearest point known, or -1.
extern "C" __global__ void flood_step(
    const int* seed, int* next, int height, int width, int step)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    int best = -1, nearest = 0x7FFFFFFF;
    for (int j = -1; j <= 1; ++j)
        for (int i = -1; i <= 1; ++i) {
            const int c = x + i * step, r = y + j * step;
            if (c < 0 || c >= width || r < 0 || r >= height) continue;
            const int s = seed[r * width + c];
            if (s < 0) continue;
            const int dx = s % width - x, dy = s / width - y, apart = dx * dx + dy * dy;
            if (apart < nearest) {
                nearest = apart;
                best = s;
            }
        }
    next[y * width + x] = best;
}
