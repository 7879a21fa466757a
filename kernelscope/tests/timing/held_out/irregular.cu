// position (n,) float4: x, y, z, mass
extern "C" __global__ void nbody(const float4* position, float4* force, int n)
{
    __shared__ float4 other[256];
    const int i = blockIdx.x * 256 + threadIdx.x;
    const float4 own = position[i];
    float x = 0.0f, y = 0.0f, z = 0.0f;
    for (int first = 0; first < n; first += 256) {
        other[threadIdx.x] = position[first + threadIdx.x];
        __syncthreads();
#pragma unroll 8
        for (int j = 0; j < 256; ++j) {
            const float4 p = other[j];
            const float dx = p.x - own.x, dy = p.y - own.y, dz = p.z - own.z;
            const float near = rsqrtf(dx * dx + dy * dy + dz * dz + 1e-3f);
            const float pull = p.w * near * near * near;
            x += dx * pull;
            y += dy * pull;
            z += dz * pull;
        }
        __syncthreads();
    }
    force[i] = make_float4(x, y, z, 0.0f);
}

extern "C" __global__ void mandelbrot(int* steps, int width, int height, int most)
{
    const int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
    if (c >= width || r >= height) return;
    const float a = -2.0f + 3.0f * c / width, b = -1.2f + 2.4f * r / height;
    float x = 0.0f, y = 0.0f;
    int i = 0;
    while (i < most && x * x + y * y < 4.0f) {
        const float next = x * x - y * y + a;
        y = 2.0f * x * y + b;
        x = next;
        ++i;
    }
    steps[r * width + c] = i;
}

// Rows of `most` entries, of which a row has up to that many; columns at random.
extern "C" __global__ void spmv_thread(
    const float* value, const int* column, const int* length, const float* x, float* y, int rows,
    int most)
{
    const int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    float sum = 0.0f;
    for (int j = 0; j < length[r]; ++j) sum += value[r * most + j] * x[column[r * most + j]];
    y[r] = sum;
}

extern "C" __global__ void spmv_warp(
    const float* value, const int* column, const int* length, const float* x, float* y, int rows,
    int most)
{
    const int r = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (r >= rows) return;
    float sum = 0.0f;
    for (int j = lane; j < length[r]; j += 32) sum += value[r * most + j] * x[column[r * most + j]];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
    if (lane == 0) y[r] = sum;
}

// The same word of 32 rows: every request of a warp goes to one bank.
extern "C" __global__ void shared_columns(const float* x, float* y, int rounds)
{
    __shared__ float tile[32][32];
    const int lane = threadIdx.x, w = threadIdx.y;
    tile[w][lane] = x[(blockIdx.x * 32 + w) * 32 + lane];
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < rounds; ++i) sum += tile[lane][(w + i) % 32];
    y[(blockIdx.x * 32 + w) * 32 + lane] = sum;
}

__constant__ float weights[64];

extern "C" __global__ void convolve_constant(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i + 64 > n) return;
    float sum = 0.0f;
#pragma unroll 16
    for (int j = 0; j < 64; ++j) sum += weights[j] * x[i + j];
    y[i] = sum;
}

// Products of 4 x 4 matrices, one a thread: (n, 4, 4) float32
extern "C" __global__ void small_products(const float4* a, const float4* b, float4* c, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 right[4];
    for (int r = 0; r < 4; ++r) right[r] = b[4 * i + r];
    for (int r = 0; r < 4; ++r) {
        const float4 v = a[4 * i + r];
        c[4 * i + r] = make_float4(
            v.x * right[0].x + v.y * right[1].x + v.z * right[2].x + v.w * right[3].x,
            v.x * right[0].y + v.y * right[1].y + v.z * right[2].y + v.w * right[3].y,
            v.x * right[0].z + v.y * right[1].z + v.z * right[2].z + v.w * right[3].z,
            v.x * right[0].w + v.y * right[1].w + v.z * right[2].w + v.w * right[3].w);
    }
}

// Each thread follows `next` for some steps.
extern "C" __global__ void follow(const int* next, int* last, int steps)
{
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    const int own = at;
    for (int i = 0; i < steps; ++i) at = next[at];
    last[own] = at;
}

// Pairwise sums of squares over a row that lies in registers, spilling none.
extern "C" __global__ void distance_matrix(const float* x, float* d, int n)
{
    __shared__ float rows[16][17], columns[16][17];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * 16 + ty, column = blockIdx.x * 16 + tx;
    float sum = 0.0f;
    for (int i = 0; i < 64; i += 16) {
        rows[ty][tx] = x[row * 64 + i + tx];
        columns[ty][tx] = x[(blockIdx.x * 16 + ty) * 64 + i + tx];
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            const float gap = rows[ty][j] - columns[tx][j];
            sum += gap * gap;
        }
        __syncthreads();
    }
    d[row * n + column] = sqrtf(sum);
}
