// Pictures: histograms of gradients, video to colours, connected parts of tiles, planes of points.

// Histograms of nine directions of the gradients in cells of 8 x 8 pixels; a gradient is shared
// between the two nearest directions. A block takes four cells in shared memory.
extern "C" __global__ void __launch_bounds__(256) hog_cells_8x8(
    const unsigned char* __restrict__ picture, float* __restrict__ histogram, int width,
    int height)
{
    __shared__ float bin[4][9];
    const int t = (threadIdx.z * 8 + threadIdx.y) * 8 + threadIdx.x;
    if (t < 36) bin[t / 9][t % 9] = 0.0f;
    __syncthreads();
    const int x = (blockIdx.x * 4 + threadIdx.z) * 8 + threadIdx.x;
    const int y = blockIdx.y * 8 + threadIdx.y;
    const unsigned char* own = picture + (size_t)blockIdx.z * width * height;
    if (x < width && y < height) {
        const int row = y * width;
        const float dx = (float)own[row + min(x + 1, width - 1)] - own[row + max(x - 1, 0)];
        const float dy =
            (float)own[min(y + 1, height - 1) * width + x] - own[max(y - 1, 0) * width + x];
        const float size = sqrtf(dx * dx + dy * dy);
        float angle = atan2f(dy, dx) * (9.0f / 3.14159265f);
        if (angle < 0.0f) angle += 9.0f;
        const float place = angle - 0.5f, low = floorf(place), part = place - low;
        const int first = ((int)low + 9) % 9, second = ((int)low + 10) % 9;
        atomicAdd(&bin[threadIdx.z][first], size * (1.0f - part));
        atomicAdd(&bin[threadIdx.z][second], size * part);
    }
    __syncthreads();
    const int cells = width / 8, cell = blockIdx.x * 4 + t / 9;
    if (t < 36 && cell < cells)
        histogram[(((size_t)blockIdx.z * gridDim.y + blockIdx.y) * cells + cell) * 9 + t % 9] =
            bin[t / 9][t % 9];
}

__device__ __forceinline__ unsigned byte(int v)
{
    return min(max(v >> 8, 0), 255);
}

// Frames of NV12 to RGB by BT.709 in whole numbers. A thread takes four pixels of two lines, with
// two pairs of colours, and writes three words of each line.
extern "C" __global__ void nv12_to_rgb(
    const unsigned char* __restrict__ frames, unsigned* __restrict__ rgb, int width, int height)
{
    const int x = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    const int y = (blockIdx.y * blockDim.y + threadIdx.y) * 2;
    if (x >= width || y >= height) return;
    const unsigned char* luma = frames + (size_t)blockIdx.z * width * height * 3 / 2;
    const unsigned char* chroma = luma + (size_t)width * height;
    const uchar4 uv = *reinterpret_cast<const uchar4*>(chroma + (size_t)y / 2 * width + x);
    const int u[2] = {uv.x - 128, uv.z - 128}, v[2] = {uv.y - 128, uv.w - 128};
#pragma unroll
    for (int line = 0; line < 2; ++line) {
        const uchar4 p = *reinterpret_cast<const uchar4*>(luma + (size_t)(y + line) * width + x);
        const int own[4] = {p.x, p.y, p.z, p.w};
        unsigned red[4], green[4], blue[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int light = 298 * (own[i] - 16) + 128;
            red[i] = byte(light + 459 * v[i / 2]);
            green[i] = byte(light - 55 * u[i / 2] - 136 * v[i / 2]);
            blue[i] = byte(light + 541 * u[i / 2]);
        }
        unsigned* to = rgb + (((size_t)blockIdx.z * height + y + line) * width + x) / 4 * 3;
        to[0] = red[0] | green[0] << 8 | blue[0] << 16 | red[1] << 24;
        to[1] = green[1] | blue[1] << 8 | red[2] << 16 | green[2] << 24;
        to[2] = blue[2] | red[3] << 8 | green[3] << 16 | blue[3] << 24;
    }
}

__device__ __forceinline__ int root_of(const volatile int* label, int i)
{
    while (label[i] != i) i = label[i];
    return i;
}

__device__ __forceinline__ void unite(int* label, int a, int b)
{
    while (true) {
        a = root_of(label, a);
        b = root_of(label, b);
        if (a == b) return;
        const int high = max(a, b), low = min(a, b), old = atomicMin(&label[high], low);
        if (old == high) return;
        a = old;
        b = low;
    }
}

// Connected parts of bright pixels in tiles of 32 x 16, by their four neighbours: the first step of
// a labelling. A pixel gets the place of its part's first pixel plus one, or zero. A block unites
// a tile's pixels in shared memory, a thread a pixel.
extern "C" __global__ void __launch_bounds__(512) label_tiles_32x16(
    const unsigned char* __restrict__ picture, int* __restrict__ labels, int width, int height,
    int threshold)
{
    __shared__ int label[512];
    __shared__ bool bright[512];
    const int t = threadIdx.y * 32 + threadIdx.x;
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    const bool in = x < width && y < height;
    label[t] = t;
    bright[t] = in && picture[(size_t)y * width + x] >= threshold;
    __syncthreads();
    if (bright[t]) {
        if (threadIdx.x && bright[t - 1]) unite(label, t, t - 1);
        if (threadIdx.y && bright[t - 32]) unite(label, t, t - 32);
    }
    __syncthreads();
    if (!in) return;
    const int root = root_of(label, t);
    const int at = (blockIdx.y * 16 + root / 32) * width + blockIdx.x * 32 + root % 32;
    labels[(size_t)y * width + x] = bright[t] ? at + 1 : 0;
}

// How many points are near the planes through three of them each. A block takes a plane, and its
// threads go over all points.
extern "C" __global__ void __launch_bounds__(128) ransac_planes(
    const float* __restrict__ point, const int* __restrict__ corner, int* __restrict__ inliers,
    int n, float near)
{
    __shared__ int of_warp[4];
    const int t = threadIdx.x;
    const float* p = point + 3 * corner[blockIdx.x * 3];
    const float* q = point + 3 * corner[blockIdx.x * 3 + 1];
    const float* r = point + 3 * corner[blockIdx.x * 3 + 2];
    const float ax = q[0] - p[0], ay = q[1] - p[1], az = q[2] - p[2];
    const float bx = r[0] - p[0], by = r[1] - p[1], bz = r[2] - p[2];
    float nx = ay * bz - az * by, ny = az * bx - ax * bz, nz = ax * by - ay * bx;
    const float size = sqrtf(nx * nx + ny * ny + nz * nz);
    const float inverse = size > 1e-12f ? 1.0f / size : 0.0f;
    nx *= inverse;
    ny *= inverse;
    nz *= inverse;
    const float d = size > 1e-12f ? -(nx * p[0] + ny * p[1] + nz * p[2]) : 1e30f;
    int count = 0;
    for (int i = t; i < n; i += 128) {
        const float x = point[3 * i], y = point[3 * i + 1], z = point[3 * i + 2];
        count += fabsf(nx * x + ny * y + nz * z + d) < near;
    }
    count = __reduce_add_sync(~0u, count);
    if (t % 32 == 0) of_warp[t / 32] = count;
    __syncthreads();
    if (t == 0) inliers[blockIdx.x] = of_warp[0] + of_warp[1] + of_warp[2] + of_warp[3];
}
