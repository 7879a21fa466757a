// Idea:          Softmax by warps; lanes without an element stay out of the reduction.
// Changes from:  05_softmax_warp.cu
// Shapes:        s (BH, n, m), p (BH, n, m); row-major float32; rows = BH*n; p may be s
// Launch:        softmax_warp: grid (ceil(BH*n/WARPS)), block (32, WARPS)
//                softmax_block: grid (BH*n), block (32, WARPS), static shared 2*WARPS*4 bytes
// Needs:         sm_50; 1 <= WARPS <= 32
// Expect:        32 lanes read 32 neighbouring floats, 4 or 5 sectors where 04 touched 32; 32 (or
//                32*WARPS) times more threads than 04 share the same work
// Limits:        BH*n < 2^31; a row is read from global memory in each of the three passes

// Clean:    05_softmax_warp.cu
// Defect:   uninitialised-read
// Symptom:  a hang, or a maximum that is too small, for rows shorter than a warp
// Story:    the mask promises 32 lanes, the branch lets only m of them in
// Case:     BH=1, n=5, m=19, d=1

#ifndef WARPS
#define WARPS 4  // warps a block
#endif
#define MINUS_INFINITY __int_as_float(0xff800000)  // NVRTC has no <math.h> to name it

__device__ float warp_max(float value)  // every lane gets the maximum over the warp
{
    for (int offset = 16; offset > 0; offset /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, offset));  // <- found here
    }
    return value;
}

__device__ float warp_sum(float value)  // every lane gets the sum over the warp
{
    for (int offset = 16; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(0xffffffff, value, offset);
    }
    return value;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) softmax_warp(
    const float* s,  // (BH, n, m)
    float* p,        // (BH, n, m); may be s: a lane reads its elements before it writes them
    int rows, int m, float scale)
{
    const int lane = threadIdx.x;
    const long long row = (long long)blockIdx.x * WARPS + threadIdx.y;
    if (row >= rows) return;  // the whole warp leaves: a shuffle waits for all of its lanes

    const float* s_row = s + row * m;  // (m,)
    float* p_row = p + row * m;        // (m,)

    float maximum = MINUS_INFINITY;
    for (int j = lane; j < m; j += 32) {
        maximum = fmaxf(maximum, s_row[j] * scale);
    }
    if (lane < m) maximum = warp_max(maximum);  // <- defect
    // A row of -inf has no key to look at; shifting it by its maximum would give inf - inf = NaN.
    const float shift = maximum == MINUS_INFINITY ? 0.0f : maximum;

    float total = 0.0f;
    for (int j = lane; j < m; j += 32) {
        const float weight = expf(fmaf(s_row[j], scale, -shift));  // at most 1: cannot overflow
        p_row[j] = weight;
        total += weight;
    }
    total = warp_sum(total);
    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
    for (int j = lane; j < m; j += 32) {
        p_row[j] *= inverse;  // no barrier: each lane reads only what it wrote itself
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) softmax_block(
    const float* s,  // (BH, n, m)
    float* p,        // (BH, n, m); may be s: a thread reads its elements before it writes them
    int rows, int m, float scale)
{
    __shared__ float warp_maximum[WARPS];
    __shared__ float warp_total[WARPS];  // an array of its own: no barrier between the two uses

    const int lane = threadIdx.x;
    const int warp = threadIdx.y;
    const int thread = warp * 32 + lane;
    const long long row = blockIdx.x;
    if (row >= rows) return;  // the whole block leaves, so nobody is missed at a barrier

    const float* s_row = s + row * m;  // (m,)
    float* p_row = p + row * m;        // (m,)

    float maximum = MINUS_INFINITY;
    for (int j = thread; j < m; j += 32 * WARPS) {
        maximum = fmaxf(maximum, s_row[j] * scale);
    }
    maximum = warp_max(maximum);
    if (lane == 0) warp_maximum[warp] = maximum;
    __syncthreads();  // barrier: a fast warp would read maxima that slow warps have not stored
    maximum = warp_max(lane < WARPS ? warp_maximum[lane] : MINUS_INFINITY);
    const float shift = maximum == MINUS_INFINITY ? 0.0f : maximum;  // as in softmax_warp

    float total = 0.0f;
    for (int j = thread; j < m; j += 32 * WARPS) {
        const float weight = expf(fmaf(s_row[j], scale, -shift));
        p_row[j] = weight;
        total += weight;
    }
    total = warp_sum(total);
    if (lane == 0) warp_total[warp] = total;
    __syncthreads();  // barrier: a fast warp would read sums that slow warps have not stored
    total = warp_sum(lane < WARPS ? warp_total[lane] : 0.0f);
    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
    for (int j = thread; j < m; j += 32 * WARPS) {
        p_row[j] *= inverse;
    }
}
