// Idea:          One thread does a whole row: scale, softmax, product with V.
// Changes from:  nothing
// Shapes:        s (BH, n, m), v (BH, m, d), out (BH, n, d); row-major float32; rows = BH*n
// Launch:        softmax_output_serial: grid (ceil(BH*n/THREADS)), block (THREADS)
// Needs:         sm_50; THREADS <= 1024
// Expect:        neighbouring threads read s m floats apart, a sector a lane; only BH*n threads
//                have work, and each walks its row 3 + d times
// Limits:        BH*n < 2^31; s is overwritten with the softmax weights

#ifndef THREADS
#define THREADS 128  // rows a block
#endif
#define MINUS_INFINITY __int_as_float(0xff800000)  // NVRTC has no <math.h> to name it

extern "C" __global__ void __launch_bounds__(THREADS) softmax_output_serial(
    float* s,        // (BH, n, m); scores in, softmax weights out
    const float* v,  // (BH, m, d)
    float* out,      // (BH, n, d)
    int rows, int n, int m, int d, float scale)
{
    const long long row = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (row >= rows) return;

    float* s_row = s + row * m;                           // (m,)
    const float* v_head = v + (size_t)(row / n) * m * d;  // (m, d), of this row's head
    float* out_row = out + row * d;                       // (d,)

    float maximum = MINUS_INFINITY;
    for (int j = 0; j < m; ++j) {
        maximum = fmaxf(maximum, s_row[j] * scale);
    }
    // A row of -inf has no key to look at; shifting it by its maximum would give inf - inf = NaN.
    const float shift = maximum == MINUS_INFINITY ? 0.0f : maximum;

    float total = 0.0f;
    for (int j = 0; j < m; ++j) {
        const float weight = expf(fmaf(s_row[j], scale, -shift));  // at most 1: cannot overflow
        s_row[j] = weight;
        total += weight;
    }
    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
    for (int j = 0; j < m; ++j) {
        s_row[j] *= inverse;
    }

    for (int c = 0; c < d; ++c) {
        float sum = 0.0f;
        for (int j = 0; j < m; ++j) {
            sum = fmaf(s_row[j], v_head[(size_t)j * d + c], sum);
        }
        out_row[c] = sum;
    }
}
