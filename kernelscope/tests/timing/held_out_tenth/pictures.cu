// Pictures: other sizes, a camera's colours, less noise, and a view into a volume.

__device__ __forceinline__ void cubic_weights(float t, float* w)
{
    const float a = -0.75f;
    auto near = [&](float d) { return ((a + 2.0f) * d - (a + 3.0f)) * d * d + 1.0f; };
    auto far = [&](float d) { return ((a * d - 5.0f * a) * d + 8.0f * a) * d - 4.0f * a; };
    w[0] = far(t + 1.0f);
    w[1] = near(t);
    w[2] = near(1.0f - t);
    w[3] = far(2.0f - t);
}

// Planes of height x width to planes of tall x wide between 4 x 4 pixels, as OpenCV and PyTorch do,
// the edges repeated. A thread takes a new pixel.
extern "C" __global__ void bicubic_resize(
    const float* __restrict__ x, float* __restrict__ y, int height, int width, int tall, int wide)
{
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column >= wide || row >= tall) return;
    x += (size_t)blockIdx.z * height * width;
    const float h = (row + 0.5f) * ((float)height / tall) - 0.5f;
    const float w = (column + 0.5f) * ((float)width / wide) - 0.5f;
    const int top = floorf(h), left = floorf(w);
    float down[4], right[4];
    cubic_weights(h - top, down);
    cubic_weights(w - left, right);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float* from = x + (size_t)min(max(top + i - 1, 0), height - 1) * width;
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j) part += right[j] * from[min(max(left + j - 1, 0), width - 1)];
        sum += down[i] * part;
    }
    y[((size_t)blockIdx.z * tall + row) * wide + column] = sum;
}

// Red, green and blue of a camera's pattern RGGB, each the mean of the nearest of its colour, the
// edges repeated two pixels back: raw (height, width), rgb (height, width, 3). A thread takes a
// pixel.
extern "C" __global__ void bayer_to_rgb(
    const unsigned char* __restrict__ raw, unsigned char* __restrict__ rgb, int height, int width)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const int left = x > 0 ? x - 1 : 1, right = x + 1 < width ? x + 1 : width - 2;
    const int up = y > 0 ? y - 1 : 1, down = y + 1 < height ? y + 1 : height - 2;
    auto at = [&](int row, int column) { return (int)raw[(size_t)row * width + column]; };
    const int own = at(y, x);
    const int across = at(y, left) + at(y, right), along = at(up, x) + at(down, x);
    int red, green, blue;
    if (y % 2 == x % 2) {
        const int corners = at(up, left) + at(up, right) + at(down, left) + at(down, right);
        green = (across + along + 2) / 4;
        red = y % 2 == 0 ? own : (corners + 2) / 4;
        blue = y % 2 == 0 ? (corners + 2) / 4 : own;
    } else {
        green = own;
        red = ((y % 2 == 0 ? across : along) + 1) / 2;
        blue = ((y % 2 == 0 ? along : across) + 1) / 2;
    }
    unsigned char* to = rgb + ((size_t)y * width + x) * 3;
    to[0] = red;
    to[1] = green;
    to[2] = blue;
}

// Non-local means: a pixel becomes the mean of the 7 x 7 around it, by how alike the 3 x 3 around
// both are, the edges repeated. A block of 16 x 16 has 24 x 24 in shared memory.
extern "C" __global__ void __launch_bounds__(256) non_local_means(
    const float* __restrict__ x, float* __restrict__ y, int height, int width, float strength)
{
    __shared__ float tile[24][24];
    const int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    for (int i = threadIdx.y * 16 + threadIdx.x; i < 576; i += 256) {
        const int h = min(max((int)blockIdx.y * 16 + i / 24 - 4, 0), height - 1);
        const int w = min(max((int)blockIdx.x * 16 + i % 24 - 4, 0), width - 1);
        tile[i / 24][i % 24] = x[(size_t)h * width + w];
    }
    __syncthreads();
    if (column >= width || row >= height) return;
    const int cx = threadIdx.x + 4, cy = threadIdx.y + 4;
    float own[3][3];
#pragma unroll
    for (int i = 0; i < 3; ++i)
#pragma unroll
        for (int j = 0; j < 3; ++j) own[i][j] = tile[cy + i - 1][cx + j - 1];
    float sum = 0.0f, weights = 0.0f;
    for (int dy = -3; dy <= 3; ++dy)
        for (int dx = -3; dx <= 3; ++dx) {
            float apart = 0.0f;
#pragma unroll
            for (int i = 0; i < 3; ++i)
#pragma unroll
                for (int j = 0; j < 3; ++j) {
                    const float d = tile[cy + dy + i - 1][cx + dx + j - 1] - own[i][j];
                    apart += d * d;
                }
            const float weight = __expf(-strength * apart);
            sum += weight * tile[cy + dy][cx + dx];
            weights += weight;
        }
    y[(size_t)row * width + column] = sum / weights;
}

// The largest value along each ray through a cube of side^3, turned about its y axis, between eight
// cells at each step: view (size, size). A thread takes a ray.
extern "C" __global__ void volume_projection(
    const float* __restrict__ volume, float* __restrict__ view, int side, int size, float cosine,
    float sine)
{
    const int px = blockIdx.x * blockDim.x + threadIdx.x;
    const int py = blockIdx.y * blockDim.y + threadIdx.y;
    if (px >= size || py >= size) return;
    const float middle = 0.5f * (side - 1), u = (px + 0.5f) * side / size - 0.5f * side;
    const float y = fminf(fmaxf((py + 0.5f) * side / size - 0.5f, 0.0f), side - 1.001f);
    const int iy = (int)y;
    const float fy = y - iy;
    float most = -1e30f;
    for (int step = 0; step < side; ++step) {
        const float v = step - middle;
        const float x = middle + cosine * u - sine * v, z = middle + sine * u + cosine * v;
        if (x < 0.0f || x >= side - 1 || z < 0.0f || z >= side - 1) continue;
        const int ix = (int)x, iz = (int)z;
        const float fx = x - ix, fz = z - iz;
        const float* at = volume + ((size_t)iz * side + iy) * side + ix;
        const float* back = at + side * side;
        const float a = at[0] + fx * (at[1] - at[0]);
        const float b = at[side] + fx * (at[side + 1] - at[side]);
        const float c = back[0] + fx * (back[1] - back[0]);
        const float d = back[side] + fx * (back[side + 1] - back[side]);
        const float front = a + fy * (b - a), behind = c + fy * (d - c);
        most = fmaxf(most, front + fz * (behind - front));
    }
    view[py * size + px] = most;
}
