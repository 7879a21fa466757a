// Pictures and signals: a blur of bytes, likeness, one picture over another, rewards to come.

// A blur by the binomial weights of 7 x 7 of a grey picture of bytes, the edges repeated, along
// rows and then along columns in shared memory. A block takes 32 x 8 pixels.
extern "C" __global__ void __launch_bounds__(256) gaussian_7x7_bytes(
    const unsigned char* __restrict__ x, unsigned char* __restrict__ y, int height, int width)
{
    __shared__ unsigned char pixel[14][40];
    __shared__ int along[14][32];
    const int t = threadIdx.y * 32 + threadIdx.x, left = blockIdx.x * 32, top = blockIdx.y * 8;
    for (int i = t; i < 532; i += 256) {
        const int row = min(max(top + i / 38 - 3, 0), height - 1);
        const int column = min(max(left + i % 38 - 3, 0), width - 1);
        pixel[i / 38][i % 38] = x[(size_t)row * width + column];
    }
    __syncthreads();
    for (int i = t; i < 448; i += 256) {
        const unsigned char* p = &pixel[i / 32][i % 32];
        along[i / 32][i % 32] =
            p[0] + p[6] + 6 * (p[1] + p[5]) + 15 * (p[2] + p[4]) + 20 * p[3];
    }
    __syncthreads();
    const int c = threadIdx.x, r = threadIdx.y;
    if (left + c >= width || top + r >= height) return;
    const int sum = along[r][c] + along[r + 6][c] + 6 * (along[r + 1][c] + along[r + 5][c]) +
                    15 * (along[r + 2][c] + along[r + 4][c]) + 20 * along[r + 3][c];
    y[(size_t)(top + r) * width + left + c] = (sum + 2048) >> 12;
}

// The structural similarity of two pictures at each pixel, of windows of 7 x 7, the edges repeated.
// A block takes 16 x 16 pixels.
extern "C" __global__ void __launch_bounds__(256) ssim_map_7x7(
    const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ map, int height,
    int width)
{
    __shared__ float one[22][23], other[22][23];
    const int left = blockIdx.x * 16, top = blockIdx.y * 16;
    for (int i = threadIdx.y * 16 + threadIdx.x; i < 484; i += 256) {
        const int row = min(max(top + i / 22 - 3, 0), height - 1);
        const int column = min(max(left + i % 22 - 3, 0), width - 1);
        one[i / 22][i % 22] = x[(size_t)row * width + column];
        other[i / 22][i % 22] = y[(size_t)row * width + column];
    }
    __syncthreads();
    const int c = left + threadIdx.x, r = top + threadIdx.y;
    if (c >= width || r >= height) return;
    float sx = 0.0f, sy = 0.0f, sxx = 0.0f, syy = 0.0f, sxy = 0.0f;
    for (int i = 0; i < 7; ++i)
#pragma unroll
        for (int j = 0; j < 7; ++j) {
            const float p = one[threadIdx.y + i][threadIdx.x + j];
            const float q = other[threadIdx.y + i][threadIdx.x + j];
            sx += p;
            sy += q;
            sxx += p * p;
            syy += q * q;
            sxy += p * q;
        }
    const float mx = sx / 49.0f, my = sy / 49.0f;
    const float vx = sxx / 49.0f - mx * mx, vy = syy / 49.0f - my * my;
    const float both = sxy / 49.0f - mx * my;
    map[(size_t)r * width + c] = (2.0f * mx * my + 1e-4f) * (2.0f * both + 9e-4f) /
                                 ((mx * mx + my * my + 1e-4f) * (vx + vy + 9e-4f));
}

__device__ __forceinline__ unsigned over_pixel(unsigned above, unsigned below)
{
    const unsigned a = above >> 24;
    unsigned result = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned p = i < 3 ? above >> 8 * i & 255 : 255, q = below >> 8 * i & 255;
        const unsigned sum = p * a + q * (255 - a) + 128;
        result |= (sum + (sum >> 8)) >> 8 << 8 * i;
    }
    return result;
}

// A picture over another, by its alpha: red, green, blue and alpha of a byte each. A thread takes
// four pixels.
extern "C" __global__ void over_composite_rgba(
    const uint4* __restrict__ above, const uint4* __restrict__ below, uint4* __restrict__ both,
    int quads)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= quads) return;
    const uint4 p = above[i], q = below[i];
    both[i] = make_uint4(over_pixel(p.x, q.x), over_pixel(p.y, q.y), over_pixel(p.z, q.z),
                         over_pixel(p.w, q.w));
}

// Generalised advantages of reinforcement learning: reward, value and done (steps, worlds), value
// with one more step. A thread takes a world, from its last step to its first.
extern "C" __global__ void gae_advantages(
    const float* __restrict__ reward, const float* __restrict__ value,
    const int* __restrict__ done, float* __restrict__ advantage, int steps, int worlds,
    float gamma, float lambda)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= worlds) return;
    float last = 0.0f, next = value[(size_t)steps * worlds + i];
    for (int step = steps - 1; step >= 0; --step) {
        const size_t at = (size_t)step * worlds + i;
        const float goes_on = 1.0f - done[at], own = value[at];
        const float delta = reward[at] + gamma * next * goes_on - own;
        last = delta + gamma * lambda * goes_on * last;
        advantage[at] = last;
        next = own;
    }
}
