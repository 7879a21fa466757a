// Sciences: Sobol's numbers, a smile of volatilities, a recursive filter, rays at triangles.

// Sobol's numbers from 0 to 1, a row of the grid a dimension with 32 directions. A thread strides
// over the sequence by a power of two, so that Gray's code changes in two bits.
extern "C" __global__ void __launch_bounds__(128) sobol_gray_strides(
    const unsigned* __restrict__ direction, float* __restrict__ out, int n)
{
    __shared__ unsigned v[32];
    const int dimension = blockIdx.y;
    if (threadIdx.x < 32) v[threadIdx.x] = direction[dimension * 32 + threadIdx.x];
    __syncthreads();
    float* to = out + (size_t)dimension * n;
    const int first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
    if (first >= n) return;
    unsigned x = 0;
    int gray = first ^ first >> 1;
    for (int k = 0; gray; ++k, gray >>= 1)
        if (gray & 1) x ^= v[k];
    to[first] = (float)x * 2.3283064e-10f;
    const unsigned of_stride = v[__ffs(stride) - 2];
    for (int i = first + stride; i < n; i += stride) {
        x ^= of_stride ^ v[__ffs(~((i - stride) | (stride - 1))) - 1];
        to[i] = (float)x * 2.3283064e-10f;
    }
}

// Hagan's volatility of the SABR model, doubles. Forwards and strikes are given as logarithms in
// units of 0.1 and 0.2 around three per cent. A thread takes an option.
extern "C" __global__ void sabr_volatility_double(
    const double* __restrict__ log_forward, const double* __restrict__ log_strike,
    double* __restrict__ volatility, int n, float years, float alpha, float beta, float rho,
    float nu)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const double a = alpha, b = beta, r = rho, v = nu, rest = 1.0 - b;
    const double forward = 0.03 * exp(0.1 * log_forward[i]);
    const double strike = 0.03 * exp(0.2 * log_strike[i]);
    const double apart = log(forward / strike), middle = pow(forward * strike, 0.5 * rest);
    const double square = rest * rest * apart * apart;
    const double z = v / a * middle * apart;
    double ratio = 1.0 - 0.5 * r * z;
    if (fabs(z) > 1e-6)
        ratio = z / log((sqrt(1.0 - 2.0 * r * z + z * z) + z - r) / (1.0 - r));
    const double in_time = rest * rest / 24.0 * a * a / (middle * middle) +
                           0.25 * r * b * v * a / middle + (2.0 - 3.0 * r * r) / 24.0 * v * v;
    volatility[i] = a / (middle * (1.0 + square / 24.0 + square * square / 1920.0)) * ratio *
                    (1.0 + in_time * years);
}

__device__ __forceinline__ float4 colours(uchar4 p)
{
    return make_float4(p.x, p.y, p.z, p.w);
}

__device__ __forceinline__ uchar4 pixel(float4 p)
{
    return make_uchar4(
        __float2uint_rn(__saturatef(p.x / 255.0f) * 255.0f),
        __float2uint_rn(__saturatef(p.y / 255.0f) * 255.0f),
        __float2uint_rn(__saturatef(p.z / 255.0f) * 255.0f),
        __float2uint_rn(__saturatef(p.w / 255.0f) * 255.0f));
}

// One step of a filter of second order.
__device__ __forceinline__ float4 blend(
    float4 x, float4 last, float4 y, float4 before, float p, float q, float b1, float b2)
{
    return make_float4(
        p * x.x + q * last.x - b1 * y.x - b2 * before.x,
        p * x.y + q * last.y - b1 * y.y - b2 * before.y,
        p * x.z + q * last.z - b1 * y.z - b2 * before.z,
        p * x.w + q * last.w - b1 * y.w - b2 * before.w);
}

// Deriche's recursive Gaussian along the columns of pictures of four bytes a pixel: down, and then
// up with what came down added. A thread takes a column.
extern "C" __global__ void recursive_gaussian_columns(
    const uchar4* __restrict__ from, uchar4* __restrict__ to, int width, int height, float a0,
    float a1, float a2, float a3, float b1, float b2)
{
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= width) return;
    const size_t start = (size_t)blockIdx.y * height * width + column;
    const float by = 1.0f / (1.0f + b1 + b2);
    const float down = (a0 + a1) * by, up = (a2 + a3) * by;
    float4 last = colours(from[start]);
    float4 y = make_float4(last.x * down, last.y * down, last.z * down, last.w * down), before = y;
    for (int i = 0; i < height; ++i) {
        const float4 x = colours(from[start + (size_t)i * width]);
        const float4 here = blend(x, last, y, before, a0, a1, b1, b2);
        to[start + (size_t)i * width] = pixel(here);
        last = x;
        before = y;
        y = here;
    }
    float4 next = colours(from[start + (size_t)(height - 1) * width]), after = next;
    y = make_float4(next.x * up, next.y * up, next.z * up, next.w * up);
    before = y;
    for (int i = height - 1; i >= 0; --i) {
        const float4 x = colours(from[start + (size_t)i * width]);
        const float4 here = blend(next, after, y, before, a2, a3, b1, b2);
        after = next;
        next = x;
        before = y;
        y = here;
        const float4 other = colours(to[start + (size_t)i * width]);
        to[start + (size_t)i * width] = pixel(make_float4(
            other.x + here.x, other.y + here.y, other.z + here.z, other.w + here.w));
    }
}

// The first triangle that each ray meets, by Moeller and Trumbore, of all of them. A block of 256
// rays goes over tiles of 64 triangles in shared memory: a corner and two edges.
extern "C" __global__ void __launch_bounds__(256) ray_triangles_nearest(
    const float* __restrict__ origin, const float* __restrict__ direction,
    const float* __restrict__ corner, float* __restrict__ distance, int* __restrict__ hit,
    int rays, int triangles)
{
    __shared__ float3 place[64], first[64], second[64];
    const int ray = blockIdx.x * 256 + threadIdx.x, own = min(ray, rays - 1);
    const float ox = origin[3 * own], oy = origin[3 * own + 1], oz = origin[3 * own + 2];
    const float dx = direction[3 * own], dy = direction[3 * own + 1], dz = direction[3 * own + 2];
    float nearest = 1e30f;
    int which = -1;
    for (int tile = 0; tile < triangles; tile += 64) {
        const int count = min(64, triangles - tile);
        __syncthreads();
        if (threadIdx.x < count) {
            const float* p = corner + (size_t)(tile + threadIdx.x) * 9;
            place[threadIdx.x] = make_float3(p[0], p[1], p[2]);
            first[threadIdx.x] = make_float3(p[3] - p[0], p[4] - p[1], p[5] - p[2]);
            second[threadIdx.x] = make_float3(p[6] - p[0], p[7] - p[1], p[8] - p[2]);
        }
        __syncthreads();
        for (int i = 0; i < count; ++i) {
            const float3 e = first[i], f = second[i], v = place[i];
            const float px = dy * f.z - dz * f.y, py = dz * f.x - dx * f.z;
            const float pz = dx * f.y - dy * f.x;
            const float determinant = e.x * px + e.y * py + e.z * pz;
            if (fabsf(determinant) < 1e-8f) continue;
            const float inverse = 1.0f / determinant;
            const float sx = ox - v.x, sy = oy - v.y, sz = oz - v.z;
            const float u = (sx * px + sy * py + sz * pz) * inverse;
            if (u < 0.0f || u > 1.0f) continue;
            const float qx = sy * e.z - sz * e.y, qy = sz * e.x - sx * e.z;
            const float qz = sx * e.y - sy * e.x;
            const float w = (dx * qx + dy * qy + dz * qz) * inverse;
            if (w < 0.0f || u + w > 1.0f) continue;
            const float far = (f.x * qx + f.y * qy + f.z * qz) * inverse;
            if (far > 1e-5f && far < nearest) {
                nearest = far;
                which = tile + i;
            }
        }
    }
    if (ray >= rays) return;
    distance[ray] = nearest;
    hit[ray] = which;
}
