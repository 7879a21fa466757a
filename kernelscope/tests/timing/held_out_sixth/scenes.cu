// Video, corners of pictures, and nearest points.

__device__ __forceinline__ unsigned byte_of(int v)
{
    return min(max(v >> 8, 0), 255);
}

__device__ __forceinline__ unsigned rgba_of(int luma, int red, int green, int blue)
{
    const int y = 298 * (luma - 16) + 128;
    return byte_of(y + red) | byte_of(y + green) << 8 | byte_of(y + blue) << 16 | 255u << 24;
}

// A frame of NV12, luma (height, width) and two bytes of colour for each 2 x 2 pixels, becomes
// rgba (height, width): a thread takes 2 x 2 pixels.
extern "C" __global__ void nv12_to_rgb(
    const uchar2* luma, const uchar2* chroma, uint2* rgba, int height, int width)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width / 2 || y >= height / 2) return;
    const uchar2 colour = chroma[y * (width / 2) + x];
    const int u = colour.x - 128, v = colour.y - 128;
    const int red = 409 * v, green = -100 * u - 208 * v, blue = 516 * u;
    for (int row = 2 * y; row < 2 * y + 2; ++row) {
        const uchar2 two = luma[row * (width / 2) + x];
        rgba[row * (width / 2) + x] =
            make_uint2(rgba_of(two.x, red, green, blue), rgba_of(two.y, red, green, blue));
    }
}

// Harris's measure of corners: gradients by Sobel, their products summed over 3 x 3 pixels. A block
// has a tile of 16 x 16 and two more pixels at each side, the border repeated.
extern "C" __global__ void harris_tile(
    const unsigned char* image, float* corner, int height, int width, float k)
{
    __shared__ float pixel[20][21], along[18][19], down[18][19];
    const int left = blockIdx.x * 16 - 2, top = blockIdx.y * 16 - 2;
    const int t = threadIdx.y * 16 + threadIdx.x;
    for (int i = t; i < 400; i += 256) {
        const int x = min(max(left + i % 20, 0), width - 1);
        const int y = min(max(top + i / 20, 0), height - 1);
        pixel[i / 20][i % 20] = image[y * width + x] / 255.0f;
    }
    __syncthreads();
    for (int i = t; i < 324; i += 256) {
        const int y = i / 18, x = i % 18;
        const float a = pixel[y][x], b = pixel[y][x + 1], c = pixel[y][x + 2];
        const float d = pixel[y + 1][x], e = pixel[y + 1][x + 2];
        const float f = pixel[y + 2][x], g = pixel[y + 2][x + 1], h = pixel[y + 2][x + 2];
        along[y][x] = 0.25f * (c + 2.0f * e + h - a - 2.0f * d - f);
        down[y][x] = 0.25f * (f + 2.0f * g + h - a - 2.0f * b - c);
    }
    __syncthreads();
    float xx = 0.0f, xy = 0.0f, yy = 0.0f;
    for (int j = 0; j < 3; ++j)
        for (int i = 0; i < 3; ++i) {
            const float dx = along[threadIdx.y + j][threadIdx.x + i];
            const float dy = down[threadIdx.y + j][threadIdx.x + i];
            xx += dx * dx;
            xy += dx * dy;
            yy += dy * dy;
        }
    const int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    if (x < width && y < height)
        corner[y * width + x] = xx * yy - xy * xy - k * (xx + yy) * (xx + yy);
}

// The eight nearest of points (count, 4), x, y and z, to each query (queries, 4), in order: their
// squared distances and numbers, (8, queries). A thread takes a query; points come 128 at a time.
extern "C" __global__ void knn_8(
    const float4* query, const float4* point, float* distance, int* number, int queries, int count)
{
    __shared__ float4 some[128];
    const int i = blockIdx.x * 128 + threadIdx.x;
    const float4 own = query[min(i, queries - 1)];
    float best[8];
    int at[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        best[j] = 1e30f;
        at[j] = -1;
    }
    for (int first = 0; first < count; first += 128) {
        __syncthreads();
        if (first + threadIdx.x < count) some[threadIdx.x] = point[first + threadIdx.x];
        __syncthreads();
        const int end = min(128, count - first);
        for (int p = 0; p < end; ++p) {
            const float dx = some[p].x - own.x, dy = some[p].y - own.y, dz = some[p].z - own.z;
            const float apart = dx * dx + dy * dy + dz * dz;
            if (apart < best[7]) {
                best[7] = apart;
                at[7] = first + p;
#pragma unroll
                for (int j = 7; j > 0; --j)
                    if (best[j] < best[j - 1]) {
                        const float further = best[j - 1];
                        best[j - 1] = best[j];
                        best[j] = further;
                        const int other = at[j - 1];
                        at[j - 1] = at[j];
                        at[j] = other;
                    }
            }
        }
    }
    if (i >= queries) return;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        distance[j * queries + i] = best[j];
        number[j * queries + i] = at[j];
    }
}
