// Idea:          Online softmax; the kernel expects the grid's axes the other way round.
// Changes from:  clean/rows_online.cu
// Shapes:        q (BH, n, d), k (BH, m, d), v (BH, m, d), out (BH, n, d); row-major float32
// Launch:        rows_online: grid (n, BH), block (THREADS), static shared KEYS*4 bytes
// Needs:         sm_50; THREADS <= 1024
// Expect:        no array of n x m anywhere; out is read back once for each KEYS keys
// Limits:        BH <= 65535; each thread repeats the maximum and the sum of the scores

// Clean:    clean/rows_online.cu
// Defect:   out-of-bounds
// Symptom:  an illegal address; with as many rows as heads, right
// Story:    the launcher was written for one kernel and kept for the next
// Case:     BH=2, n=5, m=7, d=9

#ifndef THREADS
#define THREADS 64  // threads a block
#endif
#ifndef KEYS
#define KEYS 16  // keys between two updates of the running maximum
#endif
#define MINUS_INFINITY __int_as_float(0xff800000)  // NVRTC has no <math.h> to name it

extern "C" __global__ void __launch_bounds__(THREADS) rows_online(
    const float* q,  // (BH, n, d)
    const float* k,  // (BH, m, d)
    const float* v,  // (BH, m, d)
    float* out,      // (BH, n, d)
    int n, int m, int d, float scale, int causal)
{
    __shared__ float score[KEYS];

    const int thread = threadIdx.x;
    const int row = blockIdx.y;  // <- defect
    const int bh = blockIdx.x;
    const float* q_row = q + ((size_t)bh * n + row) * d;  // (d,)
    const float* k_head = k + (size_t)bh * m * d;         // (m, d)
    const float* v_head = v + (size_t)bh * m * d;         // (m, d)
    float* out_row = out + ((size_t)bh * n + row) * d;    // (d,)

    float maximum = MINUS_INFINITY;  // of the scores so far
    float total = 0.0f;              // sum of exp(score - maximum) so far
    for (int start = 0; start < m; start += KEYS) {
        const int count = min(KEYS, m - start);
        for (int j = thread; j < count; j += THREADS) {
            float dot = 0.0f;
            for (int i = 0; i < d; ++i) {
                dot = fmaf(q_row[i],
                           k_head[(size_t)(start + j) * d + i], dot);  // <- found here
            }
            const bool masked = causal && start + j > row;
            score[j] = masked ? MINUS_INFINITY : dot * scale;
        }
        __syncthreads();  // barrier: a fast warp would read scores that are not stored yet

        float highest = maximum;
        for (int j = 0; j < count; ++j) {
            highest = fmaxf(highest, score[j]);
        }
        const float shift = highest == MINUS_INFINITY ? 0.0f : highest;
        const float correction = expf(maximum - shift);  // what was summed up to now was too large
        maximum = highest;
        total *= correction;
        for (int j = 0; j < count; ++j) {
            total += expf(score[j] - shift);
        }
        for (int c = thread; c < d; c += THREADS) {
            float sum = 0.0f;
            if (start > 0) sum = out_row[c] * correction;
            for (int j = 0; j < count; ++j) {
                sum = fmaf(expf(score[j] - shift), v_head[(size_t)(start + j) * d + c], sum);
            }
            out_row[c] = sum;
        }
        __syncthreads();  // barrier: a fast warp would overwrite scores that others still read
    }
    for (int c = thread; c < d; c += THREADS) {
        out_row[c] = total > 0.0f ? out_row[c] / total : 0.0f;
    }
}
