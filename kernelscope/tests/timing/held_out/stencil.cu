extern "C" __global__ void stencil_1d(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < 8 || i >= n - 8) return;
    float sum = 0.0f;
#pragma unroll
    for (int j = -8; j <= 8; ++j) sum += 0.05f * x[i + j];
    y[i] = sum;
}

extern "C" __global__ void stencil_1d_shared(const float* x, float* y, int n)
{
    __shared__ float part[256 + 16];
    const int first = blockIdx.x * 256, t = threadIdx.x;
    for (int j = t; j < 272; j += 256) {
        const int i = first + j - 8;
        part[j] = i >= 0 && i < n ? x[i] : 0.0f;
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j <= 16; ++j) sum += 0.05f * part[t + j];
    if (first + t < n) y[first + t] = sum;
}

extern "C" __global__ void stencil_2d(const float* x, float* y, int height, int width)
{
    const int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 8 + threadIdx.y;
    if (r < 1 || c < 1 || r >= height - 1 || c >= width - 1) return;
    const int i = r * width + c;
    y[i] = 0.25f * (x[i - 1] + x[i + 1] + x[i - width] + x[i + width]) - x[i];
}

extern "C" __global__ void box_blur(const float* x, float* y, int height, int width)
{
    __shared__ float tile[24][40];
    const int left = blockIdx.x * 32 - 4, top = blockIdx.y * 16 - 4;
    const int t = threadIdx.y * 32 + threadIdx.x;
    for (int j = t; j < 24 * 40; j += 512) {
        const int r = min(max(top + j / 40, 0), height - 1);
        const int c = min(max(left + j % 40, 0), width - 1);
        tile[j / 40][j % 40] = x[r * width + c];
    }
    __syncthreads();
    float sum = 0.0f;
    for (int r = 0; r < 9; ++r)
        for (int c = 0; c < 9; ++c) sum += tile[threadIdx.y + r][threadIdx.x + c];
    y[(top + 4 + threadIdx.y) * width + left + 4 + threadIdx.x] = sum / 81.0f;
}

// Each thread walks along z and keeps three planes in registers.
extern "C" __global__ void stencil_3d(const float* x, float* y, int n)
{
    const int i = blockIdx.x * 32 + threadIdx.x, j = blockIdx.y * 8 + threadIdx.y;
    if (i < 1 || j < 1 || i >= n - 1 || j >= n - 1) return;
    int at = n * n + j * n + i;
    float below = x[at - n * n], here = x[at];
    for (int z = 1; z < n - 1; ++z) {
        const float above = x[at + n * n];
        y[at] = below + above + x[at - 1] + x[at + 1] + x[at - n] + x[at + n] - 6.0f * here;
        below = here;
        here = above;
        at += n * n;
    }
}
