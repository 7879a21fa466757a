// Rendering, and pictures.

struct Vector {
    float x, y, z;
};

__device__ float dot(Vector a, Vector b)
{
    return a.x * b.x + a.y * b.y + a.z * b.z;
}

// Spheres (count, 4), at most 64, center and size of each, are seen from a point through each pixel
// and lit from above; what is behind all of them is dark.
extern "C" __global__ void ray_spheres(
    const float4* sphere, float* shade, int height, int width, int count)
{
    __shared__ float4 scene[64];
    const int own = threadIdx.y * blockDim.x + threadIdx.x;
    for (int i = own; i < count; i += blockDim.x * blockDim.y) {
        const float4 s = sphere[i];
        scene[i] = make_float4(2.0f * s.x, s.y, 6.0f + s.z, 0.1f + 0.2f * fabsf(s.w));
    }
    __syncthreads();
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    Vector ray = {(x + 0.5f - 0.5f * width) / height, (y + 0.5f) / height - 0.5f, 1.0f};
    const float scale = rsqrtf(dot(ray, ray));
    ray = {ray.x * scale, ray.y * scale, ray.z * scale};
    float nearest = 1e30f, light = 0.0f;
    for (int i = 0; i < count; ++i) {
        const float4 s = scene[i];
        const Vector center = {s.x, s.y, s.z};
        const float along = dot(center, ray);
        const float rest = along * along - dot(center, center) + s.w * s.w;
        if (rest < 0.0f) continue;
        const float far = along - sqrtf(rest);
        if (far > 0.0f && far < nearest) {
            nearest = far;
            light = fmaxf(0.1f, (s.y - far * ray.y) / s.w);
        }
    }
    shade[y * width + x] = light;
}

// Spots (tiles, count, 8), nearest first, are laid over each other in tiles of 16 x 16 pixels:
// place, opacity and grey; the root of its inverse covariance, and weight. A tile ends when all of
// its pixels are opaque.
extern "C" __global__ void __launch_bounds__(256) splat_tiles(
    const float4* __restrict__ spot, float* __restrict__ image, int count)
{
    __shared__ float4 place[64], shape[64];
    const int tile = blockIdx.y * gridDim.x + blockIdx.x;
    const int px = threadIdx.x % 16, py = threadIdx.x / 16;
    float through = 1.0f, grey = 0.0f;
    bool done = false;
    for (int first = 0; first < count; first += 64) {
        if (__syncthreads_count(done) == 256) break;
        const int some = min(64, count - first);
        if (threadIdx.x < 2 * some) {
            const float4 v = spot[((size_t)tile * count + first) * 2 + threadIdx.x];
            (threadIdx.x % 2 ? shape : place)[threadIdx.x / 2] = v;
        }
        __syncthreads();
        for (int i = 0; i < some && !done; ++i) {
            const float4 p = place[i], s = shape[i];
            const float dx = px - 8.0f - 6.0f * p.x, dy = py - 8.0f - 6.0f * p.y;
            const float u = 0.3f * (s.x * dx + s.y * dy), v = 0.3f * s.z * dy;
            const float power = 0.5f * (u * u + v * v);
            if (power > 5.5f) continue;
            const float alpha = 0.9f * __expf(-power) / (1.0f + __expf(-p.z));
            grey += through * alpha * p.w;
            through *= 1.0f - alpha;
            done = through < 1e-3f;
        }
    }
    const int width = gridDim.x * 16;
    image[(size_t)(blockIdx.y * 16 + py) * width + blockIdx.x * 16 + px] = grey;
}

// cos(k pi / 16) / 2
constexpr float C1 = 0.49039264f, C2 = 0.46193977f, C3 = 0.41573481f, C4 = 0.35355339f;
constexpr float C5 = 0.27778512f, C6 = 0.19134172f, C7 = 0.09754516f;

__device__ void cosines_of(float (&v)[8])
{
    const float a0 = v[0] + v[7], a1 = v[1] + v[6], a2 = v[2] + v[5], a3 = v[3] + v[4];
    const float b0 = v[0] - v[7], b1 = v[1] - v[6], b2 = v[2] - v[5], b3 = v[3] - v[4];
    v[0] = C4 * (a0 + a1 + a2 + a3);
    v[2] = C2 * (a0 - a3) + C6 * (a1 - a2);
    v[4] = C4 * (a0 - a1 - a2 + a3);
    v[6] = C6 * (a0 - a3) - C2 * (a1 - a2);
    v[1] = C1 * b0 + C3 * b1 + C5 * b2 + C7 * b3;
    v[3] = C3 * b0 - C7 * b1 - C1 * b2 - C5 * b3;
    v[5] = C5 * b0 - C1 * b1 + C7 * b2 + C3 * b3;
    v[7] = C7 * b0 - C5 * b1 + C3 * b2 - C1 * b3;
}

// Each 8 x 8 pixels become 64 numbers of its cosine transform, divided by a step that grows with
// the frequency, and rounded. A block takes 8 rows of 128 pixels, a thread a row of 8.
extern "C" __global__ void dct_quantise(
    const unsigned char* image, int4* quantised, int width, float step)
{
    __shared__ float tile[8][16 * 9];
    const int part = threadIdx.x % 16, row = threadIdx.x / 16;
    const size_t at = (size_t)(blockIdx.y * 8 + row) * width + blockIdx.x * 128 + part * 8;
    const uint2 raw = *(const uint2*)&image[at];
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
        v[i] = (float)((i < 4 ? raw.x : raw.y) >> i % 4 * 8 & 255) - 128.0f;
    cosines_of(v);
#pragma unroll
    for (int i = 0; i < 8; ++i) tile[row][part * 9 + i] = v[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = tile[i][part * 9 + row];
    cosines_of(v);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i) tile[i][part * 9 + row] = v[i];
    __syncthreads();
    __align__(16) short rounded[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
        rounded[i] = (short)rintf(tile[row][part * 9 + i] / (step * (1 + row + i)));
    quantised[at / 8] = *(const int4*)rounded;
}

// For each pixel, how far the 5 x 5 pixels around it have moved from the left to the right image.
extern "C" __global__ void stereo_match(
    const unsigned char* left, const unsigned char* right, int* moved, int height, int width,
    int most)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    unsigned best = 0xFFFFFFFFu;
    int found = 0;
    for (int d = 0; d < most; d++) {
        unsigned sum = 0;
        for (int j = -2; j <= 2; j++)
            for (int i = -2; i <= 2; i++) {
                int row = min(max(y + j, 0), height - 1);
                int a = min(max(x + i, 0), width - 1), b = max(a - d, 0);
                sum = __usad(left[row * width + a], right[row * width + b], sum);
            }
        if (sum < best) {
            best = sum;
            found = d;
        }
    }
    moved[y * width + x] = found;
}

// Bright pixels vote for all lines through them: votes (angles, 2 (height + width)).
extern "C" __global__ void hough_vote(
    const signed char* image, int* votes, int height, int width, int angles)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height || image[y * width + x] < 115) return;
    for (int a = 0; a < angles; a++) {
        float turn = (float)a / angles;
        float apart = x * cospif(turn) + y * sinpif(turn);
        int at = (int)floorf(apart + 0.25f) + width + height;
        atomicAdd(&votes[a * 2 * (height + width) + at], 1);
    }
}
