// Idea:          Maximum by atomicMax on the bits of floats.
// Changes from:  clean/rows_atomic.cu
// Shapes:        q (BH, n, d), k (BH, m, d), v (BH, m, d), out (BH, n, d); row-major float32
// Launch:        rows_atomic: grid (n, BH), block (THREADS), static shared 8 bytes,
//                dynamic shared m*4 bytes rounded up to 16, as the compiler may read the
//                last four weights at once
// Needs:         sm_50; THREADS <= 1024
// Expect:        THREADS atomics on one address for the maximum, and as many for the sum
// Limits:        BH <= 65535; all m scores of a row fit into shared memory

// Clean:    clean/rows_atomic.cu
// Defect:   wrong-result
// Symptom:  right while each row has a positive score; rows of negative scores give NaN
// Story:    positive floats order like their bits, negative ones the other way round
// Case:     BH=2, n=3, m=21, d=9, negative

#ifndef THREADS
#define THREADS 64  // threads a block
#endif
#define MINUS_INFINITY __int_as_float(0xff800000)  // NVRTC has no <math.h> to name it

// The bits of a float as an int, for atomicMax.
__device__ int to_ordered(float x)
{
    return __float_as_int(x);  // <- defect
}

__device__ float from_ordered(int key)
{
    return __int_as_float(key);
}

extern "C" __global__ void __launch_bounds__(THREADS) rows_atomic(
    const float* q,  // (BH, n, d)
    const float* k,  // (BH, m, d)
    const float* v,  // (BH, m, d)
    float* out,      // (BH, n, d)
    int n, int m, int d, float scale)
{
    extern __shared__ float score[];  // (m,)
    __shared__ int maximum;           // as to_ordered gives it
    __shared__ float total;

    const int thread = threadIdx.x;
    const int row = blockIdx.x;  // query
    const int bh = blockIdx.y;
    const float* q_row = q + ((size_t)bh * n + row) * d;  // (d,)
    const float* k_head = k + (size_t)bh * m * d;         // (m, d)
    const float* v_head = v + (size_t)bh * m * d;         // (m, d)

    if (thread == 0) {
        maximum = to_ordered(MINUS_INFINITY);
        total = 0.0f;
    }
    __syncthreads();  // barrier: an atomic would be lost if it came before the first value

    float highest = MINUS_INFINITY;
    for (int j = thread; j < m; j += THREADS) {
        float dot = 0.0f;
        for (int i = 0; i < d; ++i) {
            dot = fmaf(q_row[i], k_head[(size_t)j * d + i], dot);
        }
        score[j] = dot * scale;
        highest = fmaxf(highest, score[j]);
    }
    atomicMax(&maximum, to_ordered(highest));
    __syncthreads();  // barrier: a fast warp would read a maximum that slow warps still raise

    const float shift = from_ordered(maximum);
    float sum = 0.0f;
    for (int j = thread; j < m; j += THREADS) {
        score[j] = expf(score[j] - shift);
        sum += score[j];
    }
    atomicAdd(&total, sum);
    __syncthreads();  // barrier: a fast warp would read weights and a sum that are not complete

    for (int c = thread; c < d; c += THREADS) {
        float element = 0.0f;
        for (int j = 0; j < m; ++j) {
            element = fmaf(score[j], v_head[(size_t)j * d + c], element);
        }
        out[((size_t)bh * n + row) * d + c] = element / total;
    }
}
