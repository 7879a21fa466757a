#include <cuda_fp16.h>

extern "C" __global__ void add(const float* a, const float* b, float* c, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void saxpy_grid_stride(float a, const float* x, float* y, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = a * x[i] + y[i];
}

extern "C" __global__ void scale_float4(float a, const float4* x, float4* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 v = x[i];
    y[i] = make_float4(a * v.x, a * v.y, a * v.z, a * v.w);
}

// Neighbouring threads are `stride` elements apart.
extern "C" __global__ void copy_strided(const float* x, float* y, int n, int stride)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[(size_t)i * stride];
}

extern "C" __global__ void polynomial(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float v = x[i];
    float sum = 0.25f;
#pragma unroll
    for (int j = 0; j < 96; ++j) sum = sum * v + 0.001f * j;
    y[i] = sum;
}

extern "C" __global__ void sigmoid(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 1.0f / (1.0f + expf(-x[i]));
}

// Exponentials one after another: 16 of them, each of the last.
extern "C" __global__ void exponential_chain(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    for (int j = 0; j < 16; ++j) v = __expf(-v * v);
    y[i] = v;
}

extern "C" __global__ void divide(const float* x, const float* d, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    for (int j = 0; j < 8; ++j) v = v / (d[i] + j);
    y[i] = v;
}

extern "C" __global__ void hash(const unsigned* x, unsigned* y, int n, int rounds)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned v = x[i];
    for (int j = 0; j < rounds; ++j) {
        v ^= v >> 16;
        v *= 0x7feb352du;
        v ^= v >> 15;
        v *= 0x846ca68bu;
    }
    y[i] = v;
}

extern "C" __global__ void gather(const float* x, const int* at, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[at[i]];
}

extern "C" __global__ void scatter(const float* x, const int* at, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[at[i]] = x[i];
}

extern "C" __global__ void half2_axpy(const __half2* x, __half2* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __hfma2(x[i], __float2half2_rn(1.5f), y[i]);
}

extern "C" __global__ void double_horner(const double* x, double* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double sum = 0.5;
#pragma unroll 8
    for (int j = 0; j < 32; ++j) sum = sum * x[i] + 0.125;
    y[i] = sum;
}
