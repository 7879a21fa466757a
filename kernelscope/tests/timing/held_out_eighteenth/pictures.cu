// Pictures: noise taken away by likeness, another size, a pooling of volumes.

// Non-local means of a grey picture: patches of 3 x 3, compared within 7 x 7. A block takes
// 16 x 16 pixels and keeps four around them; the edge is repeated.
extern "C" __global__ void __launch_bounds__(256) non_local_means_7x7(
    const float* __restrict__ picture, float* __restrict__ out, int width, int height,
    float strength)
{
    __shared__ float tile[24][25];
    const int left = blockIdx.x * 16, top = blockIdx.y * 16;
    for (int i = threadIdx.y * 16 + threadIdx.x; i < 576; i += 256) {
        const int x = min(max(left + i % 24 - 4, 0), width - 1);
        const int y = min(max(top + i / 24 - 4, 0), height - 1);
        tile[i / 24][i % 24] = picture[(size_t)y * width + x];
    }
    __syncthreads();
    float own[3][3];
#pragma unroll
    for (int i = 0; i < 3; ++i)
#pragma unroll
        for (int j = 0; j < 3; ++j) own[i][j] = tile[threadIdx.y + 3 + i][threadIdx.x + 3 + j];
    float sum = 0.0f, total = 0.0f;
    for (int y = 0; y < 7; ++y)
#pragma unroll
        for (int x = 0; x < 7; ++x) {
            float apart = 0.0f;
#pragma unroll
            for (int i = 0; i < 3; ++i)
#pragma unroll
                for (int j = 0; j < 3; ++j) {
                    const float d = own[i][j] - tile[threadIdx.y + y + i][threadIdx.x + x + j];
                    apart += d * d;
                }
            const float share = __expf(-strength * apart);
            total += share;
            sum += share * tile[threadIdx.y + y + 1][threadIdx.x + x + 1];
        }
    const int x = left + threadIdx.x, y = top + threadIdx.y;
    if (x < width && y < height) out[(size_t)y * width + x] = sum / total;
}

__device__ __forceinline__ void cubic(float (&w)[4], float p)
{
    const float q = 1.0f - p;
    w[0] = -0.5f * p * q * q;
    w[1] = 1.0f + p * p * (1.5f * p - 2.5f);
    w[2] = 1.0f + q * q * (1.5f * q - 2.5f);
    w[3] = -0.5f * q * p * p;
}

__device__ __forceinline__ unsigned char to_byte(float x)
{
    return __float2int_rn(fminf(fmaxf(x, 0.0f), 255.0f));
}

// Gives a picture another size by Catmull-Rom splines, four bytes a pixel. A thread takes a pixel
// of the new one; the edge is repeated.
extern "C" __global__ void __launch_bounds__(256) resize_bicubic_rgba(
    const uchar4* __restrict__ picture, uchar4* __restrict__ out, int width, int height,
    int new_width, int new_height)
{
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
    if (x >= new_width || y >= new_height) return;
    const float from_x = (x + 0.5f) * ((float)width / new_width) - 0.5f;
    const float from_y = (y + 0.5f) * ((float)height / new_height) - 0.5f;
    const float left = floorf(from_x), top = floorf(from_y);
    float wx[4], wy[4];
    cubic(wx, from_x - left);
    cubic(wy, from_y - top);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = min(max((int)top + i - 1, 0), height - 1);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int column = min(max((int)left + j - 1, 0), width - 1);
            const uchar4 v = picture[(size_t)row * width + column];
            const float w = wy[i] * wx[j];
            sum.x += w * v.x;
            sum.y += w * v.y;
            sum.z += w * v.z;
            sum.w += w * v.w;
        }
    }
    out[(size_t)y * new_width + x] =
        make_uchar4(to_byte(sum.x), to_byte(sum.y), to_byte(sum.z), to_byte(sum.w));
}

// The greatest of each 2 x 2 x 2 numbers of a volume, whose sides are even. A thread takes one.
extern "C" __global__ void __launch_bounds__(256) max_pool_3d_2x2x2(
    const float2* __restrict__ x, float* __restrict__ out, int width, int height, int depth)
{
    const int column = blockIdx.x * 64 + threadIdx.x, row = blockIdx.y * 4 + threadIdx.y;
    const int volume = blockIdx.z / depth, plane = blockIdx.z % depth;
    if (column >= width || row >= height) return;
    float best = -3.4e38f;
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const size_t line =
                ((size_t)volume * 2 * depth + 2 * plane + k) * 2 * height + 2 * row + j;
            const float2 two = x[line * width + column];
            best = fmaxf(best, fmaxf(two.x, two.y));
        }
    out[((size_t)blockIdx.z * height + row) * width + column] = best;
}
