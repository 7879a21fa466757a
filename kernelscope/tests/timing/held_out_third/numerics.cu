// Linear systems, differential equations, series.

// Biquad filters, one thread for each channel of x (channels, samples).
extern "C" __global__ void biquad(
    const float* x, float* y, int channels, int samples, float b0, float b1, float a1, float a2)
{
    const int channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    float s1 = 0.0f, s2 = 0.0f;
    for (int t = 0; t < samples; t++) {
        float in = x[channel * samples + t];
        float out = b0 * in + s1;
        s1 = b1 * in - a1 * out + s2;
        s2 = b0 * in - a2 * out;
        y[channel * samples + t] = out;
    }
}

// (steps, systems): -x[i-1] + d[i] x[i] - x[i+1] = b[i] by Thomas, a thread for each system.
extern "C" __global__ void thomas(
    const float* d, const float* b, float* c, float* x, int steps, int systems)
{
    const int s = blockIdx.x * blockDim.x + threadIdx.x;
    if (s >= systems) return;
    float upper = 0.0f, right = 0.0f;
    for (int i = 0; i < steps; ++i) {
        const int at = i * systems + s;
        const float scale = 1.0f / (4.0f + fabsf(d[at]) + upper);
        upper = -scale;
        right = (b[at] + right) * scale;
        c[at] = upper;
        x[at] = right;
    }
    for (int i = steps - 2; i >= 0; --i) {
        const int at = i * systems + s;
        right = x[at] - c[at] * right;
        x[at] = right;
    }
}

// L of A + 16 = L L^T for 8 x 8 matrices, of which the lower halves are read: one a thread.
extern "C" __global__ void cholesky_8(const float* a, float* l, int count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float m[8][8];
#pragma unroll
    for (int r = 0; r < 8; ++r)
#pragma unroll
        for (int c = 0; c <= r; ++c)
            m[r][c] = a[(size_t)i * 64 + r * 8 + c] + (r == c ? 16.0f : 0.0f);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        m[k][k] = sqrtf(m[k][k]);
        const float scale = 1.0f / m[k][k];
#pragma unroll
        for (int r = k + 1; r < 8; ++r) m[r][k] *= scale;
#pragma unroll
        for (int c = k + 1; c < 8; ++c)
#pragma unroll
            for (int r = c; r < 8; ++r) m[r][c] -= m[r][k] * m[c][k];
    }
#pragma unroll
    for (int r = 0; r < 8; ++r)
#pragma unroll
        for (int c = 0; c < 8; ++c) l[(size_t)i * 64 + r * 8 + c] = c <= r ? m[r][c] : 0.0f;
}

// L and U of A + 32 in one, without pivots: a block of 32 x 8 threads takes a 32 x 32 matrix.
extern "C" __global__ void lu_32(const float* a, float* lu)
{
    __shared__ float m[32][33];
    const int c = threadIdx.x;
    const size_t first = (size_t)blockIdx.x * 1024;
    for (int r = threadIdx.y; r < 32; r += 8)
        m[r][c] = a[first + r * 32 + c] + (r == c ? 32.0f : 0.0f);
    __syncthreads();
    for (int k = 0; k < 31; ++k) {
        if (threadIdx.y == 0 && c > k) m[c][k] /= m[k][k];
        __syncthreads();
        for (int r = k + 1 + threadIdx.y; r < 32; r += 8)
            if (c > k) m[r][c] -= m[r][k] * m[k][c];
        __syncthreads();
    }
    for (int r = threadIdx.y; r < 32; r += 8) lu[first + r * 32 + c] = m[r][c];
}

// Half a sweep of Gauss-Seidel: points of one colour get the mean of their neighbours.
extern "C" __global__ void red_black(float* u, const float* f, int height, int width, int colour)
{
    const int y = blockIdx.y * blockDim.y + threadIdx.y + 1;
    const int x = 2 * (blockIdx.x * blockDim.x + threadIdx.x) + 1 + (y + colour) % 2;
    if (y >= height - 1 || x >= width - 1) return;
    const int at = y * width + x;
    u[at] = 0.25f * (u[at - 1] + u[at + 1] + u[at - width] + u[at + width] - f[at]);
}

// A step of heat in (n, n, n): a block walks along z with 32 x 8 columns in shared memory.
extern "C" __global__ void heat_march(const float* u, float* v, int n, float rate)
{
    __shared__ float plane[10][34];
    const int x = blockIdx.x * 32 + threadIdx.x + 1, y = blockIdx.y * 8 + threadIdx.y + 1;
    const int layer = n * n, c = threadIdx.x + 1, r = threadIdx.y + 1;
    const bool inside = x < n - 1 && y < n - 1;
    int at = min(y, n - 1) * n + min(x, n - 1);
    float below = u[at], here = u[at + layer];
    for (int z = 1; z < n - 1; ++z) {
        at += layer;
        const float above = u[at + layer];
        plane[r][c] = here;
        if (threadIdx.x == 0) plane[r][0] = u[at - 1];
        if (threadIdx.x == 31 && x < n - 1) plane[r][33] = u[at + 1];
        if (threadIdx.y == 0) plane[0][c] = u[at - n];
        if (threadIdx.y == 7 && y < n - 1) plane[9][c] = u[at + n];
        __syncthreads();
        if (inside) {
            const float beside = plane[r][c - 1] + plane[r][c + 1];
            const float around = beside + plane[r - 1][c] + plane[r + 1][c] + below + above;
            v[at] = here + rate * (around - 6.0f * here);
        }
        __syncthreads();
        below = here;
        here = above;
    }
}

// Bessel's J0 by its series: each term is the last one times -(x / 2k)^2.
extern "C" __global__ void bessel_series(const float* x, float* y, int n, int terms)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float square = -0.25f * x[i] * x[i];
    float term = 1.0f, sum = 1.0f;
    for (int k = 1; k <= terms; ++k) {
        term *= square / (float)(k * k);
        sum += term;
    }
    y[i] = sum;
}

__device__ float3 lorenz(float3 p)
{
    const float y = p.x * (28.0f - p.z) - p.y;
    return make_float3(10.0f * (p.y - p.x), y, p.x * p.y - 2.6666667f * p.z);
}

__device__ float3 moved(float3 p, float3 v, float h)
{
    return make_float3(p.x + h * v.x, p.y + h * v.y, p.z + h * v.z);
}

// Runge-Kutta's steps of Lorenz's equations for n starts in a structure of arrays.
extern "C" __global__ void runge_kutta(float* x, const float* from, int n, int steps, float h)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float3 p = make_float3(from[i], from[n + i], from[2 * n + i]);
    for (int s = 0; s < steps; ++s) {
        const float3 a = lorenz(p), b = lorenz(moved(p, a, 0.5f * h));
        const float3 c = lorenz(moved(p, b, 0.5f * h)), d = lorenz(moved(p, c, h));
        p = moved(moved(moved(p, a, h / 6), moved(b, c, 1.0f), h / 3), d, h / 6);
    }
    x[i] = p.x;
    x[n + i] = p.y;
    x[2 * n + i] = p.z;
}

// Forces of Lennard-Jones in a plane of cells with at most 8 particles each, from the 3 x 3 cells
// around; place is within a cell. A thread takes a place of a cell.
extern "C" __global__ void cell_forces(
    const float2* place, const int* count, float2* force, int across)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, cell = i / 8;
    if (cell >= across * across || i % 8 >= count[cell]) return;
    const int cx = cell % across, cy = cell / across;
    const float2 own = place[i];
    float fx = 0.0f, fy = 0.0f;
    for (int dy = -1; dy <= 1; ++dy)
        for (int dx = -1; dx <= 1; ++dx) {
            const int other = (cy + dy + across) % across * across + (cx + dx + across) % across;
            for (int j = 0; j < count[other]; ++j) {
                if (other * 8 + j == i) continue;
                const float2 p = place[other * 8 + j];
                const float x = dx + 0.1f * (p.x - own.x), y = dy + 0.1f * (p.y - own.y);
                const float square = x * x + y * y + 0.01f;
                if (square > 1.0f) continue;
                const float inverse = 0.04f / square, sixth = inverse * inverse * inverse;
                const float size = sixth * (sixth - 0.5f) / square;
                fx -= size * x;
                fy -= size * y;
            }
        }
    force[i] = make_float2(fx, fy);
}
