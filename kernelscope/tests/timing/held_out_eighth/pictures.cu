// Pictures, noise and shapes.

__device__ __forceinline__ unsigned least_of_5(unsigned before, unsigned own, unsigned after)
{
    unsigned least = __vminu4(own, __funnelshift_r(before, own, 16));
    least = __vminu4(least, __funnelshift_r(before, own, 24));
    least = __vminu4(least, __funnelshift_r(own, after, 8));
    return __vminu4(least, __funnelshift_r(own, after, 16));
}

// The least of 5 x 5 pixels around each, of those in the image: width counts words of four pixels.
// A thread takes four pixels.
extern "C" __global__ void erode_bytes(
    const unsigned* __restrict__ image, unsigned* __restrict__ least, int height, int width)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    unsigned found = 0xFFFFFFFF;
#pragma unroll
    for (int j = -2; j <= 2; ++j) {
        if (y + j < 0 || y + j >= height) continue;
        const unsigned* row = image + (size_t)(y + j) * width;
        const unsigned before = x > 0 ? row[x - 1] : 0xFFFFFFFF;
        const unsigned after = x < width - 1 ? row[x + 1] : 0xFFFFFFFF;
        found = __vminu4(found, least_of_5(before, row[x], after));
    }
    least[(size_t)y * width + x] = found;
}

__device__ __forceinline__ float slope_at(int x, int y, unsigned seed, float dx, float dy)
{
    unsigned h = seed ^ x * 0x27d4eb2du ^ y * 0x165667b1u;
    h = (h ^ h >> 15) * 0x2c1b3c6du;
    h = (h ^ h >> 12) * 0x297a2d39u;
    h ^= h >> 15;
    const float a = h & 1 ? dx : -dx, b = h & 2 ? dy : -dy;
    return h & 4 ? a + 0.5f * b : b + 0.5f * a;
}

__device__ __forceinline__ float eased(float t)
{
    return t * t * t * (t * (t * 6.0f - 15.0f) + 10.0f);
}

// Perlin's noise of some octaves, each of half the size and weight of the one before; the first has
// cells of 64 pixels. A thread takes a pixel.
extern "C" __global__ void perlin_octaves(
    float* __restrict__ noise, int height, int width, int octaves, unsigned seed)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int j = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= width || j >= height) return;
    float sum = 0.0f, weight = 1.0f, by = 1.0f / 64.0f;
    for (int o = 0; o < octaves; ++o) {
        const float x = i * by, y = j * by, left = floorf(x), top = floorf(y);
        const float dx = x - left, dy = y - top, s = eased(dx);
        const int across = (int)left, down = (int)top;
        const float a = slope_at(across, down, seed + o, dx, dy);
        const float b = slope_at(across + 1, down, seed + o, dx - 1.0f, dy);
        const float c = slope_at(across, down + 1, seed + o, dx, dy - 1.0f);
        const float d = slope_at(across + 1, down + 1, seed + o, dx - 1.0f, dy - 1.0f);
        const float above = a + s * (b - a), below = c + s * (d - c);
        sum += weight * (above + eased(dy) * (below - above));
        weight *= 0.5f;
        by *= 2.0f;
    }
    noise[(size_t)j * width + i] = sum;
}

// Whether each point is in a polygon: an odd number of edges is to the right of it. A thread takes
// a point, edges come 256 at a time; `corners` is a multiple of 256.
extern "C" __global__ void __launch_bounds__(256) point_in_polygon(
    const float2* __restrict__ point, const float2* __restrict__ corner, int* __restrict__ inside,
    int n, int corners)
{
    __shared__ float2 some[257];
    const int i = blockIdx.x * 256 + threadIdx.x;
    const float2 p = point[min(i, n - 1)];
    int in = 0;
    for (int first = 0; first < corners; first += 256) {
        __syncthreads();
        some[threadIdx.x] = corner[first + threadIdx.x];
        if (threadIdx.x == 0) some[256] = corner[(first + 256) % corners];
        __syncthreads();
        for (int j = 0; j < 256; ++j) {
            const float2 a = some[j], b = some[j + 1];
            if ((a.y > p.y) != (b.y > p.y) && p.x < (b.x - a.x) * (p.y - a.y) / (b.y - a.y) + a.x)
                in ^= 1;
        }
    }
    if (i < n) inside[i] = in;
}

__device__ __forceinline__ float dot(float4 row, float4 v)
{
    return row.x * v.x + row.y * v.y + row.z * v.z + row.w * v.w;
}

// Vertices and normals of a mesh, moved with the bones that each hangs on: bone has four numbers
// of matrix (256, 3, 4), weight as many shares, whose sizes count as parts of their sum.
extern "C" __global__ void skin_vertices(
    const float4* __restrict__ vertex, const float4* __restrict__ normal,
    const uchar4* __restrict__ bone, const float4* __restrict__ weight,
    const float4* __restrict__ matrix, float4* __restrict__ moved, float4* __restrict__ turned,
    int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const uchar4 of = bone[i];
    const float4 w = weight[i];
    const int bones[4] = {of.x, of.y, of.z, of.w};
    const float sizes[4] = {fabsf(w.x), fabsf(w.y), fabsf(w.z), fabsf(w.w)};
    const float by = 1.0f / (sizes[0] + sizes[1] + sizes[2] + sizes[3]);
    float4 row[3] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int r = 0; r < 3; ++r) {
            const float4 m = matrix[bones[k] * 3 + r];
            const float s = by * sizes[k];
            row[r].x += s * m.x;
            row[r].y += s * m.y;
            row[r].z += s * m.z;
            row[r].w += s * m.w;
        }
    float4 v = vertex[i], d = normal[i];
    v.w = 1.0f;
    d.w = 0.0f;
    moved[i] = make_float4(dot(row[0], v), dot(row[1], v), dot(row[2], v), 1.0f);
    const float4 found = make_float4(dot(row[0], d), dot(row[1], d), dot(row[2], d), 0.0f);
    const float r = rsqrtf(fmaxf(dot(found, found), 1e-12f));
    turned[i] = make_float4(r * found.x, r * found.y, r * found.z, 0.0f);
}
