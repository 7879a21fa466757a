// Pictures and signals: edges, another view, a wavelet, a receiver's filter.

// The second step of Canny's edges: the strength of Sobel's gradient where it is the largest of the
// three along the gradient, else 0; the edges of the picture repeated. A block takes 32 x 8 pixels.
extern "C" __global__ void __launch_bounds__(256) canny_suppress(
    const float* __restrict__ x, float* __restrict__ y, int height, int width)
{
    __shared__ float pixel[12][36], strength[10][34];
    const int t = threadIdx.y * 32 + threadIdx.x;
    const int left = blockIdx.x * 32, top = blockIdx.y * 8;
    for (int i = t; i < 432; i += 256) {
        const int row = min(max(top + i / 36 - 2, 0), height - 1);
        const int column = min(max(left + i % 36 - 2, 0), width - 1);
        pixel[i / 36][i % 36] = x[(size_t)row * width + column];
    }
    __syncthreads();
    auto across = [&](int r, int c) {
        return pixel[r][c + 2] - pixel[r][c] + 2.0f * (pixel[r + 1][c + 2] - pixel[r + 1][c]) +
               pixel[r + 2][c + 2] - pixel[r + 2][c];
    };
    auto along = [&](int r, int c) {
        return pixel[r + 2][c] - pixel[r][c] + 2.0f * (pixel[r + 2][c + 1] - pixel[r][c + 1]) +
               pixel[r + 2][c + 2] - pixel[r][c + 2];
    };
    for (int i = t; i < 340; i += 256) {
        const float gx = across(i / 34, i % 34), gy = along(i / 34, i % 34);
        strength[i / 34][i % 34] = sqrtf(gx * gx + gy * gy);
    }
    __syncthreads();
    const int column = left + threadIdx.x, row = top + threadIdx.y;
    if (column >= width || row >= height) return;
    const int r = threadIdx.y + 1, c = threadIdx.x + 1;
    const float gx = across(r, c), gy = along(r, c), ax = fabsf(gx), ay = fabsf(gy);
    int dx = 1, dy = 0;
    if (ay > 2.4142135f * ax) {
        dx = 0;
        dy = 1;
    } else if (ay > 0.41421356f * ax) {
        dy = gx * gy > 0.0f ? 1 : -1;
    }
    const float own = strength[r][c];
    const bool top_of_three = own >= strength[r + dy][c + dx] && own >= strength[r - dy][c - dx];
    y[(size_t)row * width + column] = top_of_three ? own : 0.0f;
}

// A picture as a network takes it: bytes of red, green, blue and alpha seen through a homography,
// between four pixels, 0 outside, as three planes of floats of mean 0. A thread takes a new pixel.
extern "C" __global__ void warp_perspective_planes(
    const uchar4* __restrict__ picture, const float* __restrict__ h, float* __restrict__ plane,
    int height, int width)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const float over = 1.0f / (1.0f + 1e-5f * (h[6] * x + h[7] * y));
    const float u = ((1.0f + 0.05f * h[0]) * x + 0.05f * h[1] * y + h[2]) * over;
    const float v = (0.05f * h[3] * x + (1.0f + 0.05f * h[4]) * y + h[5]) * over;
    const int left = (int)floorf(u), top = (int)floorf(v);
    const float fx = u - left, fy = v - top;
    float red = 0.0f, green = 0.0f, blue = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int row = top + i, column = left + j;
            if (row < 0 || row >= height || column < 0 || column >= width) continue;
            const uchar4 p = picture[(size_t)row * width + column];
            const float share = (i ? fy : 1.0f - fy) * (j ? fx : 1.0f - fx);
            red += share * p.x;
            green += share * p.y;
            blue += share * p.z;
        }
    const size_t at = (size_t)y * width + x, size = (size_t)height * width;
    plane[at] = (red / 255.0f - 0.485f) / 0.229f;
    plane[at + size] = (green / 255.0f - 0.456f) / 0.224f;
    plane[at + 2 * size] = (blue / 255.0f - 0.406f) / 0.225f;
}

// A level of the wavelet of JPEG 2000 without loss, along rows of an even width up to 4096: the
// means to the left half, the details to the right. A block takes a row.
extern "C" __global__ void __launch_bounds__(256) wavelet_53_rows(
    const int* __restrict__ x, int* __restrict__ y, int width)
{
    __shared__ int even[2048], detail[2048];
    const int half = width / 2;
    const int2* from = (const int2*)(x + (size_t)blockIdx.x * width);
    int* to = y + (size_t)blockIdx.x * width;
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        const int2 pair = from[i];
        even[i] = pair.x;
        detail[i] = pair.y;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < half; i += blockDim.x)
        detail[i] -= (even[i] + even[min(i + 1, half - 1)]) >> 1;
    __syncthreads();
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        to[i] = even[i] + ((detail[max(i - 1, 0)] + detail[i] + 2) >> 2);
        to[half + i] = detail[i];
    }
}

// A radio's samples (real, imaginary) through 128 taps, every eighth kept. A block of 256 has the
// samples of its 256 results in shared memory.
extern "C" __global__ void __launch_bounds__(256) fir_decimate_iq(
    const float2* __restrict__ x, const float* __restrict__ tap, float2* __restrict__ y, int kept)
{
    __shared__ float2 sample[2168];
    __shared__ float by[128];
    const int t = threadIdx.x, i = blockIdx.x * 256 + t, last = (kept - 1) * 8 + 127;
    for (int j = t; j < 2168; j += 256) sample[j] = x[min((int)blockIdx.x * 2048 + j, last)];
    if (t < 128) by[t] = tap[t];
    __syncthreads();
    if (i >= kept) return;
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 4
    for (int j = 0; j < 128; ++j) {
        const float2 s = sample[t * 8 + j];
        sum.x += by[j] * s.x;
        sum.y += by[j] * s.y;
    }
    y[i] = sum;
}
