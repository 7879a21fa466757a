// Idea:          A block normalises one row with the sum of its first warp.
// Changes from:  clean/layernorm.cu
// Shapes:        x (BH, n, d), gamma (d), beta (d), y (BH, n, d); row-major float32; rows = BH*n
// Launch:        layernorm: grid (BH*n), block (32, WARPS), static shared 2*WARPS*4 bytes
// Needs:         sm_50; 1 <= WARPS <= 32
// Expect:        two passes over a row, mean and then variance, which lose no digits
// Limits:        BH*n < 2^31; the row is read from global memory three times

// Clean:    clean/layernorm.cu
// Defect:   wrong-result
// Symptom:  right for d <= 32, where the other warps have nothing to add; wrong above
// Story:    each warp leaves its sum in shared memory, and one of them is read
// Case:     BH=2, n=3, m=1, d=77

#ifndef WARPS
#define WARPS 4  // warps a block
#endif
#define EPSILON 1e-5f  // keeps the division finite where a row is constant

__device__ float warp_sum(float value)  // every lane gets the sum over the warp
{
    for (int offset = 16; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(0xffffffff, value, offset);
    }
    return value;
}

__device__ float block_sum(
    float value,
    float* part)  // (WARPS,), shared
{
    value = warp_sum(value);
    if (threadIdx.x == 0) part[threadIdx.y] = value;
    __syncthreads();  // barrier: a fast warp would add sums that slow warps have not stored
    return part[0];  // <- defect
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) layernorm(
    const float* x,      // (BH, n, d)
    const float* gamma,  // (d)
    const float* beta,   // (d)
    float* y,            // (BH, n, d)
    int rows, int d)
{
    __shared__ float sums[WARPS];
    __shared__ float squares[WARPS];  // an array of its own: no barrier between the two uses

    const int thread = threadIdx.y * 32 + threadIdx.x;
    const long long row = blockIdx.x;
    if (row >= rows) return;  // the whole block leaves, so nobody is missed at a barrier

    const float* x_row = x + row * d;  // (d,)
    float* y_row = y + row * d;        // (d,)

    float sum = 0.0f;
    for (int i = thread; i < d; i += 32 * WARPS) {
        sum += x_row[i];
    }
    const float mean = block_sum(sum, sums) / d;

    float square = 0.0f;
    for (int i = thread; i < d; i += 32 * WARPS) {
        square += (x_row[i] - mean) * (x_row[i] - mean);
    }
    const float inverse = 1.0f / sqrtf(block_sum(square, squares) / d + EPSILON);
    for (int i = thread; i < d; i += 32 * WARPS) {
        y_row[i] = (x_row[i] - mean) * inverse * gamma[i] + beta[i];
    }
}
