// Rows: gradients of a layer norm's weights, a sparse optimiser, a robust loss, CTC.

#include <cuda_fp16.h>

// The sums over rows of dy * (x - mean) * inverse deviation and of dy, the gradients of a layer
// norm's gain and bias. A block of 32 x 8 takes 64 columns of every gridDim.y-th group of eight
// rows; what it leaves are partial sums.
extern "C" __global__ void __launch_bounds__(256) layer_norm_backward_weights(
    const __half2* __restrict__ dy, const __half2* __restrict__ x, const float* __restrict__ mean,
    const float* __restrict__ inverse, float2* __restrict__ gain, float2* __restrict__ bias,
    int rows, int columns)
{
    __shared__ float4 part[8][33];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int half = columns / 2, column = blockIdx.x * 32 + tx;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int row = blockIdx.y * 8 + ty; row < rows; row += gridDim.y * 8) {
        const float m = mean[row], r = inverse[row];
        const float2 g = __half22float2(dy[(size_t)row * half + column]);
        const float2 v = __half22float2(x[(size_t)row * half + column]);
        sum.x += g.x * (v.x - m) * r;
        sum.y += g.y * (v.y - m) * r;
        sum.z += g.x;
        sum.w += g.y;
    }
    part[ty][tx] = sum;
    for (int height = 4; height > 0; height /= 2) {
        __syncthreads();
        if (ty < height) {
            const float4 other = part[ty + height][tx];
            float4 own = part[ty][tx];
            own.x += other.x;
            own.y += other.y;
            own.z += other.z;
            own.w += other.w;
            part[ty][tx] = own;
        }
    }
    if (ty == 0) {
        const float4 own = part[0][tx];
        gain[(size_t)blockIdx.y * half + column] = make_float2(own.x, own.y);
        bias[(size_t)blockIdx.y * half + column] = make_float2(own.z, own.w);
    }
}

// Adagrad of rows of an embedding, one state a row. `row` is sorted; the warp of the first of equal
// rows sums their gradients, which are rows order[i] of `gradient`, and takes the step. A row has
// 128 numbers.
extern "C" __global__ void adagrad_embedding_rows(
    const float4* __restrict__ gradient, const int* __restrict__ row,
    const int* __restrict__ order, float4* __restrict__ weight, float* __restrict__ state, int n,
    float rate)
{
    const int i = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (i >= n) return;
    const int own = row[i];
    if (i > 0 && row[i - 1] == own) return;
    float4 g = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int j = i; j < n && row[j] == own; ++j) {
        const float4 v = gradient[(size_t)order[j] * 32 + lane];
        g.x += v.x;
        g.y += v.y;
        g.z += v.z;
        g.w += v.w;
    }
    float squares = g.x * g.x + g.y * g.y + g.z * g.z + g.w * g.w;
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1)
        squares += __shfl_xor_sync(0xFFFFFFFF, squares, lanes);
    const float moment = state[own] + squares / 128.0f;
    __syncwarp();
    if (lane == 0) state[own] = moment;
    const float step = rate / (sqrtf(moment) + 1e-8f);
    float4 w = weight[(size_t)own * 32 + lane];
    w.x -= step * g.x;
    w.y -= step * g.y;
    w.z -= step * g.z;
    w.w -= step * g.w;
    weight[(size_t)own * 32 + lane] = w;
}

__device__ __forceinline__ float smooth_l1(float difference, float beta)
{
    const float size = fabsf(difference);
    return size < beta ? 0.5f * size * size / beta : size - 0.5f * beta;
}

// The smooth L1 loss of n numbers, four at a time; a grid of fixed size strides over them, and each
// block adds its sum to the loss.
extern "C" __global__ void __launch_bounds__(256) smooth_l1_sum(
    const float4* __restrict__ prediction, const float4* __restrict__ target,
    float* __restrict__ loss, int fours, float beta, float weight)
{
    __shared__ float of_warp[8];
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < fours; i += gridDim.x * blockDim.x) {
        const float4 p = prediction[i], q = target[i];
        sum += smooth_l1(p.x - q.x, beta) + smooth_l1(p.y - q.y, beta) +
               smooth_l1(p.z - q.z, beta) + smooth_l1(p.w - q.w, beta);
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1)
        sum += __shfl_down_sync(0xFFFFFFFF, sum, lanes);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 8) {
        sum = of_warp[threadIdx.x];
#pragma unroll
        for (int lanes = 4; lanes > 0; lanes >>= 1) sum += __shfl_down_sync(0xFF, sum, lanes);
        if (threadIdx.x == 0) atomicAdd(loss, sum * weight);
    }
}

constexpr float NEVER = -1e30f;

__device__ __forceinline__ float log_sum(float a, float b, float c)
{
    const float most = fmaxf(a, fmaxf(b, c));
    return logf(expf(a - most) + expf(b - most) + expf(c - most)) + most;
}

// The forward variables of CTC and the loss. log_p is (steps, batch, classes), class 0 the blank. A
// block takes a sample, a thread a place among the labels and the blanks around them.
extern "C" __global__ void __launch_bounds__(128) ctc_alphas(
    const float* __restrict__ log_p, const int* __restrict__ label, float* __restrict__ alpha,
    float* __restrict__ loss, int steps, int batch, int classes, int labels)
{
    __shared__ float last[2][130];
    const int s = threadIdx.x, sample = blockIdx.x, places = 2 * labels + 1;
    int own = 0;
    bool skip = false;
    if (s % 2 && s < places) {
        own = label[sample * labels + s / 2] + 1;
        skip = s > 1 && label[sample * labels + s / 2 - 1] + 1 != own;
    }
    const float* p = log_p + (size_t)sample * classes + own;
    float* out = alpha + (size_t)sample * steps * places;
    if (s < 2) last[0][s] = last[1][s] = NEVER;
    float here = s < 2 ? p[0] : NEVER;
    last[0][s + 2] = here;
    if (s < places) out[s] = here;
    for (int t = 1; t < steps; ++t) {
        __syncthreads();
        const float* before = last[(t - 1) & 1];
        const float step = p[(size_t)t * batch * classes];
        here = log_sum(here, before[s + 1], skip ? before[s] : NEVER) + step;
        last[t & 1][s + 2] = here;
        if (s < places) out[(size_t)t * places + s] = here;
    }
    __syncthreads();
    if (s == 0) {
        const float* end = last[(steps - 1) & 1] + places;
        loss[sample] = -log_sum(end[0], end[1], NEVER);
    }
}
