// Filters and colours of pictures, and rays.

// A sharper picture: each pixel and `amount` / 16 of its difference from a blur by 1 6 15 20 15 6 1
// along and down, the border repeated. A block of 32 x 8 takes 32 x 32 pixels.
extern "C" __global__ void __launch_bounds__(256) unsharp_tile(
    const unsigned char* __restrict__ image, unsigned char* __restrict__ sharp, int height,
    int width, int amount)
{
    __shared__ unsigned char pixel[38][40];
    __shared__ int along[38][32];
    const int left = blockIdx.x * 32, top = blockIdx.y * 32;
    for (int j = threadIdx.y; j < 38; j += 8)
        for (int i = threadIdx.x; i < 38; i += 32) {
            const int x = min(max(left + i - 3, 0), width - 1);
            const int y = min(max(top + j - 3, 0), height - 1);
            pixel[j][i] = image[(size_t)y * width + x];
        }
    __syncthreads();
    const int i = threadIdx.x;
    for (int j = threadIdx.y; j < 38; j += 8)
        along[j][i] = pixel[j][i] + pixel[j][i + 6] + 6 * (pixel[j][i + 1] + pixel[j][i + 5]) +
                      15 * (pixel[j][i + 2] + pixel[j][i + 4]) + 20 * pixel[j][i + 3];
    __syncthreads();
    for (int j = threadIdx.y; j < 32; j += 8) {
        const int blur = along[j][i] + along[j + 6][i] + 6 * (along[j + 1][i] + along[j + 5][i]) +
                         15 * (along[j + 2][i] + along[j + 4][i]) + 20 * along[j + 3][i];
        const int own = pixel[j + 3][i + 3];
        const int found = own + (amount * (4096 * own - blur) >> 16);
        if (left + i < width && top + j < height)
            sharp[(size_t)(top + j) * width + left + i] = min(max(found, 0), 255);
    }
}

// Hue in degrees, saturation and value of rgba pixels, as three planes of n.
extern "C" __global__ void hsv_planes(const uchar4* rgba, float* hsv, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const uchar4 pixel = rgba[i];
    const float r = pixel.x / 255.0f, g = pixel.y / 255.0f, b = pixel.z / 255.0f;
    const float most = fmaxf(r, fmaxf(g, b)), least = fminf(r, fminf(g, b));
    const float range = most - least;
    float hue = 0.0f;
    if (range > 0.0f) {
        if (most == r)
            hue = 60.0f * fmodf((g - b) / range, 6.0f);
        else if (most == g)
            hue = 60.0f * ((b - r) / range + 2.0f);
        else
            hue = 60.0f * ((r - g) / range + 4.0f);
        if (hue < 0.0f) hue += 360.0f;
    }
    hsv[i] = hue;
    hsv[n + i] = most > 0.0f ? range / most : 0.0f;
    hsv[2 * n + i] = most;
}

struct Vector {
    float x, y, z;
};

__device__ __forceinline__ Vector from_to(const float4& a, const float4& b)
{
    return {b.x - a.x, b.y - a.y, b.z - a.z};
}

__device__ __forceinline__ Vector cross(const Vector& a, const Vector& b)
{
    return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}

__device__ __forceinline__ float dot(const Vector& a, const Vector& b)
{
    return a.x * b.x + a.y * b.y + a.z * b.z;
}

// The first triangle that each ray hits, by Moeller and Trumbore: origin, direction (rays, 4),
// corner (count, 3, 4), count a multiple of 64; distance 1e30 and number -1 where none is hit. A
// thread takes a ray, triangles come 64 at a time.
extern "C" __global__ void __launch_bounds__(128) ray_triangles(
    const float4* __restrict__ origin, const float4* __restrict__ direction,
    const float4* __restrict__ corner, float* __restrict__ distance, int* __restrict__ number,
    int rays, int count)
{
    __shared__ float4 some[64 * 3];
    const int i = blockIdx.x * 128 + threadIdx.x;
    const float4 from = origin[min(i, rays - 1)], to = direction[min(i, rays - 1)];
    const Vector d = {to.x, to.y, to.z};
    float nearest = 1e30f;
    int hit = -1;
    for (int first = 0; first < count; first += 64) {
        __syncthreads();
        for (int j = threadIdx.x; j < 192; j += 128) some[j] = corner[first * 3 + j];
        __syncthreads();
        for (int j = 0; j < 64; ++j) {
            const float4 a = some[3 * j];
            const Vector one = from_to(a, some[3 * j + 1]), two = from_to(a, some[3 * j + 2]);
            const Vector across = cross(d, two);
            const float size = dot(one, across);
            if (fabsf(size) < 1e-3f) continue;
            const float by = 1.0f / size;
            const Vector apart = from_to(a, from);
            const float u = by * dot(apart, across);
            if (u < 0.0f || u > 1.0f) continue;
            const Vector other = cross(apart, one);
            const float v = by * dot(d, other);
            if (v < 0.0f || u + v > 1.0f) continue;
            const float t = by * dot(two, other);
            if (t > 1e-3f && t < nearest) {
                nearest = t;
                hit = first + j;
            }
        }
    }
    if (i >= rays) return;
    distance[i] = nearest;
    number[i] = hit;
}
