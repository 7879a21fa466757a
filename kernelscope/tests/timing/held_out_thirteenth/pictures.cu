// Pictures: a 3 x 3 convolution, a pool that keeps places, the transform of JPEG.

// y = 3 x 3 convolution of x with a border of zeros, NCHW. A block of 16 x 16 takes that
// many pixels of eight outputs.
extern "C" __global__ void __launch_bounds__(256) conv_3x3_direct_tile(
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ y, int channels, int outputs, int side)
{
    __shared__ float tile[18][18], filter[8][9];
    const int tx = threadIdx.x, ty = threadIdx.y, t = ty * 16 + tx;
    const int groups = outputs / 8, image = blockIdx.z / groups, first = blockIdx.z % groups * 8;
    const int column = blockIdx.x * 16, row = blockIdx.y * 16;
    float sum[8];
#pragma unroll
    for (int o = 0; o < 8; ++o) sum[o] = bias[first + o];
    for (int c = 0; c < channels; ++c) {
        const float* plane = x + ((size_t)image * channels + c) * side * side;
        for (int i = t; i < 324; i += 256) {
            const int v = row + i / 18 - 1, u = column + i % 18 - 1;
            const bool inside = v >= 0 && v < side && u >= 0 && u < side;
            tile[i / 18][i % 18] = inside ? plane[v * side + u] : 0.0f;
        }
        if (t < 72)
            filter[t / 9][t % 9] = weight[((size_t)(first + t / 9) * channels + c) * 9 + t % 9];
        __syncthreads();
#pragma unroll
        for (int v = 0; v < 3; ++v)
#pragma unroll
            for (int u = 0; u < 3; ++u) {
                const float pixel = tile[ty + v][tx + u];
#pragma unroll
                for (int o = 0; o < 8; ++o) sum[o] += pixel * filter[o][v * 3 + u];
            }
        __syncthreads();
    }
    if (row + ty >= side || column + tx >= side) return;
#pragma unroll
    for (int o = 0; o < 8; ++o)
        y[(((size_t)image * outputs + first + o) * side + row + ty) * side + column + tx] = sum[o];
}

// The largest of 3 x 3 at every second pixel, and its place in the plane. A grid of fixed size
// strides over the outputs.
extern "C" __global__ void max_pool_3x3_places(
    const float* __restrict__ x, float* __restrict__ y, int* __restrict__ place, int n, int side)
{
    const int half = side / 2;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const int column = i % half * 2 - 1, row = i / half % half * 2 - 1;
        const float* plane = x + (size_t)(i / (half * half)) * side * side;
        const int last_row = min(row + 3, side), last_column = min(column + 3, side);
        float most = -3.4e38f;
        int at = -1;
        for (int v = max(row, 0); v < last_row; ++v)
            for (int u = max(column, 0); u < last_column; ++u) {
                const float value = plane[v * side + u];
                if (value > most) {
                    most = value;
                    at = v * side + u;
                }
            }
        y[i] = most;
        place[i] = at;
    }
}

// One dimension of the transform of eight numbers, by their sums and differences.
__device__ __forceinline__ void cosines_8(float* v)
{
    const float a = v[0] + v[7], b = v[1] + v[6], c = v[2] + v[5], d = v[3] + v[4];
    const float e = v[0] - v[7], f = v[1] - v[6], g = v[2] - v[5], h = v[3] - v[4];
    v[0] = 0.35355339f * (a + b + c + d);
    v[4] = 0.35355339f * (a - b - c + d);
    v[2] = 0.46193977f * (a - d) + 0.19134172f * (b - c);
    v[6] = 0.19134172f * (a - d) - 0.46193977f * (b - c);
    v[1] = 0.49039264f * e + 0.41573481f * f + 0.27778512f * g + 0.09754516f * h;
    v[3] = 0.41573481f * e - 0.09754516f * f - 0.49039264f * g - 0.27778512f * h;
    v[5] = 0.27778512f * e - 0.49039264f * f + 0.09754516f * g + 0.41573481f * h;
    v[7] = 0.09754516f * e - 0.27778512f * f + 0.41573481f * g - 0.49039264f * h;
}

// JPEG's coefficients of a grey picture: 8 x 8 cosines, divided by a table and rounded. A block of
// 8 x 16 takes a row of 16 squares, a thread a row of one and then a column.
extern "C" __global__ void __launch_bounds__(128) dct_8x8_quantise(
    const unsigned char* __restrict__ picture, const float* __restrict__ inverse,
    short* __restrict__ coefficient, int width)
{
    __shared__ float square[16][8][9];
    const int t = threadIdx.x, own = threadIdx.y;
    const int column = (blockIdx.x * 16 + own) * 8;
    const bool inside = column < width;
    float v[8];
    if (inside) {
        const size_t at = (size_t)(blockIdx.y * 8 + t) * width + column;
        const uint2 pixels = *reinterpret_cast<const uint2*>(picture + at);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            v[j] = (float)(pixels.x >> 8 * j & 255) - 128.0f;
            v[4 + j] = (float)(pixels.y >> 8 * j & 255) - 128.0f;
        }
        cosines_8(v);
#pragma unroll
        for (int j = 0; j < 8; ++j) square[own][t][j] = v[j];
    }
    __syncthreads();
    if (!inside) return;
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = square[own][j][t];
    cosines_8(v);
    const size_t to = ((size_t)blockIdx.y * (width / 8) + column / 8) * 64;
#pragma unroll
    for (int j = 0; j < 8; ++j)
        coefficient[to + j * 8 + t] = (short)__float2int_rn(v[j] * inverse[j * 8 + t]);
}
