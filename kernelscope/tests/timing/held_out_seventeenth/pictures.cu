// Pictures: masks of boxes that overlap, a warped volume, costs of stereo along rows, Lab colours.

// Which later boxes each box suppresses, 64 in a word. Boxes are a centre and logarithms of sizes;
// a block compares 64 of them with 64, as torchvision does.
extern "C" __global__ void __launch_bounds__(64) nms_masks_64(
    const float4* __restrict__ box, unsigned long long* __restrict__ mask, int n, float limit)
{
    __shared__ float4 others[64];
    if (blockIdx.y > blockIdx.x) return;
    const int t = threadIdx.x, first = blockIdx.x * 64, own = blockIdx.y * 64 + t;
    auto corners = [&](int i) {
        const float4 b = box[i];
        const float wide = 0.5f * expf(b.z), high = 0.5f * expf(b.w);
        return make_float4(b.x - wide, b.y - high, b.x + wide, b.y + high);
    };
    if (first + t < n) others[t] = corners(first + t);
    __syncthreads();
    if (own >= n) return;
    const float4 a = corners(own);
    const float area = (a.z - a.x) * (a.w - a.y);
    unsigned long long bits = 0;
    const int count = min(64, n - first);
    for (int i = blockIdx.x == blockIdx.y ? t + 1 : 0; i < count; ++i) {
        const float4 b = others[i];
        const float wide = fmaxf(fminf(a.z, b.z) - fmaxf(a.x, b.x), 0.0f);
        const float high = fmaxf(fminf(a.w, b.w) - fmaxf(a.y, b.y), 0.0f);
        const float both = wide * high;
        if (both > limit * (area + (b.z - b.x) * (b.w - b.y) - both)) bits |= 1ULL << i;
    }
    mask[(size_t)own * gridDim.x + blockIdx.x] = bits;
}

// A volume moved by a field of shifts in voxels, by trilinear interpolation; zero outside of it.
// The field has planes of shifts along z, y and x.
extern "C" __global__ void __launch_bounds__(256) warp_volume_trilinear(
    const float* __restrict__ volume, const float* __restrict__ field, float* __restrict__ out,
    int width, int height, int depth)
{
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 4 + threadIdx.y;
    const int z = blockIdx.z * 2 + threadIdx.z;
    if (x >= width || y >= height || z >= depth) return;
    const size_t voxels = (size_t)width * height * depth;
    const size_t at = ((size_t)z * height + y) * width + x;
    const float pz = z + field[at], py = y + field[voxels + at], px = x + field[2 * voxels + at];
    const float fz = floorf(pz), fy = floorf(py), fx = floorf(px);
    const int iz = (int)fz, iy = (int)fy, ix = (int)fx;
    const float dz = pz - fz, dy = py - fy, dx = px - fx;
    float sum = 0.0f;
#pragma unroll
    for (int corner = 0; corner < 8; ++corner) {
        const int a = corner >> 2, b = corner >> 1 & 1, c = corner & 1;
        const int cz = iz + a, cy = iy + b, cx = ix + c;
        if (cz < 0 || cz >= depth || cy < 0 || cy >= height || cx < 0 || cx >= width) continue;
        const float share = (a ? dz : 1.0f - dz) * (b ? dy : 1.0f - dy) * (c ? dx : 1.0f - dx);
        sum += share * volume[((size_t)cz * height + cy) * width + cx];
    }
    out[at] = sum;
}

// Semi-global matching from left to right: costs of 64 disparities, gathered along a row with
// penalties for changes. A warp takes a row, a lane two disparities: two halves of a word.
extern "C" __global__ void __launch_bounds__(128) sgm_gather_rows(
    const uchar2* __restrict__ cost, unsigned* __restrict__ out, int width, int rows, int small,
    int large)
{
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (row >= rows) return;
    const size_t from = (size_t)row * width * 32 + lane;
    int p = 0, q = 0, least = 0;
    for (int x = 0; x < width; x += 4) {
        uchar2 next[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) next[i] = cost[from + (x + i) * 32];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int before = __shfl_up_sync(~0u, q, 1), after = __shfl_down_sync(~0u, p, 1);
            if (lane == 0) before = 1 << 20;
            if (lane == 31) after = 1 << 20;
            const int jump = least + large;
            const int new_p = next[i].x + min(min(p, min(before, q) + small), jump) - least;
            const int new_q = next[i].y + min(min(q, min(p, after) + small), jump) - least;
            p = new_p;
            q = new_q;
            least = __reduce_min_sync(~0u, min(p, q));
            out[from + (x + i) * 32] = q << 16 | p;
        }
    }
}

__device__ __forceinline__ float linear(unsigned char byte)
{
    const float v = byte / 255.0f;
    return v <= 0.04045f ? v / 12.92f : powf((v + 0.055f) / 1.055f, 2.4f);
}

__device__ __forceinline__ float lab(float t)
{
    return t > 0.008856452f ? cbrtf(t) : 7.787037f * t + 0.13793103f;
}

// Bytes of sRGB as planes of L, a and b under D65.
extern "C" __global__ void rgb_to_lab_planes(
    const uchar3* __restrict__ pixel, float* __restrict__ out, int pixels)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pixels) return;
    const uchar3 v = pixel[i];
    const float r = linear(v.x), g = linear(v.y), b = linear(v.z);
    const float x = lab((0.4124564f * r + 0.3575761f * g + 0.1804375f * b) / 0.95047f);
    const float y = lab(0.2126729f * r + 0.7151522f * g + 0.0721750f * b);
    const float z = lab((0.0193339f * r + 0.1191920f * g + 0.9503041f * b) / 1.08883f);
    out[i] = 116.0f * y - 16.0f;
    out[pixels + i] = 500.0f * (x - y);
    out[2 * pixels + i] = 200.0f * (y - z);
}
