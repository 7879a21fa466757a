// C (m, n) = A (m, k) B (k, n), row-major float32; sizes are multiples of the tiles.

// Neighbouring threads are in neighbouring rows: loads of A and stores of C are scattered.
extern "C" __global__ void sgemm_rows(
    const float* a, const float* b, float* c, int m, int n, int k)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    const int column = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + column];
    c[row * n + column] = sum;
}

extern "C" __global__ void sgemm_columns(
    const float* a, const float* b, float* c, int m, int n, int k)
{
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + column];
    c[row * n + column] = sum;
}

extern "C" __global__ void sgemm_tile(
    const float* a, const float* b, float* c, int m, int n, int k)
{
    __shared__ float left[32][32], right[32][32];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * 32 + y, column = blockIdx.x * 32 + x;
    float sum = 0.0f;
    for (int i = 0; i < k; i += 32) {
        left[y][x] = a[row * k + i + x];
        right[y][x] = b[(i + y) * n + column];
        __syncthreads();
        for (int j = 0; j < 32; ++j) sum += left[y][j] * right[j][x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

// A thread computes 8 rows of one column; tiles 64 x 64, 8 deep; 512 threads.
extern "C" __global__ void sgemm_column_of_8(
    const float* a, const float* b, float* c, int m, int n, int k)
{
    __shared__ float left[64][8], right[8][64];
    const int t = threadIdx.x, x = t % 64, y = t / 64;
    a += blockIdx.y * 64 * k;
    b += blockIdx.x * 64;
    float sum[8] = {};
    for (int i = 0; i < k; i += 8) {
        left[t / 8][t % 8] = a[(t / 8) * k + i + t % 8];
        right[y][x] = b[(i + y) * n + x];
        __syncthreads();
        for (int j = 0; j < 8; ++j) {
            const float v = right[j][x];
            for (int r = 0; r < 8; ++r) sum[r] += left[8 * y + r][j] * v;
        }
        __syncthreads();
    }
    for (int r = 0; r < 8; ++r)
        c[(blockIdx.y * 64 + 8 * y + r) * n + blockIdx.x * 64 + x] = sum[r];
}

// A thread computes 8 x 8; tiles 128 x 128, 8 deep; 256 threads; the tile of A is transposed.
extern "C" __global__ void __launch_bounds__(256) sgemm_square_of_8(
    const float* a, const float* b, float* c, int m, int n, int k)
{
    __shared__ float left[8][128], right[8][128];
    const int t = threadIdx.x, x = 8 * (t % 16), y = 8 * (t / 16);
    a += blockIdx.y * 128 * k;
    b += blockIdx.x * 128;
    float sum[8][8] = {}, u[8], v[8];
    for (int i = 0; i < k; i += 8) {
        for (int p = t; p < 1024; p += 256) {
            left[p % 8][p / 8] = a[(p / 8) * k + i + p % 8];
            right[p / 128][p % 128] = b[(i + p / 128) * n + p % 128];
        }
        __syncthreads();
        for (int j = 0; j < 8; ++j) {
#pragma unroll
            for (int r = 0; r < 8; ++r) {
                u[r] = left[j][y + r];
                v[r] = right[j][x + r];
            }
#pragma unroll
            for (int r = 0; r < 8; ++r)
#pragma unroll
                for (int s = 0; s < 8; ++s) sum[r][s] += u[r] * v[s];
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 8; ++r)
#pragma unroll
        for (int s = 0; s < 8; ++s)
            c[(blockIdx.y * 128 + y + r) * n + blockIdx.x * 128 + x + s] = sum[r][s];
}

// The same with float4 loads and stores.
extern "C" __global__ void __launch_bounds__(256) sgemm_float4(
    const float* a, const float* b, float* c, int m, int n, int k)
{
    __shared__ __align__(16) float left[8][128], right[8][128];
    const int t = threadIdx.x, x = 8 * (t % 16), y = 8 * (t / 16);
    a += blockIdx.y * 128 * k;
    b += blockIdx.x * 128;
    float sum[8][8] = {};
    for (int i = 0; i < k; i += 8) {
        const float4 from_a = *(const float4*)&a[(t / 2) * k + i + 4 * (t % 2)];
        left[4 * (t % 2) + 0][t / 2] = from_a.x;
        left[4 * (t % 2) + 1][t / 2] = from_a.y;
        left[4 * (t % 2) + 2][t / 2] = from_a.z;
        left[4 * (t % 2) + 3][t / 2] = from_a.w;
        *(float4*)&right[t / 32][4 * (t % 32)] =
            *(const float4*)&b[(i + t / 32) * n + 4 * (t % 32)];
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            float u[8], v[8];
            *(float4*)&u[0] = *(float4*)&left[j][y];
            *(float4*)&u[4] = *(float4*)&left[j][y + 4];
            *(float4*)&v[0] = *(float4*)&right[j][x];
            *(float4*)&v[4] = *(float4*)&right[j][x + 4];
#pragma unroll
            for (int r = 0; r < 8; ++r)
#pragma unroll
                for (int s = 0; s < 8; ++s) sum[r][s] += u[r] * v[s];
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 8; ++r)
#pragma unroll
        for (int s = 0; s < 8; s += 4)
            *(float4*)&c[(blockIdx.y * 128 + y + r) * n + blockIdx.x * 128 + x + s] =
                make_float4(sum[r][s], sum[r][s + 1], sum[r][s + 2], sum[r][s + 3]);
}

// y (rows,) = A (rows, columns) x: one warp a row
extern "C" __global__ void gemv(const float* a, const float* x, float* y, int rows, int columns)
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int c = lane; c < columns; c += 32) sum += a[(size_t)row * columns + c] * x[c];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
    if (lane == 0) y[row] = sum;
}
